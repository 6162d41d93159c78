package worker

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/collective"
)

// gang is this worker's part of one dispatched operation.
type gang struct {
	devicequeue.Gang // what the queues know of it
	w                *Worker
	op               uint64
	client           uint64       // process
	work             any          // *run, *put, *transfer or *fetch
	queues           []*queue     // by part
	left             atomic.Int32 // parts that have not ended
	failed           atomic.Pointer[failure]
	// collective: the engine knows it.
	collective bool
	bytes      bool        // it has pushes or expectations under (session, op)
	watched    atomic.Bool // by giveUp
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
}

type failure struct{ err error }

// failure is the first error of the gang, or nil.
func (g *gang) failure() error {
	if f := g.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// fail ends whatever waits for the gang here. The first error is the gang's.
func (g *gang) fail(err error) {
	if !g.failed.CompareAndSwap(nil, &failure{err}) {
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

// abandon has the driver end what it has launched, where that waits for members
// that will not come because the gang has failed. It is called when it fails, and
// again after a launch that may have come too late to be found.
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

// end ends a part.
func (g *gang) end(err error) {
	if err != nil {
		g.fail(err)
	}
	if g.left.Add(-1) == 0 {
		g.w.through(g)
	}
}

// gang gives a gang that is under way.
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
	w.report.add(g.ID, g.failure())
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
	switch wire.Kind(d.Kind) {
	case wire.KindRun:
		g, r := newRun(w, d.Gang, 0, d.Session, d.Client)
		w.post(g, w.beginRun(g, r, d.Operation))
		w.posts.leave(!w.conn.Buffered())
		return nil
	case wire.KindFree:
		var m wire.Free
		if err := wire.Decode(wire.KindFree, d.Operation, &m); err != nil {
			return err
		}
		p := freePart(d.Session, m.Objects)
		for _, q := range w.queues {
			w.posts.add(q, p, true) // they leave with what follows
		}
		return nil
	}
	g := newGang(w, d.Gang, 0, d.Session, d.Client)
	var err error
	switch wire.Kind(d.Kind) {
	case wire.KindPut:
		err = w.beginPut(g, d.Operation)
	case wire.KindTransfer:
		err = w.beginTransfer(g, d.Operation)
	case wire.KindFetch:
		err = w.beginFetch(g, d.Operation)
	default:
		err = status.New(status.Unimplemented, "worker %s knows no operation of kind %d: install the same version of openpathways on all machines", w.config.Name, d.Kind)
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
	quick := len(g.queues) == 1 && g.quick()
	for i, q := range g.queues {
		w.posts.add(q, devicequeue.Part{Gang: &g.Gang, Index: i}, quick)
	}
}

// quick says whether the gang waits for nobody and its work will be short, as far as
// is known.
func (g *gang) quick() bool {
	r, ok := g.work.(*run)
	if !ok {
		return true // what takes long of it is the driver's, or others'
	}
	return r.meet == nil && !r.program.collective && !r.program.Calls && !r.program.unbounded && r.program.quick.Load() > 0
}

// enlist makes a gang one of those under way, so that its parts may begin. With an
// error, or without parts, it has ended.
func (w *Worker) enlist(g *gang, err error) bool {
	if err == nil && len(g.queues) == 0 {
		err = status.New(status.Internal, "operation %d of session %d was sent to worker %s, which has no part in it", g.op, g.Session, w.config.Name)
	}
	if err != nil {
		w.report.add(g.ID, err)
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

// freePart lets go of objects behind the parts that were posted before. Nothing is told of
// its end.
func freePart(session uint32, objects []uint64) devicequeue.Part {
	return devicequeue.Part{Gang: &devicequeue.Gang{Session: session, Recipe: &devicequeue.Frees, Objects: objects}}
}

// report collects ends of gangs and sends them in batches.
type report struct {
	conn transport.Conn
	// busy: the reader has more to begin and flushes when it has not.
	busy atomic.Bool

	mu      sync.Mutex // guards the rest; not held while sending
	ok      []uint64
	failed  []*wire.Failure
	sending bool
	payload []byte
}

// Ends are not held back beyond so many.
const reportBatch = 64

// add puts the end of a gang into the next batch.
func (r *report) add(gang uint64, err error) {
	r.mu.Lock()
	if err == nil {
		r.ok = append(r.ok, gang)
	} else {
		r.failed = append(r.failed, &wire.Failure{Number: gang, Status: wire.Of(err)})
	}
	r.mu.Unlock()
}

func (r *report) hold() {
	if !r.busy.Load() {
		r.busy.Store(true)
	}
}

// rest sends what there is, and has flush do so from now on.
func (r *report) rest() {
	if r.busy.Load() {
		r.busy.Store(false)
	}
	r.flush()
}

// warn sends what there is where something has failed.
func (r *report) warn() {
	r.mu.Lock()
	failed := len(r.failed) > 0
	r.mu.Unlock()
	if failed {
		r.flush()
	}
}

// flush sends what there is, unless the reader is about to. Who finds another at
// it leaves it to that one.
func (r *report) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sending {
		return
	}
	for n := len(r.ok) + len(r.failed); n > 0 && (n >= reportBatch || !r.busy.Load()); n = len(r.ok) + len(r.failed) {
		r.sending = true
		r.payload = (&wire.Completed{Ok: r.ok, Failed: r.failed}).Append(r.payload[:0])
		clear(r.failed)
		r.ok, r.failed = r.ok[:0], r.failed[:0]
		r.mu.Unlock()
		_ = r.conn.Send(wire.KindCompleted, r.payload) // the reader learns why
		r.mu.Lock()
		r.sending = false
	}
}

// collective answers a device's call of a collective.
func (w *Worker) collective(c *device.CollectiveCall) {
	spec, err := w.specs.of(c.Spec)
	if err != nil {
		c.Done(err)
		return
	}
	w.config.Engine.Enter(collective.Call{Launch: c.Launch, Local: c.Local, Spec: spec, Operands: c.Operands, Results: c.Results, Done: c.Done})
}

// specs are the collectives that programs call, each read once.
type specs struct {
	mu   sync.RWMutex // guards read
	read map[string]*spmd.Spec
}

// Specs that are kept; where there are more, all are read again.
const maxSpecs = 4096

func (s *specs) of(text string) (*spmd.Spec, error) {
	s.mu.RLock()
	spec := s.read[text]
	s.mu.RUnlock()
	if spec != nil {
		return spec, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec := s.read[text]; spec != nil {
		return spec, nil
	}
	spec, err := spmd.ParseSpec(text)
	if err != nil {
		return nil, err
	}
	if s.read == nil || len(s.read) >= maxSpecs {
		s.read = map[string]*spmd.Spec{}
	}
	s.read[strings.Clone(text)] = spec
	return spec, nil
}
