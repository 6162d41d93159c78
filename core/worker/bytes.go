package worker

import (
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// put is the work of Put.
type put struct {
	shape   shape.Shape
	memory  string
	object  uint64
	devices []uint32   // by part
	laid    *wire.Laid // where the bytes are; nil: they come under keys
	recipe  devicequeue.Recipe
	size    [1]int64 // of recipe
}

// shapeOf reads the shape of a shard that moves as dense bytes.
func shapeOf(a *wire.Array) (shape.Shape, error) {
	if a == nil {
		return shape.Shape{}, status.New(status.InvalidArgument, "an array without a shape")
	}
	s := shape.Shape{DType: shape.DType(a.Dtype), Dims: a.Dims}
	if s.DType.Bits() == 0 || s.HostBytes() < 0 || s.Bytes() < 0 {
		return s, status.New(status.InvalidArgument,
			"an array of %s: expected a known element type and dimensions that are not negative and fit in memory", s)
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
	p := &put{shape: s, memory: m.Array.Memory, object: m.Object, laid: m.Laid}
	for _, d := range m.Devices {
		if q := w.device(g.Session, d); q != nil {
			g.queues, p.devices = append(g.queues, q), append(p.devices, d)
		}
	}
	g.work, g.bytes = p, p.laid == nil
	if len(g.queues) > 0 { // whose memories are the same
		p.size[0] = g.queues[0].size(p.shape, p.memory)
	}
	p.recipe = devicequeue.Recipe{
		Kind: devicequeue.Transfer, Name: "device_put", Makes: 1, Sizes: p.size[:], Bytes: p.size[0],
	}
	g.Recipe, g.First = &p.recipe, p.object
	return nil
}

// put begins a device's part of a put: from here on its bytes may arrive.
func (q *queue) put(g *gang, u *put, f *devicequeue.Flight) {
	s, d := f.Made[0], u.devices[f.Part.Index]
	if u.laid != nil {
		b, err := q.read(g, u, d)
		q.now(func() { q.arrived(g, u, s, b, err) })
		return
	}
	key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(d)}
	q.w.config.Exchange.Expect(g.client, key, u.shape.HostBytes(), nil, func(b transport.Block, err error) {
		q.now(func() { q.arrived(g, u, s, b, err) })
	})
	if err := g.failure(); err != nil { // before Expect knew of the key
		q.w.config.Exchange.Fail(key.Space, key.ID, err)
	}
}

// read returns a row that lies on the client's shelf.
func (q *queue) read(g *gang, u *put, d uint32) (transport.Block, error) {
	if d < u.laid.First {
		return transport.Block{}, status.New(status.InvalidArgument, "device %d has no row where the client has laid them",
			d)
	}
	size := u.shape.HostBytes()
	return q.w.config.Exchange.Read(g.client, int64(u.laid.Offset)+int64(d-u.laid.First)*size, size)
}

// arrived makes the buffer of a shard whose bytes have arrived, and ends its part when the driver has them.
func (q *queue) arrived(g *gang, u *put, s *devicequeue.Shard, b transport.Block, err error) {
	if err == nil && s.Freed() {
		b.Release()
		q.state.Spoil(s, devicequeue.ErrFreed)
		g.end(g.failure()) // the bytes are no longer needed
		return
	}
	var buf device.Buffer
	if err == nil {
		buf, err = q.fromHost(u.shape, u.memory, b)
		g.allocated(err)
	}
	if err != nil {
		if why := g.failure(); why != nil {
			err = why
		} else {
			err = q.explain(err, "bringing "+u.shape.String(), "")
		}
		q.state.Spoil(s, err)
		g.end(err)
		return
	}
	explain := func(err error) error { return q.explain(err, "bringing an array", "") }
	q.fill(g, u.object, s, buf, explain, nil, func(err error) { g.end(explain(err)) })
}

// fill hands a shard's buffer to the state machine, and calls done when its contents are there. If they fail, cause,
// which may be nil, finds out why, and passes that on by the queue's owner.
func (q *queue) fill(g *gang, object uint64, s *devicequeue.Shard, buf device.Buffer, explain func(error) error,
	cause func(err error, then func(error)), done func(error)) {
	writing := q.state.Writing(s)
	e := buf.Ready()
	there, failed := e.Ready(), error(nil)
	if there {
		failed = e.Wait(background)
	}
	var promised *promise
	if !there || failed != nil { // then who reads it waits until it is known why
		promised = new(promise)
		q.makes(&promised.making, g.Session, object, 1)
	}
	if !there {
		s.Came = &promised.came
	}
	q.state.Fill(s, buf)
	end := func(err error) {
		q.state.Written(writing)
		if err != nil {
			g.allocated(err)
			q.state.Fault(g.Session, object, explain(err))
		}
		if promised != nil {
			q.made(&promised.making)
		}
		done(err)
	}
	written := func(err error) {
		if err != nil && cause != nil {
			cause(err, end)
		} else {
			end(err)
		}
	}
	if there {
		written(failed)
		return
	}
	e.Then(func(err error) {
		promised.came.CompareAndSwap(0, int64(q.w.elapsed())) // else one that has read it has told its end
		q.soon(func() { written(err) })
	})
}

// promise is a shard that the driver has yet to fill.
type promise struct {
	came atomic.Int64 // when its contents came; 0 before
	making
}

// fromHost hands a block to the driver, which releases it once it has read it or the array is freed. A short block is
// copied at once: that costs less than a notification of its release. If arrays already hold much of the memory for
// blocks, the driver copies long ones as well: else there would be no room for the next bytes until arrays are freed.
func (q *queue) fromHost(sh shape.Shape, memory string, b transport.Block) (device.Buffer, error) {
	h := device.Host{Shape: sh, Data: b.Data, Device: q.local, Memory: memory, Semantics: device.MutableZeroCopy,
		Done: b.Release}
	switch {
	case b.Lent:
		h.Semantics = device.ZeroCopy // another process's
	case len(b.Data) <= transport.PostSize:
		h.Semantics = device.DuringCall
	case !q.w.config.Exchange.Keeps(0):
		h.Semantics = device.UntilDone
	}
	buf, err := q.w.driver.FromHost(h)
	if err != nil {
		b.Release()
	}
	return buf, err
}

// fetch is the work of Fetch.
type fetch struct {
	object uint64
	device uint32
}

var fetches = devicequeue.Recipe{Kind: devicequeue.Transfer, Name: "a fetch"}

func (w *Worker) beginFetch(g *gang, operation []byte) error {
	var m wire.Fetch
	if err := wire.Decode(wire.KindFetch, operation, &m); err != nil {
		return err
	}
	g.op, g.bytes, g.work = m.Op, true, &fetch{m.Object, m.Device}
	g.Recipe, g.Objects = &fetches, []uint64{m.Object}
	if q := w.device(g.Session, m.Device); q != nil {
		g.queues = []*queue{q}
	}
	return nil
}

// fetch begins the part of a fetch.
func (q *queue) fetch(g *gang, work *fetch, f *devicequeue.Flight) {
	key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(work.device)}
	q.push(g, work.object, f.Inputs[0].Shard, g.client, key, uncounted, func(err error) {
		if err != nil && !isExplained(err) { // by what made the array
			err = q.explain(err, "reading an array", "")
		}
		g.end(err)
	})
}

