// What the tests of single C files have in common. capi/units_test.go builds and runs them.
#ifndef UNIT_H_
#define UNIT_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // memmem
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

// FAILS expects an error of this library with a code, whose text has a word in it, and frees the error.
#define FAILS(call, code, word) check_fails(call, code, word, __FILE__, __LINE__, #call)

static inline bool has_word(const char* text, size_t size, const char* word) {
  return memmem(text, size, word, strlen(word)) != NULL;
}

static inline void check_fails(PJRT_Error* err, PJRT_Error_Code want, const char* word, const char* file, int line,
                               const char* call) {
  PJRT_Error_Code code = PJRT_Error_Code_OK;
  const char* text = "";
  size_t size = 0;
  if (err) pw_error_read(err, &code, &text, &size);
  if (code != want || !has_word(text, size, word)) {
    fprintf(stderr, "%s:%d: %s: want code %d and \"%s\", got %d: %.*s\n", file, line, call, want, word, code, (int)size,
            text);
    exit(1);
  }
  pw_error_free(err);
}

// WALK evaluates an expression with its first allocation failing, then with its second, and so on until none fails. The
// expression is true if the call has succeeded: every call but the last has to fail, and there have to be two or more.
// undo follows the last one. What a failed call leaves behind is a leak, which the address sanitizer reports.
#define WALK(succeeds, undo)                                                           \
  do {                                                                                 \
    bool whole_ = false;                                                               \
    for (int64_t n_ = 0; !whole_; n_++) {                                              \
      CHECK(n_ < 1000);                                                                \
      pw_alloc_fails_after(n_);                                                        \
      bool has_ = (succeeds);                                                          \
      whole_ = pw_alloc_left() >= 0;                                                   \
      pw_alloc_fails_after(-1);                                                        \
      CHECK(has_ == whole_ && !(whole_ && n_ == 0));                                   \
    }                                                                                  \
    undo;                                                                              \
  } while (0)

// short_of reports whether a call has succeeded; an error has to say that memory is short, and is freed.
static inline bool short_of(PJRT_Error* err) {
  if (err == NULL) return true;
  FAILS(err, PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory left");
  return false;
}

#endif  // UNIT_H_
