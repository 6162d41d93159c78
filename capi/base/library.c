#define _GNU_SOURCE
#include <dlfcn.h>

#include "base.h"

const char* pw_library(void) {
  Dl_info info;
  return dladdr((void*)pw_library, &info) && info.dli_fname ? info.dli_fname : "";
}
