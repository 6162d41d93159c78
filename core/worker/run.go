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
	"github.com/openpathways/pathways/device"
)

// run is the work of Run.
type run struct {
	name    uint64 // of the program, in its session
	program *program
	first   uint64   // object of output 0
	inputs  []uint64 // 0 where mixed says more
	mixed   []*wire.Mixed
	kept    []int // arguments that are not donated
	only    uint32
	trace   []byte
	rows    []int // of the program, by part
	meet    *meeting
}

// meeting is where the devices of a gang that is one launch of the driver come
// together. The last to come launches for all.
type meeting struct {
	mu       sync.Mutex // guards the rest
	rows     [][]device.Buffer
	donated  [][]uint64  // by part
	makers   [][]uint64  // by part and argument, see shard.maker
	promised []*promised // by part, of a program that calls its client
	missing  int
	launched bool
	begun    atomic.Bool // the driver has it, or is being given it
}

// quickTime is what Execute of a quick program takes at most: not much more than
// waking a goroutine that sleeps, some 20 µs where it wakes another thread.
const quickTime = 50 * time.Microsecond

// input is an argument of the part that is being begun.
type input struct {
	object  uint64
	shard   *shard
	donated bool
}

func (w *Worker) beginRun(g *gang, operation []byte) error {
	m := &w.run
	if err := m.Parse(operation); err != nil {
		return err
	}
	g.op = m.Op
	return w.arrange(g, &run{name: m.Program, first: m.FirstOutput, inputs: slices.Clone(m.Inputs), mixed: m.Mixed,
		kept: arguments(m.NotDonated), only: m.Only, trace: bytes.Clone(m.Trace)})
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
	p := w.programs[programKey{g.session, r.name}]
	if p == nil {
		return status.New(status.NotFound, "program %d of session %d was not loaded on worker %s, or was forgotten", r.name, g.session, w.config.Name)
	}
	r.program, g.work, g.bytes = p, r, p.calls
	if r.only > 0 {
		_, q, err := w.where(g.session, r.only-1)
		if err != nil || q == nil {
			return err
		}
		if len(p.places) != 1 {
			return status.New(status.InvalidArgument, "%s is for %d devices and cannot run on device %d alone", p.name, len(p.places), r.only-1)
		}
		g.queues, r.rows = []*queue{q}, rowZero
		return nil
	}
	// A queue for each row, shared by all runs of the program.
	g.queues, r.rows = p.queues, p.rows
	// Also where no shard waits for another: a device may ask the engine who it is.
	g.collective = p.form == wire.Loadable_PORTABLE && len(p.places) > 1 && w.config.Engine != nil
	if p.form != wire.Loadable_PORTABLE && len(p.rows) > 1 {
		n := len(p.rows)
		r.meet = &meeting{missing: n, rows: make([][]device.Buffer, n), donated: make([][]uint64, n)}
		if w.island != nil && p.collective {
			r.meet.makers = make([][]uint64, n)
		}
		if p.calls {
			r.meet.promised = make([]*promised, n)
		}
	}
	return nil
}

var rowZero = []int{0}

