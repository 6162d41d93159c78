// Futures, and the one thread that callbacks run on.
//
// A future becomes ready or failed once: when the last of its pending events has fired (left). The first error counts.
// code and message change under mu and only before that; the gate opens behind it, so a thread that sees it open reads
// them without mu.
//
// A callback is called once, after the future is no longer pending: mu decides whether it is on the list that the last
// event takes, or finds the gate open. In either case the library's thread calls it, never a plugin's: a callback may
// drop a session, which waits for the plugin's threads. That thread calls in the order of pc_later, with no lock held.
#include <stdlib.h>
#include <time.h>

#include "gate.h"
#include "public.h"

// ---- the library's thread ----

typedef struct task {
  struct task* next;
  void (*call)(void* arg);
  void* arg;
} task;

static pthread_mutex_t tasks_mu = PTHREAD_MUTEX_INITIALIZER;  // guards what follows
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static task *first, *last;
static bool running;

static void* run(void* nothing) {
  (void)nothing;
  pthread_mutex_lock(&tasks_mu);
  for (;;) {
    while (first == NULL) pthread_cond_wait(&more, &tasks_mu);
    task* t = first;
    first = t->next;
    pthread_mutex_unlock(&tasks_mu);
    t->call(t->arg);
    free(t);
    pthread_mutex_lock(&tasks_mu);
  }
  return NULL;
}

void pc_later(void (*call)(void* arg), void* arg) {
  task* t;
  const struct timespec kSoon = {.tv_nsec = 1000000};
  while ((t = pw_alloc(sizeof *t)) == NULL) nanosleep(&kSoon, NULL);
  *t = (task){.call = call, .arg = arg};
  pthread_mutex_lock(&tasks_mu);
  if (!running) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, run, NULL)) abort();  // without threads there are no devices either
    pthread_attr_destroy(&attributes);
    running = true;
  }
  if (first) last->next = t;
  else first = t;
  last = t;
  pthread_cond_signal(&more);
  pthread_mutex_unlock(&tasks_mu);
}

// ---- futures ----

enum { kPending, kReady, kFailed };

typedef struct callback {
  struct callback* next;
  void (*then)(pathways_error error, void* arg);
  void* arg;
  pc_future* future;  // with a reference
} callback;

struct pc_future {
  pc_object base;
  uint64_t handle;
  const PJRT_Api* api;
  pw_gate gate;         // kPending is its 0
  _Atomic size_t left;  // pending events
  pthread_mutex_t mu;   // guards what follows, until the state is no longer kPending
  callback* callbacks;  // latest first
  pathways_code code;
  char* message;
};

pc_future* pc_future_make(pc_session* s, size_t events) {
  pc_future* f = pw_zeros(1, sizeof *f);
  if (f == NULL) return NULL;
  f->api = s->api;
  f->left = events + 1;
  pthread_mutex_init(&f->mu, NULL);
  pathways_error err = pc_new(&f->base, PC_FUTURE, s, &f->handle);
  if (err) {  // err has destroyed it
    pathways_drop(err);
    return NULL;
  }
  pc_hold(&f->base);
  return f;
}

void pc_future_give(pc_future* f, uint64_t* handle) { *handle = f->handle; }

void pc_future_abandon(pc_future* f) { pc_discard(f->handle); }

void pc_future_destroy(pc_object* o) {
  pc_future* f = (pc_future*)o;
  pthread_mutex_destroy(&f->mu);
  free(f->message);
  free(f);
}

// result returns the error of a future that is not pending.
static pathways_error result(pc_future* f) {
  return pw_gate_state(&f->gate) == kFailed
             ? pc_fail(f->code, "%s", f->message ? f->message : "")
             : 0;
}

static void call_back(void* arg) {
  callback* c = arg;
  c->then(result(c->future), c->arg);
  pc_let(c->future);
  free(c);
}

