package worker

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/assembly"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// A transfer makes an array on some devices out of shards, or regions of shards, of arrays on others. The message, or a
// node of a graph, lists moves; each device here that a move begins or ends at has a part, a leg. What a leg does and
// in which order is decided by a state machine, core/worker/assembly: it sends its pieces (send.go), and puts its own
// shard together from those that come (assemble.go).
//
// What each goroutine may touch: a leg's queue owns the leg: its owner alone steps the state machine, and makes, fails
// and drops the shard. Others use two of its fields. Senders of this process and the exchange write regions into
// landing's memory, in parallel, each where it belongs; each posts to the queue when its region is written, so the
// memory is complete when the last region has been counted. And other queues read admitted, before the driver copies to
// this device.
//
// Why a transfer ends. A leg waits for its pieces and its sends. Pieces from other processes come, or the exchange says
// that they will not, because their sender is lost or the gang has failed. Those from a device of this process come
// because that device's own part begins, or is refused, which fails them. Sends wait only for the driver, and for
// receivers that are before them in the same order, or lost: a region may wait for those of other regions of its array,
// in the same transfer. Each of them expects all its pieces at once. A move that is itself cut into pieces (pieces.go)
// has a few of them expected at a time; the next ones wait for these alone, and these for the driver.

// transfer is the work of Transfer.
type transfer struct {
	object uint64
	shape  shape.Shape
	memory string
	parts  []*leg // by part
	recipe devicequeue.Recipe
	size   [1]int64 // of recipe
	trace  []byte   // of a node of a graph: the user's line
	what   string   // that errors say a device was at
}

// leg is one device's part of a transfer.
type leg struct {
	sends, gets []*move
	state       assembly.Part
	shard       *devicequeue.Shard // that is put together, once the part has begun
	landing     landing
	copied      device.Buffer   // instead of landing: what the driver made of a whole shard, or makes of pieces
	incoming    device.Incoming // writes those pieces
	admitted    atomic.Bool     // there is room for the shard: the driver may copy into it
}

// landing is the memory in which the pieces of a shard are put together.
type landing struct {
	mu    sync.Mutex // guards block, not the bytes
	block transport.Block
}

// move is one Move with a device here.
type move struct {
	index     int
	source    uint64
	whole     bool
	shape     shape.Shape // of the source shard
	start, at []int64
	size      []int64
	peer      uint64 // process of the worker at its other end; 0 where both are here
	local     *leg   // of the destination, where it is here
	queue     *queue // of the destination, where it is here
	out       *queue // of the source, where it is here
	arrives   bool   // it comes from another process
	cut       cut    // into pieces
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
	t := &transfer{object: m.Object, shape: s, memory: m.Array.Memory, what: movingArray}
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
	return t.lay(w, g)
}

// route finds the devices of a move. Of one that is not here, the move says whose it is.
func (w *Worker) route(session uint32, v *move, m *wire.Move) error {
	v.out, v.queue, v.peer = w.device(session, m.From), w.device(session, m.To), m.Peer
	v.arrives = v.queue != nil && v.out == nil
	if (v.out == nil) != (v.queue == nil) && m.Peer == 0 {
		return status.New(status.InvalidArgument, "worker %s has one of the devices %d and %d of session %d, and was not "+
			"told who has the other", w.config.Name, m.From, m.To, session)
	}
	if m.Peer != 0 {
		v.cutUp(w.pieceOf(m.Peer))
	}
	return nil
}

// add adds a move to the legs of the devices here that take part in it.
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
		v.local = of(v.queue)
		v.local.gets = append(v.local.gets, v)
	}
	if v.out != nil {
		l := of(v.out)
		l.sends = append(l.sends, v)
	}
}

// lay makes the transfer, which has all its moves, the work of a gang.
func (t *transfer) lay(w *Worker, g *gang) error {
	for _, l := range t.parts {
		if len(l.gets) > 1 && slices.ContainsFunc(l.gets, func(v *move) bool { return v.whole }) {
			return status.New(status.InvalidArgument, "a shard is made of a whole one and of regions at once")
		}
		away := 0
		for _, v := range l.gets {
			if v.arrives {
				away++
			}
		}
		l.state = assembly.New(len(l.sends), len(l.gets)-away, away)
	}
	g.work, g.bytes = t, true
	if len(g.queues) > 0 { // whose memories are the same
		t.size[0] = g.queues[0].size(t.shape, t.memory)
	}
	t.recipe = devicequeue.Recipe{Kind: devicequeue.Transfer, Name: "a transfer", Makes: 1, Sizes: t.size[:],
		Bytes: t.size[0], Announced: w.limited}
	but := &devicequeue.Exceptions{Reads: make([][]uint64, len(t.parts)), MakesNone: make([]bool, len(t.parts))}
	for part, l := range t.parts {
		but.MakesNone[part] = len(l.gets) == 0
		for _, v := range l.sends {
			but.Reads[part] = append(but.Reads[part], v.source)
		}
	}
	g.Recipe, g.First, g.But = &t.recipe, t.object, but
	return nil
}

