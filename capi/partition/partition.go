// Package partition gets the answers that XLA's partitioner asks of Python, for programs of PJRT plugins that cannot
// ask: how a function of jax.experimental.custom_partitioning is split, what jax.debug.inspect_array_sharding is called
// with, how calls of a debug callback with partitioned=True and of batch-partitionable FFI targets are split. It also
// has jaxlib split what older partitioners get wrong: meshes in several orders.
//
// And it has Python's MLIR replace operations that compilers for CPUs refuse. Two are collectives, made of others
// (ragged_all_to_all and collective_broadcast). The calls by which a program places arrays in memories are removed
// (annotate_device_placement, of out_shardings with a memory kind, jax.device_put inside of jax.jit, and compute_on):
// older compilers do not know them. On a CPU they mean nothing but for the results, whose types say the same: the
// compiled program keeps it in its layouts, where the frontends and drivers read it (hlo.Signature).
//
// JAX gives such answers to its own CPU client, which is in the same process. So a program that asks is first compiled
// there, for as many devices, and XLA is made to dump it before and after the pass that partitions. The dump after that
// pass is the program that the plugin compiles, as one that is manual from its first instruction to its last
// (spmd.Manual). Nothing in the dumped program depends on the build of XLA that partitioned it: fusions and the
// lowering to a processor come later.
//
// # Guarantees
//
// A program that asks nothing costs a search of its bytes for a few names, and stays as it is. The user's functions run
// once for each compile, on the compiling thread. What they raise becomes the error of the compile, with their text.
// Dumps are written to a directory of their own that only this user can read, and that is removed before the call
// returns.
//
// # Concurrency
//
// Any thread may call in, with or without Python's GIL. The call into Python takes the GIL, so the caller must hold no
// lock that a thread with the GIL may wait for.
package partition

