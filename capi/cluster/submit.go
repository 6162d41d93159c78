package cluster

/*
#include <stdlib.h>
#include "cluster.h"
*/
import "C"

import (
	"runtime/cgo"
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Each function here begins an operation of the cluster for C, and returns before it has ended. What they share:
//
// Numbers. This side numbers the objects that an operation makes, before it is sent, so that C hands out handles at
// once and later operations can name them.
//
// Tokens. An operation whose end C waits for has a token, the address of a future that C holds a reference to until it
// is told. underWay counts these: it grows before the cluster is asked, and falls here if the cluster refuses, or in
// notify (ends.go) when the operation has ended. So no end is outstanding when it is zero, which shutdown waits for.
//
// Ends are never told on the caller's thread. A future's callbacks may take Python's GIL, which the caller may hold.
//
// Memory. C's lists are read before a function returns. What is used later is copied (a put's keep), or belongs to the
// operation until its end is told: a put's data, a fetch's destination, a lent block.

var specs = sync.Pool{New: func() any { return new(client.RunSpec) }}

// prGoRun submits a run. On success its token's future has one reference for the end; on an error C drops it.
//
//export prGoRun
func prGoRun(r *C.pr_run) (code C.int) {
	defer base.Guard(&code, &r.message)
	free(r.freed, r.num_freed)
	s, err := of(r.session)
	if err != nil {
		return C.int(base.Fail(err, &r.message))
	}
	spec := specs.Get().(*client.RunSpec)
	// The lists are C's, and are read before Run returns.
	*spec = client.RunSpec{
		Program:    uint64(r.program),
		Inputs:     unsafe.Slice((*uint64)(r.inputs), r.num_inputs),
		NotDonated: unsafe.Slice((*uint32)(r.not_donated), r.num_not_donated),
		Only:       int(r.only),
		Trace:      unsafe.Slice((*byte)(unsafe.Pointer(r.trace)), r.trace_size),
		Token:      uint64(r.token),
	}
	if n := int(r.num_outputs); n > 0 {
		spec.FirstOutput = s.cluster.Objects(n)
		r.first_output = C.uint64_t(spec.FirstOutput)
	}
	var moved []uint64
	if r.num_mixed > 0 {
		if moved, err = s.mix(r, spec); err != nil {
			return C.int(base.Fail(err, &r.message))
		}
	}
	var functions *caller
	if r.functions != nil {
		functions = s.callers.add(r.functions, spec.Token)
		spec.Call, r.caller = functions.call, C.uint64_t(functions.handle)
	}
	s.underWay.Add(1)
	if err = s.cluster.Run(spec); err != nil {
		s.underWay.Add(-1)
		if functions != nil {
			functions.handle.Delete()
			s.callers.end(spec.Token)
		}
	}
	if moved != nil {
		s.cluster.Free(moved)
	}
	*spec = client.RunSpec{}
	specs.Put(spec)
	return C.int(base.Fail(err, &r.message))
}

// mix lists the sources of arguments whose rows are shards of several objects. Shards that are not on their row's
// device are brought there first, as new objects, which it returns.
func (s *session) mix(r *C.pr_run, spec *client.RunSpec) (moved []uint64, err error) {
	rows := unsafe.Slice((*uint32)(r.rows), r.num_rows)
	all := unsafe.Slice(r.shards, r.num_rows*r.num_mixed)
	for k, argument := range unsafe.Slice((*uint32)(r.mixed), r.num_mixed) {
		shards := all[k*len(rows):][:len(rows)]
		var here uint64 // the object of those that are brought
		var moves []*wire.Move
		var pieces []*wire.Piece
		for row, shard := range shards {
			object := uint64(shard.object)
			if uint32(shard.device) != rows[row] {
				if here == 0 {
					here = s.cluster.Objects(1)
				}
				moves = append(moves, &wire.Move{Source: object, From: uint32(shard.device), To: rows[row]})
				object = here
			}
			if n := len(pieces); n > 0 && pieces[n-1].Object == object {
				pieces[n-1].Rows++
			} else {
				pieces = append(pieces, &wire.Piece{Object: object, Rows: 1})
			}
		}
		if here != 0 {
			b := shards[0].buffer
			t := &wire.Transfer{Object: here, Moves: moves, Array: arrayOf(b.shape, C.GoString(b.memory.kind))}
			if err := s.cluster.Transfer(t, 0); err != nil {
				s.cluster.Free(moved)
				return nil, err
			}
			moved = append(moved, here)
			C.pr_count_moved(C.int64_t(len(moves)))
		}
		if len(pieces) == 1 {
			spec.Inputs[argument] = pieces[0].Object
		} else {
			spec.Mixed = append(spec.Mixed, &wire.Mixed{Argument: argument, Pieces: pieces})
		}
	}
	return moved, nil
}

func shapeOf(s *C.pw_shape) shape.Shape {
	dims := unsafe.Slice((*int64)(C.pw_shape_dims(s)), s.num_dims)
	return shape.Shape{DType: shape.DType(s._type), Dims: append([]int64(nil), dims...)}
}

func arrayOf(s *C.pw_shape, memory string) *wire.Array {
	x := shapeOf(s)
	return &wire.Array{Dtype: uint32(x.DType), Dims: x.Dims, Memory: memory}
}

// put is host data on its way to a device. The data goes with the first of two: the cluster, which asks for it once
// (fill), or the operation's end, which may come earlier if it fails (end). Either takes c, under mu, so that the
// data is released once.
//
// The data is copied under mu, since the end of the operation frees it. The lock is this
// put's alone: a goroutine that waits for it wants to end this put, and has nothing to end before.
type put struct {
	s    *session
	mu   sync.Mutex // guards what follows
	c    *C.pr_put  // nil when it has gone
	call bool       // prGoPut has yet to return
	done C.pr_end   // that the data has gone, during the call
}

// fill is called by the cluster.
func (p *put) fill(_ uint32, dst []byte, written func(error)) {
	p.mu.Lock()
	c := p.c
	var err error
	switch {
	case c == nil:
		err = status.New(status.Cancelled, "the transfer from the host has ended")
	case len(dst) != int(C.pr_host_bytes(c.shape)):
		err = status.New(status.Internal, "a shard takes %d bytes, and there is room for %d", int(C.pr_host_bytes(c.shape)),
			len(dst))
	default:
		C.pr_put_fill(c, (*C.char)(unsafe.Pointer(unsafe.SliceData(dst))))
	}
	p.mu.Unlock()
	p.end()
	written(err)
}

// keep has the caller's data copied, if the cluster has not read it yet.
func (p *put) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil {
		C.pr_put_keep(p.c)
	}
}

