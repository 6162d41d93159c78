package sim

import (
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// Arrays that are read or written in pieces. The pieces of one array follow each other, in the order of the calls: all
// of them take as long as the whole array does, and a latency more for each.

// Dense implements device.Sliced.
func (b *buffer) Dense() bool { return true }

// Slice implements device.Sliced.
func (b *buffer) Slice(dst []byte, offset int64) (device.Event, error) {
	if err := device.CheckPiece(b.shape, dst, offset); err != nil {
		return nil, err
	}
	is := b.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	if err := b.usable(); err != nil {
		return nil, err
	}
	if err := b.on.pieces.next(); err != nil {
		return nil, err
	}
	s := b.store
	s.refs++
	e := &event{is: is, owner: b.ready.owner}
	b.on.drv.pending++
	b.ready.when(func() {
		err, took := b.ready.err, time.Duration(0)
		work := func() {
			if n := copy(dst, s.data[min(offset, int64(len(s.data))):]); n == 0 {
				clear(dst)
			}
		}
		if err != nil {
			work = nil
		} else {
			took = b.turn(int64(len(dst)))
		}
		is.after(took, work, func() {
			s.release()
			if err == nil {
				err = b.on.lost
			}
			b.on.drv.pending--
			e.fire(err)
		})
	})
	return e, nil
}

// turn returns how long it takes until a piece of so many bytes is copied, behind those before it. The caller holds the
// island's lock.
func (b *buffer) turn(bytes int64) time.Duration {
	now := b.on.drv.is.moment()
	b.busy = max(b.busy, now) + b.on.drv.copyTime(bytes)
	return b.busy - now
}

// incoming is a device.Incoming. The island's lock guards what changes.
type incoming struct {
	to     *buffer
	store  *storage // until the last piece is written
	missed int64    // bytes that Write was not called for
	left   int64    // bytes that are not there
	under  int      // pieces that are being written
	closed bool
	err    error // of the first piece that was not written
}

// Receive implements device.Receiver.
func (d *Driver) Receive(s shape.Shape, local int, kind string) (device.Incoming, error) {
	v, err := d.dev(local)
	if err != nil {
		return nil, err
	}
	m, err := v.memory(kind)
	if err != nil {
		return nil, err
	}
	if s.DType.Bits() == 0 || s.Bytes() < 0 || s.HostBytes() < 0 {
		return nil, status.New(status.InvalidArgument,
			"array of %s: want a known element type and dimensions that are not negative and fit in memory", s)
	}
	d.is.mu.Lock()
	defer d.is.unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	store, err := v.alloc(m, s.Bytes())
	if err != nil {
		return nil, err
	}
	store.data = make([]byte, s.HostBytes())
	store.refs++ // the pieces'
	b := &buffer{on: v, mem: m, shape: cloneShape(s), store: store, ready: &event{is: d.is}}
	in := &incoming{to: b, store: store, missed: s.HostBytes(), left: s.HostBytes()}
	in.settle()
	return in, nil
}

// Buffer implements device.Incoming.
func (in *incoming) Buffer() device.Buffer { return in.to }

// Write implements device.Incoming.
func (in *incoming) Write(data []byte, offset int64) (device.Event, error) {
	b := in.to
	if err := device.CheckPiece(b.shape, data, offset); err != nil {
		return nil, err
	}
	is := b.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	switch {
	case int64(len(data)) > in.missed:
		return nil, status.New(status.InvalidArgument, "a piece of %d bytes for the array of %s, which lacks %d", len(data),
			b.shape, in.missed)
	case in.closed || in.store == nil:
		return nil, status.New(status.FailedPrecondition, "a piece for the array of %s, which takes no more", b.shape)
	case b.on.lost != nil:
		return nil, b.on.lost
	}
	if err := b.on.pieces.next(); err != nil {
		return nil, err
	}
	in.missed -= int64(len(data))
	in.under++
	b.on.drv.pending++
	e := &event{is: is}
	is.after(b.turn(int64(len(data))), func() { copy(in.store.data[offset:], data) }, func() {
		in.under--
		b.on.drv.pending--
		err := b.on.lost
		if err == nil {
			in.left -= int64(len(data))
		} else if in.err == nil {
			in.err = err
		}
		e.fire(err)
		in.settle()
	})
	return e, nil
}

// Close implements device.Incoming.
func (in *incoming) Close() {
	is := in.to.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	in.closed = true
	in.settle()
}

// settle ends the writing once all is there, or no more will come. The caller holds the island's lock.
func (in *incoming) settle() {
	if in.store == nil || in.under > 0 || in.left > 0 && in.err == nil && !in.closed {
		return
	}
	err := in.err
	if err == nil && in.left > 0 {
		err = status.New(status.Cancelled, "%d bytes of the array of %s were never written", in.left, in.to.shape)
	}
	in.store.release()
	in.store = nil
	in.to.ready.fire(err)
}

var _ device.Receiver = (*Driver)(nil)
var _ device.Sliced = (*buffer)(nil)
