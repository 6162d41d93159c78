// What the C files of package ffi share.
#ifndef PATHWAYS_CAPI_FFI_INTERNAL_H_
#define PATHWAYS_CAPI_FFI_INTERNAL_H_

#include "../../device/pjrt/hostcall.h"
#include "base.h"
#include "ffi.h"

// shim.c: trampolines.

// True for targets whose handler enters Python: they are refused after
// pathways_ffi_close, and counted while they run.
bool pw_ffi_calls_python(const char* target);

// How many different handler functions a process can register.
enum { PW_FFI_SLOTS = 2048 };

// The trampoline of handler, the same one each time; NULL when all are in use.
// Called under the registry's lock.
pw_ffi_handler pw_ffi_wrap(pw_ffi_handler handler, bool calls_python);

// The FFI version that this thread's latest metadata probe of a wrapped
// handler answered (before it was clamped); {-1, -1} after a reset.
typedef struct {
  int major, minor;
} pw_ffi_version;
extern _Thread_local pw_ffi_version pw_ffi_probed;

// callback.c

struct pw_callback_call {
  char* error;     // malloc'd
  bool no_memory;  // there was none for error
};

// The error of a call of Python that has failed: its text with a code, or silent if Python set none.
XLA_FFI_Error* pw_ffi_callback_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const pw_callback_call* call,
                                     const char* silent);

// Marks that this thread enters Python. False: Python is closed, and there is nothing to leave.
bool pw_ffi_enter_python(void);
void pw_ffi_leave_python(void);
#define PW_FFI_EXITING                                                                               \
  "host callback not run: Python is exiting. Wait for the results (jax.block_until_ready) or call " \
  "jax.effects_barrier() before the program ends"

// register.c

// Has pw_ffi_host_call pass the calls of this process's own executions to handler.
// Returns as pathways_ffi_register does.
char* pw_ffi_serve_local(pw_ffi_handler handler);

int pw_ffi_register_bundle(const char* name, const char* platform, const pw_ffi_handler bundle[PW_FFI_STAGES],
                           uint32_t traits, char** message);
int pw_ffi_register_type(const char* name, int64_t* type_id, void* type_info, char** message);
// A refusal (see base.h) of a code and its text, which it frees; NULL where the code is 0.
char* pw_ffi_status(int code, char* message);

#endif  // PATHWAYS_CAPI_FFI_INTERNAL_H_