// end releases the data, and tells its owner.
func (p *put) end() {
	p.mu.Lock()
	c, call := p.c, p.call
	p.c = nil
	var done C.pr_end
	if c != nil {
		done = end(uint64(uintptr(unsafe.Pointer(C.pr_put_free(c)))), nil)
		if call {
			p.done = done
		}
	}
	p.mu.Unlock()
	if c != nil && !call {
		p.s.ends.add(done)
	}
}

// returns ends the call. If the data has gone by then, its event completes here, before the caller has it: that
// wakes no goroutine, and nothing is called.
func (p *put) returns() {
	p.mu.Lock()
	done := p.done
	p.call = false
	p.mu.Unlock()
	if done.token != 0 {
		C.pr_fire(&done, 1)
	}
}

// gathered is an object that is put row by row, for core/client: its operation has been begun by one put, and others
// may join it.
type gathered struct {
	put    *put // the first row
	object *C.pr_object
	token  uint64
	bytes  int64 // of a row
}

// Join implements client.Gathering. The row's put ends with those of the other rows.
func (g *gathered) Join(row *client.PutSpec) bool {
	if !C.pr_object_joins(g.object, C.int64_t(g.bytes)) {
		return false
	}
	g.put.s.addPut(g.token, row.Gather.(*gathered).put)
	return true
}

// Sent implements client.Gathering.
func (g *gathered) Sent() { C.pr_object_sent(g.object) }

// addPut has a put end with the operation of a token.
func (s *session) addPut(token uint64, p *put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts[token] = append(s.puts[token], p)
}

// removePut undoes addPut.
func (s *session) removePut(token uint64, p *put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.DeleteFunc(s.puts[token], func(one *put) bool { return one == p })
	if s.puts[token] = list; len(list) == 0 {
		delete(s.puts, token)
	}
}

// prGoPut submits a put of one shard. It takes c in any case: fill and end release it, once. With during, the
// caller's data is good only for the length of this call, so it is copied unless the cluster has had it by then.
//
// The shard is that of object o, which becomes one of the cluster and takes a reference to made, the other of which is
// for the operation's end. Or the shard is a further one of the object joined: o is unused then, as after an error, and
// made has one reference left.
//
//export prGoPut
func prGoPut(id C.uint64_t, device C.uint32_t, memory *C.char, c *C.pr_put, o *C.pr_object, made *C.pr_future,
	bytes C.int64_t, during C.bool, joined **C.pr_object, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s, err := of(id)
	if err != nil {
		C.pr_future_drop(C.pr_put_free(c))
		C.pr_future_drop(made)
		return C.int(base.Fail(err, message))
	}
	p := &put{s: s, c: c, call: true}
	defer p.returns()
	own := &gathered{put: p, object: o, token: uint64(uintptr(unsafe.Pointer(made))) | ofPut,
		bytes: int64(bytes)}
	spec := client.PutSpec{Object: s.cluster.Objects(1), Shape: shapeOf(c.shape), Memory: C.GoString(memory),
		Devices: []uint32{uint32(device)}, Fill: p.fill, Token: own.token, Gather: own}
	s.addPut(own.token, p)
	s.underWay.Add(1)
	C.pr_object_opens(o, id, C.uint64_t(spec.Object), made, bytes)
	err = s.cluster.Put(&spec)
	with := spec.Gather.(*gathered)
	if err != nil || with != own {
		s.underWay.Add(-1)
		s.removePut(own.token, p)
		C.pr_object_undone(o)
	}
	if err != nil {
		if with != own {
			s.removePut(with.token, p)
			C.pr_object_release(with.object)
		}
		p.end()
		return C.int(base.Fail(err, message))
	}
	if with != own {
		*joined = with.object
	}
	if during {
		p.keep()
	}
	return 0
}