// object gives the object that is an argument of a row.
func (r *run) object(arg, row int) uint64 {
	if id := r.inputs[arg]; id != 0 {
		return id
	}
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

// launch is the number under which devices know a gang.
func launch(gang uint64) int32 { return int32(gang & 0x7fffffff) }

// run begins a part of a run.
func (q *queue) run(p part) bool {
	g := p.g
	r := g.work.(*run)
	if q.meeting { // it is at hand
		return q.forsake(p)
	}
	if err := g.failure(); err != nil {
		return q.refuse(p, err)
	}
	if !r.program.settled.Load() {
		return q.waits(g, "%s to be loaded", r.program.name)
	}
	if err := r.program.err; err != nil {
		return q.refuse(p, q.explain(err, r.program.name+" could not be loaded", r.trace))
	}
	row := r.rows[p.i]
	t := q.table(g.session)
	q.inputs = q.inputs[:0]
	for arg := range r.inputs {
		object := r.object(arg, row)
		s, err := q.find(t, object)
		switch {
		case err != nil:
			return q.refuse(p, err)
		case s == nil:
			return q.waits(g, "array %d, argument %d of %s, whose bytes have yet to come", object, arg, r.program.name)
		}
		donated := slices.Contains(r.program.donated, arg) && !slices.Contains(r.kept, arg)
		if donated && s.readers > 0 {
			return q.waits(g, "array %d, argument %d of %s, to be read before it is donated", object, arg, r.program.name)
		}
		q.inputs = append(q.inputs, input{object, s, donated})
	}
	if q.flying >= q.w.config.Window {
		return q.waits(g, "one of %d computations under way to end", q.flying)
	}
	// Where devices are threads of one pool, a collective takes one of them until the
	// other workers are there, and all devices together may take them all. What began
	// before may need one to end, and the others may wait for its end. So each device
	// has at most a thread that waits, and none while anything else of it is on its way.
	if q.begun > 0 && r.program.collective && r.meet == nil && q.w.config.Threads > 0 {
		return q.waits(g, "what began before %s to end", r.program.name)
	}
	if ok, err := q.fits(g, r.program.bytes, q.consumed(), r.program.name); err != nil {
		return q.refuse(p, q.explain(err, r.program.name, r.trace))
	} else if !ok {
		return false
	}
	if r.meet != nil {
		return q.meet(p)
	}
	buffers := q.row[0][:0]
	for _, in := range q.inputs {
		buffers = append(buffers, in.shard.buf)
	}
	q.row[0] = buffers
	only := -1
	if r.program.form == wire.Loadable_PORTABLE || r.only > 0 {
		only = q.local
	}
	if r.program.calls {
		q.aside(p, slices.Clone(buffers), only)
		return true
	}
	slot := q.flights.take(g)
	if g.collective {
		// The driver may run the program within the call, which then waits for other
		// workers, and they for hearing that a gang before it has failed here.
		q.hold()
		q.away()
		q.w.report.warn()
	}
	q.goesOn() // the driver may run the program within the call
	begun, clock := time.Now(), q.w.clock()
	results, err := r.program.exe.Execute(device.Run{LaunchID: launch(g.id), Inputs: q.row[:], NotDonated: r.kept, Only: only})
	r.program.took(time.Since(begun))
	clear(buffers)
	if g.collective {
		q.back()
	}
	if err != nil {
		q.flights.land(slot)
		q.letGo()
		return q.refuse(p, q.explain(err, r.program.name, r.trace))
	}
	read := q.reading(q.inputs)
	for _, in := range q.inputs {
		if in.donated {
			q.donate(t, in.object)
		}
	}
	q.w.record(g, q, clock, results.Done[0])
	q.letGo()
	q.started(p, slot, nil, results.Outputs[0], results.Done[0], 0, read)
	g.abandon()
	return true
}

// refuse fails a part that has not begun, and is true.
func (q *queue) refuse(p part, err error) bool {
	r := p.g.work.(*run)
	for k := range r.program.outputs {
		q.lose(p.g.session, r.first+uint64(k), err)
	}
	p.g.end(err)
	return true
}

// donate takes note that a run has consumed a shard.
func (q *queue) donate(t *table, object uint64) {
	if s := t.shards[object]; s != nil && s.state == ready {
		s.fail(errDonated)
	}
}

var errDonated = status.New(status.FailedPrecondition, "the array was donated to a computation and its contents are gone")

// started takes the results of a part that the driver has, and whose slot in flights
// this is; into are their shards where they are there already. Read is what it uses
// until it is done.
func (q *queue) started(p part, slot int, into []*shard, outputs []device.Buffer, done device.Event, maker uint64, read []*charge) {
	for k, buf := range outputs {
		var s *shard
		if into != nil {
			s = into[k]
		} else {
			s = q.result(p, k)
		}
		s.maker = maker
		if c := s.charge; c != nil { // it is written
			read = append(read, c.busy())
		}
		q.came(s, buf, nil)
	}
	if done.Ready() {
		for _, c := range read {
			c.read()
		}
		q.flights.land(slot)
		q.done(p, done.Wait(background))
		return
	}
	begun := 1
	if p.g.work.(*run).program.calls {
		begun = 0 // its client may be about to submit what stands behind the next run
	}
	q.flying++
	q.begun += begun
	done.Then(func(err error) {
		q.soon(func() {
			q.flying--
			q.begun -= begun
			q.flights.land(slot)
			for _, c := range read {
				c.read()
			}
			q.done(p, err)
		})
	})
}

// result makes the shard of a part's result.
func (q *queue) result(p part, k int) *shard {
	r := p.g.work.(*run)
	s := q.add(p.g.session, r.first+uint64(k))
	if k < len(r.program.sizes) {
		q.charge(s, p.g.session, r.program.sizes[k], r.program.name)
	}
	return s
}

// consumed is the bytes of the inputs that the part being begun takes over.
func (q *queue) consumed() (bytes int64) {
	for _, in := range q.inputs {
		if in.donated && in.shard.charge != nil {
			bytes += in.shard.charge.bytes
		}
	}
	return bytes
}

// done ends a part that the driver is through with.
func (q *queue) done(p part, err error) {
	g, r := p.g, p.g.work.(*run)
	if err != nil {
		t := q.table(g.session)
		if why := g.failure(); why != nil {
			err = why // what ended the collective it waited in
		} else if why := r.cause(t, r.rows[p.i]); why != nil {
			err = why
		} else {
			err = q.explain(err, r.program.name, r.trace)
		}
		for k := range r.program.outputs {
			t.fail(r.first+uint64(k), err)
		}
	}
	g.end(err)
}

// cause is the error of an argument that has failed since the run began: drivers
// fail what reads it.
func (r *run) cause(t *table, row int) error {
	for arg := range r.inputs {
		if err := t.failure(r.object(arg, row)); err != nil {
			return err
		}
	}
	return nil
}

// meet brings a part to its gang's meeting. The queue stands still until the
// launch.
func (q *queue) meet(p part) bool {
	r := p.g.work.(*run)
	m := r.meet
	row := make([]device.Buffer, len(q.inputs))
	var donated, makers []uint64
	for i, in := range q.inputs {
		row[i] = in.shard.buf
		if in.donated {
			donated = append(donated, in.object)
		}
		if m.makers != nil {
			makers = append(makers, in.shard.maker)
		}
	}
	m.mu.Lock()
	m.rows[p.i], m.donated[p.i] = row, donated
	if m.promised != nil {
		m.promised[p.i] = &promised{inputs: slices.Clone(q.inputs)}
	}
	if m.makers != nil {
		m.makers[p.i] = makers
	}
	m.missing--
	last := m.missing == 0 && p.g.failure() == nil
	m.launched = last
	m.mu.Unlock()
	q.meeting, q.slot = true, q.flights.take(p.g)
	if !r.program.calls {
		q.using = q.reading(q.inputs)
	}
	q.hold()
	q.waits(p.g, "the other devices of %s", r.program.name)
	if last && r.program.calls {
		go p.g.enter()
	} else if last {
		p.g.enter()
	} else if p.g.failure() != nil {
		q.post(note{}) // it failed meanwhile: look again
	}
	return false
}

// parts ends the queue's part in a meeting.
func (q *queue) parts() {
	q.meeting = false
	q.letGo()
}

// hold keeps the inputs of the part that is being begun, also where they fail or
// go meanwhile, until letGo.
func (q *queue) hold() {
	for _, in := range q.inputs {
		in.shard.readers++
		q.held = append(q.held, in.shard)
	}
}

func (q *queue) letGo() {
	for i, s := range q.held {
		q.read(s)
		q.held[i] = nil
	}
	q.held = q.held[:0]
}

// forsake ends a part that is at its meeting, where the gang has failed.
func (q *queue) forsake(p part) bool {
	r := p.g.work.(*run)
	err := p.g.failure()
	if err == nil {
		return false
	}
	r.meet.mu.Lock()
	launched := r.meet.launched
	r.meet.mu.Unlock()
	if launched {
		return false // its results are about to come
	}
	for _, c := range q.using {
		c.read()
	}
	q.using = nil
	q.flights.land(q.slot)
	q.parts()
	return q.refuse(p, err)
}

// enter launches a gang whose devices have met, in its turn.
func (g *gang) enter() {
	r, w := g.work.(*run), g.w
	if w.island == nil || !r.program.collective {
		g.launch(nil, 0)
		return
	}
	turn, err := w.island.Enter(&schedule.Gang{Session: g.session, Devices: r.program.set, Collective: true, Reads: r.meet.reads()}, false)
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
	if r.program.calls {
		g.depart()
	}
	clock := g.w.clock()
	results, err := r.program.exe.Execute(device.Run{LaunchID: launch(g.id), Inputs: r.meet.rows, NotDonated: r.kept, Only: -1})
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
		p := part{g, i}
		var outputs []device.Buffer
		var done device.Event
		if err == nil {
			outputs, done = results.Outputs[i], results.Done[i]
		}
		if r.program.calls {
			h := r.meet.promised[i]
			q.soon(func() { q.fulfil(p, h, outputs, done, err, maker) })
			continue
		}
		q.post(note{call: func() {
			read, slot := q.using, q.slot
			q.using = nil
			q.parts()
			if err != nil {
				for _, c := range read {
					c.read()
				}
				q.flights.land(slot)
				q.refuse(p, q.explain(err, r.program.name, r.trace))
			} else {
				t := q.table(g.session)
				for _, object := range r.meet.donated[i] {
					q.donate(t, object)
				}
				q.started(p, slot, nil, outputs, done, maker, read)
			}
			q.next()
		}})
	}
}
