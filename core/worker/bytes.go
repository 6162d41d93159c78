package worker

import (
	"runtime"
	"sync"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// put is the work of Put.
type put struct {
	shape   shape.Shape
	memory  string
	object  uint64
	devices []uint32 // by part
}

// shapeOf reads the shape of a shard that moves as dense bytes.
func shapeOf(a *wire.Array) (shape.Shape, error) {
	if a == nil {
		return shape.Shape{}, status.New(status.InvalidArgument, "an array without a shape")
	}
	s := shape.Shape{DType: shape.DType(a.Dtype), Dims: a.Dims}
	if s.DType.Bits() == 0 || s.HostBytes() < 0 || s.Bytes() < 0 {
		return s, status.New(status.InvalidArgument, "an array of %s: expected a known element type and dimensions that are not negative and fit in memory", s)
	}
	return s, nil
}

func (w *Worker) beginPut(g *gang, operation []byte) error {
	var m wire.Put
	if err := wire.Decode(wire.KindPut, operation, &m); err != nil {
		return err
	}
	g.op = m.Op
	s, err := shapeOf(m.Array)
	if err != nil {
		return err
	}
	p := &put{shape: s, memory: m.Array.Memory, object: m.Object}
	for _, d := range m.Devices {
		_, q, err := w.where(g.session, d)
		if err != nil {
			return err
		}
		if q != nil {
			g.queues, p.devices = append(g.queues, q), append(p.devices, d)
		}
	}
	g.work, g.bytes = p, true
	return nil
}

// put begins a part of a put: from here on the bytes may come.
func (q *queue) put(p part) bool {
	g := p.g
	u := g.work.(*put)
	if err := g.failure(); err != nil {
		q.lose(g.session, u.object, err)
		g.end(err)
		return true
	}
	bytes := q.size(u.shape, u.memory)
	if ok, err := q.fits(g, bytes, 0, "device_put"); err != nil {
		q.lose(g.session, u.object, q.explain(err, "bringing "+u.shape.String(), nil))
		g.end(err)
		return true
	} else if !ok {
		return false
	}
	s := q.add(g.session, u.object)
	q.charge(s, g.session, bytes, "device_put")
	key := transport.Key{Space: transport.Transfers(g.session), ID: g.op, Part: uint64(u.devices[p.i])}
	q.w.config.Exchange.Expect(g.client, key, u.shape.HostBytes(), nil, func(b transport.Block, err error) {
		q.now(func() { q.arrived(g, s, u.shape, u.memory, b, err) })
	})
	if err := g.failure(); err != nil { // it failed before Expect did know
		q.w.config.Exchange.Fail(key.Space, key.ID, err)
	}
	return true
}

// arrived makes the buffer of a shard whose bytes have come, and ends its part
// when the driver has them.
func (q *queue) arrived(g *gang, s *shard, sh shape.Shape, memory string, b transport.Block, err error) {
	var buf device.Buffer
	if err == nil {
		if s.freed {
			b.Release()
			err = errFreed
		} else {
			buf, err = q.fromHost(sh, memory, b)
		}
	}
	if err != nil {
		if why := g.failure(); why != nil {
			err = why
		} else if err != errFreed {
			err = q.explain(err, "bringing "+sh.String(), nil)
		}
		q.came(s, nil, err)
		if err == errFreed {
			err = nil // nobody wants it any more
		}
		g.end(err)
		return
	}
	e, c := buf.Ready(), s.charge.busy()
	q.came(s, buf, nil)
	q.settle(g, s, c, e)
}

var errFreed = status.New(status.FailedPrecondition, "the array was freed before its bytes came")

// fromHost gives a block to the driver, which lets go of it by itself. A short one is
// copied: that costs less than to hear when it is let go of.
func (q *queue) fromHost(sh shape.Shape, memory string, b transport.Block) (device.Buffer, error) {
	h := device.Host{Shape: sh, Data: b.Data, Device: q.local, Memory: memory, Semantics: device.MutableZeroCopy, Done: b.Release}
	switch {
	case b.Lent:
		h.Semantics = device.ZeroCopy // another process's
	case len(b.Data) <= transport.PostSize:
		h.Semantics = device.DuringCall
	}
	buf, err := q.w.driver.FromHost(h)
	if err != nil {
		b.Release()
	}
	return buf, err
}

// settle ends a part when the contents of its shard are there.
func (q *queue) settle(g *gang, s *shard, c *charge, e device.Event) {
	if e.Ready() {
		q.settled(g, s, c, e.Wait(background))
		return
	}
	e.Then(func(err error) { q.soon(func() { q.settled(g, s, c, err) }) })
}

func (q *queue) settled(g *gang, s *shard, c *charge, err error) {
	c.read()
	err = q.explain(err, "bringing an array", nil)
	if err != nil && s.state == ready && !s.freed {
		s.fail(err)
	}
	g.end(err)
}

// fetch is the work of Fetch.
type fetch struct {
	object uint64
	device uint32
}

func (w *Worker) beginFetch(g *gang, operation []byte) error {
	var m wire.Fetch
	if err := wire.Decode(wire.KindFetch, operation, &m); err != nil {
		return err
	}
	g.op, g.bytes, g.work = m.Op, true, &fetch{m.Object, m.Device}
	_, q, err := w.where(g.session, m.Device)
	if q != nil {
		g.queues = []*queue{q}
	}
	return err
}

func (q *queue) fetch(p part) bool {
	g := p.g
	f := g.work.(*fetch)
	err := g.failure()
	var s *shard
	if err == nil {
		s, err = q.find(q.table(g.session), f.object)
	}
	switch {
	case err != nil:
		g.end(err)
		return true
	case s == nil:
		return q.waits(g, "array %d, whose bytes have yet to come", f.object)
	}
	key := transport.Key{Space: transport.Transfers(g.session), ID: g.op, Part: uint64(f.device)}
	q.push(g, f.object, s, g.client, key, uncounted, func(err error) { g.end(q.explain(err, "reading an array", nil)) })
	return true
}

// push sends a whole shard to another process. Until it has been read it is among what
// has begun, by begins. done is called by whoever has the queue.
func (q *queue) push(g *gang, object uint64, s *shard, to uint64, key transport.Key, begins func() (ends func()), done func(error)) {
	s.readers++
	v, ok := s.buf.(device.Viewer)
	if !ok || s.buf.Shape().HostBytes() > transport.PostSize {
		q.pushBuffer(g, object, s, to, key, begins(), done)
		return
	}
	post := func(err error) bool {
		if err != nil {
			return false
		}
		data := v.View()
		return data != nil && q.w.config.Exchange.Post(to, key, data)
	}
	e := s.buf.Ready()
	if e.Ready() && post(e.Wait(background)) {
		q.read(s)
		done(nil)
		return
	}
	copied := begins()
	e.Then(func(err error) {
		if post(err) {
			copied()
			q.soon(func() {
				q.read(s)
				done(nil)
			})
		} else {
			q.pushBuffer(g, object, s, to, key, copied, done)
		}
	})
}

// pushBuffer is push by a copy that the driver makes. The shard is being read; copied is
// called when it has been, perhaps more than once.
func (q *queue) pushBuffer(g *gang, object uint64, s *shard, to uint64, key transport.Key, copied func(), done func(error)) {
	buf := s.buf
	read := sync.OnceFunc(func() { q.soon(func() { q.read(s) }) })
	q.w.config.Exchange.Push(to, key, buf.Shape().HostBytes(), func(dst []byte, written func(error)) {
		e, err := buf.ToHost(dst)
		read()
		if err != nil {
			copied()
			written(err)
			return
		}
		e.Then(func(err error) {
			copied()
			if err == nil {
				written(nil)
				return
			}
			q.soon(func() {
				if why := q.table(g.session).failure(object); why != nil {
					err = why
				}
				written(err)
			})
		})
	}, func(err error) {
		read() // where it was never filled
		copied()
		q.soon(func() { done(err) })
	})
	if err := g.failure(); err != nil { // it failed before Push did know
		q.w.config.Exchange.Fail(key.Space, key.ID, err)
	}
}

// begins counts something among what has begun, until what it gives is called.
// Nobody asks where devices are queues.
func (q *queue) begins() (ends func()) {
	if q.w.config.Threads == 0 {
		return func() {}
	}
	q.begun++
	return sync.OnceFunc(func() { q.soon(func() { q.begun-- }) })
}

// uncounted is begins of what no other worker waits for.
func uncounted() (ends func()) { return func() {} }

// pinned is host memory that a driver may read and write.
func pinned(size int64) transport.Block {
	data := make([]byte, size)
	if size == 0 {
		return transport.Block{Data: data, Release: func() {}}
	}
	p := new(runtime.Pinner)
	p.Pin(&data[0])
	return transport.Block{Data: data, Release: p.Unpin}
}
