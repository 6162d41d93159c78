#include "call.h"

pwdrv_counts pwdrv_live;

void pwdrv_counts_read(int64_t counts[PWDRV_KINDS]) {
  _Static_assert(sizeof pwdrv_live == PWDRV_KINDS * sizeof *counts, "one count a kind");
  for (int i = 0; i < PWDRV_KINDS; i++) counts[i] = atomic_load(&((_Atomic int64_t*)&pwdrv_live)[i]);
}

#ifdef PWDRV_INVARIANTS
// How many more allocations of the calling thread succeed before one fails, for tests; -1: all do.
static __thread int64_t before_failure = -1;

int64_t pwdrv_alloc_fails_after(int64_t n) {
  int64_t left = before_failure;
  before_failure = n;
  return left;
}

static bool fails(void) { return before_failure >= 0 && before_failure-- == 0; }
#else
static inline bool fails(void) { return false; }
#endif

void* pwdrv_alloc(size_t size) { return fails() ? NULL : calloc(1, size ? size : 1); }

void* pwdrv_copy(const void* data, size_t size) {
  char* p = fails() ? NULL : malloc(size + 1);
  if (p == NULL) return NULL;
  if (size > 0) memcpy(p, data, size);
  p[size] = 0;
  return p;
}