/*
#cgo CFLAGS: -I${SRCDIR}/../base -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include <stdlib.h>
#include "base.h"
#include "partition.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	_ "github.com/openpathways/pathways/capi/base" // whose C this calls
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Program is a program that a client compiles.
type Program struct {
	Format        string
	Code, Options []byte
	Asks          bool // the plugin's partitioner asks Python itself
	Manual        bool // made by Apply: its options are those of compileoptions.Manual
}

// Apply replaces operations that Python replaces, and partitions a program that asks Python; it returns any other
// unchanged.
func Apply(p Program) (Program, error) {
	if p.Format != "mlir" {
		return p, nil
	}
	code, size := text(p.Code)
	if C.pw_partition_replaces(code, size) {
		replaced, _, err := call(p, nil)
		if err != nil {
			return p, err
		}
		if len(replaced) > 0 {
			p.Code = replaced
			code, size = text(p.Code)
		}
	}
	if p.Asks || !bool(C.pw_partition_partitions(code, size)) {
		return p, nil
	}
	o, err := compileoptions.Parse(p.Options)
	if err != nil || o.Replicas != 1 || o.Partitions == 1 {
		return p, nil // nothing is partitioned, or the compiler reports what is wrong
	}
	out, err := apply(p)
	if err != nil && bool(C.pw_partition_optional(code, size)) {
		return p, nil // correct without answers, too
	}
	return out, err
}

func text(b []byte) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(b))), C.size_t(len(b))
}

func apply(p Program) (Program, error) {
	directory, err := os.MkdirTemp("", "pathways-partition-")
	if err != nil {
		return p, noRoom(err)
	}
	defer os.RemoveAll(directory)
	where := C.CString(directory)
	defer C.free(unsafe.Pointer(where))
	if _, done, err := call(p, where); err != nil || !done {
		return p, err
	}
	before, err := dump(directory, "before")
	if err != nil {
		return p, err
	}
	after, err := dump(directory, "after")
	if err != nil {
		return p, err
	}
	whole, err := spmd.Manual(before, after)
	if err != nil {
		return p, cmp.Or(full(directory), err)
	}
	options, err := compileoptions.Manual(p.Options, whole.Parameters, whole.Result)
	if err != nil {
		return p, err
	}
	return Program{Format: "hlo", Code: whole.Module, Options: options, Manual: true}, nil
}

// call has Python partition the program or, without a directory, replace operations; code is then the new program, or
// empty if it stays. done is false if there is no Python.
func call(p Program, directory *C.char) (code []byte, done bool, err error) {
	var c C.pw_partition_call
	given, size := text(p.Code)
	options, optionsSize := text(p.Options)
	how := C.pw_partition_call_python(given, size, options, optionsSize, directory, &c)
	defer C.pw_refusal_free(c.error)
	defer C.free(unsafe.Pointer(c.code))
	switch how {
	case C.PW_PARTITION_DONE:
		return C.GoBytes(unsafe.Pointer(c.code), C.int(c.code_size)), true, nil
	case C.PW_PARTITION_NO_PARTITIONER:
		return nil, false, nil
	case C.PW_PARTITION_INTERRUPTED:
		return nil, false, status.New(status.Cancelled, "the compile was interrupted while the program was prepared for it")
	}
	return nil, false, status.Parse(C.GoString(c.error))
}

// dump reads what XLA wrote before or after the pass.
func dump(directory, side string) ([]byte, error) {
	pattern := fmt.Sprintf("*.%s_spmd-partitioning.*.pb", side)
	if side == "before" {
		pattern = "*.before_spmd-partitioning.hlo.pb"
	}
	found, err := filepath.Glob(filepath.Join(directory, pattern))
	if err != nil || len(found) != 1 {
		if err := full(directory); err != nil {
			return nil, err
		}
		return nil, status.New(status.Internal,
			"jaxlib left %d dumps of the program %s it was partitioned, want one: this version of jaxlib is not supported",
			len(found), side)
	}
	text, err := os.ReadFile(found[0])
	return text, system.Error(err, "cannot read what jaxlib made of a program")
}

// full returns an error if a directory has no space left: XLA, which writes there, does not report that.
func full(directory string) error {
	const page = 4 << 10 // a disk without room for a page has none for a program
	return noRoom(os.WriteFile(filepath.Join(directory, "room"), make([]byte, page), 0o600))
}

// noRoom returns the error of a directory that cannot be written; nil if err is nil.
func noRoom(err error) error {
	return system.Error(err, "no room for a program that jaxlib partitions; set TMPDIR to a directory that can be written")
}

//export pwGoPartition
func pwGoPartition(format *C.char, formatSize C.size_t, code *C.char, codeSize C.size_t, options *C.char,
	optionsSize C.size_t, asks C.bool, out *C.pw_partitioned, message **C.char) (failed C.int) {
	defer func() {
		if r := recover(); r != nil {
			failed, *message = C.int(status.Internal), C.CString(fmt.Sprintf("partitioning a program: %v", r))
		}
	}()
	given := Program{
		Format:  C.GoStringN(format, C.int(formatSize)),
		Code:    unsafe.Slice((*byte)(unsafe.Pointer(code)), codeSize),
		Options: unsafe.Slice((*byte)(unsafe.Pointer(options)), optionsSize),
		Asks:    bool(asks),
	}
	p, err := Apply(given)
	if err != nil {
		*message = C.CString(err.Error())
		return C.int(status.CodeOf(err))
	}
	if unsafe.SliceData(p.Code) != unsafe.SliceData(given.Code) {
		*out = C.pw_partitioned{
			format: C.CString(p.Format), code: (*C.char)(C.CBytes(p.Code)), code_size: C.size_t(len(p.Code)),
			options: (*C.char)(C.CBytes(p.Options)), options_size: C.size_t(len(p.Options)),
		}
	}
	return 0
}

//export pwGoRefused
func pwGoRefused(text *C.char, size C.size_t) *C.char {
	if err := spmd.Refused(C.GoStringN(text, C.int(size))); err != nil {
		return C.CString(err.Error())
	}
	return nil
}
