package sharded

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// Array is an array on devices.
type Array struct {
	form
	session *Session
	object  uint64
	made    *future
	loan    *loan // nil unless the array was lent
	state   atomic.Int32
}

// The states of an Array.
const (
	live = iota
	freed
	donated
)

// PutSpec describes an array to be made from host memory.
type PutSpec struct {
	DType  shape.DType
	Dims   []int64
	Layout Layout
	// Fill writes the dense bytes of the region that begins at start and has size
	// elements in each dimension to dst. It is called from other goroutines, once
	// for each shard, or not at all for a shard that fails before that.
	Fill func(start, size []int64, dst []byte)
	// Done is called once, when no call of Fill is in progress and none will follow.
	// It must not block. It may be nil. It is not called if Put returns an error.
	Done func()
}

// apart is the size in bytes from which a shard is written on a goroutine of its own:
// below that, starting one takes about as long as the copy.
const apart = 256 << 10

// Put copies an array to devices. If the workers are on this host, the shards are
// written straight into their memory.
//
// Errors: INVALID_ARGUMENT for a layout that does not fit the array; the session's
// error if it is lost.
func (s *Session) Put(p PutSpec) (*Array, error) {
	a, spec, err := s.array(p.DType, p.Dims, p.Layout)
	if err != nil {
		return nil, err
	}
	index := a.index()
	spec.Fill = func(device uint32, dst []byte, written func(error)) {
		fill := func() {
			p.Fill(a.layout.start(index[device], a.shard), a.shard, dst)
			written(nil)
		}
		if len(dst) < apart {
			fill()
		} else {
			go fill() // Done is called after it returns
		}
	}
	spec.Token, a.made = s.begin(p.Done)
	if err := s.cluster.Put(spec); err != nil {
		s.undo(spec.Token)
		return nil, err
	}
	return a, nil
}

// array returns a pending array that is to be copied to devices, and the spec of that.
func (s *Session) array(dtype shape.DType, dims []int64, layout Layout) (*Array, *client.PutSpec, error) {
	whole := shape.Shape{DType: dtype, Dims: slices.Clone(dims)}
	if dtype.Bits() == 0 || whole.HostBytes() < 0 {
		return nil, nil, status.New(status.InvalidArgument,
			"an array of %v: expected a known element type, and dimensions that are not negative and fit in memory", whole)
	}
	l, err := layout.check(dims, s.Devices())
	if err != nil {
		return nil, nil, err
	}
	a := &Array{session: s, object: s.cluster.Objects(1), form: form{dtype, l, l.shard(dims), true}}
	spec := &client.PutSpec{Object: a.object, Shape: shape.Shape{DType: dtype, Dims: a.shard}}
	for _, d := range l.Devices {
		spec.Devices = append(spec.Devices, uint32(d))
	}
	return a, spec, nil
}

// Wait blocks until the array is ready.
//
// Errors: the reason why it will never be ready; CANCELLED if ctx ends first.
func (a *Array) Wait(ctx context.Context) error { return a.made.wait(ctx) }

// usable returns an error if the array was freed or donated, or is another session's.
func (a *Array) usable(s *Session) error {
	switch {
	case a.session != s:
		return status.New(status.InvalidArgument, "the array belongs to another session; read it there and put it here")
	case a.state.Load() == freed:
		return status.New(status.FailedPrecondition, "the array was freed; free an array only after its last use")
	case a.state.Load() == donated:
		return status.New(status.FailedPrecondition,
			"the array was donated to a program, which reused its memory for its results")
	}
	return nil
}

// has returns an error if the array has no shard i.
func (a *Array) has(i int) error {
	if err := a.usable(a.session); err != nil {
		return err
	}
	if i < 0 || i >= a.Shards() {
		return status.New(status.InvalidArgument, "there is no shard %d: the array has %d, numbered from 0", i, a.Shards())
	}
	return nil
}

// Shard returns a shard's dense bytes in a block that the caller owns until it releases
// it, and must not write to. For an array that was lent, the block is the lent memory
// itself; call Wait first to be sure of that.
//
// Errors: the reason why the array failed; INVALID_ARGUMENT if there is no such shard,
// FAILED_PRECONDITION after Free, CANCELLED if ctx ends first.
func (a *Array) Shard(ctx context.Context, i int) (transport.Block, error) {
	if err := a.has(i); err != nil {
		return transport.Block{}, err
	}
	if a.made.hasSucceeded() {
		if b, err := a.lent(i); err == nil {
			return b, nil
		}
	}
	type arrival struct {
		block transport.Block
		err   error
	}
	came := make(chan arrival, 1)
	size := shape.Shape{DType: a.dtype, Dims: a.shard}.HostBytes()
	err := a.session.cluster.Receive(a.object, uint32(a.layout.Devices[i]), size, func(b transport.Block, err error) {
		came <- arrival{b, err}
	})
	if err != nil {
		return transport.Block{}, err
	}
	select {
	case c := <-came:
		return c.block, c.err
	case <-ctx.Done():
		a.session.owe(1)
		go func() { // ends with the session at the latest
			if c := <-came; c.err == nil {
				c.block.Release()
			}
			a.session.owe(-1)
		}()
		return transport.Block{}, status.New(status.Cancelled, "reading an array was cancelled: %w", context.Cause(ctx))
	}
}

// Free frees the array once all operations that were submitted before have finished
// with it. It never blocks, and may be called more than once.
func (a *Array) Free() {
	if a.state.CompareAndSwap(live, freed) {
		a.session.cluster.Free([]uint64{a.object})
	}
}
