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
	loan    *loan // nil where the session has no memory of its own for it
	state   atomic.Int32
}

// The states of an Array.
const (
	live = iota
	freed
	donated
)

// PutSpec is an array to be made of host memory.
type PutSpec struct {
	DType  shape.DType
	Dims   []int64
	Layout Layout
	// Fill writes the dense bytes of the box that begins at start and has size
	// elements in each dimension to dst. It is called from other goroutines, once
	// for each shard, or not where that fails.
	Fill func(start, size []int64, dst []byte)
	// Done is called once when Fill will not be called any more, and no call of it
	// is under way. It must not wait. It may be nil. It is not called where Put
	// fails.
	Done func()
}

// apart is from how many bytes on a shard is written on a goroutine of its own.
const apart = 256 << 10

// Put brings an array to devices. The shards are written straight into memory of
// their workers, where those are on this host.
//
// Errors: INVALID_ARGUMENT for a layout that does not fit, and those of a session
// that is lost.
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
			go fill() // Done comes after it
		}
	}
	spec.Token, a.made = s.begin(p.Done)
	if err := s.cluster.Put(spec); err != nil {
		s.undo(spec.Token)
		return nil, err
	}
	return a, nil
}

// array begins an array that is brought to devices.
func (s *Session) array(dtype shape.DType, dims []int64, layout Layout) (*Array, *client.PutSpec, error) {
	whole := shape.Shape{DType: dtype, Dims: slices.Clone(dims)}
	if dtype.Bits() == 0 || whole.HostBytes() < 0 {
		return nil, nil, status.New(status.InvalidArgument, "an array of %v: expected a known element type and dimensions that are not negative and fit in memory", whole)
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

// Wait waits until the array is there.
//
// Errors: why it never will be; CANCELLED where ctx ends first.
func (a *Array) Wait(ctx context.Context) error { return a.made.wait(ctx) }

// usable refuses an array that was freed, or is another session's.
func (a *Array) usable(s *Session) error {
	switch {
	case a.session != s:
		return status.New(status.InvalidArgument, "the array is of another session; read it there and put it here")
	case a.state.Load() == freed:
		return status.New(status.FailedPrecondition, "the array was freed; free it when it is not needed any more")
	case a.state.Load() == donated:
		return status.New(status.FailedPrecondition, "the array was donated to a program, which had its memory for its results")
	}
	return nil
}

// has refuses a shard that there is not.
func (a *Array) has(i int) error {
	if err := a.usable(a.session); err != nil {
		return err
	}
	if i < 0 || i >= a.Shards() {
		return status.New(status.InvalidArgument, "there is no shard %d: the array has %d, from 0", i, a.Shards())
	}
	return nil
}

// Shard brings a shard's dense bytes here: a block that is the caller's until it is
// released, and is not to be written. Of an array that was lent it is the memory that
// was lent; Wait first to have it for sure.
//
// Errors: why the array failed; INVALID_ARGUMENT for a shard that there is not,
// FAILED_PRECONDITION after Free, CANCELLED where ctx ends first.
func (a *Array) Shard(ctx context.Context, i int) (transport.Block, error) {
	if err := a.has(i); err != nil {
		return transport.Block{}, err
	}
	if a.made.ready() {
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
	err := a.session.cluster.Receive(a.object, uint32(a.layout.Devices[i]), size, func(b transport.Block, err error) { came <- arrival{b, err} })
	if err != nil {
		return transport.Block{}, err
	}
	select {
	case c := <-came:
		return c.block, c.err
	case <-ctx.Done():
		a.session.owe(1)
		go func() { // it ends with the session, if not before
			if c := <-came; c.err == nil {
				c.block.Release()
			}
			a.session.owe(-1)
		}()
		return transport.Block{}, status.New(status.Cancelled, "reading an array was given up: %w", context.Cause(ctx))
	}
}

// Free lets go of the array, when what was submitted before is through with it. It
// never waits, and may be called more than once.
func (a *Array) Free() {
	if a.state.CompareAndSwap(live, freed) {
		a.session.cluster.Free([]uint64{a.object})
	}
}
