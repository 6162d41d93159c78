package cluster

/*
#include "cluster.h"

static int64_t whole(const PJRT_NamedValue* v) { return v->type == PJRT_NamedValue_kInt64 ? v->int64_value : -1; }
static const char* string(const PJRT_NamedValue* v) {
  return v->type == PJRT_NamedValue_kString ? v->string_value : NULL;
}
*/
import "C"

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
)

// maxAsked bounds the devices of a session.
const maxAsked = 1 << 20

// asked are the create options, decoded.
type asked struct {
	address string // "" if they do not name one
	want    Want
	beside  string // a platform: the client is one of the family's session, for its devices of this platform
	family  int64  // that the process chose for a session, so that further clients find it; 0 if it did not
}

// readOptions reads create options, and refuses those that have no meaning on a cluster.
func readOptions(values *C.PJRT_NamedValue, n C.size_t) (out asked, err error) {
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
				out.address = C.GoStringN(text, C.int(v.value_size))
			}
		case "node_id", "partition_index":
		case "num_nodes":
			// jax.distributed adds these for every backend. A script that says it is the only process runs as it is.
			if number > 1 {
				return asked{}, status.New(status.Unimplemented, "jax.distributed was initialized with %d processes; with Open "+
					"Pathways one process drives all devices, so start the script once and leave jax.distributed.initialize() out",
					number)
			}
		case "devices":
			if number < 1 || number > maxAsked {
				return asked{}, status.New(status.InvalidArgument, "option %s is %d; expected a number of devices from 1 to %d",
					name, number, maxAsked)
			}
			out.want.Devices = int(number)
		case "elastic":
			out.want.Elastic = number == 1
		case "platform":
			if text := C.string(v); text != nil {
				out.want.Platforms = strings.Split(C.GoStringN(text, C.int(v.value_size)), ",")
			}
		case "beside":
			if text := C.string(v); text != nil {
				out.beside = C.GoStringN(text, C.int(v.value_size))
			}
		case "family":
			out.family = number
		case "memory_limit", "cpu_device_count":
			return asked{}, status.New(status.InvalidArgument,
				"option %s is for the devices of this machine; leave it out, and start the cluster's workers with --memory-limit "+
					"and --devices", name)
		default:
			return asked{}, status.New(status.InvalidArgument,
				"there is no option %s for the client of a cluster; its options are address, devices, elastic and platform", name)
		}
	}
	if out.want.Elastic && out.want.Devices == 0 {
		return asked{}, status.New(status.InvalidArgument,
			"option elastic needs option devices: how many the session is to have when all of them have come")
	}
	return out, nil
}
