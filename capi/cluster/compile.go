package cluster

/*
#include <stdlib.h>
#include "cluster.h"
*/
import "C"

import (
	"bytes"
	"runtime/cgo"
	"strings"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/ffi"
	"github.com/openpathways/pathways/capi/partition"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/protowalk"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// refusals are custom calls that programs of a cluster may not have, and why.
var refusals = []struct{ call, why string }{
	// By this one programs show their buffers to Python in place.
	{"xla_buffer_python_",
		"the program has a buffer_callback, whose function reads and writes the memory of a device, and that is " +
			"another process's; use jax.pure_callback or io_callback, or run it with pathways.init() without an address"},
	// jaxlib's handler would look for the function in the worker.
	{"_python_gpu_callback",
		"the program calls back into Python (jax.debug.print, pure_callback, io_callback), which GPUs " +
			"of a cluster cannot do; leave the call out, or run it with pathways.init() without an address"},
}

//export prGoCompile
func prGoCompile(c *C.PJRT_Client, format *C.char, formatSize C.size_t, code *C.char, codeSize C.size_t,
	options *C.char, optionsSize C.size_t,
	out **C.PJRT_Executable, message **C.char) (failed C.int) {
	defer base.Guard(&failed, message)
	x, err := compile(c, program{
		format:  goString(format, formatSize),
		code:    goBytes(code, codeSize),
		options: goBytes(options, optionsSize),
	})
	*out = x
	return C.int(base.Fail(err, message))
}

//export prGoLoad
func prGoLoad(c *C.PJRT_Client, data *C.char, size C.size_t, options *C.char, optionsSize C.size_t,
	out **C.PJRT_Executable, message **C.char) (failed C.int) {
	defer base.Guard(&failed, message)
	p, err := unpack(goBytes(data, size))
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	if optionsSize > 0 {
		given := goBytes(options, optionsSize)
		if p.manual {
			if given, err = compileoptions.ManualAgain(p.options, given); err != nil {
				return C.int(base.Fail(err, message))
			}
		}
		p.options = given
	}
	x, err := compile(c, p)
	if version := C.GoString(c.topology.version); err != nil && p.version != version {
		err = status.Wrap(err, "the program was serialized on %q, and this is %q", p.version, version)
	}
	*out = x
	return C.int(base.Fail(err, message))
}

//export prGoSerialize
func prGoSerialize(x *C.PJRT_Executable, out **C.char, size *C.size_t) {
	data := program{
		version: C.GoString(x.client.topology.version),
		format:  goString(x.format.data, x.format.size),
		code:    cgo.Handle(x.code).Value().([]byte),
		options: goBytes(x.options.data, x.options.size),
		manual:  bool(x.manual),
	}.pack()
	*out, *size = (*C.char)(C.CBytes(data)), C.size_t(len(data))
}

//export prGoForget
func prGoForget(id, program C.uint64_t) {
	if s, err := of(id); err == nil {
		s.cluster.Forget(uint64(program))
	}
}

//export prGoDropCode
func prGoDropCode(code C.uintptr_t) { cgo.Handle(code).Delete() }

func goString(data *C.char, size C.size_t) string { return string(goBytes(data, size)) }

func goBytes(data *C.char, size C.size_t) []byte {
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(data)), size)...)
}

func compile(c *C.PJRT_Client, p program) (*C.PJRT_Executable, error) {
	s, err := of(c.session)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(p.code, []byte("_python_")) { // the code, which may be long, is searched once where it calls none
		for _, r := range refusals {
			if bytes.Contains(p.code, []byte(r.call)) {
				return nil, status.New(status.Unimplemented, "%s", r.why)
			}
		}
	}
	if C.GoString(c.topology.platform) == "cpu" { // jaxlib lowers to no other platform
		done, err := partition.Apply(partition.Program{Format: p.format, Code: p.code, Options: p.options, Manual: p.manual})
		if err != nil {
			return nil, err
		}
		p.format, p.code, p.options, p.manual = done.Format, done.Code, done.Options, done.Manual
	}
	handlers := ffi.Named(p.code)
	if len(handlers) > 0 {
		s.handlers.Store(true)
	}
	remote, err := s.wait(client.CompileSpec{Format: p.format, Code: p.code, Options: p.options, Handlers: handlers,
		First: uint32(c.first)})
	if err != nil {
		text := err.Error()
		if refused := spmd.Refused(text); refused != nil {
			return nil, refused
		}
		if strings.Contains(text, "No FFI handler registered") && !strings.Contains(text, "--import") {
			return nil, status.New(status.CodeOf(err),
				"%w; register the target here with jax.ffi.register_ffi_target, or start the workers with `pathways worker "+
					"--import module`, a Python module that does", err)
		}
		return nil, err
	}
	x, err := describe(c, remote.ID, remote.Info, p)
	if err != nil {
		s.cluster.Forget(remote.ID)
	}
	return x, err
}

