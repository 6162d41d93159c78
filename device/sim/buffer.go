package sim

import (
	"bytes"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// buffer is a device.Buffer.
type buffer struct {
	on    *dev
	mem   *memory
	shape shape.Shape
	ready *event

	// The island's lock guards the rest.
	store *storage      // nil when the contents are gone
	gone  string        // why: donated, closed
	busy  time.Duration // until when pieces of it are read or written
}

// Shape implements device.Buffer.
func (b *buffer) Shape() shape.Shape { return b.shape }

// Device implements device.Buffer.
func (b *buffer) Device() int { return b.on.local }

// Memory implements device.Buffer.
func (b *buffer) Memory() string { return b.mem.kind }

// Ready implements device.Buffer.
func (b *buffer) Ready() device.Event { return b.ready }

// usable returns an error if the buffer's contents are gone. The caller holds the island's
// lock.
func (b *buffer) usable() error {
	if b.store == nil {
		return status.New(status.FailedPrecondition, "the array of %s on device %d was %s", b.shape, b.on.local, b.gone)
	}
	if err := b.on.drv.open(); err != nil {
		return err
	}
	return b.on.lost
}

// ToHost implements device.Buffer.
func (b *buffer) ToHost(dst []byte) (device.Event, error) {
	if n := b.shape.HostBytes(); int64(len(dst)) != n {
		return nil, status.New(status.InvalidArgument, "array of %s to %d bytes on the host, want %d", b.shape, len(dst), n)
	}
	is := b.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	if err := b.usable(); err != nil {
		return nil, err
	}
	s := b.store
	s.refs++
	e := &event{is: is, owner: b.ready.owner}
	b.copy(e, func() {
		if n := copy(dst, s.data); n == 0 {
			clear(dst)
		}
	}, s.release)
	return e, nil
}

// CopyTo implements device.Buffer.
func (b *buffer) CopyTo(local int, kind string) (device.Buffer, error) {
	v, err := b.on.drv.dev(local)
	if err != nil {
		return nil, err
	}
	m, err := v.memory(kind)
	if err != nil {
		return nil, err
	}
	is := b.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	if err := b.usable(); err != nil {
		return nil, err
	}
	src := b.store
	dst, err := v.alloc(m, b.shape.Bytes())
	if err != nil {
		return nil, err
	}
	src.refs++
	dst.refs++
	to := &buffer{on: v, mem: m, shape: b.shape, store: dst, ready: &event{is: is, owner: b.ready.owner}}
	var data []byte
	b.copy(to.ready, func() { data = bytes.Clone(src.data) }, func() {
		dst.data = data
		dst.release()
		src.release()
	})
	return to, nil
}

// copy moves the buffer's bytes once they exist: it calls work without the lock, unless the
// contents failed, then commit with the lock, and then e fires. Nil functions do nothing.
func (b *buffer) copy(e *event, work, commit func()) {
	d := b.on.drv
	d.pending++
	took := d.copyTime(b.shape.Bytes())
	start := func() {
		var err error
		if e != b.ready {
			err = b.ready.err
		}
		if err != nil {
			took, work = 0, nil
		}
		d.is.after(took, work, func() {
			if commit != nil {
				commit()
			}
			if err == nil {
				err = b.on.lost
			}
			d.pending--
			e.fire(err)
		})
	}
	if e == b.ready { // the bytes come from the host
		start()
	} else {
		b.ready.when(start)
	}
}

// copyTime is how long it takes to copy so many bytes.
func (d *Driver) copyTime(bytes int64) time.Duration {
	took := d.options.Latency
	if d.options.Bandwidth > 0 {
		took += time.Duration(float64(bytes) / float64(d.options.Bandwidth) * float64(time.Second))
	}
	return took
}

// Deleted implements device.Buffer.
func (b *buffer) Deleted() bool {
	b.on.drv.is.mu.Lock()
	defer b.on.drv.is.mu.Unlock()
	return b.store == nil
}

// Close implements device.Buffer.
func (b *buffer) Close() {
	is := b.on.drv.is
	is.mu.Lock()
	defer is.unlock()
	if b.store != nil {
		b.store.release()
		b.store, b.gone = nil, "closed"
	}
}
