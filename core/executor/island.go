// Package executor launches the gangs of an island, each in its turn.
//
// It is the shell around core/schedule: it reports events to the pure scheduler and
// carries out its actions. If a gang's turn has come when it is submitted, the
// submitting thread launches it; otherwise a goroutine of the island launches it when
// its turn comes.
//
// # What it guarantees
//
// Gangs are launched in the scheduler's order. A gang that was queued is either
// launched or failed, exactly once. No lock is held while a launch runs, so a launch
// may take long or submit other gangs. The end of a launch costs no call into the
// island unless another gang waits for it: see Cell.
//
// # Concurrency
//
// Every method may be called from any goroutine. Close returns when no launch on the
// island's own goroutines runs any more.
package executor

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// Launch is the work of a gang that had to wait. The island calls exactly one of its
// methods, once, from a goroutine of its own.
type Launch interface {
	// Launch puts the work into the queues of the gang's devices and returns
	// when it is there. It returns true if Completed will be called when the
	// devices have finished the work; otherwise the gang counts as completed.
	Launch(gang uint64) (underWay bool)
	// Fail reports that the gang will never be launched.
	Fail(gang uint64, err error)
}

// Cell is a word in which the thread that launches a gang records the gang's progress,
// by setting bits. If it finds that CellWanted was set before, it calls Island.Report;
// otherwise the island reads the cell when it next looks. Once CellDone is set, only
// the island uses the cell. Cells may be in memory that Go does not own.
type Cell = atomic.Uint32

// The bits of a Cell.
const (
	CellLaunched = 1 // the gang is in the queue of each of its devices
	CellDone     = 2 // the devices have finished it
	CellWanted   = 4 // set by the island: another gang waits for this one
	// CellEnded is for a gang that failed, or whose completion is not awaited.
	CellEnded = CellLaunched | CellDone
)

// Pass is a word that is 1 while a gang needs no turn, and 0 otherwise; see Island.ShowPass. It may be in memory that
// Go does not own.
type Pass = atomic.Uint32

// Turn is the result of a submission.
type Turn struct {
	Gang uint64
	// Now reports whether the caller launches the gang on its own thread. Otherwise the
	// gang waits, and the caller must call Arm or Await.
	Now bool
	// Cell is where the launching thread records progress; nil for a gang that no other
	// gang can wait for.
	Cell *Cell
}

// entry is a gang that has its turn or waits for it.
type entry struct {
	id       uint64
	cell     *Cell // of a gang that its submitting thread launches
	launched bool
	// For a gang that waits: launch or waiter are set when they are known, started when
	// its turn has come, failed when it never will.
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
	last    uint64            // number of the last gang
	gangs   map[uint64]*entry // gangs that wait, hold lanes or are in flight
	spare   []*entry          // free entries, for reuse
	holding []*entry          // gangs with a cell whose end has not been seen
	cells   []*Cell           // free
	changed *sync.Cond        // signaled when there is room, or one of the island's launches has ended
	running int               // number of the island's own goroutines
	closed  bool
	pass    *Pass  // or nil, see ShowPass
	passes  uint32 // the session that pass is for
	bound   int    // of len(gangs); 0 means none
	queued  int64  // number of gangs that had to wait since the island was made
}

// NewIsland returns an island. The number of cells bounds how many gangs of several
// devices their submitting threads may launch at the same time; further ones are queued.
func NewIsland(cells []*Cell, config schedule.Config) *Island {
	i := &Island{state: schedule.New(config), gangs: map[uint64]*entry{}, cells: cells}
	i.changed = sync.NewCond(&i.mu)
	return i
}

// Bound bounds the number of gangs that wait or are in flight: at the bound, Enter blocks
// until one of them has completed. It must be called before the first Enter.
func (i *Island) Bound(gangs int) { i.bound = gangs }

// ShowPass has the island say in a word whether a gang of this session that has one
// device, is not collective, and comes after no other would have its turn at once. While
// the word is 1, a caller may launch such a gang without Enter: the island would keep no
// record of it, since no other gang ever waits for it. The word becomes 0 with a full
// queue and with Close. ShowPass must be called before the first Enter.
func (i *Island) ShowPass(session uint32, word *Pass) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pass, i.passes = word, session
	i.showPass()
}

// showPass writes the word of ShowPass, after whatever may have changed it.
func (i *Island) showPass() {
	if i.pass == nil {
		return
	}
	var now uint32
	if !i.closed && i.state.Passes(i.passes) {
		now = 1
	}
	if i.pass.Load() != now {
		i.pass.Store(now)
	}
}

