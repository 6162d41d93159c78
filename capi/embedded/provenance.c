// Error provenance: which call an error of work under way comes from. The plugin reports what went wrong to those who
// wait for an array, but not whose call it was, and every read of a failed array gets INTERNAL, whatever the code was.
// So an array that work under way may still fail to make has a provenance: the run, with its line in the user's program
// and with events that keep its error; or, for an array that was never made, the error alone. An error on its way to
// the caller is replaced by that of the provenance.
//
// Runs that cannot fail once they run, and arrays that are ready, have none: checking costs one load an argument.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "run.h"

enum {
  kParents = 4,  // of a run; others are not recorded
  kDepth = 32,   // longest chain of runs under way that is recorded
  kBuckets = 256,
};

struct pw_provenance {
  _Atomic int32_t refs;
  _Atomic bool well;  // it has ended without an error
  int depth;
  char* at;  // its line in the user's program; NULL if it is not a run, and only joins others
  PJRT_Error* failed;  // for an array that was never made: its error
  struct end {
    PJRT_Event* event;  // its first result is ready, or has failed
    PJRT_Device* device;
  }* ends;  // one for each device
  size_t num_ends;
  size_t num_parents;
  pw_provenance* parents[kParents];  // runs that made its inputs
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the arrays' provenances and the table

// Where what is on a device comes from.
typedef struct {
  pw_provenance* provenance;
  PJRT_Device* device;
} origin;

// An event that was handed out, whose error will be replaced.
typedef struct tracked {
  struct tracked* next;
  PJRT_Event* event;
  origin of;
} tracked;
static tracked* buckets[kBuckets];
static _Atomic int64_t num_tracked;

static tracked** bucket(PJRT_Event* event) { return &buckets[((uintptr_t)event >> 4) % kBuckets]; }

static char kNowhere[] = "";  // for an array that was never made: the message itself has a line

static pw_provenance* hold(pw_provenance* o) {
  if (o) atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  return o;
}

void pw_provenance_drop(pw_provenance* o) {
  if (o == NULL || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  for (size_t i = 0; i < o->num_ends; i++) pw_destroy_event(o->ends[i].event);
  for (size_t i = 0; i < o->num_parents; i++) pw_provenance_drop(o->parents[i]);
  if (o->failed) pw_error_free(o->failed);
  free(o->ends);
  if (o->at != kNowhere) free(o->at);
  free(o);
  PW_COUNT(provenances, -1);
}

// provenance_of returns an array's provenance, with a reference.
static pw_provenance* provenance_of(pw_array* a) {
  if (atomic_load_explicit(&a->provenance, memory_order_relaxed) == NULL) return NULL;
  pthread_mutex_lock(&mu);
  pw_provenance* o = hold(atomic_load_explicit(&a->provenance, memory_order_relaxed));
  pthread_mutex_unlock(&mu);
  return o;
}

void pw_provenance_set(pw_array* a, pw_provenance* o) {
  pthread_mutex_lock(&mu);
  pw_provenance* old = atomic_exchange_explicit(&a->provenance, hold(o), memory_order_relaxed);
  pthread_mutex_unlock(&mu);
  pw_provenance_drop(old);
}

static PJRT_Error* copy_of(PJRT_Error* err) {
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(err, &code, &text, &size);
  return pw_error(code, "%.*s", (int)size, text);
}

static bool is_ready(PJRT_Event* event) {
  PW_ARGS(PJRT_Event_IsReady_Args, is);
  is.event = event;
  PJRT_Error* err = pw_under->PJRT_Event_IsReady(&is);
  if (err) pw_error_free(err);
  return err == NULL && is.is_ready;
}

// error_of returns the error of a run that has failed, which the caller frees; NULL if it has not failed, or not yet.
static PJRT_Error* error_of(pw_provenance* o) {
  if (o->failed) return copy_of(o->failed);
  if (atomic_load_explicit(&o->well, memory_order_relaxed)) return NULL;
  bool ended = o->num_ends > 0;
  for (size_t i = 0; i < o->num_ends; i++) {
    if (!is_ready(o->ends[i].event)) {
      ended = false;
      continue;
    }
    PW_ARGS(PJRT_Event_Error_Args, why);
    why.event = o->ends[i].event;
    PJRT_Error* err = pw_under->PJRT_Event_Error(&why);
    if (err) return err;
  }
  if (ended) atomic_store_explicit(&o->well, true, memory_order_relaxed);
  return NULL;
}

// untold returns the event of a run that has not failed yet on which it depends whether it has failed on a device; NULL
// if it has not. Where the run is not on that device, what it made has been copied: then it is any that is not ready.
static PJRT_Event* untold(pw_provenance* o, const PJRT_Device* device) {
  PJRT_Event* open = NULL;
  for (size_t i = 0; i < o->num_ends; i++) {
    bool ready = is_ready(o->ends[i].event);
    if (o->ends[i].device == device) return ready ? NULL : o->ends[i].event;
    if (!ready) open = o->ends[i].event;
  }
  return open;
}

// cannot_fail reports whether nothing of a provenance can fail any more.
static bool cannot_fail(pw_provenance* o) {
  PJRT_Error* err = NULL;
  if (o->at) {
    err = error_of(o);
  } else {
    bool all = true;
    for (size_t i = 0; i < o->num_parents && all; i++) all = cannot_fail(o->parents[i]);
    if (all) atomic_store_explicit(&o->well, true, memory_order_relaxed);
  }
  if (err) pw_error_free(err);
  return atomic_load_explicit(&o->well, memory_order_relaxed);
}

static void add_parent(pw_provenance* o, pw_provenance* run) {
  if (o->num_parents == kParents || run->depth >= kDepth || cannot_fail(run)) return;
  for (size_t i = 0; i < o->num_parents; i++)
    if (o->parents[i] == run) return;
  o->parents[o->num_parents++] = hold(run);
  if (run->depth >= o->depth) o->depth = run->depth + 1;
}

pw_provenance* pw_provenance_new(const PJRT_LoadedExecutable* e, const char* location,
                                 const PJRT_ExecuteOptions* options, pw_buffer* const* inputs, size_t num_inputs,
                                 PJRT_Buffer** const* results, size_t n, PJRT_Device* only) {
  // The run is launched, and nothing but its results can be returned. If memory is short, their errors lack the line of
  // the run.
  pw_provenance* o = pw_zeros(1, sizeof *o);
  if (o == NULL) return NULL;
  PW_COUNT(provenances, 1);
  o->refs = 1;
  for (size_t i = 0; i < num_inputs; i++) {
    pw_provenance* from = provenance_of(inputs[i]->array);
    if (from == NULL) continue;
    if (from->at) add_parent(o, from);
    for (size_t p = 0; from->at == NULL && p < from->num_parents; p++) add_parent(o, from->parents[p]);
    pw_provenance_drop(from);
  }
  if (location || e->fails) {
    o->ends = pw_zeros(n, sizeof *o->ends);
    for (size_t d = 0; o->ends && e->num_outputs && d < n; d++) {
      PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
      ready.buffer = results[d][0];
      PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&ready);
      if (err) pw_error_free(err);
      else o->ends[o->num_ends++] = (struct end){ready.event, pw_row_device(e, only, d)};
    }
    PJRT_Error* err = error_of(o);
    if (err) pw_error_free(err);
    if (!atomic_load_explicit(&o->well, memory_order_relaxed)) {
      char text[PW_LOCATION] = "", at[600] = "";
      if (location == NULL) pw_location(options, text, sizeof text);
      pw_place_text(at, sizeof at, e, location ? location : text);
      o->at = pw_copy_text(at);
      if (o->at) return o;
    }
  }
  if (o->at == NULL && o->num_parents == 1) {  // that of its input says it all
    pw_provenance* parent = hold(o->parents[0]);
    pw_provenance_drop(o);
    return parent;
  }
  if (o->at == NULL && o->num_parents == 0) {
    pw_provenance_drop(o);
    return NULL;
  }
  return o;
}

void pw_provenance_pass(pw_buffer* from, pw_array* to) {
  pw_provenance* o = provenance_of(from->array);
  if (o && !cannot_fail(o)) pw_provenance_set(to, o);
  pw_provenance_drop(o);
}

bool pw_provenance_fails(pw_array* a, PJRT_Error_Code code, const char* message) {
  pw_provenance* o = pw_zeros(1, sizeof *o);
  if (o == NULL) return false;
  PW_COUNT(provenances, 1);
  o->refs = 1;
  o->at = kNowhere;
  o->failed = pw_error(code, "%s", message);
  pw_provenance_set(a, o);
  pw_provenance_drop(o);
  return true;
}

// exchange replaces an error by that of the run that failed first, if it came of one, and reports whether it did. The
// error is of what has this origin.
//
// Those who wait for a run's results may hear of its failure before its own events do, even on the thread that is about
// to tell these. So where a run that has not told yet may have failed first, *open is an event of it that is not ready,
// and exchange finds more once it is; otherwise *open is NULL.
static bool exchange(PJRT_Error** err, origin of, PJRT_Event** open) {
  pw_provenance* o = of.provenance;
  pw_provenance* first = NULL;
  PJRT_Error* why = NULL;
  for (pw_provenance* next = o; next;) {
    pw_provenance* at = next;
    next = NULL;
    *open = NULL;
    for (size_t i = 0; i < at->num_parents && next == NULL; i++) {
      PJRT_Error* earlier = error_of(at->parents[i]);
      if (earlier) {
        if (why) pw_error_free(why);
        why = earlier;
        first = next = at->parents[i];
      } else if (*open == NULL) {
        *open = untold(at->parents[i], of.device);
      }
    }
  }
  if (first == NULL && o->at) {
    why = error_of(o);
    if (why || o->num_ends == 0) first = o;
    else if (*open == NULL) *open = untold(o, of.device);
  }
  if (first == NULL) return false;
  if (why) {
    pw_error_free(*err);
    *err = why;
  }
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(*err, &code, &text, &size);
  size_t length = strlen(first->at);
  if (length && memmem(text, size, first->at, length) == NULL) *err = pw_error_context(*err, first->at);
  return true;
}

bool pw_provenance_explains(PJRT_Error** err, pw_buffer* const* inputs, size_t n) {
  PJRT_Event* open;  // not waited for: the caller may hold the GIL, for which a run may wait
  bool known = false;
  for (size_t i = 0; i < n && !known; i++) {
    pw_provenance* o = provenance_of(inputs[i]->array);
    known = o && exchange(err, (origin){o, inputs[i]->device}, &open);
    pw_provenance_drop(o);
  }
  return known;
}

PJRT_Error* pw_provenance_fault(pw_buffer* const* inputs, size_t n) {
  PJRT_Error* err = NULL;
  PJRT_Event* open;
  for (size_t i = 0; i < n && err == NULL; i++) {
    pw_provenance* o = provenance_of(inputs[i]->array);
    if (o && o->at) err = error_of(o);
    for (size_t p = 0; o && err == NULL && p < o->num_parents; p++) err = error_of(o->parents[p]);
    if (err) exchange(&err, (origin){o, inputs[i]->device}, &open);
    pw_provenance_drop(o);
  }
  return err;
}

PJRT_Error* pw_provenance_error(PJRT_Error* err, pw_buffer* buffer) {
  if (err) pw_provenance_explains(&err, &buffer, 1);
  return err;
}

// ---- events ----

static void track(PJRT_Event* event, origin of) {
  tracked* t = pw_alloc(sizeof *t);
  if (t == NULL) return;  // the event is the plugin's, and fires with the plugin's own error
  tracked** b = bucket(event);
  pthread_mutex_lock(&mu);
  hold(of.provenance);
  *t = (tracked){*b, event, of};
  *b = t;
  atomic_fetch_add_explicit(&num_tracked, 1, memory_order_relaxed);
  pthread_mutex_unlock(&mu);
}

void pw_provenance_track(PJRT_Event* event, pw_provenance* o, PJRT_Device* device) {
  if (event && o && !cannot_fail(o)) track(event, (origin){o, device});
}

void pw_provenance_event(PJRT_Event* event, pw_buffer* buffer) {
  pw_provenance* o = provenance_of(buffer->array);
  pw_provenance_track(event, o, buffer->device);
  pw_provenance_drop(o);
}

// tracks returns the origin of what an event is of that was handed out, with a reference to its provenance, which is
// NULL for an event that is not tracked. With ends, the event is no longer tracked.
static origin tracks(PJRT_Event* event, bool ends) {
  origin of = {0};
  if (atomic_load_explicit(&num_tracked, memory_order_relaxed) == 0) return of;
  tracked* gone = NULL;
  pthread_mutex_lock(&mu);
  tracked** t = bucket(event);
  while (*t && (*t)->event != event) t = &(*t)->next;
  if (*t) of = (*t)->of;
  if (*t && ends) {
    gone = *t;
    *t = gone->next;
    atomic_fetch_sub_explicit(&num_tracked, 1, memory_order_relaxed);
  } else {
    hold(of.provenance);
  }
  pthread_mutex_unlock(&mu);
  free(gone);
  return of;
}

// The event that arrays have in the child of a fork: it has failed.
static char forked_event;
PJRT_Event* const pw_forked_event = (PJRT_Event*)&forked_event;

PJRT_Error* pw_PJRT_Event_IsReady(PJRT_Event_IsReady_Args* args) {
  if (args->event == pw_forked_event) {
    args->is_ready = true;
    return NULL;
  }
  if (!PW_HAS(PJRT_Event_IsReady)) return pw_unimplemented("PJRT_Event_IsReady");
  PJRT_Error* err = pw_under->PJRT_Event_IsReady(args);
  if (err || !args->is_ready || pw_forked) return err;
  origin of = tracks(args->event, false);
  if (of.provenance == NULL) return NULL;
  PW_ARGS(PJRT_Event_Error_Args, why);
  why.event = args->event;
  PJRT_Event* open = NULL;
  PJRT_Error* failed = pw_under->PJRT_Event_Error(&why);
  if (failed) exchange(&failed, of, &open);
  if (failed) pw_error_free(failed);
  args->is_ready = open == NULL;  // ready is what PJRT_Event_Error can explain without waiting
  pw_provenance_drop(of.provenance);
  return NULL;
}

PJRT_Error* pw_PJRT_Event_Destroy(PJRT_Event_Destroy_Args* args) {
  if (args->event == pw_forked_event) return NULL;
  if (!PW_HAS(PJRT_Event_Destroy)) return pw_unimplemented("PJRT_Event_Destroy");
  if (!pw_forked) pw_provenance_drop(tracks(args->event, true).provenance);
  return pw_under->PJRT_Event_Destroy(args);
}

PJRT_Error* pw_PJRT_Event_Error(PJRT_Event_Error_Args* args) {
  if (args->event == pw_forked_event) return pw_forked_error();
  if (!PW_HAS(PJRT_Event_Error)) return pw_unimplemented("PJRT_Event_Error");
  PJRT_Error* err = pw_under->PJRT_Event_Error(args);
  if (err == NULL || pw_forked) return err;
  PJRT_Event* open;
  origin of = tracks(args->event, false);
  if (of.provenance) exchange(&err, of, &open);
  pw_provenance_drop(of.provenance);
  return err;
}

// explain is exchange for a caller that may wait.
static void explain(PJRT_Error** err, origin of) {
  PJRT_Event* open;
  while (exchange(err, of, &open), open) {
    PW_ARGS(PJRT_Event_Await_Args, await);
    await.event = open;
    PJRT_Error* failed = pw_under->PJRT_Event_Await(&await);
    if (failed) pw_error_free(failed);
  }
}

// The child of a fork would wait for threads that it does not have.
PJRT_Error* pw_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  if (pw_forked) return pw_forked_error();
  if (!PW_HAS(PJRT_Event_Await)) return pw_unimplemented("PJRT_Event_Await");
  PJRT_Error* err = pw_under->PJRT_Event_Await(args);
  if (err == NULL) return NULL;
  origin of = tracks(args->event, false);
  if (of.provenance) explain(&err, of);
  pw_provenance_drop(of.provenance);
  return err;
}

