package worker

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// transfer is the work of Transfer.
type transfer struct {
	object uint64
	shape  shape.Shape
	memory string
	parts  []*leg // by part
	recipe devicequeue.Recipe
	size   [1]int64 // of recipe
}

// leg is one device's part of a transfer. The device's queue owns it, but for
// what assembly guards.
type leg struct {
	sends []*move
	makes *assembly // nil where the device gets nothing
	left  int       // sends, and 1 for what it makes, that have not ended
	err   error
}

// move is one Move with a device here.
type move struct {
	index     int
	source    uint64
	whole     bool
	shape     shape.Shape // of the source shard
	start, at []int64
	size      []int64
	from, to  place
	local     *leg   // of the destination, where it is here
	queue     *queue // of the destination, where it is here
	out       *queue // of the source, where it is here
	arrives   bool   // it comes from another process
}

// assembly is a shard that is put together from boxes.
type assembly struct {
	moves []*move
	shard *devicequeue.Shard // nil until the queue has come to it
	need  int                // boxes that have yet to come
	// There is room for it: the driver may copy into it.
	admitted atomic.Bool
	gone     bool // the shard will not be made

	mu    sync.Mutex // guards the rest
	block transport.Block
	buf   device.Buffer // instead of bytes: a copy that the driver made
	err   error
}

func (w *Worker) beginTransfer(g *gang, operation []byte) error {
	var m wire.Transfer
	if err := wire.Decode(wire.KindTransfer, operation, &m); err != nil {
		return err
	}
	g.op = m.Op
	s, err := shapeOf(m.Array)
	if err != nil {
		return err
	}
	t := &transfer{object: m.Object, shape: s, memory: m.Array.Memory}
	legs := map[*queue]*leg{}
	for i, one := range m.Moves {
		v, err := t.move(i, one)
		if err != nil {
			return status.Wrap(err, "move %d of %d", i, len(m.Moves))
		}
		if err := w.route(g.Session, v, one); err != nil {
			return err
		}
		t.add(g, legs, v)
	}
	return t.lay(g)
}

// route finds the devices of a move.
func (w *Worker) route(session uint32, v *move, m *wire.Move) (err error) {
	if v.from, v.out, err = w.where(session, m.From); err == nil {
		v.to, v.queue, err = w.where(session, m.To)
	}
	v.arrives = v.queue != nil && v.out == nil
	return err
}

// add tells the devices here that take part in a move of it.
func (t *transfer) add(g *gang, legs map[*queue]*leg, v *move) {
	of := func(q *queue) *leg {
		l := legs[q]
		if l == nil {
			l = new(leg)
			legs[q] = l
			g.queues, t.parts = append(g.queues, q), append(t.parts, l)
		}
		return l
	}
	if v.queue != nil {
		l := of(v.queue)
		if l.makes == nil {
			l.makes = new(assembly)
			l.left++
		}
		l.makes.moves = append(l.makes.moves, v)
		l.makes.need++
		v.local = l
	}
	if v.out != nil {
		l := of(v.out)
		l.sends = append(l.sends, v)
		l.left++
	}
}

// lay makes the transfer, which has all its moves, the work of a gang.
func (t *transfer) lay(g *gang) error {
	for _, l := range t.parts {
		if l.makes != nil && len(l.makes.moves) > 1 &&
			slices.ContainsFunc(l.makes.moves, func(v *move) bool { return v.whole }) {
			return status.New(status.InvalidArgument, "a shard is made of a whole one and of boxes at once")
		}
	}
	g.work, g.bytes = t, true
	if len(g.queues) > 0 { // whose memories are the same
		t.size[0] = g.queues[0].size(t.shape, t.memory)
	}
	t.recipe = devicequeue.Recipe{Kind: devicequeue.Transfer, Name: "a transfer", Makes: 1, Sizes: t.size[:],
		Bytes: t.size[0], Announced: true}
	but := &devicequeue.Exceptions{Reads: make([][]uint64, len(t.parts)), MakesNone: make([]bool, len(t.parts))}
	for part, l := range t.parts {
		but.MakesNone[part] = l.makes == nil
		for _, v := range l.sends {
			but.Reads[part] = append(but.Reads[part], v.source)
		}
	}
	g.Recipe, g.First, g.But = &t.recipe, t.object, but
	return nil
}

