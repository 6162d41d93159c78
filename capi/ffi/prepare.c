// How a worker does without importing JAX: handlers that Python prepares when a program first needs them.
//
// jaxlib's LAPACK handlers call functions that they find by importing SciPy, which takes a worker longer than all else
// that it starts with. XLA instantiates each custom call of a program before it runs one, so the first that has
// pathways_ffi_prepare as that stage pays for the import, and a worker that never sees LAPACK does not.
#include <stdlib.h>

#include "internal.h"

static pw_prepare prepare;  // read and set atomically
static bool prepared;       // likewise; never unset

void pathways_ffi_set_prepare(pw_prepare function) { __atomic_store_n(&prepare, function, __ATOMIC_RELEASE); }

XLA_FFI_Error* pathways_ffi_prepare(XLA_FFI_CallFrame* frame) {
  if (pw_ffi_answer_probe(frame) || __atomic_load_n(&prepared, __ATOMIC_ACQUIRE)) return NULL;
  pw_prepare run = __atomic_load_n(&prepare, __ATOMIC_ACQUIRE);
  if (run == NULL)
    return pw_ffi_error(frame->api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                        "FFI handler not prepared: no Python is attached to this process");
  if (!pw_ffi_enter_python())
    return pw_ffi_error(frame->api, XLA_FFI_Error_Code_UNAVAILABLE, "FFI handler not prepared: Python is exiting");
  pw_callback_call call = {0};
  bool done = run(&call) == 1;
  pw_ffi_leave_python();
  XLA_FFI_Error* error = NULL;
  if (done)
    __atomic_store_n(&prepared, true, __ATOMIC_RELEASE);
  else
    error = pw_ffi_callback_error(frame->api, XLA_FFI_Error_Code_FAILED_PRECONDITION, &call,
                                  "FFI handler not prepared: Python could not be called");
  free(call.error);
  return error;
}

XLA_FFI_Error* pathways_ffi_dce_sink(XLA_FFI_CallFrame* frame) {
  pw_ffi_answer_probe(frame);
  return NULL;
}
