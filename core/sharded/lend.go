package sharded

import (
	"context"
	"sync"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// LendSpec describes an array that is already in memory of this process.
type LendSpec struct {
	DType  shape.DType
	Dims   []int64
	Layout Layout
	// At returns the bytes of the region that begins at start and has size elements in
	// each dimension, in place; nil if they are not contiguous. It is called once for
	// each shard, before Lend returns.
	At func(start, size []int64) []byte
	// Returned is called once, when the memory has no readers any more: the workers have
	// released it, after Free or with the session, and so have all holders of blocks
	// that Shard returned. Until then the memory must not be written. Returned must not
	// block. It is not called if Lend returns an error.
	Returned func()
}

// Lend makes an array of memory that the devices read in place, without a copy. The
// memory must be a shared block of the session's Pool, each shard must begin at a multiple
// of 64 bytes, and the devices must be on this host and use its memory.
//
// Errors: FAILED_PRECONDITION, with the reason, if one of these is not so; those of Put.
func (s *Session) Lend(p LendSpec) (*Array, error) {
	a, spec, err := s.array(p.DType, p.Dims, p.Layout)
	if err != nil {
		return nil, err
	}
	size := shape.Shape{DType: a.dtype, Dims: a.shard}.HostBytes()
	shards := make([][]byte, a.Shards())
	for i, d := range spec.Devices {
		start := a.layout.start(i, a.shard)
		data := []byte{}
		if size > 0 {
			data = p.At(start, a.shard)
		}
		switch {
		case data == nil:
			err = status.New(status.FailedPrecondition, "its elements are not contiguous in row-major order")
		case int64(len(data)) != size:
			err = status.New(status.InvalidArgument, "%d bytes were lent, and it has %d", len(data), size)
		default:
			err = s.canLend(d, data)
		}
		if err != nil {
			return nil, status.Wrap(err, "shard %d, from %v on, cannot be shared with device %d", i, start, d)
		}
		shards[i] = data
	}
	a.loan = &loan{shards: shards, users: len(shards), returned: p.Returned}
	index := a.index()
	spec.Lend = func(device uint32) []byte { return shards[index[device]] }
	spec.Returned = func(uint32) {
		a.loan.release()
		s.owe(-1)
	}
	s.owe(len(shards))
	spec.Token, a.made = s.begin(nil)
	if err := s.cluster.Put(spec); err != nil {
		s.undo(spec.Token)
		s.owe(-len(shards))
		return nil, err
	}
	return a, nil
}

func (s *Session) canLend(device uint32, data []byte) error {
	if err := s.cluster.CanLend(device, data); err != nil || len(data) == 0 {
		return err
	}
	if in, _ := s.pool.Find(data); in == nil {
		return status.New(status.FailedPrecondition,
			"the bytes are not in shared memory of the session's Pool: allocate them with arrowmem.New(session.Pool(), …, true)")
	}
	return nil
}

// Lent waits for an array that was lent and returns a shard: the block is the lent memory
// itself, which is not returned to its owner before the block is released.
//
// Errors: the reason why the array failed; INVALID_ARGUMENT if there is no such shard,
// FAILED_PRECONDITION after Free or if the array is in memory of the workers, CANCELLED
// if ctx ends first.
func (a *Array) Lent(ctx context.Context, i int) (transport.Block, error) {
	if err := a.has(i); err != nil {
		return transport.Block{}, err
	}
	if err := a.Wait(ctx); err != nil {
		return transport.Block{}, err
	}
	return a.lent(i)
}

func (a *Array) lent(i int) (transport.Block, error) {
	if a.loan == nil {
		return transport.Block{}, status.New(status.FailedPrecondition,
			"the array is in memory of the workers, because their devices made it or it was copied there; call Shard for a copy")
	}
	if err := a.session.Lost(); err != nil {
		return transport.Block{}, err
	}
	return a.loan.view(i)
}

// loan is the memory of an array that was lent.
type loan struct {
	shards   [][]byte
	returned func()

	mu    sync.Mutex
	users int // devices that use it, and blocks that have not been released
}

// view returns a shard's memory, unless all of it has been returned to its owner.
func (l *loan) view(i int) (transport.Block, error) {
	if len(l.shards[i]) == 0 {
		return transport.Block{Data: []byte{}, Release: func() {}}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return transport.Block{},
			status.New(status.FailedPrecondition, "the array's memory was returned to its owner, because its devices are gone")
	}
	l.users++
	return transport.Block{Data: l.shards[i], Lent: true, Release: sync.OnceFunc(l.release)}, nil
}

func (l *loan) release() {
	l.mu.Lock()
	l.users--
	last := l.users == 0
	l.mu.Unlock()
	if last && l.returned != nil {
		l.returned()
	}
}
