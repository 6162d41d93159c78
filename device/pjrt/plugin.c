#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "call.h"

void pwdrv_error_read(const PJRT_Api* api, PJRT_Error* error, int* code, pwdrv_bytes* message) {
  *code = PJRT_Error_Code_UNKNOWN;
  *message = (pwdrv_bytes){NULL, 0};
  if (PWDRV_HAS(api, PJRT_Error_GetCode)) {
    PWDRV_ARGS(PJRT_Error_GetCode);
    args.error = error;
    PJRT_Error* second = pwdrv_counted(api->PJRT_Error_GetCode(&args));
    if (second == NULL) {
      *code = args.code;
    } else {
      pwdrv_error_destroy(api, second);
    }
  }
  if (PWDRV_HAS(api, PJRT_Error_Message)) {
    PWDRV_ARGS(PJRT_Error_Message);
    args.error = error;
    api->PJRT_Error_Message(&args);
    *message = (pwdrv_bytes){args.message, args.message_size};
  }
}

void pwdrv_error_destroy(const PJRT_Api* api, PJRT_Error* error) {
  if (error == NULL || !PWDRV_HAS(api, PJRT_Error_Destroy)) return;
  PWDRV_COUNT(errors, -1);
  PWDRV_ARGS(PJRT_Error_Destroy);
  args.error = error;
  api->PJRT_Error_Destroy(&args);
}

static void keep_reason(char* reason, size_t size) {
  const char* text = dlerror();
  snprintf(reason, size, "%s", text != NULL ? text : "no reason given");
}

void* pwdrv_open(const char* path, char* reason, size_t reason_size) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) keep_reason(reason, reason_size);
  return library;
}

const PJRT_Api* pwdrv_table(void* library, char* reason, size_t reason_size) {
  dlerror();
  const PJRT_Api* (*get)(void) = (const PJRT_Api* (*)(void))dlsym(library, "GetPjrtApi");
  if (get == NULL) {
    snprintf(reason, reason_size, "it exports no function GetPjrtApi");
    return NULL;
  }
  const PJRT_Api* api = get();
  if (api == NULL) {
    snprintf(reason, reason_size, "its GetPjrtApi returned no table");
    return NULL;
  }
  if (api->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy)) {
    snprintf(reason, reason_size, "its table is %zu bytes, too short to hold a version", api->struct_size);
    return NULL;
  }
  return api;
}

const char* pwdrv_self(void) {
  Dl_info info;
  return dladdr((const void*)pwdrv_self, &info) != 0 ? info.dli_fname : NULL;
}

int pwdrv_loads(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) return 0;
  dlclose(library);
  return 1;
}

int pwdrv_has_extension(const PJRT_Api* api, int type) {
  for (const PJRT_Extension_Base* e = api->extension_start; e != NULL; e = e->next) {
    if ((int)e->type == type) return 1;
  }
  return 0;
}

pwdrv_status pwdrv_initialize(const PJRT_Api* api) {
  PWDRV_ARGS(PJRT_Plugin_Initialize);
  return PWDRV_CALL(api, PJRT_Plugin_Initialize);
}

pwdrv_status pwdrv_attributes(const PJRT_Api* api, const PJRT_NamedValue** values, size_t* count) {
  PWDRV_ARGS(PJRT_Plugin_Attributes);
  pwdrv_status status = PWDRV_CALL(api, PJRT_Plugin_Attributes);
  *values = args.attributes;
  *count = args.num_attributes;
  return status;
}

// The plugin's values may be larger than ours: struct_size says so, but is not rounded up to the alignment of the
// array.
const PJRT_NamedValue* pwdrv_named_at(const PJRT_NamedValue* values, size_t i) {
  size_t stride = sizeof(PJRT_NamedValue);
  if (values->struct_size > stride) stride = (values->struct_size + 7) & ~(size_t)7;
  return (const PJRT_NamedValue*)((const char*)values + i * stride);
}
pwdrv_bytes pwdrv_named_string(const PJRT_NamedValue* v) { return (pwdrv_bytes){v->string_value, v->value_size}; }
int64_t pwdrv_named_int(const PJRT_NamedValue* v) { return v->int64_value; }
const int64_t* pwdrv_named_ints(const PJRT_NamedValue* v) { return v->int64_array_value; }
float pwdrv_named_float(const PJRT_NamedValue* v) { return v->float_value; }
bool pwdrv_named_bool(const PJRT_NamedValue* v) { return v->bool_value; }
