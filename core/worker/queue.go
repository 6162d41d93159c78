package worker

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
)

// A queue is the shell around a device's state machine, core/worker/devicequeue. The machine
// decides what the device does and in which order. The queue has the driver and the exchange do
// it, and reports the outcome to the machine. Only the queue's owner does either: see
// mailbox.go.
//
// After tasks were applied, the owner calls advance before it leaves the queue. advance asks
// the machine until that has nothing to do, or waits. So nothing that can begin is left behind,
// as long as every change on which the machine's decisions depend comes as a task. There are two kinds of
// change: calls of the machine's methods, which only tasks and advance make; and facts that other
// goroutines change, each of which posts a task behind the change (look: a gang has failed, a
// program was loaded, another device has come to a transfer).
//
// A deputy applies tasks and does not advance. The owner that has lent the queue is within
// advance, and asks the machine again when it has the queue back.
//
// Parts of gangs come in one order on all devices: the goroutine that reads the connection
// posts them, and each queue keeps the order of posts.

// queue is one device.
type queue struct {
	w       *Worker
	local   int
	memory  string // default memory kind
	box     mailbox
	stopped chan struct{}

	// For other goroutines to read at any time.
	objects atomic.Int64
	charged atomic.Int64 // device time of all computations so far, in nanoseconds
	flights *flights     // what it computes
	stands  atomic.Pointer[standing]
	lane    atomic.Pointer[lane] // what it has done lately; nil while no browser looks

	// The owner's.
	state    *devicequeue.Queue
	stopping bool               // the goroutine is to end: there are no gangs any more
	row      [1][]device.Buffer // inputs of the computation that is being launched; not the deputy's
	copies   int                // of shards on the host, of which regions are sent; see hostCopy
	wanted   []wanted           // further ones, in the order of gangs
	open     []*launch          // computations that the driver has, in the order of launches
	making   []*making          // these, and copies whose contents the driver has promised
	// All time until then was charged to computations, see charge.
	chargedTo time.Duration
}

// standing describes what a queue is waiting for.
type standing struct {
	gang   uint64
	reason devicequeue.Reason
	what   string
	since  time.Time
}

func newQueue(w *Worker, local int) *queue {
	q := &queue{w: w, local: local, stopped: make(chan struct{}), flights: newFlights(window)}
	c := &w.config
	q.state = devicequeue.New(devicequeue.Config{
		Device: local, Worker: c.Name, Window: window, MemoryLimit: c.MemoryLimit, Owner: w.owner})
	q.box.wake, q.box.ended.L = make(chan struct{}, 1), &q.box.mu
	d := w.driver.Devices()[local]
	if d.Default < len(d.Memories) {
		q.memory = d.Memories[d.Default].Kind
	}
	return q
}

// apply tells the state machine of tasks.
func (q *queue) apply(tasks []task) {
	for i := range tasks {
		switch t := &tasks[i]; {
		case t.call != nil:
			t.call()
		case t.part.Gang != nil:
			q.state.Submit(t.part)
		}
		tasks[i] = task{}
	}
	q.closeDiscarded()
}

// advance carries out what the state machine says until it has nothing more to do now. If here
// is true, it leaves work that is not quick to the queue's goroutine, and reports whether there
// is any.
func (q *queue) advance(here bool) (more bool) {
	for {
		p, ok := q.state.First()
		if !ok {
			q.goesOn() // the last part may have waited, and begun without Next: see devicequeue.Launched
			break
		}
		a := q.state.Next(q.facts(p, here))
		q.closeDiscarded() // its memory may be what the part needs
		if a.Kind == devicequeue.Waiting {
			q.stand(a)
			break
		} else if a.Kind == devicequeue.Ready {
			more = true
			break
		}
		q.goesOn()
		switch a.Kind {
		case devicequeue.Begin:
			q.begin(a.Flight)
		case devicequeue.Fail:
			q.refuse(a)
		case devicequeue.Admit:
			q.admit(gangOf(a.Part))
		}
	}
	q.closeDiscarded()
	if n := int64(q.state.Objects()); n != q.objects.Load() {
		q.objects.Store(n)
	}
	return more
}