// describe makes the C side of a compiled program.
func describe(c *C.PJRT_Client, id uint64, info *wire.ProgramInfo, p program) (*C.PJRT_Executable, error) {
	for _, d := range info.Devices {
		if C.size_t(d) >= c.num_devices {
			return nil, status.New(status.Internal, "the program runs on device %d, and this client has %d", d,
				int(c.num_devices))
		}
	}
	devices := info.Devices
	if portable(p.options) {
		devices = nil // each run names its own
	}
	name, fingerprint := C.CString(info.Name), C.CString(info.Fingerprint)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(fingerprint))
	replicas, partitions := max(info.Replicas, 1), max(info.Partitions, 1)
	x := C.pr_program_new(c, C.uint64_t(id), name, fingerprint, C.size_t(replicas), C.size_t(partitions),
		C.size_t(len(devices)), C.size_t(len(info.Parameters)), C.size_t(len(info.Outputs)))
	if x == nil {
		return nil, short("a program")
	}
	for row, d := range devices {
		C.pr_program_device(x, C.size_t(row), C.uint32_t(d))
	}
	all := describeArrays(x, info)
	give := func(what C.int, data []byte) {
		all = all && bool(C.pr_program_bytes(x, what, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data))))
	}
	give(C.PR_FORMAT, []byte(p.format))
	x.code = C.uintptr_t(cgo.NewHandle(p.code))
	give(C.PR_OPTIONS, p.options)
	give(C.PR_OPTIMIZED, info.Optimized)
	give(C.PR_ASSIGNMENT, assignment(info.Devices, int(replicas), int(partitions)))
	if cost := info.Cost; cost != nil {
		x.use = C.pr_memory_use{arguments: C.int64_t(cost.ArgumentBytes), outputs: C.int64_t(cost.OutputBytes),
			aliased: C.int64_t(cost.AliasBytes), temporary: C.int64_t(cost.TempBytes), code: C.int64_t(cost.CodeBytes)}
	}
	x.manual = C.bool(p.manual)
	x.any_params = C.bool(len(info.Parameters) == 0)
	if !all || !bool(C.pr_program_done(x)) {
		C.pr_program_drop(x)
		return nil, short("a program's arguments and results")
	}
	return x, nil
}

// describeArrays makes the C side of a program's arguments and results. It returns false if memory is short.
func describeArrays(x *C.PJRT_Executable, info *wire.ProgramInfo) bool {
	donated := map[uint32]bool{}
	for _, i := range info.Donated {
		donated[i] = true
	}
	all := true
	arrays := func(list []*wire.Array, output bool) {
		for i, a := range list {
			memory := C.CString(a.Memory)
			var order *C.int64_t
			if len(a.MinorToMajor) == len(a.Dims) {
				order = (*C.int64_t)(unsafe.SliceData(a.MinorToMajor))
			}
			all = all && bool(C.pr_program_array(x, C.bool(output), C.size_t(i), C.uint32_t(a.Dtype),
				(*C.int64_t)(unsafe.SliceData(a.Dims)), C.size_t(len(a.Dims)),
				order, memory, C.bool(donated[uint32(i)])))
			C.free(unsafe.Pointer(memory))
		}
	}
	arrays(info.Outputs, true)
	arrays(info.Parameters, false)
	return all
}

// portable reports whether compile options ask for a program without a device of its own:
// CompileOptionsProto.compile_portable_executable.
func portable(options []byte) bool {
	for f, err := range protowalk.Fields(options) {
		if err != nil {
			return false // the compiler reports what is wrong with them
		}
		if f.Number == 4 {
			return f.Value != 0
		}
	}
	return false
}

// assignment writes xla.DeviceAssignmentProto: for each partition, the devices of its replicas.
func assignment(devices []uint32, replicas, partitions int) []byte {
	out := protowalk.AppendInt(nil, 1, int64(replicas))
	out = protowalk.AppendInt(out, 2, int64(partitions))
	for p := range partitions {
		var ids []int64
		for i := p; i < len(devices); i += partitions {
			ids = append(ids, int64(devices[i]))
		}
		out = protowalk.AppendBytes(out, 3, protowalk.AppendInts(nil, 1, ids...))
	}
	return out
}
