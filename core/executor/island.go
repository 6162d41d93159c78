// Package executor gives the gangs of an island their turns.
//
// It is the shell around core/schedule: it feeds the pure scheduler with what
// happens and carries its actions out. A gang whose turn is free is launched by
// the thread that submitted it; one that has to wait is launched later, in its
// turn, by a goroutine of the island.
//
// # Guarantees
//
// Gangs are launched in the scheduler's order. A gang that was queued is
// launched or failed exactly once. No lock is held while a launch runs, so a
// launch may take long, or submit again. The end of a launch costs no call of
// the island where nobody waits for it: see Cell.
//
// # Concurrency
//
// Every method may be called from any goroutine. Close returns when no launch
// of the island's own goroutines runs any more.
package executor

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// Launch is a gang's work, for a gang that had to wait. One of its methods is
// called, once, from a goroutine of the island.
type Launch interface {
	// Launch puts the work into the queues of the gang's devices and returns
	// when it is there. Under way means that Completed will be called when the
	// devices are through with it; otherwise that is not awaited.
	Launch(gang uint64) (underWay bool)
	// Fail says that the gang will never be launched.
	Fail(gang uint64, err error)
}

// Cell is where the thread that launches a gang says how far the gang is, by
// setting bits. Where it finds CellWanted set before, it calls Island.Report;
// otherwise the island finds out when it next looks. Once CellDone is set nobody
// but the island uses the cell. Cells may lie in memory that Go does not own.
type Cell = atomic.Uint32

// The bits of a Cell.
const (
	CellLaunched = 1 // the gang is in the queue of each of its devices
	CellDone     = 2 // the devices are through with it
	CellWanted   = 4 // set by the island: somebody waits
	// CellEnded is of a gang whose completion is not awaited, or that failed.
	CellEnded = CellLaunched | CellDone
)

// Turn is the answer to a submission.
type Turn struct {
	Gang uint64
	// Now: launch the gang on this thread. Otherwise it waits, and Arm or Await
	// must follow.
	Now bool
	// Cell is where to write the end of the launch; nil for a gang that nobody
	// can wait for.
	Cell *Cell
}

// entry is a gang that holds its turn or waits for it.
type entry struct {
	id       uint64
	cell     *Cell // of a gang that is launched by its own thread
	launched bool
	// For a gang that waits: its work or its waiter when they are known, started
	// when its turn has come, failed when it never will.
	launch  Launch
	waiter  chan error
	started bool
	failed  error
}

// Island orders the gangs of one island.
type Island struct {
	mu      sync.Mutex // guards all below; never held while a launch runs
	state   *schedule.State
	actions []schedule.Action
	last    uint64            // gang number given last
	gangs   map[uint64]*entry // gangs that wait, hold lanes or are under way
	spare   []*entry          // to be used again
	holding []*entry          // gangs with a cell: launched by their own thread, end not seen yet
	cells   []*Cell           // free
	changed *sync.Cond        // there is room, or a launch of the island's has ended
	running int               // the island's own goroutines
	closed  bool
	bound   int   // of len(gangs); 0 is none
	queued  int64 // gangs that had to wait, ever
}

// NewIsland makes an island. Cells bounds how many gangs of several devices may
// be launched at the same time by their own threads; more of them are queued.
func NewIsland(cells []*Cell, config schedule.Config) *Island {
	i := &Island{state: schedule.New(config), gangs: map[uint64]*entry{}, cells: cells}
	i.changed = sync.NewCond(&i.mu)
	return i
}

// Bound bounds the gangs that wait or are under way: Enter waits for one of them
// to be done before it takes another. It is to be called before the first Enter.
func (i *Island) Bound(gangs int) { i.bound = gangs }

// ErrClosed is the answer to submissions after Close.
var (
	ErrClosed = status.New(status.Unavailable, "this session was shut down; call pathways.init() to begin a new one")
	errLate   = status.New(status.Cancelled, "the session was shut down before this computation had its turn")
)

