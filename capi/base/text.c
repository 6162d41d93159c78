#include <stdio.h>

#include "base.h"

char* pw_text_of(const char* format, va_list list) {
  va_list again;
  va_copy(again, list);
  int n = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char* text = n < 0 ? NULL : pw_alloc((size_t)n + 1);
  if (text) vsnprintf(text, (size_t)n + 1, format, list);
  return text;
}

char* pw_text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  char* text = pw_text_of(format, list);
  va_end(list);
  return text;
}
