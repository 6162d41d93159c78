// What a memory limit means beside others.
//
// A run that has been submitted reads its arguments and writes its results until it ends, whether or not the client
// still holds them. So it keeps a share of each of these arrays, and the core counts them until then.
//
// A run or a new array that does not fit waits, if what it needs is not more than the limit, while room may still be
// made: by a run under way, which ends by itself, or by another Python thread, which may drop what it holds. Such a
// thread has a few seconds for it once no run is under way, since it may well do something else: a notebook has
// several. If all Python threads wait, none of them can free anything; then the youngest wait fails. No wait is longer
// than the session's memory_wait. The calling thread waits here in C, without Python's lock, so that other threads go
// on.
#include "room.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gate.h"
#include "interpreter.h"

// How often a wait looks for Ctrl-C and for threads that have ended: nothing notifies it of these.
static const int64_t kLookNs = 100000000;
// For how long other threads may free something while no run is under way.
static const int64_t kCalmNs = 5000000000;

struct pw_kept {
  pw_pass* pass;
  pw_array* computation;  // stands for what the run takes beside its arrays, and its program's code; or NULL
  size_t num;
  pw_array* arrays[];
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards waits
static pthread_cond_t changed;                          // by CLOCK_MONOTONIC
static pw_room* waits;                                  // the youngest first
static _Atomic uint64_t made;                           // how often room was made
static _Atomic uint32_t num_waits;
static _Atomic uint32_t telling;  // threads that have names of arrays which the core has yet to free

static void make_changed(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

// A wait is counted before it looks at made, and made goes up before the waits are looked at: one of the two sees the
// other.
void pw_room_made(void) {
  atomic_fetch_add(&made, 1);
  if (atomic_load(&num_waits) == 0) return;
  pthread_mutex_lock(&mu);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mu);
}

// Room counts as made before nothing is being told, and can_change looks in the opposite order.
void pw_tell_begin(void) { atomic_fetch_add(&telling, 1); }

void pw_tell_end(bool some) {
  if (some) pw_room_made();
  atomic_fetch_sub(&telling, 1);
}

// ---- what runs keep ----

bool pw_kept_new(pw_call* c) {
  if (!c->e->pass->limited) return true;
  size_t most = c->n * c->m + c->outs;
  pw_kept* k = pw_alloc(sizeof *k + most * sizeof *k->arrays);
  if (k == NULL) return false;
  *k = (pw_kept){.pass = c->e->pass};
  if ((c->e->temp > 0 || c->e->code > 0) && !pw_arrays_new(&k->computation, 1)) {
    free(k);
    return false;
  }
  c->kept = k;
  return true;
}

// is_donated reports whether an argument's memory goes to the results, or is deleted.
static bool is_donated(const pw_call* c, size_t arg) {
  bool is = false;
  for (size_t k = 0; c->e->donates && k < c->e->num_donated; k++) is = is || (size_t)c->e->donated[k] == arg;
  return is && !pw_is_fixed(&c->options, (int64_t)arg);
}

static void keep(pw_kept* k, pw_array* a) {
  if (a->base.name.number != 0 && pw_object_hold(&a->base)) k->arrays[k->num++] = a;
}

void pw_keep(pw_call* c, const pw_turn* turn) {
  pw_kept* k = c->kept;
  if (k == NULL) return;
  for (size_t i = 0; i < c->m; i++) {
    if (is_donated(c, i)) continue;
    for (size_t d = 0; d < c->n; d++) {
      pw_array* a = c->inputs[d * c->m + i]->array;
      if (d == 0 || a != c->inputs[(d - 1) * c->m + i]->array) keep(k, a);
    }
  }
  for (size_t o = 0; o < c->outs; o++) keep(k, c->arrays[o]);
  if (k->computation) pw_array_is(k->computation, turn->session, turn->computation, 1);
  atomic_fetch_add(&k->pass->under_way, 1);
}

void pw_kept_unused(pw_kept* k) {
  if (k && k->computation) pw_arrays_unused(&k->computation, 1);
  free(k);
}

void pw_kept_drop(pw_kept* k) {
  if (k == NULL) return;
  for (size_t i = 0; i < k->num; i++) pw_array_drop(k->arrays[i]);
  if (k->computation) pw_array_drop(k->computation);
  atomic_fetch_sub(&k->pass->under_way, 1);
  free(k);
  pw_room_made();
}

// An argument is taken over if nothing else has it: no other handle, view, export or run under way.
int64_t pw_taken(const pw_call* c) {
  int64_t bytes = 0;
  for (size_t k = 0; c->kept && c->e->donates && k < c->e->num_donated; k++) {
    size_t i = (size_t)c->e->donated[k];
    if (i >= c->m || pw_is_fixed(&c->options, (int64_t)i)) continue;
    const pw_array* a = c->inputs[i]->array;
    bool alone = atomic_load_explicit(&a->base.live, memory_order_acquire) == (int32_t)c->n;
    for (size_t d = 0; alone && d < c->n; d++) {
      pw_buffer* b = c->inputs[d * c->m + i];
      alone = b->array == a && b->of == NULL && c->flat[d * c->m + i] == b->under &&
              atomic_load_explicit(&b->refs, memory_order_relaxed) == 1 &&
              atomic_load_explicit(&b->exports, memory_order_relaxed) == 0;
    }
    if (alone) bytes += pw_shape_bytes(c->inputs[i]->shape);
  }
  return bytes;
}

// ---- waits ----

void pw_room_ask(pw_room* r) { r->seen = atomic_load(&made); }

// can_change reports whether room may be made. Only changes since the core was asked could have been missed, and these
// show in made.
static bool can_change(pw_room* r, int64_t now) {
  if (atomic_load(&r->session->under_way) > 0 || atomic_load(&telling) > 0) {
    r->calm = 0;
    return true;
  }
  if (r->calm == 0) r->calm = now;
  if (now - r->calm >= kCalmNs) return false;
  size_t threads = pw_python_threads();
  pthread_mutex_lock(&mu);
  bool youngest = waits == r;
  pthread_mutex_unlock(&mu);
  return threads > atomic_load(&num_waits) || (threads > 1 && !youngest);
}

static void begin(pw_room* r, pw_pass* session) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_changed);
  r->waits = true;
  r->session = session;
  r->deadline = pw_clock() + session->memory_wait;
  r->python = pw_python_unlock();
  pthread_mutex_lock(&mu);
  r->next = waits;
  waits = r;
  pthread_mutex_unlock(&mu);
  atomic_fetch_add(&num_waits, 1);
}