void pc_future_one(pc_future* f, PJRT_Error* error) {
  if (error) {
    PJRT_Error_Code code;
    const char* message;
    size_t size;
    pw_error_read(error, &code, &message, &size);
    pthread_mutex_lock(&f->mu);
    if (f->code == PATHWAYS_OK) {  // the first error counts
      f->code = code ? (pathways_code)code : PATHWAYS_UNKNOWN;
      f->message = pw_copy(message, size);  // NULL: the code must do
    }
    pthread_mutex_unlock(&f->mu);
    pw_error_free(error);
  }
  if (atomic_fetch_sub_explicit(&f->left, 1, memory_order_acq_rel) != 1) return;
  pthread_mutex_lock(&f->mu);
  callback *c = f->callbacks, *oldest = NULL;
  f->callbacks = NULL;
  pw_gate_open(&f->gate, f->code ? kFailed : kReady);
  pthread_mutex_unlock(&f->mu);
  while (c) {  // in the order in which they were added
    callback* next = c->next;
    c->next = oldest;
    oldest = c;
    c = next;
  }
  while (oldest) {
    callback* next = oldest->next;
    pc_later(call_back, oldest);
    oldest = next;
  }
  pc_let_later(&f->base);
}

void pc_event_drop(const PJRT_Api* api, PJRT_Event* event) {
  PW_ARGS(PJRT_Event_Destroy_Args, a);
  a.event = event;
  PJRT_Error* err = event ? api->PJRT_Event_Destroy(&a) : NULL;
  if (err) pw_error_free(err);
}

// pc_event_wait waits for an event, and ignores its error.
static void pc_event_wait(const PJRT_Api* api, PJRT_Event* event) {
  PW_ARGS(PJRT_Event_Await_Args, a);
  a.event = event;
  PJRT_Error* err = api->PJRT_Event_Await(&a);
  if (err) pw_error_free(err);
}

typedef struct {
  pc_future* future;
  void (*ended)(void* arg, bool failed);
  void* arg;
} watched;

static void on_event(PJRT_Error* error, void* arg) { pc_future_one(arg, error); }

static void on_watched(PJRT_Error* error, void* arg) {
  watched w = *(watched*)arg;
  free(arg);
  w.ended(w.arg, error != NULL);
  pc_future_one(w.future, error);
}

void pc_future_on(pc_future* f, PJRT_Event* event, void (*ended)(void* arg, bool failed), void* arg) {
  PW_ARGS(PJRT_Event_OnReady_Args, on);
  on.event = event;
  on.callback = on_event;
  on.user_arg = f;
  if (ended) {
    watched* w = pw_alloc(sizeof *w);
    if (w == NULL) {  // the work is under way: all that can be reported is that its end is unknown
      pc_event_wait(f->api, event);
      ended(arg, true);
      pc_future_one(f, pw_short("the callback of an event", sizeof *w));
      pc_event_drop(f->api, event);
      return;
    }
    *w = (watched){f, ended, arg};
    on.callback = on_watched;
    on.user_arg = w;
  }
  const PJRT_Api* api = f->api;
  PJRT_Error* err = api->PJRT_Event_OnReady(&on);
  if (err) on.callback(err, on.user_arg);
  pc_event_drop(api, event);
}

pathways_error pathways_future_wait(pathways_future future, int64_t timeout_ns) {
  pc_future* f;
  PC_TRY(pc_get(future, PC_FUTURE, &f));
  if (timeout_ns < 0) {
    pw_gate_wait(&f->gate);
  } else {
    int64_t begin = pw_clock(), left = timeout_ns;
    for (; left > 0 && pw_gate_state(&f->gate) == kPending; left = timeout_ns - (pw_clock() - begin))
      pw_gate_wait_for(&f->gate, left);
  }
  pathways_error err =
      pw_gate_state(&f->gate) == kPending
          ? pc_fail(PATHWAYS_DEADLINE_EXCEEDED, "the future is not ready yet, after %lld ns", (long long)timeout_ns)
          : result(f);
  pc_let(f);
  return err;
}

pathways_error pathways_future_then(pathways_future future, void (*then)(pathways_error error, void* arg), void* arg) {
  pc_future* f;
  if (then == NULL) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "future_then: the function is NULL");
  PC_TRY(pc_get(future, PC_FUTURE, &f));
  callback* c = pw_alloc(sizeof *c);
  if (c == NULL) {
    pc_let(f);
    return pc_short("a function to call", sizeof *c);
  }
  *c = (callback){.then = then, .arg = arg, .future = f};  // takes the reference
  pthread_mutex_lock(&f->mu);
  bool pending = pw_gate_state(&f->gate) == kPending;
  if (pending) {
    c->next = f->callbacks;
    f->callbacks = c;
  }
  pthread_mutex_unlock(&f->mu);
  if (!pending) pc_later(call_back, c);
  return 0;
}