// move reads a Move.
func (t *transfer) move(index int, m *wire.Move) (*move, error) {
	v := &move{index: index, source: m.Source, whole: len(m.Start) == 0 &&
		len(m.Size) == 0, start: m.Start, size: m.Size, at: m.At, shape: t.shape}
	if v.whole {
		return v, nil
	}
	var err error
	if v.shape, err = shapeOf(m.Shard); err != nil {
		return nil, err
	}
	if v.shape.DType != t.shape.DType {
		return nil, status.New(status.InvalidArgument, "a box of %s cannot become part of %s: the element types differ",
			v.shape, t.shape)
	}
	if err := v.box().check(); err != nil {
		return nil, err
	}
	if !within(v.at, v.size, t.shape.Dims) {
		return nil, status.New(status.InvalidArgument, "a box of size %v does not fit into %s at %v", v.size, t.shape, v.at)
	}
	return v, nil
}

// box is the move as a copy between host arrays.
func (v *move) box() box {
	return box{from: v.shape.Dims, start: v.start, size: v.size, at: v.at}
}

// bytes is the size of the box.
func (v *move) bytes() int64 {
	return shape.Shape{DType: v.shape.DType, Dims: v.size}.HostBytes()
}

func width(s shape.Shape) int64 { return int64(s.DType.Bits()+7) / 8 }

// full is 1 more than the device here that has yet to have room for a shard which the
// driver copies to it whole, 0 where there is none: what the driver copies is there at once.
func (q *queue) full(l *leg) int {
	if q.w.config.MemoryLimit == 0 {
		return 0
	}
	for _, v := range l.sends {
		if v.whole && v.local != nil && v.queue != q && !v.local.makes.admitted.Load() {
			return v.to.local + 1
		}
	}
	return 0
}

// refuseTransfer tells the other devices here that wait for what comes of a device's part why
// it does not begin.
func (q *queue) refuseTransfer(g *gang, t *transfer, l *leg, err error) {
	g.fail(err)
	if l.makes != nil {
		l.makes.gone = true
		l.makes.letGo()
	}
	for _, v := range l.sends { // the other devices here wait for its boxes
		if v.local != nil {
			v.local.makes.fail(err)
			v.queue.soon(func() { v.queue.got(g, t, v.local) })
		}
	}
}

// transfer begins a device's part: it sends what is asked of it and expects what
// comes to it.
func (q *queue) transfer(g *gang, t *transfer, f *devicequeue.Flight) {
	l, sources := t.parts[f.Part.Index], f.Inputs
	for i, v := range l.sends {
		if is := bufferOf(sources[i].Shard).Shape(); !same(is, v.shape) {
			err := status.New(status.InvalidArgument, "array %d has shards of %s, the transfer says %s", v.source, is, v.shape)
			q.refuseTransfer(g, t, l, err)
			for _, in := range sources {
				q.state.Unpin(in.Shard)
			}
			for _, s := range f.Made {
				q.state.Spoil(s, err)
			}
			g.end(err)
			return
		}
	}
	if l.makes != nil {
		q.expect(g, t, l, f.Made[0])
	}
	boxes := map[*devicequeue.Shard][]*move{}
	for i, v := range l.sends {
		switch s := sources[i].Shard; {
		case !v.whole:
			boxes[s] = append(boxes[s], v)
			continue // it stays pinned until the boxes are out of it
		case v.local != nil:
			if rowMajor(bufferOf(s)) {
				q.copyTo(g, t, s, v)
				q.sent(g, l, nil)
				q.state.Unpin(s)
			} else {
				q.copyRows(g, t, l, s, v)
			}
		default:
			key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(v.index)}
			q.push(g, v.source, s, v.to.worker, key, q.begins, func(err error) { q.sent(g, l, err) })
		}
	}
	for s, moves := range boxes {
		q.sendBoxes(g, l, s, moves)
	}
}

func same(a, b shape.Shape) bool { return a.DType == b.DType && slices.Equal(a.Dims, b.Dims) }

// admit tells the other devices of a transfer that there is room for its shard here.
func (q *queue) admit(g *gang) {
	part := slices.Index(g.queues, q)
	g.work.(*transfer).parts[part].makes.admitted.Store(true)
	for _, other := range g.queues {
		if other != q {
			other.look()
		}
	}
}

// moveWords is what errors say that a device was at in a transfer.
const moveWords = "moving an array"

// moving says where an error of a move happened, unless that is known: the error is the gang's, or it came from the
// other worker of the move, which has said so.
func (q *queue) moving(g *gang, err error) error {
	if err == nil || err == g.failure() || strings.Contains(err.Error(), "["+moveWords+", on device ") {
		return err
	}
	return q.explain(err, moveWords, nil)
}

