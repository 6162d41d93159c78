// Package slices grants devices together to sessions of either frontend: capi/embedded for this process's devices,
// capi/cluster for a cluster's. It is the common part of Python's and C's slices; core/placement decides, through the
// session's client.Slices.
//
// # Concurrency
//
// Any thread may call. A grant blocks until the controller answers.
package slices

/*
#cgo CFLAGS: -I${SRCDIR}/../base -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include "slices.h"
*/
import "C"

import (
	"context"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/capi/embedded"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// latest returns the owner of the newest session.
func latest() (owner C.uint64_t, err error) {
	if id := cluster.Latest(); id > 0 {
		return C.pw_slice_owner(C.uint64_t(id), true), nil
	}
	if id := embedded.Latest(); id > 0 {
		return C.pw_slice_owner(C.uint64_t(id), false), nil
	}
	return 0, status.New(status.FailedPrecondition,
		"slices are of a PJRT client's devices, and there is no client; make one first")
}

// of returns an owner's slices.
func of(owner C.uint64_t) (client.Slices, error) {
	if C.pw_slice_of_cluster(owner) {
		return cluster.Slices(uint64(C.pw_slice_session(owner)))
	}
	return embedded.Slices(uint64(C.pw_slice_session(owner)))
}

//export pwGoSliceGrant
func pwGoSliceGrant(owner *C.uint64_t, n C.int64_t, topology *C.int64_t, dims C.size_t, island, kind *C.char,
	number *C.uint64_t, devices *C.uint32_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	w := placement.Want{Devices: int(n), Island: C.GoString(island), Kind: C.GoString(kind)}
	for _, d := range unsafe.Slice(topology, dims) {
		w.Topology = append(w.Topology, int(d))
	}
	if *owner == 0 {
		if *owner, err = latest(); err != nil {
			return nil
		}
	}
	slices, err := of(*owner)
	if err != nil {
		return nil
	}
	name, granted, err := slices.Grant(context.Background(), w)
	if err == nil {
		*number = C.uint64_t(name)
		write(devices, granted)
	}
	return nil
}

//export pwGoSliceRemap
func pwGoSliceRemap(owner, number C.uint64_t, devices *C.uint32_t, n C.size_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	slices, err := of(owner)
	if err != nil {
		return nil
	}
	granted, err := slices.Remap(context.Background(), uint64(number))
	if err == nil && len(granted) != int(n) {
		err = status.New(status.InvalidArgument, "the slice has %d devices, and there is room for %d", len(granted), int(n))
	}
	if err == nil {
		write(devices, granted)
	}
	return nil
}

//export pwGoSliceRelease
func pwGoSliceRelease(owner, number C.uint64_t) {
	if slices, err := of(owner); err == nil { // otherwise it ended with its session
		slices.Release(uint64(number))
	}
}

func write(to *C.uint32_t, devices []int) {
	out := unsafe.Slice((*uint32)(to), len(devices))
	for i, d := range devices {
		out[i] = uint32(d)
	}
}
