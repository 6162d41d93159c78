// The frontend's records of runs during a trace, see trace.go.
#define _GNU_SOURCE
#include <time.h>

#include "_cgo_export.h"
#include "embedded.h"
#include "gate.h"

_Atomic bool pw_tracing;

int64_t pw_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);  // the clock of XLA's profiler, whose planes are shown beside ours
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

uint64_t pw_trace_run(PJRT_LoadedExecutable* e, uint64_t gang, PJRT_Device* only, int64_t begin) {
  if (begin == 0) return 0;
  return pwGoTraceRun(e->name, e->program, gang, only ? &only : e->devices, only ? 1 : e->num_devices, begin, pw_now());
}

void pw_trace_end(uint64_t run, size_t device, int64_t came, int64_t done) {
  int64_t since = pw_now() - pw_clock();
  pwGoTraceEnd(run, device, came ? came + since : 0, done + since);
}