// prGoHasten has puts that wait for further rows sent.
//
//export prGoHasten
func prGoHasten() {
	for _, s := range sessions.Open() {
		s.cluster.SendPuts()
	}
}

// prGoFetch submits a fetch into dst, which stays the operation's until the token's end is told. It counts as under way
// by itself: the cluster calls done for it, and notify hears nothing of fetches.
//
//export prGoFetch
func prGoFetch(id, object C.uint64_t, device C.uint32_t, dst *C.char, size C.size_t, f *C.pr_fetch, token C.uint64_t,
	message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s, err := of(id)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	s.underWay.Add(1)
	err = s.fetch(uint64(object), uint32(device), unsafe.Slice((*byte)(unsafe.Pointer(dst)), size), func(err error) {
		if f != nil {
			C.pr_fetch_end(f, C.bool(err == nil))
		}
		s.underWay.Add(-1)
		s.ends.add(end(uint64(token), err))
	})
	if err != nil {
		s.underWay.Add(-1)
		return C.int(base.Fail(err, message))
	}
	return 0
}

// prGoLend has a shard's contents come for a view: by memory that a worker of this machine lends, where it does, or
// else into memory of this process. The view hears once, of contents or of an error.
//
//export prGoLend
func prGoLend(id, object C.uint64_t, device C.uint32_t, size C.size_t, v *C.pr_view, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s, err := of(id)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	failed := func(err error) {
		var text *C.char
		code := base.Fail(err, &text)
		C.pr_view_failed(v, C.PJRT_Error_Code(code), text)
	}
	s.underWay.Add(1)
	if size > C.PR_IN_MESSAGE && s.cluster.Lends(uint32(device), int64(size)) {
		err = s.cluster.Receive(uint64(object), uint32(device), int64(size), func(b transport.Block, err error) {
			s.underWay.Add(-1)
			if err != nil {
				s.ends.tell(func() { failed(err) })
				return
			}
			handle := cgo.NewHandle(b)
			if !C.pr_view_came(v, (*C.char)(unsafe.Pointer(unsafe.SliceData(b.Data))), C.uint64_t(handle)) {
				prGoReturn(C.uint64_t(handle))
			}
		})
	} else if room := C.pr_view_room(v, size); room == nil {
		err = status.New(status.ResourceExhausted, "this process has no %d bytes of memory for an array's contents", size)
	} else {
		dst := unsafe.Slice((*byte)(unsafe.Pointer(room)), size)
		err = s.fetch(uint64(object), uint32(device), dst, func(err error) {
			s.underWay.Add(-1)
			if err != nil {
				s.ends.tell(func() { failed(err) })
				return
			}
			C.pr_view_came(v, room, 0)
		})
	}
	if err != nil {
		s.underWay.Add(-1)
		return C.int(base.Fail(err, message))
	}
	return 0
}

// prGoReturn returns a lent block to its worker.
//
//export prGoReturn
func prGoReturn(block C.uint64_t) {
	handle := cgo.Handle(block)
	b := handle.Value().(transport.Block)
	handle.Delete()
	b.Release()
}

// prGoCopy submits a copy of one shard to another device. The token's future is told when it is there.
//
//export prGoCopy
func prGoCopy(id, object C.uint64_t, from, to C.uint32_t, array *C.pw_shape, memory *C.char, token C.uint64_t,
	number *C.uint64_t, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s, err := of(id)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	t := &wire.Transfer{
		Object: s.cluster.Objects(1),
		Array:  arrayOf(array, C.GoString(memory)),
		Moves:  []*wire.Move{{Source: uint64(object), From: uint32(from), To: uint32(to)}},
	}
	s.underWay.Add(1)
	if err := s.cluster.Transfer(t, uint64(token)); err != nil {
		s.underWay.Add(-1)
		return C.int(base.Fail(err, message))
	}
	*number = C.uint64_t(t.Object)
	return 0
}
