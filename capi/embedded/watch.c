// Watches: what happens when the devices of a run have completed it. See run.h.
#include <stdlib.h>

#include "_cgo_export.h"
#include "gate.h"
#include "room.h"

void pw_progress(uint64_t session, pw_cell* cell, uint64_t gang, uint32_t bits) {
  if (cell == NULL) return;
  if (atomic_fetch_or_explicit(&cell->state, bits, memory_order_acq_rel) & PW_WANTED) {
    PW_COUNT(reports, 1);
    pwGoReport(session, gang);
  }
}

struct pw_watch {
  uint64_t session, gang;
  pw_cell* cell;  // NULL for a gang that had to wait
  pw_kept* kept;
  bool waited;  // a gang may wait for it
  pw_program_time* time;
  int64_t begun;           // by pw_clock
  uint32_t weight;         // the runs that its time stands for
  uint64_t traced;         // its number in traces, see trace.go; 0: none is taken
  _Atomic int64_t spent;   // device time
  _Atomic bool failed;
  _Atomic int32_t refs;  // its user, and inputs that have yet to come
  size_t num;
  _Atomic int32_t devices;    // that have yet to get through with the gang
  _Atomic int32_t unsettled;  // devices whose time is not counted yet
  _Atomic bool guessed;       // is what it took: news came in another order than what they tell
  struct ending {
    pw_watch* watch;
    pw_device_time* device;
    pw_launch launch;
    _Atomic int32_t open;  // the device, and inputs that have yet to come
  } endings[];
};

static _Atomic uint64_t watches, watched;  // that have begun, and ended, of those that others may wait for

bool pw_waiting(uint64_t* ended) {
  *ended = atomic_load(&watched);
  return atomic_load(&watches) != *ended;
}

void pw_watch_free(pw_watch* w) {
  if (w == NULL || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1) return;
  pw_program_time_drop(w->time);
  free(w);
}

// settle accounts for one ending. The last to call it counts the time that the device took: a thread that reports an
// input may be overtaken by the run that the input set off. How long such a run took is not known, and it counts as
// usual ones do.
static void settle(struct ending* end) {
  if (atomic_fetch_sub_explicit(&end->open, 1, memory_order_acq_rel) != 1) return;
  pw_watch* w = end->watch;
  bool guessed = false;
  int64_t usual = __atomic_load_n(&w->time->usual, __ATOMIC_RELAXED);
  int64_t took = pw_time_end(end->device, &end->launch, usual, &guessed);
  if (w->traced) pw_trace_end(w->traced, (size_t)(end - w->endings), end->launch.ready, end->launch.done);
  atomic_fetch_add_explicit(&w->spent, took, memory_order_relaxed);
  if (guessed) atomic_store_explicit(&w->guessed, true, memory_order_relaxed);
  if (atomic_fetch_sub_explicit(&w->unsettled, 1, memory_order_acq_rel) != 1) return;
  if (w->weight && !w->failed) pw_time_took(w->time, w->spent, w->num, w->weight, !w->guessed);
}

static void one_done(PJRT_Error* error, void* user_arg) {
  struct ending* end = user_arg;
  pw_watch* w = end->watch;
  if (error) {
    atomic_store_explicit(&w->failed, true, memory_order_relaxed);
    pw_error_free(error);
  }
  atomic_store_explicit(&end->launch.done, pw_clock(), memory_order_relaxed);
  settle(end);
  if (atomic_fetch_sub_explicit(&w->devices, 1, memory_order_acq_rel) != 1) return;
  if (w->waited) atomic_fetch_add_explicit(&watched, 1, memory_order_relaxed);
  pw_kept_drop(w->kept);
  if (w->cell) {
    pw_progress(w->session, w->cell, w->gang, PW_DONE);
  } else if (w->gang) {
    PW_COUNT(reports, 1);
    pwGoCompleted(w->session, w->gang);
  }
  pw_watch_free(w);
}

