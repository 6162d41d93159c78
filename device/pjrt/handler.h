// What the handlers of this package share (collective.c).
#ifndef PATHWAYS_DEVICE_PJRT_HANDLER_H_
#define PATHWAYS_DEVICE_PJRT_HANDLER_H_

#include "call.h"
#include "ffi/xla_ffi.h"

// What the plugin lacks for handlers that answer later; NULL where nothing.
const char* pwdrv_missing(const PJRT_Api* api, const XLA_FFI_Api* of);

// The text of the error of a call for whose arguments there is no memory.
static const char kNoMemory[] = "this process has no memory left for the arguments of a call";

// Bits of an element; 0 is a token's, -1 not known.
int pwdrv_bits(uint32_t type);

// What an execution's context has of a type; NULL where it has none, or no context.
void* pwdrv_context_of(const XLA_FFI_Api* api, void* ctx, int64_t type);

// The client that an execution's context names; 0 where it names none.
uintptr_t pwdrv_client_of(const XLA_FFI_Api* api, void* ctx);

// Which run of which device calls.
XLA_FFI_Error* pwdrv_read_run(const XLA_FFI_Api* api, void* ctx, int32_t* launch, int* local);

#endif  // PATHWAYS_DEVICE_PJRT_HANDLER_H_