// push sends a whole pinned shard to another process, and unpins it. The copy counts as begun, by begins, until the
// shard has been read. The queue's owner calls done.
func (q *queue) push(
	g *gang, object uint64, s *devicequeue.Shard, to uint64, key transport.Key, begins func() (ends func()),
	done func(error),
) {
	buf := bufferOf(s)
	v, ok := buf.(device.Viewer)
	if !ok || buf.Shape().HostBytes() > transport.PostSize {
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
	e := buf.Ready()
	if e.Ready() && post(e.Wait(background)) {
		q.state.Unpin(s)
		done(nil)
		return
	}
	copied := begins()
	e.Then(func(err error) {
		if post(err) {
			copied()
			q.soon(func() {
				q.state.Unpin(s)
				done(nil)
			})
		} else {
			q.pushBuffer(g, object, s, to, key, copied, done)
		}
	})
}

// pushBuffer is push for a shard that the driver has to copy. It calls copied when the shard has been read, perhaps
// more than once, and done when the driver has finished with the copy, even if that is no longer needed: until then it
// keeps the shard's memory.
func (q *queue) pushBuffer(g *gang, object uint64, s *devicequeue.Shard, to uint64, key transport.Key, copied func(),
	done func(error)) {
	buf := bufferOf(s)
	read := sync.OnceFunc(func() { q.soon(func() { q.state.Unpin(s) }) })
	var pushed error // the end of Push
	var left atomic.Int32
	left.Store(1) // Push, and the copy once it begins
	through := func() {
		if left.Add(-1) == 0 {
			q.soon(func() { done(pushed) })
		}
	}
	q.w.config.Exchange.Push(to, key, buf.Shape().HostBytes(), func(dst []byte, written func(error)) {
		left.Add(1)
		failed := func(err error) {
			q.soon(func() {
				q.blame(g.Session, []uint64{object}, err, func(err error) {
					written(err)
					through()
				})
			})
		}
		e, err := buf.ToHost(dst)
		read()
		if err != nil {
			copied()
			failed(err)
			return
		}
		e.Then(func(err error) {
			copied()
			if err == nil {
				written(nil)
				through()
				return
			}
			failed(err)
		})
	}, func(err error) {
		read() // where it was never filled
		copied()
		pushed = err
		through()
	})
	if err := g.failure(); err != nil { // before Push knew of the key
		q.w.config.Exchange.Fail(key.Space, key.ID, err)
	}
}

// begins counts a copy as begun until the function that it returns is called. That matters only where devices are
// threads of one pool.
func (q *queue) begins() (ends func()) {
	if q.w.config.Threads == 0 {
		return func() {}
	}
	q.state.CopyBegun()
	return sync.OnceFunc(func() { q.soon(q.state.CopyEnded) })
}

// uncounted is begins for a copy that no other worker waits for.
func uncounted() (ends func()) { return func() {} }
