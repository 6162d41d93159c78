// The C contract of package ffi. Functions named pw_ffi_* are for the frontends in the same library; pathways_* are
// exported to the Python package.
//
// Messages are malloc'd C strings owned by the caller, and NULL if there was no memory for one. Those of pathways_*
// functions are refusals (see base.h).
#ifndef PATHWAYS_CAPI_FFI_FFI_H_
#define PATHWAYS_CAPI_FFI_FFI_H_

#include "../../device/pjrt/ffi/xla_ffi.h"

// --- for the frontends ---

// Makes plugin the one that runs FFI handlers and replays the registrations
// made so far. A plugin without the FFI extension makes every registration
// UNIMPLEMENTED. Attaching the same plugin again does nothing; attaching
// another one moves every registration to it.
void pw_ffi_attach(const PJRT_Api* plugin);

// The core of the FFI extension's register_handler. It returns an absl code; when
// it is not 0, *message is the text.
int pw_ffi_ext_register(const PJRT_FFI_Register_Handler_Args* args, char** message);

// How many FFI handlers are on this thread's stack. Above zero, a dispatch on
// this thread comes from inside a running execution and must be let through.
int pw_ffi_in_callback(void);

// Reports whether the functions that jaxlib passed to an execution include a Python function: jaxlib passes every
// execution a list.
bool pw_ffi_has_functions(const void* functions);

// Returns a copy of such a list, one malloc'd block: jaxlib's own ends before it is used. The functions live as long as
// the executable for which they were passed.
void* pw_ffi_functions_copy(const void* functions);

// Calls one of the Python functions that jaxlib passed to an execution in another process; words are those of
// pw_callback. It returns an absl code, and the text if that is not 0.
int pw_ffi_call_python(const void* functions, uint64_t index, const int64_t* words, size_t count, char** message);
// Reports whether Ctrl-C has ended a function that pw_ffi_call_python called on this thread, once.
bool pw_ffi_interrupted(void);

// --- for clients and workers of a cluster ---

// A registration of a target or of a type. Its texts live as long as the process.
typedef struct {
  const char* name;
  const char* platform;   // NULL for a type
  const void* stages[4];  // instantiate, prepare, initialize, execute; of a type its id and info
  uint32_t traits;
} pw_ffi_entry;

// Writes the i-th registration, in order; false: there is none.
bool pw_ffi_entry_at(size_t i, pw_ffi_entry* out);
bool pw_ffi_has(const char* name, const char* platform);

// A symbol of a shared library. name is NULL if the library does not name it, and library if it is in none. The texts
// belong to the dynamic linker.
typedef struct {
  const char *library, *name;
} pw_ffi_symbol;

pw_ffi_symbol pw_ffi_symbol_of(const void* address);
const char* pw_ffi_own_library(void);

// Register what symbols name, loading their libraries. They return an absl code;
// when it is not 0, *message is the text.
int pw_ffi_load(const char* name, const char* platform, const pw_ffi_symbol stages[4], uint32_t traits, char** message);
int pw_ffi_load_type(const char* name, pw_ffi_symbol id, pw_ffi_symbol info, char** message);

// --- for the Python package ---

// Registers the bundle of a target; stages other than execute may be NULL.
// Returns NULL when it is registered or waits for a plugin. Registering the
// same functions again is NULL too, other functions are ALREADY_EXISTS.
char* pathways_ffi_register(const char* name, const char* platform, void* instantiate, void* prepare,
                            void* initialize, void* execute, uint32_t traits);

// Registers a user type of stateful handlers. *type_id is in and out (0 asks
// for a new id); type_id and type_info (an XLA_FFI_TypeInfo) must stay valid
// for the life of the process, as statics of the handler's library do.
char* pathways_ffi_register_type(const char* name, int64_t* type_id, void* type_info);

// Registrations refused when they were replayed, one "CODE: text" a line; NULL
// when there is none.
char* pathways_ffi_refusals(void);

// "major.minor" of the attached plugin's XLA FFI, NULL when there is none, or no memory for the text.
char* pathways_ffi_version(void);

// One host callback, as Python sees it: words[] is a flat list of int64,
//   nargs, nrets, then for each argument and result: dtype (XLA_FFI_DataType),
//   data address, rank, dims...
// Valid for the time of the call only. The function returns 1 when every
// result is written, else, after pathways_ffi_callback_fail, 0; or
// PW_CALLBACK_INTERRUPTED where Ctrl-C has ended it, on the thread that hears
// of Ctrl-C.
enum { PW_CALLBACK_INTERRUPTED = -1 };
typedef struct pw_callback_call pw_callback_call;
typedef int (*pw_callback)(void* callable, pw_callback_call* call, const int64_t* words, size_t count);

// Sets the function that runs host callbacks (it takes the GIL itself),
// registers the callback targets, and opens them again after a close. NULL
// unsets it. Returns as pathways_ffi_register does.
char* pathways_set_callback(pw_callback callback);

// The instantiate stage of handlers that Python prepares when a program first needs them. It calls the function that
// was set until it has returned 1; 0, after pathways_ffi_callback_fail, fails the program.
typedef int (*pw_prepare)(pw_callback_call* call);
void pathways_ffi_set_prepare(pw_prepare function);
XLA_FFI_Error* pathways_ffi_prepare(XLA_FFI_CallFrame* frame);

// The execute stage of what jax.lax.dce_sink lowers to, for a process without jaxlib's: it uses a value, nothing more.
XLA_FFI_Error* pathways_ffi_dce_sink(XLA_FFI_CallFrame* frame);

// Sets the error text of a call (copied).
void pathways_ffi_callback_fail(pw_callback_call* call, const char* text);

// A handler to be registered with jaxlib's own FFI registry: jaxlib's probe of it shows jaxlib's XLA_FFI_Api, which
// makes errors that jaxlib's code can take apart (see shim.c).
XLA_FFI_Error* pathways_ffi_jaxlib_probe(XLA_FFI_CallFrame* frame);

// From now on callbacks fail instead of entering Python; waits up to timeout_ms for those inside. Returns how many are
// still inside. To be called without the GIL, before the interpreter ends.
int pathways_ffi_close(int64_t timeout_ms);

#endif  // PATHWAYS_CAPI_FFI_FFI_H_
