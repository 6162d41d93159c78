#include <stdlib.h>

#include "base.h"
#include "interpreter.h"

_Atomic int64_t pw_errors_alive;

// The table that reads and frees errors that are not this library's; NULL if there are none.
static const PJRT_Api* plugin;

void pw_errors_of(const PJRT_Api* api) { plugin = api; }

// An error of this library. Clients of ABI 0.112 and later may use the function table instead of the API's slots, so it
// comes first.
typedef struct {
  PJRT_Error base;
  PJRT_Error_Code code;
  size_t size;
  char* message;
} pw_failure;

static void vt_destroy(PJRT_Error* error) { pw_error_free(error); }

static void vt_message(const PJRT_Error* error, const char** message, size_t* size) {
  *message = ((const pw_failure*)error)->message;
  *size = ((const pw_failure*)error)->size;
}

// A client reads the code of each error, on the thread that has got it, outside of all locks of this library.
static PJRT_Error_Code vt_code(const PJRT_Error* error) {
  pw_python_stay();
  return ((const pw_failure*)error)->code;
}

static void vt_payloads(const PJRT_Error* error, void* visitor, void* user_arg) {
  (void)error, (void)visitor, (void)user_arg;
}

static PJRT_Error_FunctionTable table = {
    .struct_size = sizeof(PJRT_Error_FunctionTable),
    .instance_size = sizeof(pw_failure),
    .destroy = (void*)vt_destroy,
    .message = (void*)vt_message,
    .get_code = (void*)vt_code,
    .for_each_payload = (void*)vt_payloads,
};

static char kNoMemory[] = "this process has no memory left, not even for the text of an error";
static pw_failure no_memory = {
    {(void*)&table}, PJRT_Error_Code_RESOURCE_EXHAUSTED, sizeof kNoMemory - 1, kNoMemory};  // static, never freed

bool pw_error_ours(const PJRT_Error* error) { return error->vtable == (void*)&table; }

PJRT_Error* pw_error_take(PJRT_Error_Code code, char* message) {
  pw_failure* f = message ? pw_alloc(sizeof *f) : NULL;
  if (f == NULL) {
    free(message);
    return &no_memory.base;
  }
  f->base.vtable = (void*)&table;
  f->code = code;
  f->message = message;
  f->size = strlen(message);
  atomic_fetch_add_explicit(&pw_errors_alive, 1, memory_order_relaxed);
  return &f->base;
}

PJRT_Error* pw_error(PJRT_Error_Code code, const char* format, ...) {
  va_list list;
  va_start(list, format);
  char* message = pw_text_of(format, list);
  va_end(list);
  return pw_error_take(code, message);
}

void pw_error_free(PJRT_Error* error) {
  if (error == NULL || error == &no_memory.base) return;
  if (!pw_error_ours(error)) {
    PW_ARGS(PJRT_Error_Destroy_Args, a);
    a.error = error;
    plugin->PJRT_Error_Destroy(&a);
    return;
  }
  free(((pw_failure*)error)->message);
  free(error);
  atomic_fetch_sub_explicit(&pw_errors_alive, 1, memory_order_relaxed);
}

void pw_error_read(const PJRT_Error* error, PJRT_Error_Code* code, const char** message, size_t* size) {
  if (pw_error_ours(error)) {
    *code = ((const pw_failure*)error)->code;
    vt_message(error, message, size);
    return;
  }
  PW_ARGS(PJRT_Error_GetCode_Args, c);
  c.error = error;
  PJRT_Error* failed = plugin->PJRT_Error_GetCode(&c);
  if (failed) pw_error_free(failed);
  *code = c.code;
  PW_ARGS(PJRT_Error_Message_Args, m);
  m.error = error;
  plugin->PJRT_Error_Message(&m);
  *message = m.message;
  *size = m.message_size;
}

PJRT_Error* pw_error_context(PJRT_Error* error, const char* context) {
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  pw_error_read(error, &code, &message, &size);
  PJRT_Error* with = pw_error(code, "%.*s%s", (int)size, message, context);
  pw_error_free(error);
  return with;
}

// ---- slots of every frontend's table ----

void pw_base_PJRT_Error_Destroy(PJRT_Error_Destroy_Args* args) { pw_error_free(args->error); }

void pw_base_PJRT_Error_Message(PJRT_Error_Message_Args* args) {
  PJRT_Error_Code code;
  pw_error_read(args->error, &code, &args->message, &args->message_size);
}

PJRT_Error* pw_base_PJRT_Error_GetCode(PJRT_Error_GetCode_Args* args) {
  pw_python_stay();
  const char* message;
  size_t size;
  pw_error_read(args->error, &args->code, &message, &size);
  return NULL;
}
