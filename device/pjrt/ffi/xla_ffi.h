// The C contract of package ffi.
//
// Messages are malloc'd C strings owned by the caller.
#ifndef PATHWAYS_DEVICE_PJRT_FFI_XLA_FFI_H_
#define PATHWAYS_DEVICE_PJRT_FFI_XLA_FFI_H_

#include "pjrt_abi.h"

typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef XLA_FFI_Error* (*pw_ffi_handler)(XLA_FFI_CallFrame* frame);

// The stages of a handler: instantiate, prepare, initialize, execute. All but the
// last may be NULL.
#define PW_FFI_STAGES 4

// The plugin's FFI extension, NULL if it has none.
const PJRT_FFI_Extension* pw_ffi_extension(const PJRT_Api* plugin);

// The plugin's XLA_FFI_Api, which it shows to handlers alone: a probe handler is
// registered for that. NULL where the plugin has no FFI.
const XLA_FFI_Api* pw_ffi_api(const PJRT_Api* plugin);

// Registers the bundle of a target with the plugin's own registry. The error, if
// any, is of api and the caller's.
XLA_FFI_Error* pw_ffi_register(const XLA_FFI_Api* api, const char* name, const char* platform,
                               const pw_ffi_handler bundle[PW_FFI_STAGES], uint32_t traits);

// The metadata that a handler is asked for by this frame; NULL in all other
// frames.
XLA_FFI_Metadata* pw_ffi_probe_of(const XLA_FFI_CallFrame* frame);

// Answers such a frame for a handler that takes the plugin's version as it is.
bool pw_ffi_answer_probe(XLA_FFI_CallFrame* frame);

// Makes an error of api; text is copied.
XLA_FFI_Error* pw_ffi_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const char* text);

// Takes an error of api apart and destroys it: returns its code and text.
int pw_ffi_take_error(const XLA_FFI_Api* api, XLA_FFI_Error* error, char** message);

// The type id of the Python functions that jaxlib passes to an execution: a hash of the name FfiLoadedHostCallbacks.
#define PW_FFI_HOST_CALLBACKS 7357244197867843242

// Whether api has a slot: it may be older than this header.
#define PW_FFI_HAS(api, slot) \
  ((api)->struct_size >= offsetof(XLA_FFI_Api, slot) + sizeof((api)->slot) && (api)->slot != NULL)

#endif  // PATHWAYS_DEVICE_PJRT_FFI_XLA_FFI_H_
