package sharded

import (
	"context"
	"sync"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// LendSpec is an array that lies in memory of this process already.
type LendSpec struct {
	DType  shape.DType
	Dims   []int64
	Layout Layout
	// At gives the dense bytes of the box that begins at start and has size elements
	// in each dimension, where they lie: nil where the box's do not lie together. It
	// is called once for each shard, before Lend returns.
	At func(start, size []int64) []byte
	// Returned is called once when nobody reads the memory any more: the workers have
	// let go of it, after Free or with the session, and so has everyone who has a
	// block that Shard gave. Until then it is not to be written. It must not wait. It
	// is not called where Lend fails.
	Returned func()
}

// Lend makes an array of memory that the devices read where it is, which nobody
// copies: of a block in the session's Pool that is shared, with each shard at a
// multiple of 64 bytes, on devices of this host whose memory is the host's.
//
// Errors: FAILED_PRECONDITION, which says why, where that cannot be; those of Put.
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
			err = status.New(status.FailedPrecondition, "its elements do not lie together, row by row")
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
		return status.New(status.FailedPrecondition, "the bytes do not lie in shared memory of the session's Pool: allocate them with arrowmem.New(session.Pool(), …, true)")
	}
	return nil
}

// Lent is Shard of an array that was lent, once it is there: the block is the memory
// itself, which is not given back before the block is released.
//
// Errors: why the array failed; INVALID_ARGUMENT for a shard that there is not,
// FAILED_PRECONDITION after Free, or where the array lies in memory of workers,
// CANCELLED where ctx ends first.
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
		return transport.Block{}, status.New(status.FailedPrecondition, "the array lies in memory of the workers, where their devices made it or it was copied to; Shard brings a copy here")
	}
	if err := a.session.Lost(); err != nil {
		return transport.Block{}, err
	}
	return a.loan.view(i)
}

// loan is memory that an array was lent.
type loan struct {
	shards   [][]byte
	returned func()

	mu    sync.Mutex
	users int // devices, and blocks that somebody has
}

// view gives a shard's memory, if it has not all been given back.
func (l *loan) view(i int) (transport.Block, error) {
	if len(l.shards[i]) == 0 {
		return transport.Block{Data: []byte{}, Release: func() {}}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return transport.Block{}, status.New(status.FailedPrecondition, "the array's memory was given back: its devices are no more")
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
