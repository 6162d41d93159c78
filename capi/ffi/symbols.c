// Handlers as functions of shared libraries, so that another process on this machine, or one with the same files, finds
// them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

pw_ffi_symbol pw_ffi_symbol_of(const void* address) {
  pw_ffi_symbol s = {NULL, NULL};
  Dl_info info;
  if (address == NULL || dladdr(address, &info) == 0) return s;  // made at run time
  s.library = info.dli_fname;
  if (info.dli_saddr == address) s.name = info.dli_sname;  // not merely the symbol before it
  return s;
}

const char* pw_ffi_own_library(void) {
  Dl_info info;
  return dladdr((const void*)pw_ffi_own_library, &info) ? info.dli_fname : "";
}

// The library stays loaded: the plugin keeps its functions for the process's life.
static void* resolve(const char* library, const char* name, char** message) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    *message = pw_text("it cannot be loaded: %s", dlerror());
    return NULL;
  }
  void* address = dlsym(handle, name);
  if (address == NULL) *message = pw_text("it has no symbol %s", name);
  return address;
}

int pw_ffi_load(const char* name, const char* platform, const pw_ffi_symbol stages[PW_FFI_STAGES], uint32_t traits,
                char** message) {
  pw_ffi_handler bundle[PW_FFI_STAGES] = {0};
  for (int i = 0; i < PW_FFI_STAGES; i++) {
    if (stages[i].name == NULL) continue;
    void* address = resolve(stages[i].library, stages[i].name, message);
    if (address == NULL) return PJRT_Error_Code_NOT_FOUND;
    bundle[i] = (pw_ffi_handler)address;
  }
  return pw_ffi_register_bundle(name, platform, bundle, traits, message);
}

int pw_ffi_load_type(const char* name, pw_ffi_symbol id, pw_ffi_symbol info, char** message) {
  void* id_at = resolve(id.library, id.name, message);
  if (id_at == NULL) return PJRT_Error_Code_NOT_FOUND;
  void* info_at = info.name ? resolve(info.library, info.name, message) : NULL;
  if (info.name && info_at == NULL) return PJRT_Error_Code_NOT_FOUND;
  return pw_ffi_register_type(name, id_at, info_at, message);
}