// sent ends one of a leg's duties.
func (q *queue) sent(g *gang, l *leg, err error) {
	if err != nil && l.err == nil {
		l.err = q.moving(g, err)
		for _, v := range l.sends { // which may have failed since
			if why := q.state.Failure(g.Session, v.source); why != nil {
				l.err = why
			}
		}
		g.fail(l.err)
	}
	if l.left--; l.left == 0 {
		g.end(l.err)
	}
}

// copyTo moves a whole shard to another device of the driver.
func (q *queue) copyTo(g *gang, t *transfer, s *devicequeue.Shard, v *move) {
	memory := t.memory
	if memory == "" {
		memory = v.queue.memory
	}
	buf, err := bufferOf(s).CopyTo(v.queue.local, memory)
	v.queue.soon(func() {
		a := v.local.makes
		a.mu.Lock()
		a.buf = buf
		if a.err == nil {
			a.err = err
		}
		a.mu.Unlock()
		v.queue.got(g, t, v.local)
	})
}

// rowMajor reports whether a buffer's elements lie row by row, as far as its driver
// knows.
func rowMajor(b device.Buffer) bool {
	ordered, ok := b.(device.Ordered)
	if !ok {
		return true
	}
	order, err := ordered.Order()
	return err != nil || slices.IsSortedFunc(order, func(a, b int64) int { return cmp.Compare(b, a) })
}

// copyRows is copyTo, by way of the host, of a shard that does not lie row by row: what
// has moved always does, whichever way it went, so that its client knows how it lies.
func (q *queue) copyRows(g *gang, t *transfer, l *leg, s *devicequeue.Shard, v *move) {
	block := pinned(t.shape.HostBytes())
	end := func(err error) {
		v.queue.soon(func() {
			a := v.local.makes
			if err == nil {
				a.mu.Lock()
				a.block = block
				a.mu.Unlock()
			} else {
				block.Release()
				a.fail(err)
			}
			v.queue.got(g, t, v.local)
		})
		q.sent(g, l, err)
		q.state.Unpin(s)
	}
	copied, err := bufferOf(s).ToHost(block.Data)
	if err != nil {
		end(err)
		return
	}
	copied.Then(func(err error) { q.soon(func() { end(err) }) })
}

// expect makes the shard that boxes will fill.
func (q *queue) expect(g *gang, t *transfer, l *leg, s *devicequeue.Shard) {
	a := l.makes
	a.shard = s
	if a.need == 0 { // its boxes were quicker
		q.make(g, t, l)
		return
	}
	for _, v := range a.moves {
		if !v.arrives {
			continue
		}
		key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(v.index)}
		size := t.shape.HostBytes()
		if !v.whole {
			size = v.bytes()
		}
		var met atomic.Bool // the block has come, or Expect has returned
		q.w.config.Exchange.Expect(v.from.worker, key, size, nil, func(b transport.Block, err error) {
			if err == nil && v.whole {
				a.mu.Lock()
				a.block = b
				a.mu.Unlock()
			} else if err == nil {
				in := v.box()
				in.from, in.start = v.size, make([]int64, len(v.size))
				in.copy(a.memory(t.shape), t.shape.Dims, b.Data, width(t.shape))
				b.Release()
			}
			if err != nil {
				a.fail(err)
			}
			if met.Swap(true) {
				q.now(func() { q.got(g, t, l) })
			}
		})
		if met.Swap(true) {
			q.got(g, t, l)
		}
	}
	if err := g.failure(); err != nil {
		q.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
}

// memory returns the bytes of the shard that is put together.
func (a *assembly) memory(s shape.Shape) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.block.Data == nil {
		a.block = pinned(s.HostBytes())
	}
	return a.block.Data
}

func (a *assembly) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
}

// got takes note that a box has come.
func (q *queue) got(g *gang, t *transfer, l *leg) {
	a := l.makes
	a.need--
	switch {
	case a.gone:
		a.letGo()
	case a.need == 0 && a.shard != nil:
		q.make(g, t, l)
	}
}

// letGo releases what came for a shard that will not be made.
func (a *assembly) letGo() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.buf != nil {
		a.buf.Close()
		a.buf = nil
	}
	if a.block.Release != nil {
		a.block.Release()
		a.block = transport.Block{}
	}
}