// Enter submits a gang. Its ID is given by the island. Free marks a gang that no
// order can harm: it is submitted from inside a host callback of a gang which may
// still hold its turn, and is part of that turn. It waits for no lane, but for gangs it reads from that have yet to be
// launched. Where the queue is full, or the bound of gangs under way is reached,
// Enter waits until others have made room.
//
// Errors: UNAVAILABLE after Close.
func (i *Island) Enter(g *schedule.Gang, free bool) (Turn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		if i.closed {
			return Turn{}, ErrClosed
		}
		i.last++
		g.ID = i.last
		if free && !i.reads(g) {
			return Turn{Gang: g.ID, Now: true}, nil
		}
		// Nobody waits for a gang of one device that waits for nothing: nothing is
		// kept of it.
		alone := g.Devices.Len() == 1 && len(g.After) == 0
		if alone && i.state.Pass(g) {
			return Turn{Gang: g.ID, Now: true}, nil
		}
		var e *entry
		if !alone {
			i.reap()
			if i.bound > 0 && len(i.gangs) >= i.bound && !free {
				if !i.want() {
					i.changed.Wait()
				}
				continue
			}
			e = i.keep(g.ID)
		}
		started, refused := i.step(schedule.Event{Kind: schedule.Submit, Gang: *g})
		switch {
		case refused:
			if e != nil {
				i.drop(e)
			}
			if !i.want() {
				i.changed.Wait()
			}
			continue
		case alone && started:
			i.step(schedule.Event{Kind: schedule.Completed, ID: g.ID})
			return Turn{Gang: g.ID, Now: true}, nil
		case alone:
			e = i.keep(g.ID)
		}
		if !e.started && e.failed == nil {
			i.want()
			i.linger(e)
		}
		if n := len(i.cells) - 1; e.started && n >= 0 {
			e.cell, i.cells = i.cells[n], i.cells[:n]
			if i.state.Queued() > 0 {
				e.cell.Store(CellWanted)
			} else {
				e.cell.Store(0)
			}
			i.holding = append(i.holding, e)
			return Turn{Gang: g.ID, Now: true, Cell: e.cell}, nil
		}
		i.queued++
		return Turn{Gang: g.ID}, nil
	}
}

// Arm hands over the work of a gang that waits.
func (i *Island) Arm(gang uint64, l Launch) {
	i.mu.Lock()
	e := i.gangs[gang]
	if e != nil {
		e.launch = l
		i.carryOut(e)
	}
	i.mu.Unlock()
	if e == nil {
		l.Fail(gang, unknown(gang))
	}
}

// Await waits for the turn of a gang that waits, for callers that launch it
// themselves and then call Launched and Completed, or Completed alone. Its error
// says why the turn never comes.
func (i *Island) Await(gang uint64) error {
	i.mu.Lock()
	e := i.gangs[gang]
	if e == nil {
		i.mu.Unlock()
		return unknown(gang)
	}
	turn := make(chan error, 1)
	e.waiter = turn
	i.carryOut(e)
	i.mu.Unlock()
	return <-turn // the gangs before it launch or fail, within the bounds of their drivers
}

func unknown(gang uint64) error {
	return status.New(status.Internal, "computation %d does not wait for its turn", gang)
}

// Report says that bits were set in the cell of a gang for which somebody waits.
func (i *Island) Report(uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reap()
}

// Launched says that a gang without a cell is in the queue of each of its
// devices. Completed will follow.
func (i *Island) Launched(gang uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e := i.gangs[gang]; e != nil && e.cell == nil {
		i.launch(e)
	}
}

// Completed says that the devices are through with a gang, or that it failed to
// get to them.
func (i *Island) Completed(gang uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch e := i.gangs[gang]; {
	case e == nil:
	case e.cell == nil:
		i.finish(e)
	default:
		i.reap()
	}
}

// Close fails what waits and waits for what is being launched by the island.
func (i *Island) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for id, e := range i.gangs {
		if !e.started {
			i.step(schedule.Event{Kind: schedule.Cancel, ID: id, Err: errLate})
		}
	}
	i.changed.Broadcast()
	for i.running > 0 {
		i.changed.Wait()
	}
}

