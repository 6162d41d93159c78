package python

/*
#include "pathways.h"
*/
import "C"

import (
	"context"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/capi/embedded"
	_ "github.com/openpathways/pathways/capi/export" // C
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// Each door numbers its sessions; here those of a cluster are odd.
func latest() (session uint64, err error) {
	if id := cluster.Latest(); id > 0 {
		return id<<1 | 1, nil
	}
	if id := embedded.Latest(); id > 0 {
		return id << 1, nil
	}
	return 0, status.New(status.FailedPrecondition, "slices are of a PJRT client's devices, and there is no client; make one first")
}

func slicesOf(session uint64) (client.Slices, error) {
	if session&1 == 1 {
		return cluster.Slices(session >> 1)
	}
	return embedded.Slices(session >> 1)
}

// pwGoSlice grants to a session, or where that is 0 to the latest one.
//
//export pwGoSlice
func pwGoSlice(of C.uint64_t, n C.int64_t, topology *C.int64_t, dims C.size_t, island, kind *C.char, slice *C.pathways_slice_name, devices *C.uint32_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	w := placement.Want{Devices: int(n), Island: C.GoString(island), Kind: C.GoString(kind)}
	for _, d := range unsafe.Slice(topology, dims) {
		w.Topology = append(w.Topology, int(d))
	}
	session := uint64(of)
	if session == 0 {
		if session, err = latest(); err != nil {
			return nil
		}
	}
	slices, err := slicesOf(session)
	if err != nil {
		return nil
	}
	number, granted, err := slices.Grant(context.Background(), w)
	if err == nil {
		*slice = C.pathways_slice_name{session: C.uint64_t(session), number: C.uint64_t(number)}
		write(devices, granted)
	}
	return nil
}

//export pwGoSliceRemap
func pwGoSliceRemap(slice C.pathways_slice_name, devices *C.uint32_t, n C.size_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	of, err := slicesOf(uint64(slice.session))
	if err != nil {
		return nil
	}
	granted, err := of.Remap(context.Background(), uint64(slice.number))
	if err == nil && len(granted) != int(n) {
		err = status.New(status.InvalidArgument, "the slice has %d devices, and room was given for %d", len(granted), int(n))
	}
	if err == nil {
		write(devices, granted)
	}
	return nil
}

//export pwGoSliceRelease
func pwGoSliceRelease(slice C.pathways_slice_name) {
	if of, err := slicesOf(uint64(slice.session)); err == nil { // otherwise it has gone with its session
		of.Release(uint64(slice.number))
	}
}

func write(to *C.uint32_t, devices []int) {
	out := unsafe.Slice((*uint32)(to), len(devices))
	for i, d := range devices {
		out[i] = uint32(d)
	}
}
