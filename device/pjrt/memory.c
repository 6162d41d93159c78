#include <stdio.h>

#include "call.h"

pwdrv_counts pwdrv_live;

void pwdrv_counts_read(int64_t counts[PWDRV_KINDS]) {
  _Static_assert(sizeof pwdrv_live == PWDRV_KINDS * sizeof *counts, "one count a kind");
  for (int i = 0; i < PWDRV_KINDS; i++) counts[i] = atomic_load(&((_Atomic int64_t*)&pwdrv_live)[i]);
}

void* pwdrv_must(void* p) {
  if (p == NULL) {
    fprintf(stderr, "pathways: out of host memory\n");
    abort();
  }
  return p;
}

void* pwdrv_copy(const void* data, size_t size) {
  char* p = pwdrv_must(malloc(size + 1));
  if (size > 0) memcpy(p, data, size);
  p[size] = 0;
  return p;
}
