package worker

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
)

// A run comes from the controller as a message (beginRun) or as a node of a play, and
// arrange finds its program, devices and inputs. From then on each of its devices has a
// part. The device's queue begins the part (run) when its state machine says so, and the
// driver is given it in one of four ways:
//
//	                      its program calls no functions   its program calls functions
//	                      of its client                    of its client
//	a launch for each     launch: by the queue's owner     aside: by a goroutine of its own
//	one launch for all    meet, then enter (together.go)   the same, and depart before
//
// Whatever the way, each part goes through the same four calls of the state machine, in
// this order: Next says Begin; then Launched, with a Fill for each output, or else Failed;
// after Launched, when the driver is done with the part, Ended. From Begin until Launched or
// Failed the inputs are pinned, so that no free, drop or donation takes from the driver what
// it was given; until Ended the bytes of inputs and outputs count.
//
// A part ends by one call of gang.end, behind Failed, Ended or Refuse: these three exclude
// each other, so a gang is reported once.

// run is the work of Run.
type run struct {
	name    uint64 // of the program, in its session
	program *program
	mixed   []*wire.Mixed // of arguments that are several objects; Gang.Objects has 0 for them
	kept    []int         // arguments that are not donated
	only    uint32
	trace   []byte
	first   bool  // trace is that of the program's first call, since this run came without
	rows    []int // of the program, by part
	meet    *meeting
}

func (w *Worker) beginRun(g *gang, r *run, operation []byte) error {
	m := &w.run
	if err := m.Parse(operation); err != nil {
		return err
	}
	g.op, g.First, g.Objects = m.Op, m.FirstOutput, slices.Clone(m.Inputs)
	r.name, r.mixed, r.kept, r.only, r.trace = m.Program, m.Mixed, arguments(m.NotDonated), m.Only, bytes.Clone(m.Trace)
	return w.arrange(g, r)
}

// called says for people where the user's code called the run.
func (r *run) called() string { return wire.Called(wire.Line(r.trace), r.first) }

// arguments returns the numbers of arguments as drivers take them.
func arguments(numbers []uint32) []int {
	if len(numbers) == 0 {
		return nil
	}
	out := make([]int, len(numbers))
	for i, n := range numbers {
		out[i] = int(n)
	}
	return out
}

// arrange finds what a run needs. It is called by the goroutine that reads the connection,
// which owns programs and sessions.
//
// Errors: NOT_FOUND for a program that is not known, INVALID_ARGUMENT for one of several devices that is to run on one.
func (w *Worker) arrange(g *gang, r *run) error {
	p := w.programs[programKey{g.Session, r.name}]
	if p == nil {
		return status.New(status.NotFound, "program %d of session %d was not loaded on worker %s, or was forgotten", r.name,
			g.Session, w.config.Name)
	}
	r.program, g.work, g.bytes = p, r, p.Calls
	if len(r.trace) == 0 {
		r.trace, r.first = p.firstCall, p.firstCall != nil
	} else if p.firstCall == nil {
		p.firstCall = slices.Clone(r.trace[:min(len(r.trace), wire.MaxText)])
	}
	g.Recipe = &p.Recipe
	if len(r.kept) > 0 {
		g.But = &devicequeue.Exceptions{Kept: r.kept}
	}
	if r.only > 0 {
		q := w.device(g.Session, r.only-1)
		if q == nil {
			return nil
		}
		if len(p.ranks) != 1 {
			return status.New(status.InvalidArgument, "%s is for %d devices and cannot run on device %d alone", p.Name,
				len(p.ranks), r.only-1)
		}
		g.queues, r.rows = []*queue{q}, rowZero
		r.split(g, w.sessions[g.Session])
		return nil
	}
	// A queue for each row, shared by all runs of the program.
	g.queues, r.rows = p.queues, p.rows
	r.split(g, w.sessions[g.Session])
	// Also where no shard waits for another: a device may ask the engine who it is.
	g.collective = p.form == wire.Loadable_PORTABLE && len(p.ranks) > 1 && w.config.Engine != nil
	if p.Together {
		n := len(p.rows)
		r.meet = &meeting{missing: n, rows: make([][]device.Buffer, n), flights: make([]*devicequeue.Flight, n)}
		if w.island != nil && p.collective {
			r.meet.makers = make([][]uint64, n)
		}
	}
	return nil
}

var rowZero = []int{0}

// split says what each part reads, where they do not all read the same objects: an argument
// whose rows come from several, because it was put piece by piece, or assembled.
func (r *run) split(g *gang, s *session) {
	if len(r.mixed) == 0 && !s.readsAssembled(g.Objects) {
		return
	}
	if g.But == nil {
		g.But = new(devicequeue.Exceptions)
	}
	g.But.Reads = make([][]uint64, len(r.rows))
	all := make([]uint64, 0, len(r.rows)*len(g.Objects))
	for part, row := range r.rows {
		from := len(all)
		for arg, object := range g.Objects {
			if object == 0 {
				object = r.piece(arg, row)
			} else if s != nil && s.assembled[object] != nil {
				object = s.assembled[object][g.queues[part].local]
			}
			all = append(all, object)
		}
		g.But.Reads[part] = all[from:]
	}
}

