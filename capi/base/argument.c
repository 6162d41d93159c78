// What is wrong with an argument of a run or of a slot of the table, in the words of both frontends.
#include "base.h"

PJRT_Error* pw_gone(size_t row, size_t arg, const char* program, const void* buffer) {
  if (buffer == NULL)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "argument %zu of %s on device row %zu is a buffer that was destroyed before", arg, program, row);
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s on device row %zu has been deleted or donated; keep a copy of an array that is "
                  "needed after a call that donates it",
                  arg, program, row);
}

PJRT_Error* pw_foreign(size_t arg, const char* program) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s is a buffer of another client; copy it through the host", arg, program);
}

PJRT_Error* pw_twice(size_t row, size_t arg, const char* program) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s on device row %zu is an array that the same call donates as another argument; "
                  "give a copy of it, or do not donate it",
                  arg, program, row);
}

PJRT_Error* pw_misfit(size_t row, size_t arg, const char* program, const pw_shape* shape, const pw_shape* takes) {
  char want[256], got[256];
  pw_shape_text(takes, want, sizeof want);
  pw_shape_text(shape, got, sizeof got);
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s on device row %zu is %s, and the program takes %s", arg, program, row, got, want);
}

PJRT_Error* pw_buffer_gone(const char* slot) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "%s: this buffer was destroyed before; keep a reference to an array for as long as it is used", slot);
}

PJRT_Error* pw_deleted(const char* slot) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s: the buffer has been deleted or donated", slot);
}