// A caller's function that gets the error of the provenance.
typedef struct {
  void (*callback)(PJRT_Error*, void*);
  void* arg;
  origin of;
  PJRT_Error* failed;
} listener;

static void on_ready(PJRT_Error* err, void* arg);

static PJRT_Error* listen(listener* l, PJRT_Event* event) {
  PW_ARGS(PJRT_Event_OnReady_Args, on);
  on.event = event;
  on.callback = on_ready;
  on.user_arg = l;
  return pw_under->PJRT_Event_OnReady(&on);
}

static void on_ready(PJRT_Error* err, void* arg) {
  listener* l = arg;
  if (l->failed == NULL) l->failed = err;
  else if (err) pw_error_free(err);  // of the run that it has waited for
  PJRT_Event* open = NULL;
  if (l->failed) exchange(&l->failed, l->of, &open);
  if (open) {
    if ((err = listen(l, open)) == NULL) return;
    pw_error_free(err);
  }
  listener last = *l;
  free(l);
  pw_provenance_drop(last.of.provenance);
  last.callback(last.failed, last.arg);
}

PJRT_Error* pw_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  if (pw_forked) {
    args->callback(pw_forked_error(), args->user_arg);
    return NULL;
  }
  if (!PW_HAS(PJRT_Event_OnReady)) return pw_unimplemented("PJRT_Event_OnReady");
  origin of = tracks(args->event, false);
  if (of.provenance == NULL) return pw_under->PJRT_Event_OnReady(args);
  listener* l = pw_alloc(sizeof *l);
  if (l == NULL) {
    pw_provenance_drop(of.provenance);
    return pw_short("the callback of an event", sizeof *l);
  }
  *l = (listener){args->callback, args->user_arg, of, NULL};
  PJRT_Error* err = listen(l, args->event);
  if (err) {
    pw_provenance_drop(of.provenance);
    free(l);
  }
  return err;
}
