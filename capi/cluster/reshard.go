package cluster

/*
#include <stdlib.h>
#include "reshard.h"
*/
import "C"

import (
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/export"
	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

//export prGoReshard
func prGoReshard(h *C.pr_export, number C.uint64_t, out **C.pr_export) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	*out, err = move(h, uint64(number))
	return nil
}

// move starts to move an array, and returns the array that it will be.
func move(h *C.pr_export, number uint64) (*C.pr_export, error) {
	s, err := of(h.client.session)
	if err != nil {
		return nil, err
	}
	way, err := export.Get(number)
	if err != nil {
		return nil, err
	}
	steps, err := way.Steps(s.site())
	if err != nil {
		return nil, err
	}
	last := len(steps) - 1
	plan, from := steps[last], shapeOf(h.shape)
	if err := check(h, from, steps[0], len(s.cluster.Devices())); err != nil {
		return nil, err
	}
	source := func(shard int) uint64 { return uint64(C.pr_export_object(h, C.size_t(shard)).base.name.number) }
	for _, step := range steps[:last] {
		t := s.transfer(way, from, step, source)
		if err := s.cluster.Transfer(t, 0); err != nil { // what reads it hears of its end
			return nil, err
		}
		defer s.cluster.Free([]uint64{t.Object})
		from.Dims, source = step.To[0].Size, func(int) uint64 { return t.Object }
	}
	t := s.transfer(way, from, plan, source)
	to := shape.Shape{DType: from.DType, Dims: plan.To[0].Size}
	ids := make([]uint32, len(plan.To))
	for i, d := range plan.To {
		ids[i] = uint32(d.Device)
	}
	one := C.pw_shape_new(h.shape._type, (*C.int64_t)(unsafe.SliceData(to.Dims)), C.size_t(len(to.Dims)))
	if one == nil {
		return nil, short("the shape of an array")
	}
	defer C.pw_shape_drop(one)
	kind := C.CString(way.Memory)
	defer C.free(unsafe.Pointer(kind))
	made := C.pr_moved_new(h.client, (*C.uint32_t)(unsafe.SliceData(ids)), C.size_t(len(ids)), one, kind)
	if made == nil {
		return nil, short("the shards of an array")
	}
	token := C.pr_future_new(2) // the object's, and the cluster's
	if token == nil {
		C.pw_export_drop(&made.base)
		return nil, short("the end of a move")
	}
	s.underWay.Add(1)
	if err := s.cluster.Transfer(t, uint64(uintptr(unsafe.Pointer(token)))); err != nil {
		s.underWay.Add(-1)
		drop([]*C.pr_future{token})
		C.pw_export_drop(&made.base)
		return nil, err
	}
	C.pr_moved_is(made, C.uint64_t(t.Object), token)
	return made, nil
}

// short returns the error of an allocation in C that failed.
func short(what string) error {
	return status.New(status.ResourceExhausted,
		"this process has no memory left for %s; drop arrays and programs that are not needed, or give the process "+
			"more memory", what)
}

// site returns where a device is, for plans.
func (s *session) site() func(device int) reshard.Site {
	devices, hosts := s.cluster.Devices(), s.cluster.Hosts()
	return func(d int) reshard.Site {
		if d >= 0 && d < len(devices) {
			worker := devices[d].Worker
			return reshard.Site{Worker: worker, Host: hosts[worker]}
		}
		return reshard.Site{}
	}
}

// transfer writes a step of a way for shards of a shape, each in the object that source returns.
func (s *session) transfer(way *export.Way, from shape.Shape, plan *reshard.Plan,
	source func(shard int) uint64) *wire.Transfer {
	shard := &wire.Array{Dtype: uint32(from.DType), Dims: from.Dims}
	out, room := make([]*wire.Move, len(plan.Pieces)), make([]wire.Move, len(plan.Pieces))
	for i := range plan.Pieces {
		p, m := &plan.Pieces[i], &room[i]
		m.Source = source(p.From)
		m.From, m.To = uint32(plan.From[p.From].Device), uint32(plan.To[p.To].Device)
		if !plan.Whole(p) {
			m.Start, m.Size, m.At, m.Shard = p.Start, p.Size, p.At, shard
		}
		out[i] = m
	}
	return &wire.Transfer{
		Object: s.cluster.Objects(1),
		Array:  &wire.Array{Dtype: shard.Dtype, Dims: plan.To[0].Size, Memory: way.Memory},
		Moves:  out,
	}
}

// check returns an error if a plan is not for an array. Steps after the first have its devices.
func check(h *C.pr_export, from shape.Shape, plan *reshard.Plan, devices int) error {
	err := export.Check(plan, int(h.n), func(i int) (int, []int64) {
		return int(C.pr_export_device(h, C.size_t(i))), from.Dims
	})
	for _, to := range plan.To {
		if err == nil && (to.Device < 0 || to.Device >= devices) {
			err = status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", to.Device,
				devices-1)
		}
	}
	return err
}
