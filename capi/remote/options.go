package remote

/*
#include "remote.h"

static int64_t whole(const PJRT_NamedValue* v) { return v->type == PJRT_NamedValue_kInt64 ? v->int64_value : -1; }
static const char* string(const PJRT_NamedValue* v) { return v->type == PJRT_NamedValue_kString ? v->string_value : NULL; }
*/
import "C"

import (
	"strconv"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
)

// checkOptions refuses create options that mean nothing on a cluster, and gives
// the address that they name, if one does.
func checkOptions(values *C.PJRT_NamedValue, n C.size_t) (address string, err error) {
	for i := range int(n) {
		v := (*C.PJRT_NamedValue)(unsafe.Add(unsafe.Pointer(values), uintptr(i)*unsafe.Sizeof(C.PJRT_NamedValue{})))
		name := goString(v.name, v.name_size)
		number := int64(C.whole(v))
		if text := C.string(v); text != nil {
			if k, err := strconv.ParseInt(goString((*C.char)(unsafe.Pointer(text)), v.value_size), 10, 64); err == nil {
				number = k
			}
		}
		switch name {
		case "address":
			if text := C.string(v); text != nil {
				address = C.GoStringN(text, C.int(v.value_size))
			}
		case "node_id", "partition_index":
		case "num_nodes":
			// jax.distributed adds these for every backend. A script that says it is the
			// only process runs as it is.
			if number > 1 {
				return "", status.New(status.Unimplemented, "jax.distributed was initialized with %d processes; with Open Pathways one process drives all devices, so start the script once and leave jax.distributed.initialize() out", number)
			}
		case "devices", "memory_limit", "cpu_device_count":
			return "", status.New(status.InvalidArgument, "option %s is for the devices of this machine; leave it out, and give --devices and --memory-limit to the cluster's workers where they are started", name)
		default:
			return "", status.New(status.InvalidArgument, "there is no option %s for the client of a cluster, which takes none: what devices there are, its workers say", name)
		}
	}
	return address, nil
}
