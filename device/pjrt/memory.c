#include <stdio.h>

#include "call.h"

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