// piece returns the object that a row reads of an argument that is several, 0 if there is none.
func (r *run) piece(arg, row int) uint64 {
	for _, m := range r.mixed {
		if int(m.Argument) != arg {
			continue
		}
		for _, p := range m.Pieces {
			if row -= int(p.Rows); row < 0 {
				return p.Object
			}
		}
	}
	return 0
}

// launchID is the number under which devices know a gang: as much of the gang's as plugins
// take. It names a gang among those under way, of which there are far fewer.
func launchID(gang uint64) int32 { return int32(gang & 0x7fffffff) }

// run begins a part of a run.
func (q *queue) run(g *gang, r *run, f *devicequeue.Flight) {
	q.flights.take(f.Index, g)
	switch {
	case r.meet != nil:
		q.meet(g, r, f)
	case r.program.Calls:
		q.aside(g, r, f)
	default:
		q.launch(g, r, f)
	}
}

// launch hands a part that is a launch of its own to the driver.
//
// The driver may run the program within the call, as XLA's CPU client does where the inputs are there. That takes as
// long as the program does, and the queue stands still meanwhile. It must not stand still for something that the
// program itself waits for: in a collective, for the other workers of the gang, which may be at an earlier gang that
// waits for news of this device, such as the end of what it computed or that it failed. So the queue is lent to a
// deputy, and the reports of what has failed leave first. A deputy begins nothing, so the order of launches stays that
// of the parts.
func (q *queue) launch(g *gang, r *run, f *devicequeue.Flight) {
	buffers := row(q.row[0][:0], f)
	q.row[0] = buffers
	if g.collective {
		q.lend()
		q.w.report.warn()
	}
	at := moments{given: q.w.elapsed()}
	results, err := r.execute(g, q.row[:], r.device(q))
	at.taken = q.w.elapsed()
	r.program.took(at.taken - at.given)
	clear(buffers)
	if g.collective {
		q.reclaim()
	}
	if err != nil {
		q.launchFailed(g, r, f, err)
		return
	}
	q.launched(g, r, f, at, results.Outputs[0], results.Done[0], 0)
	g.abandon() // where it has failed since: the driver did not know it then
}

// bufferOf returns the driver's buffer of a shard.
func bufferOf(s *devicequeue.Shard) device.Buffer { return s.Buffer.(device.Buffer) }

// row appends the buffers that a part reads.
func row(to []device.Buffer, f *devicequeue.Flight) []device.Buffer {
	for _, in := range f.Inputs {
		to = append(to, bufferOf(in.Shard))
	}
	return to
}

// execute calls the driver with rows of inputs.
func (r *run) execute(g *gang, rows [][]device.Buffer, only int) (*device.Results, error) {
	return r.program.exe.Execute(device.Run{LaunchID: launchID(g.ID), Inputs: rows, NotDonated: r.kept, Only: only})
}

// device is the one that the driver is to run the program on, -1 where the program says so.
func (r *run) device(q *queue) int {
	if r.program.form == wire.Loadable_PORTABLE || r.only > 0 {
		return q.local
	}
	return -1
}

// launched takes the results of a part that the driver has. Their contents need not be there:
// what reads them is given to the driver in turn, which waits by itself. Maker is the gang's
// number in the island where that counts (see meeting.reads), and 0 otherwise.
func (q *queue) launched(
	g *gang, r *run, f *devicequeue.Flight, at moments, outputs []device.Buffer, done device.Event, maker uint64,
) {
	inputs := coming(f, at.given)
	q.state.Launched(f)
	for k, s := range f.Made {
		s.Maker = maker
		q.state.Fill(s, outputs[k])
	}
	if done.Ready() {
		l := launch{g: g, r: r, moments: at, inputs: inputs}
		l.told.Store(int64(q.w.elapsed()))
		q.ended(&l, f, done.Wait(background))
		return
	}
	q.await(&launch{g: g, r: r, moments: at, inputs: inputs}, f, done)
}

// launch is a computation that the driver was given.
type launch struct {
	g *gang
	r *run
	moments
	inputs []*atomic.Int64 // when those came that the driver was still bringing, such as from another device; 0 before
	told   atomic.Int64    // when the driver said that it was done with it; 0 before
	making making
}

// coming returns when the inputs of a part came, or will, that were not there when the driver was given it.
func coming(f *devicequeue.Flight, given time.Duration) (all []*atomic.Int64) {
	for _, in := range f.Inputs {
		if came, ok := in.Shard.Came.(*atomic.Int64); ok && (came.Load() == 0 || came.Load() > int64(given)) {
			all = append(all, came)
		}
	}
	return all
}

