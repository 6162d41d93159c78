// The frontend's records of runs during a trace, see trace.go.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "_cgo_export.h"
#include "embedded.h"

_Atomic bool pw_tracing;

int64_t pw_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);  // the clock of XLA's profiler, whose planes are shown beside ours
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// launch is a run that has not completed on all its devices.
typedef struct {
  uint64_t number;
  _Atomic int32_t refs;  // devices
  struct ending {
    void* launch;
    size_t device;
  } devices[];
} launch;

static void finished(PJRT_Error* error, void* user_arg) {
  struct ending* e = user_arg;
  launch* l = e->launch;
  int64_t now = pw_now();
  if (error) pw_error_free(error);
  pwGoTraceEnd(l->number, e->device, now);
  if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) == 1) free(l);
}

void pw_trace_run(PJRT_LoadedExecutable* e, uint64_t gang, PJRT_Device* const* devices, size_t n, int64_t begin,
                  int64_t end, PJRT_Event** done) {
  launch* l = pw_alloc(sizeof *l + n * sizeof *l->devices);
  if (l == NULL) return;  // the run is under way: the trace lacks it
  l->number = pwGoTraceRun(e->name, e->program, gang, (PJRT_Device**)devices, n, begin, end);
  atomic_init(&l->refs, (int32_t)n);
  for (size_t d = 0; d < n; d++) {
    l->devices[d] = (struct ending){l, d};
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = done[d];
    on.callback = finished;
    on.user_arg = &l->devices[d];
    PJRT_Error* err = pw_under->PJRT_Event_OnReady(&on);
    if (err) finished(err, &l->devices[d]);
  }
}
