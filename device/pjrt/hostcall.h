// Host callbacks of a process: what this package and the FFI handlers of capi share (hostcall.c).
#ifndef PATHWAYS_DEVICE_PJRT_HOSTCALL_H_
#define PATHWAYS_DEVICE_PJRT_HOSTCALL_H_

#include "ffi/xla_ffi.h"

// The one handler of host callbacks in a process. Calls of an execution that brings its own functions go to the local
// handler; the calls of others go to the client that serves them.
XLA_FFI_Error* pw_ffi_host_call(XLA_FFI_CallFrame* frame);
void pw_ffi_host_call_local(pw_ffi_handler handler);

#endif  // PATHWAYS_DEVICE_PJRT_HOSTCALL_H_