static void sleep_until(pw_room* r, int64_t then) {
  struct timespec at = {.tv_sec = then / 1000000000, .tv_nsec = then % 1000000000};
  pthread_mutex_lock(&mu);
  for (int late = 0; atomic_load(&made) == r->seen && late != ETIMEDOUT;)
    late = pthread_cond_timedwait(&changed, &mu, &at);
  pthread_mutex_unlock(&mu);
}

bool pw_room_wait(pw_room* r, pw_pass* session) {
  if (!r->waits) begin(r, session);
  while (atomic_load(&made) == r->seen) {
    int64_t now = pw_clock();
    if ((r->late = now >= r->deadline)) return false;
    if (!can_change(r, now)) return atomic_load(&made) != r->seen;
    void* exception = pw_python_interrupted();
    if (exception) {
      pw_python_raise(exception);
      r->interrupted = true;
      return false;
    }
    sleep_until(r, now + kLookNs < r->deadline ? now + kLookNs : r->deadline);
  }
  return true;
}

PJRT_Error* pw_room_end(pw_room* r, PJRT_Error* err) {
  if (!r->waits) return err;
  pthread_mutex_lock(&mu);
  pw_room** at = &waits;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  pthread_mutex_unlock(&mu);
  atomic_fetch_sub(&num_waits, 1);
  pw_python_relock(r->python);
  if (err && r->interrupted) {
    pw_error_free(err);
    return pw_error(PJRT_Error_Code_CANCELLED, "waiting for device memory was interrupted");
  }
  if (err && r->late) {
    char text[100];
    snprintf(text, sizeof text, "; it waited %.3g s for others to free some (memory_wait)",
             (double)r->session->memory_wait / 1e9);
    return pw_error_context(err, text);
  }
  return err;
}