// ErrClosed is the error of submissions after Close.
var (
	ErrClosed = status.New(status.Unavailable, "this session was shut down; call pathways.init() to begin a new one")
	errLate   = status.New(status.Cancelled, "the session was shut down before this computation had its turn")
)

// Enter submits a gang and assigns its ID. free marks a gang that needs no place in the
// order: it is submitted inside a host callback of a gang that may still hold its turn,
// and is part of that turn. Such a gang waits for no lane, only for gangs it reads from
// that have not been launched. If the queue is full, or the bound on gangs in flight is
// reached, Enter blocks until other gangs have made room.
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
		if free && !i.isReading(g) {
			return Turn{Gang: g.ID, Now: true}, nil
		}
		// No gang ever waits for a gang of one device that itself waits for nothing, so
		// the island keeps no record of it.
		alone := g.Devices.Len() == 1 && len(g.After) == 0
		if alone && i.state.Pass(g) {
			return Turn{Gang: g.ID, Now: true}, nil
		}
		var e *entry
		if !alone {
			i.collect()
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
		return i.turn(e), nil
	}
}

// turn returns the turn of a gang that the state has taken: now, if nothing is in its way and a cell is free to record
// its progress.
func (i *Island) turn(e *entry) Turn {
	if n := len(i.cells) - 1; e.started && n >= 0 {
		e.cell, i.cells = i.cells[n], i.cells[:n]
		if i.state.Queued() > 0 {
			e.cell.Store(CellWanted)
		} else {
			e.cell.Store(0)
		}
		i.holding = append(i.holding, e)
		return Turn{Gang: e.id, Now: true, Cell: e.cell}
	}
	i.queued++
	return Turn{Gang: e.id}
}

// Arm hands the island the work of a gang that waits.
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

// Await blocks until the turn of a gang comes, for callers that launch it themselves and
// then call Launched and Completed, or only Completed. Its error says why the turn will
// never come.
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
	return <-turn // the gangs before it launch or fail within the time limits of their drivers
}

func unknown(gang uint64) error {
	return status.New(status.Internal, "computation %d is not waiting for its turn", gang)
}

// Report notifies the island that bits were set in the cell of a gang that others wait for.
func (i *Island) Report(uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.collect()
}

// Launched reports that a gang without a cell is in the queue of each of its devices.
// Completed must follow.
func (i *Island) Launched(gang uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e := i.gangs[gang]; e != nil && e.cell == nil {
		i.launch(e)
	}
}

// Completed reports that the devices have finished a gang, or that its launch failed.
func (i *Island) Completed(gang uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch e := i.gangs[gang]; {
	case e == nil:
	case e.cell == nil:
		i.finish(e)
	default:
		i.collect()
	}
}

// Close fails the gangs that wait, and blocks until the launches on the island's own
// goroutines have returned.
func (i *Island) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.showPass()
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

// isReading reports whether g reads from a gang that has not been launched.
func (i *Island) isReading(g *schedule.Gang) bool {
	i.collect()
	return slices.ContainsFunc(g.After, func(id uint64) bool {
		e := i.gangs[id]
		return e != nil && !e.launched
	})
}

// keep adds an entry for a gang, until drop removes it.
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

// drop removes a gang's entry.
func (i *Island) drop(e *entry) {
	delete(i.gangs, e.id)
	*e = entry{}
	i.spare = append(i.spare, e)
}

// collect applies what the cells say, and reports whether a gang has completed.
func (i *Island) collect() (found bool) {
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

// want asks all threads that launch gangs to call Report, because a gang waits: for
// lanes, for its producers, for its policy, or for room. Enter sets CellWanted at once
// for gangs that get their turn while others wait. want reports whether it found that a
// gang has completed.
func (i *Island) want() (found bool) {
	for _, e := range i.holding {
		e.cell.Or(CellWanted)
	}
	return i.collect()
}

// lingerTurns is the number of times that linger yields: a few microseconds.
const lingerTurns = 64

// linger waits a few microseconds for the gangs before e to end. A thread that waited
// for the results of one gang often submits the next before the devices have reported
// that the first one is done.
func (i *Island) linger(e *entry) {
	for range lingerTurns {
		if e.started || e.failed != nil || i.closed {
			return
		}
		i.mu.Unlock()
		runtime.Gosched()
		i.mu.Lock()
		i.collect()
	}
}

// launch reports to the scheduler that a gang has been launched, which releases its
// lanes.
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

// step applies an event and carries out the actions that follow. It reports whether the
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
	i.showPass()
	return started, refused
}

// carryOut launches or fails a gang that waited, once both its work and its verdict are
// known. After Close it launches nothing.
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
