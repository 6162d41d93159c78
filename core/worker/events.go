package worker

import (
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
)

// This file records for the profiles of a session what becomes of its operations beside computations: when they come,
// which bytes they move, and their collectives. Where no session records, an operation costs one load and a call of a
// device one more.

// seen is what is recorded of a gang while it is under way.
type seen struct {
	came   int64        // nanoseconds since the Unix epoch, as begun
	waited int64        // in the controller, nanoseconds
	begun  atomic.Int64 // the first part, where bytes move; 0 until then
	bytes  atomic.Int64 // that it moves from or to this worker
}

// recordsCalls has the calls of a gang's devices be recorded as long as it is under way, if it is recorded and its
// program has collectives. Those of other gangs find nothing, and wait for no lock.
func (g *gang) recordsCalls() {
	if g.hasCalls() {
		g.w.launches.Store(launchID(g.ID), g)
	}
}

// hasCalls reports whether calls of the gang's devices are recorded.
func (g *gang) hasCalls() bool {
	r, ok := g.work.(*run)
	return g.seen != nil && ok && g.collective && r.program.collective
}

// see begins to record a gang that came at a time, as Recorder.ClockOf its session says, and has waited in the
// controller for some nanoseconds. Where the time is 0 its session records nothing.
func (g *gang) see(came int64, waited uint64) {
	if came != 0 {
		g.seen = &seen{came: came, waited: int64(waited)}
	}
}

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
	s.begun.CompareAndSwap(0, time.Now().UnixNano())
}

// note records a gang that has ended.
func (w *Worker) note(g *gang) {
	s := g.seen
	if s == nil {
		return
	}
	if g.hasCalls() {
		w.launches.Delete(launchID(g.ID))
	}
	w.recorder.Note(g.Session, observe.Event{
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
		w.recorder.Note(g.Session, observe.Event{Kind: observe.Move, Name: name, Op: g.op, Gang: g.ID, Bytes: s.bytes.Load(),
			Waited: max(0, begun-s.came), Begin: begun, End: max(begun, time.Now().UnixNano())})
	}
}

// bytes is how much a leg sends elsewhere, and gets.
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

// observed returns done of a device's call of a collective, which records it while a profile or trace is taken.
func (w *Worker) observed(c *device.CollectiveCall, spec *spmd.Spec) (done func(error)) {
	begun := w.recorder.Clock()
	if begun == 0 || spec.Op == spmd.PartitionID || spec.Op == spmd.ReplicaID {
		return c.Done
	}
	found, records := w.launches.Load(launchID(uint64(c.Launch)))
	if !records {
		return c.Done
	}
	g := found.(*gang)
	bytes := int64(0)
	for _, operand := range c.Operands {
		bytes += int64(len(operand))
	}
	e := observe.Event{Kind: observe.Collective, Name: spec.Op.String(), Op: g.op, Gang: g.ID, Device: int32(c.Local),
		Bytes: bytes, Begin: begun}
	return func(err error) {
		e.End = max(e.Begin, time.Now().UnixNano())
		w.recorder.Note(g.Session, e)
		c.Done(err)
	}
}
