#include <pthread.h>
#include <stdlib.h>

#include "embedded.h"

// A context that runs wait with. Its owner may destroy it meanwhile; the plugin destroys it after the last of these
// runs has been launched.
typedef struct pinned {
  struct pinned* next;
  PJRT_ExecuteContext* context;
  int runs;
  bool destroyed;
} pinned;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the list
static pinned* _Atomic list;  // also read without mu, see pw_PJRT_ExecuteContext_Destroy

static pinned* find(PJRT_ExecuteContext* context) {
  pinned* h = list;
  while (h && h->context != context) h = h->next;
  return h;
}

static void take_out(pinned* h) {
  if (list == h) {
    list = h->next;
    return;
  }
  pinned* before = list;
  while (before->next != h) before = before->next;
  before->next = h->next;
}

static PJRT_Error* destroy(PJRT_ExecuteContext* context) {
  PW_ARGS(PJRT_ExecuteContext_Destroy_Args, a);
  a.context = context;
  return pw_under->PJRT_ExecuteContext_Destroy(&a);
}

bool pw_context_hold(PJRT_ExecuteContext* context) {
  if (context == NULL) return true;
  pthread_mutex_lock(&mu);
  pinned* h = find(context);
  if (h == NULL && (h = pw_zeros(1, sizeof *h))) {
    h->context = context;
    h->next = list;
    list = h;
  }
  if (h) h->runs++;
  pthread_mutex_unlock(&mu);
  return h != NULL;
}

void pw_context_drop(PJRT_ExecuteContext* context) {
  if (context == NULL) return;
  bool last = false;
  pthread_mutex_lock(&mu);
  pinned* h = find(context);
  if (h && --h->runs == 0) {
    last = h->destroyed;
    take_out(h);
    free(h);
  }
  pthread_mutex_unlock(&mu);
  if (!last) return;
  PJRT_Error* err = destroy(context);
  if (err) pw_error_free(err);
}

static PJRT_ExecuteContext* empty;

static void make_empty(void) {
  if (!PW_HAS(PJRT_ExecuteContext_Create)) return;
  PW_ARGS(PJRT_ExecuteContext_Create_Args, a);
  PJRT_Error* err = pw_under->PJRT_ExecuteContext_Create(&a);
  if (err) pw_error_free(err);
  else empty = a.context;
}

PJRT_ExecuteContext* pw_context_empty(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_empty);
  return empty;
}

PJRT_Error* pw_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args) {
  if (pw_forked) return NULL;
  if (!PW_HAS(PJRT_ExecuteContext_Destroy)) return pw_unimplemented("PJRT_ExecuteContext_Destroy");
  // A run that waits with this context was submitted before the context is destroyed, and is in the list by then.
  if (atomic_load_explicit(&list, memory_order_acquire) == NULL) return destroy(args->context);
  pthread_mutex_lock(&mu);
  pinned* h = find(args->context);
  if (h) h->destroyed = true;
  pthread_mutex_unlock(&mu);
  return h ? NULL : destroy(args->context);
}
