package base

/*
#include <stdlib.h>
#include "base.h"
*/
import "C"

import (
	"maps"
	"slices"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/hlo"
)

// pwGoCost counts what a compiled program costs. The values and their names are one block of C's memory, which the
// caller frees.
//
//export pwGoCost
func pwGoCost(format *C.char, formatSize C.size_t, program *C.char, size C.size_t,
	values **C.PJRT_NamedValue, num *C.size_t, message **C.char) (code C.int) {
	defer Guard(&code, message)
	cost, err := hlo.ReadCost(C.GoStringN(format, C.int(formatSize)), unsafe.Slice((*byte)(unsafe.Pointer(program)), size))
	if err != nil {
		return C.int(Fail(status.Wrap(err, "cannot count what the program costs"), message))
	}
	names := slices.Sorted(maps.Keys(cost))
	need := uintptr(len(names)) * unsafe.Sizeof(C.PJRT_NamedValue{})
	text := need // where the next name goes
	for _, name := range names {
		need += uintptr(len(name))
	}
	block := C.calloc(1, C.size_t(need+1))
	if block == nil {
		return C.int(Fail(status.New(status.ResourceExhausted,
			"this process has no memory left for what a program costs (%d bytes)", need+1), message))
	}
	list := unsafe.Slice((*C.PJRT_NamedValue)(block), len(names))
	for i, name := range names {
		at := unsafe.Add(block, text)
		text += uintptr(copy(unsafe.Slice((*byte)(at), len(name)), name))
		v := &list[i]
		v.struct_size = C.PJRT_NamedValue_STRUCT_SIZE
		v.name, v.name_size = (*C.char)(at), C.size_t(len(name))
		v._type, v.value_size = C.PJRT_NamedValue_kFloat, 1
		*(*C.float)(unsafe.Pointer(&v.anon0)) = C.float(cost[name])
	}
	*values, *num = (*C.PJRT_NamedValue)(block), C.size_t(len(names))
	return 0
}
