// Events. A future is the end of one operation; every event of the operation is a reference to it.
//
// It ends once: set decides which thread completes it, and the ends that other threads bring are dropped. code and
// message are written before the gate opens and never after, so a thread that sees it open reads them without a lock.
//
// A callback is called once. callbacks is a stack until the completing thread exchanges it for &fired, which it does
// when the gate is open. A callback that was pushed before is on the stack that this thread took; a later one finds
// &fired, and is called by the thread that adds it. Both get the end, and no lock is held while they run.
#include <stdlib.h>

#include "cluster.h"
#include "gate.h"

typedef struct callback {
  struct callback* next;
  PJRT_Event_OnReadyCallback call;
  void* arg;
} callback;

struct pr_future {
  _Atomic int32_t refs;
  pw_gate gate;                  // PR_PENDING is its 0
  _Atomic bool set;              // a thread is completing it
  _Atomic(callback*) callbacks;  // latest first; &fired when they have been called
  PJRT_Error_Code code;
  char* message;
};

static callback fired;
static pr_future always = {.refs = 1, .gate.state = PR_READY, .set = true, .callbacks = &fired};

pr_future* pr_future_new(int32_t refs) {
  pr_future* f = pw_zeros(1, sizeof *f);
  if (f == NULL) return NULL;
  f->refs = refs;
  PR_COUNT(futures, 1);
  return f;
}

PJRT_Error* pr_no_future(void) { return pw_short("an event", sizeof(pr_future)); }

pr_future* pr_future_hold(pr_future* f) {
  atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
  return f;
}

pr_future* pr_future_ready(void) { return pr_future_hold(&always); }

void pr_future_drop(pr_future* f) {
  if (atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
  callback* c = atomic_load_explicit(&f->callbacks, memory_order_relaxed);
  while (c && c != &fired) {  // the event was never set
    callback* next = c->next;
    free(c);
    c = next;
  }
  free(f->message);
  free(f);
  PR_COUNT(futures, -1);
}

int pr_future_state(pr_future* f) { return (int)pw_gate_state(&f->gate); }

PJRT_Error* pr_future_error(pr_future* f) {
  return pr_future_state(f) == PR_FAILED ? pw_error(f->code, "%s", f->message ? f->message : "") : NULL;
}

void pr_future_set(pr_future* f, PJRT_Error_Code code, char* message) {
  if (atomic_exchange_explicit(&f->set, true, memory_order_acq_rel)) {
    free(message);
    return;
  }
  f->code = code;
  f->message = message;
  pw_gate_open(&f->gate, code ? PR_FAILED : PR_READY);
  callback *c = atomic_exchange_explicit(&f->callbacks, &fired, memory_order_acq_rel), *first = NULL;
  while (c) {  // in the order in which they were added
    callback* next = c->next;
    c->next = first;
    first = c;
    c = next;
  }
  while (first) {
    callback* next = first->next;
    first->call(pr_future_error(f), first->arg);
    free(first);
    first = next;
  }
}

void pr_future_wait(pr_future* f) { pw_gate_wait(&f->gate); }

void pr_future_wait_for(pr_future* f, int64_t ns) { pw_gate_wait_for(&f->gate, ns); }

void pr_fire(const pr_end* ends, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pr_future* f = (pr_future*)(uintptr_t)ends[i].token;
    pr_future_set(f, (PJRT_Error_Code)ends[i].code, ends[i].message);
    pr_future_drop(f);
  }
}

// ---- slots ----

static pr_future* of(PJRT_Event* event) { return (pr_future*)event; }

PJRT_Error* pr_PJRT_Event_Destroy(PJRT_Event_Destroy_Args* args) {
  if (args->event) pr_future_drop(of(args->event));
  return NULL;
}

PW_READS(pr, PJRT_Event_IsReady, args->is_ready = pr_future_state(of(args->event)) != PR_PENDING)

PJRT_Error* pr_PJRT_Event_Error(PJRT_Event_Error_Args* args) {
  if (pr_future_state(of(args->event)) == PR_PENDING)
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "PJRT_Event_Error: the event has not fired yet; await it first");
  return pr_future_error(of(args->event));
}

PJRT_Error* pr_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  pr_future* f = of(args->event);
  if (pr_future_state(f) == PR_PENDING) {
    if (pw_forked) return pw_forked_error();
    pr_hasten();
    pr_future_wait(f);
  }
  return pr_future_error(f);
}

PJRT_Error* pr_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  pr_future* f = of(args->event);
  callback* c = pw_alloc(sizeof *c);
  if (c == NULL) return pw_short("the callback of an event", sizeof *c);
  *c = (callback){.call = args->callback, .arg = args->user_arg};
  callback* head = atomic_load_explicit(&f->callbacks, memory_order_acquire);
  do {
    if (head == &fired) {
      free(c);
      args->callback(pr_future_error(f), args->user_arg);
      return NULL;
    }
    c->next = head;
  } while (!atomic_compare_exchange_weak_explicit(&f->callbacks, &head, c, memory_order_acq_rel, memory_order_acquire));
  return NULL;
}

PJRT_Error* pr_PJRT_Event_Create(PJRT_Event_Create_Args* args) {
  pr_future* f = pr_future_new(1);
  args->event = (PJRT_Event*)f;
  return f ? NULL : pr_no_future();
}

PJRT_Error* pr_PJRT_Event_Set(PJRT_Event_Set_Args* args) {
  pr_future* f = of(args->event);
  if (atomic_load(&f->set))
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "PJRT_Event_Set: the event was set before");
  char* message = NULL;
  if (args->error_code) {
    message = pw_copy(args->error_message, args->error_message_size);
    if (message == NULL) return pw_short("the text of an error", args->error_message_size);
  }
  pr_future_set(f, args->error_code, message);
  return NULL;
}
