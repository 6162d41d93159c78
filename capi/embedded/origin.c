// Where errors of work under way come from. The plugin tells whoever waits for an
// array what went wrong, but not whose call it was, and whatever reads a failed array
// is told INTERNAL, whatever the code was. So arrays that work under way may yet fail
// to make remember their origin: the run, with its place in the user's program and
// with events that keep its error; or, of an array that was never made, the error
// alone. An error on its way to the caller is exchanged for that of the origin.
//
// Runs that cannot fail while they run, and whatever has ended well, have none: they
// cost one load an argument.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "run.h"

enum {
  kParents = 4,  // of a run; further ones go unnamed
  kDepth = 32,   // runs under way that are remembered behind one another
  kBuckets = 256,
};

struct pw_origin {
  _Atomic int32_t refs;
  _Atomic bool well;  // it has ended, and not failed
  int depth;
  char* at;  // its place in the user's program; NULL where it is no run, and only joins others
  PJRT_Error* failed;  // of what was never made: the error it has instead
  PJRT_Event** events;  // one a device: its first result is there, or has failed
  size_t num_events;
  size_t num_parents;
  pw_origin* parents[kParents];  // runs that made what it reads
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the arrays' origins and the table

// An event that was handed out, whose error is to be exchanged.
typedef struct tracked {
  struct tracked* next;
  PJRT_Event* event;
  pw_origin* origin;
} tracked;
static tracked* buckets[kBuckets];
static _Atomic int64_t num_tracked;

static tracked** bucket(PJRT_Event* event) { return &buckets[((uintptr_t)event >> 4) % kBuckets]; }

static char kNowhere[] = "";  // of what was never made: its message says where it was to be

static pw_origin* hold(pw_origin* o) {
  if (o) atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  return o;
}

void pw_origin_drop(pw_origin* o) {
  if (o == NULL || atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  for (size_t i = 0; i < o->num_events; i++) pw_destroy_event(o->events[i]);
  for (size_t i = 0; i < o->num_parents; i++) pw_origin_drop(o->parents[i]);
  if (o->failed) pw_error_free(o->failed);
  free(o->events);
  if (o->at != kNowhere) free(o->at);
  free(o);
  PW_COUNT(origins, -1);
}

// of gives an array's origin, held.
static pw_origin* of(pw_array* a) {
  if (atomic_load_explicit(&a->origin, memory_order_relaxed) == NULL) return NULL;
  pthread_mutex_lock(&mu);
  pw_origin* o = hold(atomic_load_explicit(&a->origin, memory_order_relaxed));
  pthread_mutex_unlock(&mu);
  return o;
}

void pw_origin_set(pw_array* a, pw_origin* o) {
  pthread_mutex_lock(&mu);
  pw_origin* old = atomic_exchange_explicit(&a->origin, hold(o), memory_order_relaxed);
  pthread_mutex_unlock(&mu);
  pw_origin_drop(old);
}

static PJRT_Error* same(PJRT_Error* err) {
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(err, &code, &text, &size);
  return pw_error(code, "%.*s", (int)size, text);
}

// fault gives the error of a run that has failed, to be freed; NULL where it has not,
// or not yet.
static PJRT_Error* fault(pw_origin* o) {
  if (o->failed) return same(o->failed);
  if (atomic_load_explicit(&o->well, memory_order_relaxed)) return NULL;
  bool ended = o->num_events > 0;
  for (size_t i = 0; i < o->num_events; i++) {
    PW_ARGS(PJRT_Event_IsReady_Args, is);
    is.event = o->events[i];
    PJRT_Error* err = pw_under->PJRT_Event_IsReady(&is);
    if (err || !is.is_ready) {
      if (err) pw_error_free(err);
      ended = false;
      continue;
    }
    PW_ARGS(PJRT_Event_Error_Args, why);
    why.event = o->events[i];
    if ((err = pw_under->PJRT_Event_Error(&why))) return err;
  }
  if (ended) atomic_store_explicit(&o->well, true, memory_order_relaxed);
  return NULL;
}

// well says whether nothing of an origin can fail any more.
static bool well(pw_origin* o) {
  PJRT_Error* err = NULL;
  if (o->at) {
    err = fault(o);
  } else {
    bool all = true;
    for (size_t i = 0; i < o->num_parents && all; i++) all = well(o->parents[i]);
    if (all) atomic_store_explicit(&o->well, true, memory_order_relaxed);
  }
  if (err) pw_error_free(err);
  return atomic_load_explicit(&o->well, memory_order_relaxed);
}

static void add_parent(pw_origin* o, pw_origin* run) {
  if (o->num_parents == kParents || run->depth >= kDepth || well(run)) return;
  for (size_t i = 0; i < o->num_parents; i++)
    if (o->parents[i] == run) return;
  o->parents[o->num_parents++] = hold(run);
  if (run->depth >= o->depth) o->depth = run->depth + 1;
}

pw_origin* pw_origin_new(const PJRT_LoadedExecutable* e, const char* location, const PJRT_ExecuteOptions* options,
                         pw_buffer* const* inputs, size_t num_inputs, PJRT_Buffer** const* results, size_t n) {
  // The run is launched, and nothing can be returned but its results: where memory is short, their errors do without
  // the place of the run.
  pw_origin* o = pw_zeros(1, sizeof *o);
  if (o == NULL) return NULL;
  PW_COUNT(origins, 1);
  o->refs = 1;
  for (size_t i = 0; i < num_inputs; i++) {
    pw_origin* from = of(inputs[i]->array);
    if (from == NULL) continue;
    if (from->at) add_parent(o, from);
    for (size_t p = 0; from->at == NULL && p < from->num_parents; p++) add_parent(o, from->parents[p]);
    pw_origin_drop(from);
  }
  if (location || e->fails) {
    o->events = pw_zeros(n, sizeof *o->events);
    for (size_t d = 0; o->events && e->num_outputs && d < n; d++) {
      PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
      ready.buffer = results[d][0];
      PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&ready);
      if (err) pw_error_free(err);
      else o->events[o->num_events++] = ready.event;
    }
    PJRT_Error* err = fault(o);
    if (err) pw_error_free(err);
    if (!atomic_load_explicit(&o->well, memory_order_relaxed)) {
      char text[PW_LOCATION] = "", at[600] = "";
      if (location == NULL) pw_location(options, text, sizeof text);
      pw_place_text(at, sizeof at, e, location ? location : text);
      o->at = pw_copy_text(at);
      if (o->at) return o;
    }
  }
  if (o->at == NULL && o->num_parents == 1) {  // what it reads says it all
    pw_origin* parent = hold(o->parents[0]);
    pw_origin_drop(o);
    return parent;
  }
  if (o->at == NULL && o->num_parents == 0) {
    pw_origin_drop(o);
    return NULL;
  }
  return o;
}

void pw_origin_pass(pw_buffer* from, pw_array* to) {
  pw_origin* o = of(from->array);
  if (o && !well(o)) pw_origin_set(to, o);
  pw_origin_drop(o);
}

bool pw_origin_fails(pw_array* a, PJRT_Error_Code code, const char* message) {
  pw_origin* o = pw_zeros(1, sizeof *o);
  if (o == NULL) return false;
  PW_COUNT(origins, 1);
  o->refs = 1;
  o->at = kNowhere;
  o->failed = pw_error(code, "%s", message);
  pw_origin_set(a, o);
  pw_origin_drop(o);
  return true;
}

// exchange gives the error of the run that failed first, for one that came of it, and
// says whether there is such a run.
static bool exchange(PJRT_Error** err, pw_origin* o) {
  pw_origin* first = NULL;
  PJRT_Error* why = NULL;
  for (pw_origin* next = o; next;) {
    pw_origin* at = next;
    next = NULL;
    for (size_t i = 0; i < at->num_parents && next == NULL; i++) {
      PJRT_Error* earlier = fault(at->parents[i]);
      if (earlier == NULL) continue;
      if (why) pw_error_free(why);
      why = earlier;
      first = next = at->parents[i];
    }
  }
  if (first == NULL && o->at) {
    first = o;
    why = fault(o);
    if (why == NULL && o->num_events > 0) return false;
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

bool pw_origin_explains(PJRT_Error** err, pw_buffer* const* inputs, size_t n) {
  bool known = false;
  for (size_t i = 0; i < n && !known; i++) {
    pw_origin* o = of(inputs[i]->array);
    known = o && exchange(err, o);
    pw_origin_drop(o);
  }
  return known;
}

PJRT_Error* pw_origin_fault(pw_buffer* const* inputs, size_t n) {
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < n && err == NULL; i++) {
    pw_origin* o = of(inputs[i]->array);
    if (o && o->at) err = fault(o);
    for (size_t p = 0; o && err == NULL && p < o->num_parents; p++) err = fault(o->parents[p]);
    if (err) exchange(&err, o);
    pw_origin_drop(o);
  }
  return err;
}

PJRT_Error* pw_origin_error(PJRT_Error* err, pw_buffer* buffer) {
  if (err) pw_origin_explains(&err, &buffer, 1);
  return err;
}

// ---- events ----

static void track(PJRT_Event* event, pw_origin* o) {
  tracked* t = pw_alloc(sizeof *t);
  if (t == NULL) return;  // the event is the plugin's, and fires as it is: with an error that does not say whose it is
  tracked** b = bucket(event);
  pthread_mutex_lock(&mu);
  *t = (tracked){*b, event, hold(o)};
  *b = t;
  atomic_fetch_add_explicit(&num_tracked, 1, memory_order_relaxed);
  pthread_mutex_unlock(&mu);
}

void pw_origin_track(PJRT_Event* event, pw_origin* o) {
  if (event && o && !well(o)) track(event, o);
}

void pw_origin_event(PJRT_Event* event, pw_buffer* buffer) {
  pw_origin* o = of(buffer->array);
  pw_origin_track(event, o);
  pw_origin_drop(o);
}

// tracks gives the origin of an event that was handed out, held; where it ends, it is
// no longer tracked.
static pw_origin* tracks(PJRT_Event* event, bool ends) {
  if (atomic_load_explicit(&num_tracked, memory_order_relaxed) == 0) return NULL;
  pw_origin* o = NULL;
  tracked* gone = NULL;
  pthread_mutex_lock(&mu);
  tracked** t = bucket(event);
  while (*t && (*t)->event != event) t = &(*t)->next;
  if (*t && ends) {
    gone = *t;
    *t = gone->next;
    o = gone->origin;
    atomic_fetch_sub_explicit(&num_tracked, 1, memory_order_relaxed);
  } else if (*t) {
    o = hold((*t)->origin);
  }
  pthread_mutex_unlock(&mu);
  free(gone);
  return o;
}

static PJRT_Error* told(PJRT_Error* err, PJRT_Event* event) {
  pw_origin* o = err ? tracks(event, false) : NULL;
  if (o) exchange(&err, o);
  pw_origin_drop(o);
  return err;
}

// What arrays have in the child of a fork: an event that has failed.
static char forked_event;
PJRT_Event* const pw_forked_event = (PJRT_Event*)&forked_event;

PJRT_Error* pw_PJRT_Event_IsReady(PJRT_Event_IsReady_Args* args) {
  if (args->event == pw_forked_event) {
    args->is_ready = true;
    return NULL;
  }
  if (!PW_HAS(PJRT_Event_IsReady)) return pw_unimplemented("PJRT_Event_IsReady");
  return pw_under->PJRT_Event_IsReady(args);
}

PJRT_Error* pw_PJRT_Event_Destroy(PJRT_Event_Destroy_Args* args) {
  if (args->event == pw_forked_event) return NULL;
  if (!PW_HAS(PJRT_Event_Destroy)) return pw_unimplemented("PJRT_Event_Destroy");
  if (!pw_forked) pw_origin_drop(tracks(args->event, true));
  return pw_under->PJRT_Event_Destroy(args);
}

PJRT_Error* pw_PJRT_Event_Error(PJRT_Event_Error_Args* args) {
  if (args->event == pw_forked_event) return pw_forked_error();
  if (!PW_HAS(PJRT_Event_Error)) return pw_unimplemented("PJRT_Event_Error");
  PJRT_Error* err = pw_under->PJRT_Event_Error(args);
  return pw_forked ? err : told(err, args->event);
}

// The child of a fork would wait for threads that it does not have.
PJRT_Error* pw_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  if (pw_forked) return pw_forked_error();
  if (!PW_HAS(PJRT_Event_Await)) return pw_unimplemented("PJRT_Event_Await");
  return told(pw_under->PJRT_Event_Await(args), args->event);
}

// A caller's function that is to be told of the origin.
typedef struct {
  void (*callback)(PJRT_Error*, void*);
  void* arg;
  pw_origin* origin;
} listener;

static void on_ready(PJRT_Error* err, void* arg) {
  listener l = *(listener*)arg;
  free(arg);
  if (err) exchange(&err, l.origin);
  pw_origin_drop(l.origin);
  l.callback(err, l.arg);
}

PJRT_Error* pw_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  if (pw_forked) {
    args->callback(pw_forked_error(), args->user_arg);
    return NULL;
  }
  if (!PW_HAS(PJRT_Event_OnReady)) return pw_unimplemented("PJRT_Event_OnReady");
  pw_origin* o = tracks(args->event, false);
  if (o == NULL) return pw_under->PJRT_Event_OnReady(args);
  listener* l = pw_alloc(sizeof *l);
  if (l == NULL) {
    pw_origin_drop(o);
    return pw_short("what is told of an event", sizeof *l);
  }
  *l = (listener){args->callback, args->user_arg, o};
  PW_ARGS(PJRT_Event_OnReady_Args, a);
  a.event = args->event;
  a.callback = on_ready;
  a.user_arg = l;
  PJRT_Error* err = pw_under->PJRT_Event_OnReady(&a);
  if (err) {
    pw_origin_drop(o);
    free(l);
  }
  return err;
}
