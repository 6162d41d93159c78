package worker

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
)

// run is the work of Run.
type run struct {
	name    uint64 // of the program, in its session
	program *program
	mixed   []*wire.Mixed // of arguments that are several objects; Gang.Objects has 0 for them
	kept    []int         // arguments that are not donated
	only    uint32
	trace   []byte
	rows    []int // of the program, by part
	meet    *meeting
}

// meeting is where the devices of a gang that is one launch of the driver come
// together. The last to come launches for all.
type meeting struct {
	mu       sync.Mutex            // guards the rest
	rows     [][]device.Buffer     // by part
	flights  []*devicequeue.Flight // by part
	makers   [][]uint64            // by part and argument, see reads
	missing  int
	launched bool
	begun    atomic.Bool // the driver has it, or is being given it
}

// quickTime is what Execute of a quick program takes at most: not much more than
// waking a goroutine that sleeps, some 20 µs where it wakes another thread.
const quickTime = 50 * time.Microsecond

func (w *Worker) beginRun(g *gang, r *run, operation []byte) error {
	m := &w.run
	if err := m.Parse(operation); err != nil {
		return err
	}
	g.op, g.First, g.Objects = m.Op, m.FirstOutput, slices.Clone(m.Inputs)
	r.name, r.mixed, r.kept, r.only, r.trace = m.Program, m.Mixed, arguments(m.NotDonated), m.Only, bytes.Clone(m.Trace)
	return w.arrange(g, r)
}

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

// arrange finds what a run needs.
func (w *Worker) arrange(g *gang, r *run) error {
	p := w.programs[programKey{g.Session, r.name}]
	if p == nil {
		return status.New(status.NotFound, "program %d of session %d was not loaded on worker %s, or was forgotten", r.name, g.Session, w.config.Name)
	}
	r.program, g.work, g.bytes = p, r, p.Calls
	g.Recipe = &p.Recipe
	if len(r.kept) > 0 {
		g.But = &devicequeue.Exceptions{Kept: r.kept}
	}
	if r.only > 0 {
		_, q, err := w.where(g.Session, r.only-1)
		if err != nil || q == nil {
			return err
		}
		if len(p.places) != 1 {
			return status.New(status.InvalidArgument, "%s is for %d devices and cannot run on device %d alone", p.Name, len(p.places), r.only-1)
		}
		g.queues, r.rows = []*queue{q}, rowZero
		r.split(g)
		return nil
	}
	// A queue for each row, shared by all runs of the program.
	g.queues, r.rows = p.queues, p.rows
	r.split(g)
	// Also where no shard waits for another: a device may ask the engine who it is.
	g.collective = p.form == wire.Loadable_PORTABLE && len(p.places) > 1 && w.config.Engine != nil
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

// split says what each part reads, where they do not all read the same objects.
func (r *run) split(g *gang) {
	if len(r.mixed) == 0 {
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
			}
			all = append(all, object)
		}
		g.But.Reads[part] = all[from:]
	}
}

// piece returns the object that a row reads of an argument that is several, 0 where there
// is none.
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

// launchID is the number under which devices know a gang.
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

// launch gives a part that is a launch of its own to the driver, which may run the program
// within the call.
func (q *queue) launch(g *gang, r *run, f *devicequeue.Flight) {
	buffers := row(q.row[0][:0], f)
	q.row[0] = buffers
	if g.collective {
		// It may then wait for other workers, and they for hearing that a gang before it has
		// failed here.
		q.lend()
		q.w.report.warn()
	}
	begun, clock := time.Now(), q.w.clock()
	results, err := r.execute(g, q.row[:], r.device(q))
	r.program.took(time.Since(begun))
	clear(buffers)
	if g.collective {
		q.reclaim()
	}
	if err != nil {
		q.unlaunched(g, r, f, err)
		return
	}
	q.w.record(g, q, clock, results.Done[0])
	q.launched(g, r, f, results.Outputs[0], results.Done[0], 0)
	g.abandon()
}

// bufferOf returns what the driver has of a shard.
func bufferOf(s *devicequeue.Shard) device.Buffer { return s.Buffer.(device.Buffer) }

// row appends the buffers that a part reads.
func row(to []device.Buffer, f *devicequeue.Flight) []device.Buffer {
	for _, in := range f.Inputs {
		to = append(to, bufferOf(in.Shard))
	}
	return to
}

// execute gives rows of inputs to the driver.
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

// launched takes the results of a part that the driver has. Maker is its gang's number in
// the island, where that counts.
func (q *queue) launched(
	g *gang, r *run, f *devicequeue.Flight, outputs []device.Buffer, done device.Event, maker uint64,
) {
	q.state.Launched(f)
	for k, s := range f.Made {
		s.Maker = maker
		q.state.Fill(s, outputs[k])
	}
	if done.Ready() {
		q.ended(g, r, f, done.Wait(background))
		return
	}
	done.Then(func(err error) { q.soon(func() { q.ended(g, r, f, err) }) })
}

// unlaunched ends a part that the driver has refused.
func (q *queue) unlaunched(g *gang, r *run, f *devicequeue.Flight, err error) {
	err = q.explain(err, r.program.Name, r.trace)
	if why := g.failure(); why != nil {
		err = why
	}
	q.flights.land(f.Index)
	q.state.Failed(f, err)
	g.end(err)
}