// gangOf returns the gang of a part, which is not one that only frees.
func gangOf(p devicequeue.Part) *gang { return p.Gang.Owner.(*gang) }

// facts reads what others may have changed of a part. They are read as late as possible, so
// that a part of a gang that has failed does not begin because the news is still in the mailbox
// behind other tasks.
func (q *queue) facts(p devicequeue.Part, here bool) (f devicequeue.Facts) {
	g, ok := p.Gang.Owner.(*gang)
	if !ok {
		return f
	}
	f.Failed = g.failure()
	f.Defer = here && !g.quick()
	switch work := g.work.(type) {
	case *run:
		switch {
		case f.Failed != nil:
			f.Launched = work.meet.isLaunched()
		case !work.program.settled.Load():
			f.Loading = true
		case work.program.err != nil:
			f.Failed = q.explain(work.program.err, work.program.Name+" could not be loaded", work.called())
		}
	case *transfer:
		f.Absent = q.absent(work.parts[p.Index])
	}
	return f
}

// begin begins a part. Its further progress comes back as tasks; its end, as gang.end.
func (q *queue) begin(f *devicequeue.Flight) {
	g := gangOf(f.Part)
	g.begins(f)
	switch work := g.work.(type) {
	case *run:
		q.run(g, work, f)
	case *put:
		q.put(g, work, f)
	case *transfer:
		q.transfer(g, work, f)
	case *fetch:
		q.fetch(g, work, f)
	}
}

// refuse ends a part that does not begin, or whose gang's other devices will not come.
// An error of the part's own is reported with the place where it happened; others name it already.
func (q *queue) refuse(a devicequeue.Action) {
	g, err := gangOf(a.Part), a.Err
	if a.Own {
		g.allocated(err)
	}
	switch work := g.work.(type) {
	case *run:
		if a.Own {
			err = q.explain(err, work.program.Name, work.called())
		}
		if a.Flight != nil {
			q.flights.land(a.Flight.Index)
		}
	case *put:
		if a.Own {
			err = q.explain(err, "bringing "+work.shape.String(), "")
		}
	case *transfer:
		if a.Own {
			err = q.moving(g, err)
		}
		q.refuseTransfer(g, work, work.parts[a.Part.Index], err)
	}
	q.state.Refuse(a, err)
	g.end(err)
}

// stand records what the queue waits for, for Waits.
func (q *queue) stand(a devicequeue.Action) {
	gang := a.Part.Gang.ID
	if s := q.stands.Load(); s == nil || s.gang != gang || s.reason != a.Wait.For {
		q.stands.Store(&standing{gang, a.Wait.For, a.Wait.Text(a.Part), time.Now()})
	}
}

// goesOn records that the queue waits no longer.
func (q *queue) goesOn() {
	if q.stands.Load() != nil {
		q.stands.Store(nil)
	}
}

// closeDiscarded closes the buffers of arrays that are gone. It is called whenever the state
// machine was told something, before anything else begins.
func (q *queue) closeDiscarded() {
	all := q.state.Discarded()
	for i, b := range all {
		b.(device.Buffer).Close()
		all[i] = nil
	}
}

// explain says where an error happened, behind its text. Errors that came from
// another operation stay as they are.
func (q *queue) explain(err error, what, called string) error {
	if err == nil {
		return nil
	}
	if called != "" {
		what += ", " + called
	}
	return status.New(status.CodeOf(err), "%w [%s, on device %d of worker %s]", err, what, q.local, q.w.config.Name)
}

// isExplained reports whether an error ends with what explain has added, here or on another worker.
func isExplained(err error) bool {
	text := err.Error()
	at := strings.LastIndex(text, " [")
	return at >= 0 && strings.HasSuffix(text, "]") && strings.Contains(text[at:], ", on device ")
}

// counted returns the bytes that an array takes of a device's memory. Memories of
// other kinds, on the host, are not counted.
func (q *queue) counted(a *wire.Array) int64 {
	return q.size(shape.Shape{DType: shape.DType(a.Dtype), Dims: a.Dims}, a.Memory)
}

func (q *queue) size(s shape.Shape, memory string) int64 {
	if memory != "" && memory != q.memory {
		return 0
	}
	return max(0, s.Bytes())
}