pw_watch* pw_watch_new(const PJRT_LoadedExecutable* e, PJRT_Device* only) {
  size_t n = only ? 1 : e->num_devices;
  pw_watch* w = pw_alloc(sizeof *w + n * sizeof *w->endings);
  if (w == NULL) return NULL;
  *w = (pw_watch){.session = e->session, .time = e->time, .num = n};
  atomic_fetch_add_explicit(&e->time->refs, 1, memory_order_relaxed);
  atomic_init(&w->refs, 1);
  atomic_init(&w->devices, (int32_t)n);
  atomic_init(&w->unsettled, (int32_t)n);
  for (size_t d = 0; d < n; d++)
    w->endings[d] = (struct ending){.watch = w, .device = pw_row_device(e, only, d)->time, .open = 1};
  return w;
}

static void arrived(PJRT_Error* error, void* user_arg) {
  struct ending* end = user_arg;
  if (error) pw_error_free(error);
  pw_launch* l = &end->launch;
  int64_t now = pw_clock(), last = atomic_load_explicit(&l->ready, memory_order_relaxed);
  while (last < now && !atomic_compare_exchange_weak_explicit(&l->ready, &last, now, memory_order_relaxed,
                                                              memory_order_relaxed)) {
  }
  atomic_fetch_sub_explicit(&l->missing, 1, memory_order_release);
  pw_watch* w = end->watch;
  settle(end);
  pw_watch_free(w);
}

// await_input has an input noted when it comes that is still on its way, and reports whether it is there.
static bool await_input(struct ending* end, PJRT_Buffer* input) {
  PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = input;
  PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&ready);
  if (err) {
    pw_error_free(err);
    return true;
  }
  PW_ARGS(PJRT_Event_IsReady_Args, is);
  is.event = ready.event;
  if ((err = pw_under->PJRT_Event_IsReady(&is))) pw_error_free(err);
  bool there = err || is.is_ready;
  if (!there) {
    atomic_fetch_add_explicit(&end->watch->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&end->open, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&end->launch.missing, 1, memory_order_relaxed);
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = ready.event;
    on.callback = arrived;
    on.user_arg = end;
    if ((err = pw_under->PJRT_Event_OnReady(&on))) arrived(err, end);
  }
  pw_destroy_event(ready.event);
  return there;
}

void pw_watch_launch(pw_watch* w, pw_buffer* const* inputs, PJRT_Buffer* const* flat, size_t num_args, bool traced) {
  if (w == NULL) return;
  for (size_t d = 0; d < w->num; d++) w->weight += pw_time_weigh(w->time, w->endings[d].device);
  for (size_t i = 0; (w->weight || traced) && i < w->num * num_args; i++) {
    pw_buffer* b = inputs[i];
    bool copied = flat[i] != b->under;
    if (!copied && !atomic_load_explicit(&b->comes, memory_order_relaxed)) continue;
    if (await_input(&w->endings[i / num_args], flat[i]) && !copied)
      atomic_store_explicit(&b->comes, false, memory_order_relaxed);
  }
  w->begun = pw_clock();
}

void pw_watch_begin(pw_watch* w, uint64_t gang, pw_cell* cell, pw_kept* kept, uint64_t traced, PJRT_Event** done) {
  w->traced = traced;
  w->gang = gang;
  w->cell = cell;
  w->kept = kept;
  w->waited = gang || kept;
  if (w->waited) atomic_fetch_add_explicit(&watches, 1, memory_order_relaxed);
  for (size_t d = 0; d < w->num; d++) {
    pw_launch* l = &w->endings[d].launch;
    l->begun = w->begun;
    l->weight = w->weight;
    pw_time_begin(w->endings[d].device, l);
  }
  for (size_t d = 0, n = w->num; d < n; d++) {  // the last callback frees the watch
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = done[d];
    on.callback = one_done;
    on.user_arg = &w->endings[d];
    PJRT_Error* err = pw_under->PJRT_Event_OnReady(&on);
    if (err) one_done(err, on.user_arg);
  }
}
