package worker

import (
	"sync/atomic"

	uberatomic "go.uber.org/atomic"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// A gang is under way from enlist to through: that is, in Worker.gangs. Each of its parts ends by one call of end; the
// last one reports the gang. So a gang is reported once, and only when none of its devices here, nor the driver or the
// exchange on their behalf, will report more about it. Close relies on that: with no gang under way, nothing calls the
// queues.
//
// A gang fails at most once, by fail, and may do so at any time: because a part of it ended with an error, because the
// controller says so (it failed elsewhere, or its client has gone), or because the worker ends. That does not end its
// parts. It ends their waits: the collectives and the bytes that they have asked for come with the error, and a queue
// at which a part waits looks again. A part that is with the driver ends when the driver is done with it; abandon
// hastens that where the driver can.

// gang is this worker's part of one dispatched operation. Only its atomics change once it
// is enlisted, and remembered, which report.mu guards from then on.
type gang struct {
	devicequeue.Gang // what the queues know of it
	w                *Worker
	op               uint64   // the client's number for the operation, in its session
	client           uint64   // process
	work             any      // *run, *put, *transfer or *fetch
	queues           []*queue // by part
	collective       bool     // the engine knows it
	remembered       bool     // its end is, until its client has heard it: see rejoin.go
	bytes            bool     // it has pushes or expectations under (session, op)

	left    atomic.Int32        // parts that have not ended
	spent   uberatomic.Duration // device time of those that have
	failed  uberatomic.Error    // the first error
	watched atomic.Bool         // by giveUp
	lacked  atomic.Bool         // a part of it got no memory here
	seen    *seen               // nil unless its session is recorded; set before it is enlisted
}

func newGang(w *Worker, id, op uint64, session uint32, client uint64) *gang {
	g := new(gang)
	g.init(w, id, op, session, client)
	return g
}

// newRun makes a gang and the run that is to be its work, which live as long as each other.
func newRun(w *Worker, id, op uint64, session uint32, client uint64) (*gang, *run) {
	both := new(struct {
		gang gang
		run  run
	})
	both.gang.init(w, id, op, session, client)
	return &both.gang, &both.run
}

func (g *gang) init(w *Worker, id, op uint64, session uint32, client uint64) {
	g.w, g.op, g.client = w, op, client
	g.ID, g.Session, g.Owner = id, session, g
	if s := w.sessions[session]; s != nil {
		g.remembered = s.settles
	}
}

// failure returns the first error of the gang, or nil. It may be called at any time.
func (g *gang) failure() error { return g.failed.Load() }

// cause returns the gang's error, or else the error that ended its collectives; nil if there is neither. A process that
// is lost ends them before the controller says that the gang has failed.
func (g *gang) cause() error {
	if why := g.failure(); why != nil || !g.collective {
		return why
	}
	return g.w.config.Engine.Failure(g.ID)
}

// fail ends all waits for the gang here. The first error is the gang's. It does not block, and may be called from any
// goroutine that holds no lock.
//
// Code that makes a gang wait for something new, such as bytes, must look at failure again
// after that: fail may have come before, and found nothing to end.
func (g *gang) fail(err error) {
	if !g.failed.CompareAndSwap(nil, err) {
		return
	}
	if g.collective {
		g.w.config.Engine.Abort(g.ID, err)
	}
	if g.bytes {
		g.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
	g.abandon()
	for _, q := range g.queues {
		q.look()
	}
}

// allocated records an error of a request for memory here. The controller counts those that say that memory was short:
// it had admitted the gang.
func (g *gang) allocated(err error) {
	if g.failure() == nil && status.CodeOf(err) == status.ResourceExhausted {
		g.lacked.Store(true)
	}
}

// abandon has the driver end launched parts that wait for members which will not come because the gang has failed. It
// is called when it fails, and again after a launch that may have come too late to be found.
func (g *gang) abandon() {
	r, ok := g.work.(*run)
	if !ok || r.program.form != wire.Loadable_JOINED {
		return
	}
	if err := g.failure(); err != nil {
		if a, ok := g.w.driver.(device.Aborter); ok {
			a.Abort(launchID(g.ID), err)
		} else if g.w.config.Stuck != nil && g.watched.CompareAndSwap(false, true) {
			g.giveUp(err, false)
		}
	}
}

// end ends a part. Its queue's owner calls it.
func (g *gang) end(err error) {
	if err != nil {
		g.fail(err)
	}
	if g.left.Add(-1) == 0 {
		g.w.through(g)
	}
}

// gang returns a gang that is under way, or nil.
func (w *Worker) gang(id uint64) *gang {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gangs[id]
}

// through reports a gang whose parts have all ended.
func (w *Worker) through(g *gang) {
	if g.collective {
		w.config.Engine.End(g.ID)
	}
	if r, ok := g.work.(*run); ok {
		r.program.release()
	}
	err := g.failure()
	w.note(g)
	w.report.add(g, err, g.lacked.Load() && status.CodeOf(err) == status.ResourceExhausted)
	w.mu.Lock()
	delete(w.gangs, g.ID)
	if w.closing && len(w.gangs) == 0 {
		w.idle.Broadcast()
	}
	w.mu.Unlock()
}

// begin takes a dispatched operation apart and puts its parts into the queues.
// An operation that makes no sense fails; an error means that the controller
// cannot be understood.
func (w *Worker) begin(d *wire.Dispatch) error {
	w.newest = max(w.newest, d.Gang)
	switch wire.Kind(d.Kind) {
	case wire.KindRun:
		g, r := newRun(w, d.Gang, 0, d.Session, d.Client)
		g.seen = w.sees(d.Session, d.Waited)
		w.post(g, w.beginRun(g, r, d.Operation))
		w.posts.leave(!w.conn.Buffered())
		return nil
	case wire.KindFree:
		var m wire.Free
		if err := wire.Decode(wire.KindFree, d.Operation, &m); err != nil {
			return err
		}
		w.disband(d.Session, m.Objects)
		if len(m.Objects) > 0 {
			p := freePart(d.Session, m.Objects)
			for _, q := range w.queues {
				w.posts.add(q, p, true) // they leave with what follows
			}
		}
		w.freeRows(d.Session, m.Rows)
		return nil
	case wire.KindAssemble:
		var m wire.Assemble
		if err := wire.Decode(wire.KindAssemble, d.Operation, &m); err != nil {
			return err
		}
		w.assemble(d.Session, &m)
		return nil
	}
	g := newGang(w, d.Gang, 0, d.Session, d.Client)
	g.seen = w.sees(d.Session, d.Waited)
	var err error
	switch wire.Kind(d.Kind) {
	case wire.KindPut:
		err = w.beginPut(g, d.Operation)
	case wire.KindTransfer:
		err = w.beginTransfer(g, d.Operation)
	case wire.KindFetch:
		err = w.beginFetch(g, d.Operation)
	default:
		err = status.New(status.Unimplemented,
			"worker %s knows no operation of kind %v: install the same version of openpathways on all machines", w.config.Name,
			wire.Kind(d.Kind))
	}
	w.post(g, err)
	w.posts.leave(!w.conn.Buffered())
	return nil
}

// post enlists a gang, and leaves its parts for their queues.
func (w *Worker) post(g *gang, err error) {
	if !w.enlist(g, err) {
		return
	}
	// What a put takes is short on every device. Of a run, several devices would begin one after the other.
	_, puts := g.work.(*put)
	quick := (len(g.queues) == 1 || puts) && g.quick()
	for i, q := range g.queues {
		w.posts.add(q, devicequeue.Part{Gang: &g.Gang, Index: i}, quick)
	}
}

// quick reports whether beginning the gang is likely to be short: it waits for nothing within the driver, and the
// program's last runs were short. It may change at any time.
func (g *gang) quick() bool {
	r, ok := g.work.(*run)
	if !ok {
		return true // what takes long of it is the driver's, or others'
	}
	return r.meet == nil && !r.program.collective && !r.program.Calls && !r.program.unbounded && r.program.quick.Load() > 0
}

// enlist puts a gang under way, so that its parts may begin. If it has failed, or has no parts, it ends at once.
func (w *Worker) enlist(g *gang, err error) bool {
	if err == nil && len(g.queues) == 0 {
		err = status.New(status.Internal, "operation %d of session %d was sent to worker %s, which has no part in it", g.op,
			g.Session, w.config.Name)
	}
	if err != nil {
		w.report.add(g, err, false)
		w.report.flush()
		return false
	}
	g.left.Store(int32(len(g.queues)))
	w.mu.Lock()
	w.gangs[g.ID] = g
	w.mu.Unlock()
	if r, ok := g.work.(*run); ok {
		r.program.hold()
		if g.collective {
			w.config.Engine.Begin(r.program.gang(g.ID))
		}
	}
	return true
}

// freeRows releases single shards.
func (w *Worker) freeRows(session uint32, all []*wire.Rows) {
	for _, rows := range all {
		for _, d := range rows.GetDevices() {
			if q := w.device(session, d); q != nil {
				w.posts.add(q, freePart(session, []uint64{rows.Object}), true)
			}
		}
	}
}

// freePart releases objects after the parts that were posted before. Its end is not reported.
func freePart(session uint32, objects []uint64) devicequeue.Part {
	return devicequeue.Part{Gang: &devicequeue.Gang{Session: session, Recipe: &devicequeue.Frees, Objects: objects}}
}