// move reads a Move, whose index in its message is index.
func (t *transfer) move(index int, m *wire.Move) (*move, error) {
	if m.Index > 0 {
		index = int(m.Index - 1)
	}
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
		return nil, status.New(status.InvalidArgument, "a region of %s cannot become part of %s: the element types differ",
			v.shape, t.shape)
	}
	if err := v.region().check(); err != nil {
		return nil, err
	}
	if !shape.Within(v.at, v.size, t.shape.Dims) {
		return nil, status.New(status.InvalidArgument, "a region of size %v does not fit into %s at %v", v.size, t.shape,
			v.at)
	}
	return v, nil
}

// region is the move as a copy between host arrays.
func (v *move) region() region {
	return region{from: v.shape.Dims, start: v.start, size: v.size, at: v.at}
}

// bytes is the size of the moves.
func (v *move) bytes() int64 {
	if v.whole {
		return v.shape.HostBytes()
	}
	return shape.Shape{DType: v.shape.DType, Dims: v.size}.HostBytes()
}

// key names what moves to another process.
func (v *move) key(g *gang) transport.Key {
	return transport.Key{Space: transport.Transfers(g.Session), ID: g.op, Part: uint64(v.index)}
}

func width(s shape.Shape) int64 { return int64(s.DType.Bits()+7) / 8 }

// step passes an event to the state machine of a part, and carries out the actions.
func (q *queue) step(g *gang, t *transfer, l *leg, e assembly.Event) {
	switch l.state.Step(e) {
	case assembly.Expect:
		q.expect(g, t, l)
	case assembly.Make:
		q.make(g, t, l)
	case assembly.Fail:
		q.giveUp(g, t, l, l.state.Spoilt())
	case assembly.Drop:
		l.drop()
	case assembly.End:
		g.end(l.state.Err())
	}
}

// moved tells that a send of a part has ended, or that its shard is there or has failed.
func (q *queue) moved(g *gang, t *transfer, l *leg, err error) {
	if err != nil && l.state.Err() == nil {
		err = q.moving(g, err)
		for _, v := range l.sends { // which may have failed since
			if why := q.state.Failure(g.Session, v.source); why != nil {
				err = why
			}
		}
		g.fail(err)
	}
	q.step(g, t, l, assembly.Event{Kind: assembly.Ended, Err: err})
}

// absent returns 1 more than a device here that has not come to a transfer in which the driver copies a whole shard to
// it, 0 if there is none. The driver allocates the copy at once, so the device must have done the frees that were sent
// before, in whose place the transfer was admitted.
func (q *queue) absent(l *leg) int {
	if !q.w.limited {
		return 0
	}
	for _, v := range l.sends {
		if v.whole && v.local != nil && v.queue != q && !v.local.admitted.Load() {
			return v.queue.local + 1
		}
	}
	return 0
}

// admit tells the other devices of a transfer that this one has reached it.
func (q *queue) admit(g *gang) {
	part := slices.Index(g.queues, q)
	g.work.(*transfer).parts[part].admitted.Store(true)
	for _, other := range g.queues {
		if other != q {
			other.look()
		}
	}
}

// refuseTransfer tells the other devices here that wait for a device's part why it does not begin.
func (q *queue) refuseTransfer(g *gang, t *transfer, l *leg, err error) {
	g.fail(err)
	q.step(g, t, l, assembly.Event{Kind: assembly.Refuse})
	for _, v := range l.sends {
		if v.local != nil {
			v.came(g, t, err)
		}
	}
}

// transfer begins a device's part: it sends its pieces to others, and expects those that come to it.
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
	if l.state.Makes() {
		l.shard = f.Made[0]
	}
	q.step(g, t, l, assembly.Event{Kind: assembly.Begin})
	q.send(g, t, l, sources)
}

func same(a, b shape.Shape) bool { return a.DType == b.DType && slices.Equal(a.Dims, b.Dims) }

// movingArray is what errors say that a device was at in a transfer, unless it is known what made the array.
const movingArray = "moving an array"

// called says for people where the user's code called the transfer.
func (t *transfer) called() string { return wire.Called(wire.Line(t.trace), false) }

// moving says where an error of a move happened, unless that is known: the error is the gang's, or that of what is
// moved, or it came from the other worker of the move, which has said so.
func (q *queue) moving(g *gang, err error) error {
	if err == nil || err == g.failure() || isExplained(err) {
		return err
	}
	t := g.work.(*transfer)
	return q.explain(err, t.what, t.called())
}
