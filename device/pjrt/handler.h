// What the handlers of this package share (collective.c).
#ifndef PATHWAYS_DEVICE_PJRT_HANDLER_H_
#define PATHWAYS_DEVICE_PJRT_HANDLER_H_

#include "call.h"
#include "ffi/xla_ffi.h"

// Returns what the plugin lacks for handlers that answer later; NULL if it lacks nothing.
const char* pwdrv_missing(const PJRT_Api* api, const XLA_FFI_Api* of);

// The error text of a call for whose arguments memory is short.
static const char kNoMemory[] = "this process has no memory left for the arguments of a call";

// Bits of an element; 0 for a token, -1 if unknown.
int pwdrv_bits(uint32_t type);

// Returns the data of a type in an execution's context; NULL if there is no such data or no context.
void* pwdrv_context_of(const XLA_FFI_Api* api, void* ctx, int64_t type);

// Returns the client that an execution's context names; 0 if it names none.
uintptr_t pwdrv_client_of(const XLA_FFI_Api* api, void* ctx);

// The run and the device of a call.
XLA_FFI_Error* pwdrv_read_run(const XLA_FFI_Api* api, void* ctx, int32_t* launch, int* local);

#endif  // PATHWAYS_DEVICE_PJRT_HANDLER_H_
