#include "object.h"

// The stack of objects that have gone has no ABA problem: threads push one object at a time, and pop the whole stack at
// once, so no compare-and-swap relies on an object that another thread may have popped and pushed again.

// A count that has reached 0 stays there: the object may be on the stack already.
bool pw_object_hold(pw_object* o) {
  int32_t live = atomic_load_explicit(&o->live, memory_order_relaxed);
  do
    if (live <= 0) return false;
  while (!atomic_compare_exchange_weak_explicit(&o->live, &live, live + 1, memory_order_acq_rel, memory_order_relaxed));
  return true;
}

void pw_departed_add(pw_departed* g, pw_object* o) {
  int64_t bytes = o->bytes;  // read before another thread takes o from the stack
  pw_slot* head = atomic_load_explicit(&g->stack, memory_order_relaxed);
  do o->slot.next = head;
  while (!atomic_compare_exchange_weak_explicit(&g->stack, &head, &o->slot, memory_order_release,
                                                memory_order_relaxed));
  atomic_fetch_add_explicit(&g->num, 1, memory_order_relaxed);
  if (bytes) atomic_fetch_add_explicit(&g->bytes, bytes, memory_order_relaxed);
}

size_t pw_departed_take(pw_departed* g, pw_name* names, size_t room, bool all, pw_object** first, pw_object** last) {
  if (!all && atomic_load_explicit(&g->num, memory_order_relaxed) < PW_FREED / 2) return 0;
  size_t n = 0;
  int64_t bytes = 0;
  pthread_mutex_lock(&g->mu);
  if (g->backlog == NULL) g->backlog = atomic_exchange_explicit(&g->stack, NULL, memory_order_acquire);
  *first = (pw_object*)g->backlog;
  for (; g->backlog && n < room; g->backlog = g->backlog->next) {
    *last = (pw_object*)g->backlog;
    names[n++] = (*last)->name;
    bytes += (*last)->bytes;
  }
  pthread_mutex_unlock(&g->mu);
  atomic_fetch_sub_explicit(&g->num, (int64_t)n, memory_order_relaxed);
  if (bytes) atomic_fetch_sub_explicit(&g->bytes, bytes, memory_order_relaxed);
  return n;
}