// ended ends a part that the driver is through with.
func (q *queue) ended(g *gang, r *run, f *devicequeue.Flight, err error) {
	if err != nil {
		if why := g.failure(); why != nil {
			err = why // what ended the collective it waited in
		} else if why := q.state.Cause(f); why != nil {
			err = why
		} else {
			err = q.explain(err, r.program.Name, r.trace)
		}
	}
	q.flights.land(f.Index)
	q.state.Ended(f, err)
	g.end(err)
}

// meet brings a part to its gang's meeting. The queue stands still until the launch.
func (q *queue) meet(g *gang, r *run, f *devicequeue.Flight) {
	m, part := r.meet, f.Part.Index
	inputs := row(make([]device.Buffer, 0, len(f.Inputs)), f)
	var makers []uint64
	if m.makers != nil {
		for _, in := range f.Inputs {
			makers = append(makers, in.Shard.Maker)
		}
	}
	m.mu.Lock()
	m.rows[part], m.flights[part] = inputs, f
	if m.makers != nil {
		m.makers[part] = makers
	}
	m.missing--
	last := m.missing == 0 && g.failure() == nil
	m.launched = last
	m.mu.Unlock()
	switch {
	case !last: // where the gang has failed meanwhile, advance finds that next
	case r.program.Calls:
		go g.enter()
	default:
		g.enter()
	}
}

// isLaunched reports whether all devices have met. No meeting is launched never.
func (m *meeting) isLaunched() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launched
}

// enter launches a gang whose devices have met, in its turn.
func (g *gang) enter() {
	r, w := g.work.(*run), g.w
	if w.island == nil || !r.program.collective {
		g.launch(nil, 0)
		return
	}
	turn, err := w.island.Enter(&schedule.Gang{Session: g.Session, Devices: r.program.set, Collective: true, Reads: r.meet.reads()}, false)
	switch {
	case err != nil:
		g.spread(nil, err, 0)
	case turn.Now:
		g.launch(turn.Cell, turn.Gang)
	default:
		w.island.Arm(turn.Gang, (*turned)(g))
	}
}

// reads gives the gangs of which every row reads an array.
func (m *meeting) reads() (gangs []uint64) {
	for arg, maker := range m.makers[0] {
		same := maker != 0 && !slices.Contains(gangs, maker)
		for _, row := range m.makers[1:] {
			same = same && row[arg] == maker
		}
		if same {
			gangs = append(gangs, maker)
		}
	}
	return gangs
}

// turned is a gang that waited for its turn, as the island launches it.
type turned gang

// Launch implements executor.Launch.
func (t *turned) Launch(turn uint64) bool { return (*gang)(t).launch(nil, turn) }

// Fail implements executor.Launch.
func (t *turned) Fail(_ uint64, err error) { (*gang)(t).spread(nil, err, 0) }

// launch gives the gang to the driver. Turn is its number in the island, whose
// cell, where it has one, is told how far it is. It reports whether the gang is
// under way.
func (g *gang) launch(cell *executor.Cell, turn uint64) bool {
	r := g.work.(*run)
	r.meet.begun.Store(true)
	if r.program.Calls {
		g.depart()
	}
	clock := g.w.clock()
	results, err := r.execute(g, r.meet.rows, -1)
	if err != nil {
		if cell != nil {
			g.tell(cell, turn, executor.CellEnded)
		}
		g.spread(nil, err, 0)
		return false
	}
	for i, q := range g.queues {
		g.w.record(g, q, clock, results.Done[i])
	}
	if turn == 0 {
		g.spread(results, nil, 0)
		g.abandon()
		return true
	}
	if cell != nil {
		g.tell(cell, turn, executor.CellLaunched)
	}
	var left atomic.Int32
	left.Store(int32(len(results.Done)) + 1)
	through := func(error) {
		if left.Add(-1) > 0 {
			return
		}
		if cell != nil {
			g.tell(cell, turn, executor.CellDone)
		} else {
			g.w.island.Completed(turn)
		}
	}
	g.spread(results, nil, turn)
	for _, e := range results.Done {
		e.Then(through)
	}
	if cell == nil && left.Load() == 1 {
		return false
	}
	through(nil)
	return true
}

// tell sets bits of a cell.
func (g *gang) tell(cell *executor.Cell, turn uint64, bits uint32) {
	if cell.Or(bits)&executor.CellWanted != 0 {
		g.w.island.Report(turn)
	}
}

// spread hands the results of a launch to the gang's queues.
func (g *gang) spread(results *device.Results, err error, maker uint64) {
	r := g.work.(*run)
	for i, q := range g.queues {
		f := r.meet.flights[i]
		if err != nil {
			q.soon(func() { q.unlaunched(g, r, f, err) })
			continue
		}
		outputs, done := results.Outputs[i], results.Done[i]
		q.soon(func() { q.launched(g, r, f, outputs, done, maker) })
	}
}

// depart lets the queues of a gang that has met go on before it is launched.
func (g *gang) depart() {
	for i, q := range g.queues {
		f := g.work.(*run).meet.flights[i]
		q.soon(func() { q.state.Depart(f) })
	}
}
