// Package export keeps arrays that were taken out of a PJRT client, or made to be passed to one, and the plans by which
// they move. The frontends have the arrays, in C (export.h is that contract); the C API of capi/python names them by
// numbers.
//
// Every function may be called from any goroutine. Only packages of capi import it.
package export

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include "export.h"
*/
import "C"

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/status"
)

// Way is a move of arrays of one shape: from which shards to which. Devices are numbered as their clients show them.
type Way struct {
	Dims     []int64
	From, To []reshard.Shard
	Memory   string // kind, of the destination; "" is the devices' default

	refs  int // guarded by mu: its maker's, and one for each program that uses it
	once  sync.Once
	steps []*reshard.Plan
	err   error
}

// Steps returns the plans of one step after the other, which the first call makes. Site is that of reshard.Steps.
func (w *Way) Steps(site func(device int) reshard.Site) ([]*reshard.Plan, error) {
	w.once.Do(func() { w.steps, w.err = reshard.Steps(w.Dims, w.From, w.To, site) })
	return w.steps, w.err
}

var (
	mu   sync.RWMutex // guards ways and last
	ways = map[uint64]*Way{}
	last uint64
)

// Get returns a way by its number.
func Get(number uint64) (*Way, error) {
	mu.RLock()
	defer mu.RUnlock()
	if w := ways[number]; w != nil {
		return w, nil
	}
	return nil, unknown(number)
}

// Check returns an error if a plan is not for an array of n shards, of which shard returns the device and the sizes.
func Check(plan *reshard.Plan, n int, shard func(i int) (device int, sizes []int64)) error {
	if n != len(plan.From) {
		return status.New(status.InvalidArgument, "the array has %s, and the plan is for %d", status.Count(n, "shard"),
			len(plan.From))
	}
	for i, want := range plan.From {
		if device, sizes := shard(i); device != want.Device || !slices.Equal(sizes, want.Size) {
			return status.New(status.InvalidArgument,
				"shard %d of the array is %v on device %d, and the plan is for %v on device %d",
				i, sizes, device, want.Size, want.Device)
		}
	}
	for i, to := range plan.To {
		if !slices.Equal(to.Size, plan.To[0].Size) {
			return status.New(status.InvalidArgument, "destination shard %d has size %v, and the first %v: expected equal ones",
				i, to.Size, plan.To[0].Size)
		}
	}
	return nil
}

func unknown(number uint64) error {
	return status.New(status.NotFound, "plan %d is not known, or was freed", number)
}

// Count returns the number of arrays that are exported.
func Count() int64 { return int64(C.pw_export_count()) }

// shards reads a list that has, for each shard, its device, start and size.
func shards(list *C.int64_t, n, dims int) []reshard.Shard {
	row := 1 + 2*dims
	numbers := append([]int64(nil), unsafe.Slice((*int64)(list), n*row)...)
	out := make([]reshard.Shard, n)
	for i := range out {
		r := numbers[i*row:][:row:row]
		out[i] = reshard.Shard{Device: int(r[0]), Start: r[1 : 1+dims], Size: r[1+dims:]}
	}
	return out
}

//export pwGoPlan
func pwGoPlan(numDims C.size_t, dims *C.int64_t, numFrom C.size_t, from *C.int64_t, numTo C.size_t, to *C.int64_t,
	memory *C.char, number *C.uint64_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	n := int(numDims)
	w := &Way{
		Dims: append([]int64(nil), unsafe.Slice((*int64)(dims), n)...),
		From: shards(from, int(numFrom), n),
		To:   shards(to, int(numTo), n),
	}
	if memory != nil {
		w.Memory = C.GoString(memory)
	}
	if len(w.To) == 0 {
		err = status.New(status.InvalidArgument, "an array without any destination shard")
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	last++
	w.refs = 1
	ways[last] = w
	*number = C.uint64_t(last)
	return nil
}

//export pwGoPlanFree
func pwGoPlanFree(number C.uint64_t) {
	mu.Lock()
	defer mu.Unlock()
	if w := ways[uint64(number)]; w != nil {
		if w.refs--; w.refs == 0 {
			delete(ways, uint64(number))
		}
	}
}

// pwGoPlanHold keeps a plan until pwGoPlanFree is called once more, and writes the lengths of the lists that pwGoPlanTo
// writes.
//
//export pwGoPlanHold
func pwGoPlanHold(number C.uint64_t, shards, dims *C.size_t) *C.char {
	mu.Lock()
	defer mu.Unlock()
	w := ways[uint64(number)]
	if w == nil {
		return C.CString(base.Refusal(unknown(uint64(number))))
	}
	w.refs++
	*shards, *dims = C.size_t(len(w.To)), C.size_t(len(w.Dims))
	return nil
}

// pwGoPlanTo writes where a plan that is kept leads: devices, the size of the shards, and the kind of their memory.
//
//export pwGoPlanTo
func pwGoPlanTo(number C.uint64_t, devices, size *C.int64_t, memory **C.char) {
	w, err := Get(uint64(number))
	if err != nil {
		panic(err)
	}
	ids := unsafe.Slice((*int64)(devices), len(w.To))
	for i, to := range w.To {
		ids[i] = int64(to.Device)
	}
	copy(unsafe.Slice((*int64)(size), len(w.Dims)), w.To[0].Size)
	*memory = C.CString(w.Memory)
}
