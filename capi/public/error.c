#include <stdlib.h>

#include "public.h"

typedef struct {
  pc_object base;
  pathways_code code;
  char* message;
} failure;

pathways_error pc_fail_with(pathways_code code, char* message) {
  failure* f = message ? pw_zeros(1, sizeof *f) : NULL;
  if (f == NULL) {
    free(message);
    return PC_NO_MEMORY;
  }
  f->code = code ? code : PATHWAYS_UNKNOWN;
  f->message = message;
  pathways_error handle = 0;
  return pc_new(&f->base, PC_ERROR, NULL, &handle) ? PC_NO_MEMORY : handle;
}

pathways_error pc_fail(pathways_code code, const char* format, ...) {
  va_list list;
  va_start(list, format);
  char* message = pw_text_of(format, list);
  va_end(list);
  return pc_fail_with(code, message);
}

pathways_error pc_take(PJRT_Error* error) {
  if (error == NULL) return 0;
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  pw_error_read(error, &code, &message, &size);
  pathways_error e = pc_fail_with((pathways_code)code, pw_copy(message, size));
  pw_error_free(error);
  return e;
}

pathways_error pc_short(const char* what, size_t bytes) { return pc_take(pw_short(what, bytes)); }

pathways_error pc_forked(void) { return pw_forked ? pc_take(pw_forked_error()) : 0; }

pathways_error pc_no_struct(const char* what, bool there) {
  return pc_fail(
      PATHWAYS_INVALID_ARGUMENT,
      there ? "struct_size of %s is no size of it: set it to sizeof of the struct, and all else that is not needed to 0"
            : "%s is NULL: expected a struct with its struct_size set",
      what);
}

void pc_error_destroy(pc_object* object) {
  failure* f = (failure*)object;
  free(f->message);
  free(f);
}

pathways_code pathways_error_code(pathways_error error) {
  failure* f;
  if (error == 0) return PATHWAYS_OK;
  if (error == PC_NO_MEMORY) return PATHWAYS_RESOURCE_EXHAUSTED;
  if ((error = pc_get(error, PC_ERROR, &f))) {
    pathways_drop(error);
    return PATHWAYS_INVALID_ARGUMENT;
  }
  pathways_code code = f->code;
  pc_let(f);
  return code;
}

const char* pathways_error_message(pathways_error error) {
  failure* f;
  if (error == 0) return "";
  if (error == PC_NO_MEMORY) return "this process has no memory left, not even for the text of an error";
  if ((error = pc_get(error, PC_ERROR, &f))) {
    pathways_drop(error);
    return "this is no handle of an error, or one that was dropped";
  }
  const char* message = f->message;  // the handle keeps it alive
  pc_let(f);
  return message;
}
