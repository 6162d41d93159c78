package cluster

/*
#include "cluster.h"

PJRT_Error* pr_PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* args);

// pr_look returns the address of a shard's bytes once they are here, or NULL.
static const void* pr_look(PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, at);
  at.buffer = buffer;
  PJRT_Error* err = pr_PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&at);
  if (err) pw_error_free(err);
  return err ? NULL : at.device_memory_ptr;
}
*/
import "C"

import "unsafe"

// look requests the bytes of a shard, like jaxlib when it reads one, and returns them when they are here; nil if that
// fails. It is for tests, which cannot use cgo themselves.
func look(buffer unsafe.Pointer, size int) []byte {
	at := C.pr_look((*C.PJRT_Buffer)(buffer))
	if at == nil {
		return nil
	}
	return unsafe.Slice((*byte)(at), size)
}
