// Package slices grants devices together to sessions of either frontend: capi/embedded for this process's devices,
// capi/cluster for a cluster's. It is the common part of Python's and C's slices; core/placement decides, through the
// session's grant.Slices.
//
// # Concurrency
//
// Any thread may call. Only a wait for a slice, and a remap, block.
package slices

/*
#cgo CFLAGS: -I${SRCDIR}/../base -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include "slices.h"
*/
import "C"

import (
	"context"
	"sync"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/capi/embedded"
	"github.com/openpathways/pathways/core/grant"
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
func of(owner C.uint64_t) (grant.Slices, error) {
	if C.pw_slice_of_cluster(owner) {
		return cluster.Slices(uint64(C.pw_slice_session(owner)))
	}
	return embedded.Slices(uint64(C.pw_slice_session(owner)))
}

// name names a slice: its owner and number.
type name struct{ owner, number C.uint64_t }

// asked holds the requests of slices that have not been released.
var asked struct {
	sync.Mutex
	requests map[name]*grant.Request
}

// keep remembers a request, and forgets those of sessions that have ended.
func keep(n name, a *grant.Request) {
	asked.Lock()
	defer asked.Unlock()
	if asked.requests == nil {
		asked.requests = map[name]*grant.Request{}
	}
	for n := range asked.requests {
		if _, err := of(n.owner); err != nil {
			delete(asked.requests, n)
		}
	}
	asked.requests[n] = a
}

//export pwGoSliceAsk
func pwGoSliceAsk(owner *C.uint64_t, want *C.pw_slice_want, number *C.uint64_t) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	w := placement.Want{Devices: int(want.devices), Island: C.GoString(want.island), Kind: C.GoString(want.kind),
		Exclusive: bool(want.exclusive)}
	for _, d := range unsafe.Slice(want.topology, want.num_topology) {
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
	a, err := slices.Ask(w, grant.Terms{Wait: duration(want.wait), Priority: int(want.priority)})
	if err == nil {
		*number = C.uint64_t(a.Number)
		keep(name{*owner, *number}, a)
	}
	return nil
}

// duration converts seconds; what is too many is grant.Forever.
func duration(seconds C.double) time.Duration {
	if seconds >= C.double(grant.Forever/time.Second) {
		return grant.Forever
	}
	return time.Duration(float64(seconds) * float64(time.Second))
}

//export pwGoSliceWait
func pwGoSliceWait(owner, number C.uint64_t, seconds C.double, devices *C.uint32_t, n C.size_t, position *C.int64_t,
	lacks **C.char) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	key := name{owner, number}
	asked.Lock()
	a := asked.requests[key]
	asked.Unlock()
	if a == nil {
		err = status.New(status.NotFound, "slice %d is not being waited for", uint64(number))
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration(seconds))
	defer cancel()
	if !a.HasEnded(ctx) {
		at, text := a.Position()
		*position = C.int64_t(max(at, 1)) // it may not have heard yet
		*lacks = C.CString(text)
		return nil
	}
	// The request is kept until the slice is released or its session has ended, since several threads may wait.
	*position = 0
	granted, err := a.Wait(context.Background())
	if err == nil && len(granted) != int(n) {
		err = status.New(status.Internal, "%d devices were granted where %d were asked for", len(granted), int(n))
	}
	if err == nil {
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
	asked.Lock()
	delete(asked.requests, name{owner, number})
	asked.Unlock()
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
