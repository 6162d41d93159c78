#include <stdlib.h>

#include "base.h"

#ifdef PW_INVARIANTS
// How many more allocations of the calling thread succeed before one fails, for tests; -1: all do.
static __thread int64_t before_failure = -1;

void pw_alloc_fails_after(int64_t n) { before_failure = n; }
int64_t pw_alloc_left(void) { return before_failure; }

static bool fails(void) { return before_failure >= 0 && before_failure-- == 0; }
#else
static inline bool fails(void) { return false; }
#endif

void* pw_alloc(size_t size) { return fails() ? NULL : malloc(size ? size : 1); }

void* pw_zeros(size_t n, size_t size) { return fails() ? NULL : calloc(n ? n : 1, size); }

void* pw_resize(void* block, size_t size) { return fails() ? NULL : realloc(block, size ? size : 1); }

void* pw_aligned(size_t alignment, size_t size) {
  return fails() ? NULL : aligned_alloc(alignment, (size + alignment) / alignment * alignment);
}

void* pw_copy(const void* from, size_t size) {
  char* to = pw_alloc(size + 1);
  if (to == NULL) return NULL;
  if (size) memcpy(to, from, size);
  to[size] = 0;
  return to;
}

char* pw_copy_text(const char* text) { return pw_copy(text, strlen(text)); }

bool pw_grow(void* list, size_t n, size_t* room, size_t size) {
  if (n < *room) return true;
  size_t more = *room ? 2 * *room : 16;
  void* grown = pw_resize(*(void**)list, more * size);
  if (grown == NULL) return false;
  *(void**)list = grown;
  *room = more;
  return true;
}

PJRT_Error* pw_short(const char* what, size_t bytes) {
  return pw_error(
      PJRT_Error_Code_RESOURCE_EXHAUSTED,
      "this process has no memory left for %s (%zu bytes); drop arrays and programs that are not needed, or give "
      "the process more memory",
      what, bytes);
}

// A refusal that needs no memory. It is static and never freed.
static char refusal[] = "RESOURCE_EXHAUSTED: this process has no memory left, not even for the text of an error";

char* pw_refusal(char* text) { return text ? text : refusal; }

void pw_refusal_free(char* text) {
  if (text != refusal) free(text);
}
