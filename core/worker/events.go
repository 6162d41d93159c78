package worker

import (
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport/collective"
)

// This file records for the profiles of a session what becomes of its operations beside computations: when they come,
// which bytes they move, and their collectives. If no session records, an operation costs one load and a call of a
// device one more.

// seen is what is recorded about a gang while it is under way.
type seen struct {
	came   int64        // nanoseconds since the Unix epoch, as begun
	waited int64        // in the controller, nanoseconds
	begun  atomic.Int64 // the first part, where bytes move; 0 until then
	bytes  atomic.Int64 // that it moves from or to this worker
}

// sees begins to record an operation of a session that has waited in the controller for some nanoseconds; nil where the
// session is not recorded.
func (w *Worker) sees(session uint32, waited uint64) *seen {
	if !w.recorder.Records(session) {
		return nil
	}
	return &seen{came: w.unix(w.elapsed()), waited: int64(waited)}
}

// own returns the same for one gang whose bytes move.
func (s *seen) own() *seen {
	if s == nil {
		return nil
	}
	return &seen{came: s.came, waited: s.waited}
}

// unix returns elapsed's time as nanoseconds since the Unix epoch, as far as there are recordings.
func (w *Worker) unix(elapsed time.Duration) int64 { return w.epoch.Load() + int64(elapsed) }

// begins records that a part of the gang begins, and the bytes that it moves. Computations have spans, see record.
func (g *gang) begins(f *devicequeue.Flight) {
	s := g.seen
	if s == nil {
		return
	}
	switch work := g.work.(type) {
	case *run:
		return
	case *put:
		s.bytes.Add(work.shape.HostBytes())
	case *transfer:
		s.bytes.Add(work.parts[f.Part.Index].bytes())
	case *fetch:
		s.bytes.Add(bufferOf(f.Inputs[0].Shard).Shape().HostBytes())
	}
	s.begun.CompareAndSwap(0, g.w.unix(g.w.elapsed()))
}

// note records a gang that has ended.
func (w *Worker) note(g *gang) {
	s := g.seen
	if s == nil {
		return
	}
	w.recorder.Note(g.Session, &observe.Event{
		Kind: observe.Arrival, Op: g.op, Gang: g.ID, Waited: s.waited, Begin: s.came, End: s.came})
	name := ""
	switch g.work.(type) {
	case *put:
		name = "put"
	case *fetch:
		name = "fetch"
	case *transfer:
		name = "transfer"
	}
	if begun := s.begun.Load(); name != "" && begun != 0 {
		w.recorder.Note(g.Session, &observe.Event{Kind: observe.Move, Name: name, Op: g.op, Gang: g.ID, Bytes: s.bytes.Load(),
			Waited: max(0, begun-s.came), Begin: begun, End: max(begun, w.unix(w.elapsed()))})
	}
}

// bytes returns how much a leg sends elsewhere, and receives.
func (l *leg) bytes() (n int64) {
	for _, v := range l.gets {
		n += v.bytes()
	}
	for _, v := range l.sends {
		if v.queue == nil { // else it is among the gets of that one
			n += v.bytes()
		}
	}
	return n
}

// observe has a device's call of a collective recorded while a profile or trace is taken.
func (w *Worker) observe(c *collective.Call) {
	op := c.Spec.Op
	if !w.recorder.On() || op == spmd.PartitionID || op == spmd.ReplicaID {
		return
	}
	g := w.queues[c.Local].flights.find(c.Launch)
	if g == nil || g.seen == nil {
		return
	}
	bytes := int64(0)
	for _, operand := range c.Operands {
		bytes += int64(len(operand))
	}
	local, done, way, begun := c.Local, c.Done, new(collective.Way), w.unix(w.elapsed())
	c.Way = way
	c.Done = func(err error) {
		w.recorder.Note(g.Session, &observe.Event{Kind: observe.Collective, Name: op.String(), Op: g.op, Gang: g.ID,
			Device: int32(local), Bytes: bytes, Way: way.String(), Begin: begun, End: max(begun, w.unix(w.elapsed()))})
		done(err)
	}
}

// countsCollectives returns how many collectives the devices have called.
func (w *Worker) countsCollectives() (all []*wire.CollectiveCount) {
	if w.config.Engine == nil {
		return nil
	}
	for _, c := range w.config.Engine.Counts() {
		all = append(all, &wire.CollectiveCount{Op: c.Op.String(), Way: c.Way.String(), Calls: c.Calls, Bytes: c.Bytes})
	}
	return all
}