// came returns when the last of the inputs came that were not there at once: 0 if all were. One may yet have to come.
func (l *launch) came() (at time.Duration, missing bool) {
	for _, came := range l.inputs {
		t := time.Duration(came.Load())
		at, missing = max(at, t), missing || t == 0
	}
	return at, missing
}

// moments are when the driver was given a part, when it had taken it, and when it was done with it, by
// Worker.elapsed. The last is 0 until that is known.
type moments struct{ given, taken, through time.Duration }

// await ends a part when the driver says that it is done with it.
func (q *queue) await(l *launch, f *devicequeue.Flight, done device.Event) {
	q.open = append(q.open, l)
	q.makes(&l.making, l.g.Session, l.g.First, l.g.Recipe.Makes)
	done.Then(func(err error) {
		l.told.Store(int64(q.w.elapsed()))
		q.soon(func() { q.ended(l, f, err) })
	})
}

// elapsed returns the time since the worker was made, by a clock that is never set.
func (w *Worker) elapsed() time.Duration { return time.Since(w.since) }

// charge charges the device's time up to the end of a launch, which failed or not, and says in it when that was.
//
// Each moment is charged once: to the oldest of the launches that the device had then. A device computes in the order
// of its launches, but their ends are not told in that order: a thread of XLA's may be stopped before it tells one, and
// what the driver runs within the call that launches it has ended before any news is read. So all that was launched
// before has ended by now, too, and is charged first. Else it would seem to take no time, and what was launched behind
// it all of the time of both. A launch does not have the device while it waits for an input from elsewhere.
//
// There are two exceptions, which are charged until they end themselves: what is older than a launch that failed, since
// that need not have waited for its turn; and collectives of the plugin's own, since XLA's CPU client computes on a
// device what was launched after them while they wait for other devices.
func (q *queue) charge(l *launch, failed bool) {
	end := time.Duration(l.told.Load())
	if !failed { // it has read its inputs, though some may not have been told yet
		for _, came := range l.inputs {
			came.CompareAndSwap(0, int64(end))
		}
	}
	for _, older := range q.open {
		if older == l {
			break
		}
		if _, waits := older.came(); waits || older.through > 0 || older.given > l.given {
			continue
		}
		until := end
		if told := time.Duration(older.told.Load()); told > 0 {
			until = min(told, end)
		}
		q.chargeUntil(older, until)
		if !failed && older.r.program.inOrder() {
			older.through = until
		}
	}
	if l.through == 0 {
		l.through = end
		q.chargeUntil(l, end)
	}
	if i := slices.Index(q.open, l); i >= 0 {
		q.open = slices.Delete(q.open, i, i+1)
	}
}

// chargeUntil charges a launch what is not charged yet of the time until then.
func (q *queue) chargeUntil(l *launch, end time.Duration) {
	came, _ := l.came()
	begun := max(l.given, came, q.chargedTo)
	if end <= begun {
		return
	}
	q.chargedTo = end
	q.charged.Add(int64(end - begun))
	l.g.spent.Add(end - begun)
	if lane := q.lane.Load(); lane != nil {
		lane.add(l.g.Session, l.r.program.Name, begun, end)
	}
}

// launchFailed ends a part that the driver has refused: mostly itself, or because an input had failed by then.
func (q *queue) launchFailed(g *gang, r *run, f *devicequeue.Flight, err error) {
	q.blame(g.Session, f.Part.Reads(), err, func(why error) {
		if why == err {
			g.allocated(err)
			why = q.explain(err, r.program.Name, r.called())
		}
		if cause := g.cause(); cause != nil {
			why = cause
		}
		q.flights.land(f.Index)
		q.state.Failed(f, why)
		g.end(why)
	})
}

// ended ends a part that the driver is done with.
//
// If it failed, the driver's error says little if the reason lies elsewhere: then the part, and what it made, have the
// first of these: the error of the gang, or what else ended the collective that the part waited in; the error of an
// input that failed after the launch; and only then the driver's, with this device's name.
func (q *queue) ended(l *launch, f *devicequeue.Flight, err error) {
	g := l.g
	q.charge(l, err != nil)
	q.w.record(q, l)
	if err == nil {
		q.end(l, f, nil)
		return
	}
	if why := g.cause(); why != nil {
		q.end(l, f, why)
		return
	}
	if !slices.Contains(q.making, &l.making) {
		q.makes(&l.making, g.Session, g.First, g.Recipe.Makes)
	}
	q.blame(g.Session, f.Part.Reads(), err, func(why error) {
		if why == err {
			g.allocated(err)
			why = q.explain(err, l.r.program.Name, l.r.called())
		}
		q.end(l, f, why)
	})
}

// end ends the part of a launch.
func (q *queue) end(l *launch, f *devicequeue.Flight, err error) {
	q.flights.land(f.Index)
	q.state.Ended(f, err)
	q.made(&l.making)
	l.g.end(err)
}
