#define _GNU_SOURCE
#include "gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// No wake-up is lost. A thread that waits first counts itself in waiters and then reads the state; one that opens the
// gate first sets the state and then reads waiters. Both are in one order with all such steps (the default of atomics),
// so one of the two sees the other: the waiter the open gate, or the opener the waiter. In between, the futex does not
// sleep on a state that is no longer 0.

void pw_gate_open(pw_gate* g, uint32_t state) {
  atomic_store(&g->state, state);
  if (atomic_load(&g->waiters)) syscall(SYS_futex, &g->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void sleep_on(pw_gate* g, const struct timespec* most) {
  syscall(SYS_futex, &g->state, FUTEX_WAIT_PRIVATE, 0, most, NULL, 0);
}

void pw_gate_wait(pw_gate* g) {
  atomic_fetch_add(&g->waiters, 1);
  while (atomic_load(&g->state) == 0) sleep_on(g, NULL);
  atomic_fetch_sub(&g->waiters, 1);
}

void pw_gate_wait_for(pw_gate* g, int64_t ns) {
  struct timespec most = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  atomic_fetch_add(&g->waiters, 1);
  sleep_on(g, &most);
  atomic_fetch_sub(&g->waiters, 1);
}

int64_t pw_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