// make ends an assembly all of whose boxes have come.
func (q *queue) make(g *gang, t *transfer, l *leg) {
	a := l.makes
	s := a.shard
	if a.err == nil && a.buf == nil && !s.Freed() {
		if a.block.Data == nil {
			a.block = pinned(t.shape.HostBytes())
		}
		a.buf, a.err = q.fromHost(t.shape, t.memory, a.block)
		a.block = transport.Block{}
	}
	if err := a.err; err != nil || s.Freed() {
		a.letGo()
		if why := g.failure(); why != nil {
			err = why
		}
		if err == nil {
			q.state.Spoil(s, devicequeue.ErrFreed)
		} else {
			q.state.Spoil(s, q.moving(g, err))
		}
		q.sent(g, l, err)
		return
	}
	q.fill(g, t.object, s, a.buf, moveWords, func(err error) { q.sent(g, l, err) })
}

// sendBoxes sends boxes of a shard: from where it is, if the host can read it there,
// or else from a copy on the host.
func (q *queue) sendBoxes(g *gang, l *leg, s *devicequeue.Shard, moves []*move) {
	t := g.work.(*transfer)
	read := func() {
		for range moves {
			q.state.Unpin(s)
		}
	}
	send := func(host transport.Block) { // the copies may take long, and the driver's goroutine is not ours
		go q.pushBoxes(g, t, l, host, moves)
	}
	if v, ok := bufferOf(s).(device.Viewer); ok {
		seen := q.begins()
		bufferOf(s).Ready().Then(func(err error) {
			seen()
			if err != nil {
				q.soon(func() {
					read()
					q.failBoxes(g, t, l, moves, err)
				})
			} else if data := v.View(); data != nil { // the shard stays read until the boxes are out of it
				send(transport.Block{Data: data, Release: read})
			} else {
				q.soon(func() { q.copyBoxes(g, t, l, s, moves, read, send) })
			}
		})
		return
	}
	q.copyBoxes(g, t, l, s, moves, read, send)
}

// copyBoxes brings a shard to the host once, and has its boxes sent from there.
func (q *queue) copyBoxes(g *gang, t *transfer, l *leg, s *devicequeue.Shard, moves []*move, read func(),
	send func(transport.Block)) {
	host := pinned(bufferOf(s).Shape().HostBytes())
	e, err := bufferOf(s).ToHost(host.Data)
	read()
	if err != nil {
		host.Release()
		q.failBoxes(g, t, l, moves, err)
		return
	}
	copied := q.begins()
	e.Then(func(err error) {
		copied()
		if err != nil {
			host.Release()
			q.soon(func() { q.failBoxes(g, t, l, moves, err) })
			return
		}
		send(host)
	})
}

// pushBoxes sends boxes of an array on the host, which it lets go of when they are
// out of it.
func (q *queue) pushBoxes(g *gang, t *transfer, l *leg, host transport.Block, moves []*move) {
	left := len(moves)
	free := func() { // by the queue's owner, once a box
		if left--; left == 0 {
			host.Release()
		}
	}
	for _, v := range moves {
		out := v.box()
		if v.local != nil {
			out.copy(v.local.makes.memory(t.shape), t.shape.Dims, host.Data, width(t.shape))
			v.queue.soon(func() { v.queue.got(g, t, v.local) })
			q.soon(func() {
				free()
				q.sent(g, l, nil)
			})
			continue
		}
		key := transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(v.index)}
		out.at = make([]int64, len(v.size))
		var taken atomic.Bool // somebody frees it
		q.w.config.Exchange.Push(v.to.worker, key, v.bytes(), func(dst []byte, written func(error)) {
			if !taken.CompareAndSwap(false, true) {
				written(status.New(status.Cancelled, "the transfer has ended"))
				return
			}
			out.copy(dst, v.size, host.Data, width(t.shape))
			q.soon(free)
			written(nil)
		}, func(err error) {
			q.soon(func() {
				if taken.CompareAndSwap(false, true) {
					free()
				}
				q.sent(g, l, err)
			})
		})
	}
	if err := g.failure(); err != nil {
		q.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
}

// failBoxes ends boxes whose bytes cannot be had.
func (q *queue) failBoxes(g *gang, t *transfer, l *leg, moves []*move, err error) {
	for _, v := range moves {
		if v.local != nil {
			v.local.makes.fail(err)
			v.queue.soon(func() { v.queue.got(g, t, v.local) })
		}
		q.sent(g, l, err)
	}
}