// reads reports whether g reads from a gang that has yet to be launched.
func (i *Island) reads(g *schedule.Gang) bool {
	i.reap()
	return slices.ContainsFunc(g.After, func(id uint64) bool {
		e := i.gangs[id]
		return e != nil && !e.launched
	})
}

// keep remembers a gang until it is done.
func (i *Island) keep(id uint64) *entry {
	var e *entry
	if n := len(i.spare) - 1; n >= 0 {
		e, i.spare = i.spare[n], i.spare[:n]
	} else {
		e = new(entry)
	}
	e.id = id
	i.gangs[id] = e
	return e
}

// drop forgets a gang.
func (i *Island) drop(e *entry) {
	delete(i.gangs, e.id)
	*e = entry{}
	i.spare = append(i.spare, e)
}

// reap takes note of what the cells say, and says whether a gang was done.
func (i *Island) reap() (found bool) {
	for k := 0; k < len(i.holding); {
		e := i.holding[k]
		bits := e.cell.Load()
		if bits&CellDone == 0 {
			if bits&CellLaunched != 0 {
				i.launch(e)
			}
			k++
			continue
		}
		i.holding = slices.Delete(i.holding, k, k+1)
		i.finish(e)
		found = true
	}
	return found
}

// want asks all threads that launch gangs to report, since a gang waits: for
// lanes, for what it reads, for what its policy counts, or for room. Gangs that
// are given their turn while others wait are asked from the start. It says
// whether gangs were found to be done.
func (i *Island) want() (found bool) {
	for _, e := range i.holding {
		e.cell.Or(CellWanted)
	}
	return i.reap()
}

// linger gives the gangs in e's way the few microseconds in which they may end: who
// waited for the results of one is often quicker to submit the next than the
// devices are to say that they are through.
func (i *Island) linger(e *entry) {
	for range 64 {
		if e.started || e.failed != nil || i.closed {
			return
		}
		i.mu.Unlock()
		runtime.Gosched()
		i.mu.Lock()
		i.reap()
	}
}

// launch takes note that a gang has given up its lanes.
func (i *Island) launch(e *entry) {
	if !e.launched {
		e.launched = true
		i.step(schedule.Event{Kind: schedule.Launched, ID: e.id})
		i.changed.Broadcast()
	}
}

// finish ends a gang that had its turn.
func (i *Island) finish(e *entry) {
	id := e.id
	if e.cell != nil {
		i.cells = append(i.cells, e.cell)
	}
	i.drop(e)
	i.step(schedule.Event{Kind: schedule.Completed, ID: id})
	i.changed.Broadcast()
}

// step feeds the scheduler and carries out what follows. It reports whether the
// event's gang was started, and whether it was refused.
func (i *Island) step(ev schedule.Event) (started, refused bool) {
	from := len(i.actions)
	i.actions = i.state.Step(ev, i.actions)
	for _, a := range i.actions[from:] {
		if a.ID == ev.Gang.ID {
			started = started || a.Kind == schedule.Start
			refused = refused || a.Kind == schedule.Refuse
		}
		e := i.gangs[a.ID]
		if e == nil || a.Kind == schedule.Refuse {
			continue
		}
		if a.Kind == schedule.Start {
			e.started = true
		} else {
			e.failed = a.Err
		}
		i.carryOut(e)
	}
	i.actions = i.actions[:from]
	return started, refused
}

// carryOut acts on a gang that waited, once both its work and its verdict are
// known. After Close no turn is given any more.
func (i *Island) carryOut(e *entry) {
	if !e.started && e.failed == nil || e.launch == nil && e.waiter == nil {
		return
	}
	id, l, waiter, failed := e.id, e.launch, e.waiter, e.failed
	if failed == nil && i.closed {
		failed = errLate
	}
	e.launch, e.waiter = nil, nil
	if failed != nil {
		i.drop(e)
		i.changed.Broadcast()
	}
	if waiter != nil {
		waiter <- failed
		return
	}
	i.running++
	go func() {
		switch {
		case failed != nil:
			l.Fail(id, failed)
		case l.Launch(id):
			i.Launched(id)
		default:
			i.Completed(id)
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.running--
		i.changed.Broadcast()
	}()
}
