#define _GNU_SOURCE
#include <stdio.h>

#include "base.h"

char* pw_text_of(const char* format, va_list list) {
  char* text = NULL;
  return vasprintf(&text, format, list) < 0 ? NULL : text;
}

char* pw_text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  char* text = pw_text_of(format, list);
  va_end(list);
  return text;
}
