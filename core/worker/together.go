package worker

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
)

// If a gang's devices here are given to the driver by one launch, their parts come together first. Each queue begins
// its part, brings its inputs (meet) and stands still: its state machine says OtherDevices. The last to come launches
// for all (enter), by itself, or in the gang's turn where the devices share a pool of threads (see core/schedule,
// Threads). The results go back to each queue as a task (spread), which ends the standstill.
//
// Either the gang is launched or its parts fail, never both. meeting.mu decides: the last to
// come launches only if the gang has not failed by then, and says so in launched; a queue
// that finds the gang failed fails its part only where launched is false. A part that
// comes after the failure finds it before it begins, or is the last and sees it here.
//
// Queues do not wait for each other in a circle: all queues of a worker have the gangs they share in one order, that of
// their numbers, so the first gang that has not been launched is the next one on each of its devices, or will be.
//
// A program that calls functions of its client must not keep its devices: the functions may
// run programs on them. So its queues go on before the launch (depart), which a goroutine
// of its own makes.

// meeting collects the devices of a gang that is one launch of the driver. The last to come launches for all.
type meeting struct {
	mu       sync.Mutex            // guards the rest
	rows     [][]device.Buffer     // by part
	flights  []*devicequeue.Flight // by part
	makers   [][]uint64            // by part and argument, see reads
	missing  int
	launched bool
	begun    atomic.Bool // the driver has it, or is being given it; read without mu
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

// isLaunched reports whether the gang is being launched, or was. It may be called on nil, the
// meeting of a gang that has none.
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
	turn, err := w.island.Enter(&schedule.Gang{
		Session: g.Session, Devices: r.program.set, Collective: true, Reads: r.meet.reads()}, false)
	switch {
	case err != nil:
		g.spread(moments{}, nil, err, 0)
	case turn.Now:
		g.launch(turn.Cell, turn.Gang)
	default:
		w.island.Arm(turn.Gang, (*turned)(g))
	}
}

// reads returns the gangs whose arrays every row reads.
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

// turned is a gang that waited for its turn in the island, which calls one of its methods, once,
// from a goroutine of its own. Its queues stand still until then.
type turned gang

// Launch implements executor.Launch.
func (t *turned) Launch(turn uint64) bool { return (*gang)(t).launch(nil, turn) }

// Fail implements executor.Launch.
func (t *turned) Fail(_ uint64, err error) { (*gang)(t).spread(moments{}, nil, err, 0) }

// launch hands the gang to the driver. Turn is its number in the island, whose cell, if it has one, records its
// progress. It reports whether the gang is under way.
func (g *gang) launch(cell *executor.Cell, turn uint64) bool {
	r := g.work.(*run)
	r.meet.begun.Store(true)
	if r.program.Calls {
		g.depart()
	}
	at := moments{given: g.w.elapsed()}
	results, err := r.execute(g, r.meet.rows, -1)
	at.taken = g.w.elapsed()
	if err != nil {
		if cell != nil {
			g.tell(cell, turn, executor.CellEnded)
		}
		g.spread(at, nil, err, 0)
		return false
	}
	if turn == 0 {
		g.spread(at, results, nil, 0)
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
	g.spread(at, results, nil, turn)
	g.abandon()
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
func (g *gang) spread(at moments, results *device.Results, err error, maker uint64) {
	r := g.work.(*run)
	for i, q := range g.queues {
		f := r.meet.flights[i]
		if err != nil {
			q.soon(func() { q.launchFailed(g, r, f, err) })
			continue
		}
		outputs, done := results.Outputs[i], results.Done[i]
		q.soon(func() { q.launched(g, r, f, at, outputs, done, maker) })
	}
}

// depart lets the queues of a gang that has met go on before it is launched.
func (g *gang) depart() {
	for i, q := range g.queues {
		f := g.work.(*run).meet.flights[i]
		q.soon(func() { q.state.Depart(f) })
	}
}
