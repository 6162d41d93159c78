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
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// Launch is a gang's work, for a gang that had to wait. One of its methods is
// called, once, from a goroutine of the island.
type Launch interface {
	// Launch puts the work into the queues of the gang's devices and returns
	// when it is there.
	Launch(gang uint64)
	// Fail says that the gang will never be launched.
	Fail(gang uint64, err error)
}

// Cell is where the thread that launches a gang says that the launch has
// ended. It swaps in CellEnded and, where it finds CellWanted, reports by
// Island.Ended; otherwise the island finds out when it next looks. Cells may
// lie in memory that Go does not own.
type Cell = atomic.Uint32

// The states of a Cell.
const (
	CellLaunching = 1 // set before the turn is given
	CellWanted    = 2 // set by the island: a gang waits for this one
	CellEnded     = 3 // set by the launching thread, which leaves the cell alone from then on
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
	id      uint64
	devices schedule.DeviceSet
	cell    *Cell // of a gang that is launched by its own thread
	// For a gang that waits: armed when its work is known, started when its turn
	// has come, failed when it never will.
	launch  Launch
	waiter  chan error
	started bool
	failed  error
}

// Island orders the gangs of one island.
type Island struct {
	mu       sync.Mutex // guards all below; never held while a launch runs
	state    *schedule.State
	actions  []schedule.Action
	last     uint64            // gang number given last
	gangs    map[uint64]*entry // gangs that hold lanes or wait
	holding  []*entry          // gangs launched by their own thread, end not seen yet
	cells    []*Cell           // free
	room     *sync.Cond        // the queue has become shorter
	closed   bool
	launches sync.WaitGroup
	queued   int64 // gangs that had to wait, ever
}

// NewIsland makes an island. Cells bounds how many gangs of several devices may
// be launched at the same time by their own threads; more of them are queued.
func NewIsland(cells []*Cell, config schedule.Config) *Island {
	i := &Island{state: schedule.New(config), gangs: map[uint64]*entry{}, cells: cells}
	i.room = sync.NewCond(&i.mu)
	return i
}

// Enter submits a gang. Its ID is given by the island. Nested marks a gang that
// is submitted from inside a host callback of a gang which may still hold its
// turn: it is part of that turn and waits for no lane.
//
// Errors: UNAVAILABLE after Close.
func (i *Island) Enter(g *schedule.Gang, nested bool) (Turn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		if i.closed {
			return Turn{}, status.New(status.Unavailable, "this session was shut down; call pathways.init() to begin a new one")
		}
		i.last++
		g.ID = i.last
		if nested && len(g.After) == 0 {
			return Turn{Gang: g.ID, Now: true}, nil // part of a turn that is given already
		}
		e, refused := (*entry)(nil), false
		if g.Devices.Len() == 1 && len(g.After) == 0 {
			// It waits for nothing and nobody waits for it: nothing is kept of it.
			var started bool
			if started, refused = i.pass(g); started {
				return Turn{Gang: g.ID, Now: true}, nil
			}
			e = i.keep(g)
		} else {
			i.reap()
			e = i.keep(g)
			refused = i.step(schedule.Event{Kind: schedule.Submit, Gang: *g})
		}
		if refused {
			delete(i.gangs, g.ID)
			if !i.want(nil) {
				i.room.Wait()
			}
			continue
		}
		if !e.started && e.failed == nil {
			i.want(e)
		}
		if e.started && e.failed == nil && len(i.cells) > 0 {
			n := len(i.cells) - 1
			e.cell, i.cells = i.cells[n], i.cells[:n]
			e.cell.Store(CellLaunching)
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
	if e == nil { // the session was closed in between
		i.mu.Unlock()
		l.Fail(gang, status.New(status.Cancelled, "the session was closed before this computation had its turn"))
		return
	}
	e.launch = l
	i.carryOut(e)
	i.mu.Unlock()
}

// Await waits for the turn of a gang that waits, for callers that launch it
// themselves and then call Ended. Its error says why the turn never comes.
func (i *Island) Await(gang uint64) error {
	i.mu.Lock()
	e := i.gangs[gang]
	if e == nil {
		i.mu.Unlock()
		return status.New(status.Cancelled, "the session was closed before this computation had its turn")
	}
	e.waiter = make(chan error, 1)
	i.carryOut(e)
	i.mu.Unlock()
	return <-e.waiter // the gangs before it launch or fail, within the bounds of their drivers
}

// Ended says that a gang's launch has ended: the gang is in the queue of each
// of its devices, or failed to get there on all.
func (i *Island) Ended(gang uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e := i.gangs[gang]; e != nil {
		for k, h := range i.holding {
			if h == e {
				i.holding = append(i.holding[:k], i.holding[k+1:]...)
				break
			}
		}
		i.finish(e)
	}
}

// Close fails what waits and waits for what is being launched.
func (i *Island) Close() {
	i.mu.Lock()
	i.closed = true
	why := status.New(status.Cancelled, "the session was shut down before this computation had its turn")
	for id, e := range i.gangs {
		if !e.started {
			i.step(schedule.Event{Kind: schedule.Cancel, ID: id, Err: why})
		}
	}
	i.room.Broadcast()
	i.mu.Unlock()
	i.launches.Wait()
}

// Queued counts the gangs that wait now and those that ever had to.
func (i *Island) Queued() (now, ever int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.gangs {
		if !e.started {
			now++
		}
	}
	return now, i.queued
}

// keep remembers a gang that holds its turn or waits for it.
func (i *Island) keep(g *schedule.Gang) *entry {
	e := &entry{id: g.ID, devices: g.Devices}
	i.gangs[g.ID] = e
	return e
}

// pass takes a gang of one device past the scheduler in one go, where the
// scheduler lets it start at once.
func (i *Island) pass(g *schedule.Gang) (started, refused bool) {
	from := len(i.actions)
	i.actions = i.state.Step(schedule.Event{Kind: schedule.Submit, Gang: *g}, i.actions)
	for _, a := range i.actions[from:] {
		started = started || (a.Kind == schedule.Start && a.ID == g.ID)
		refused = refused || a.Kind == schedule.Refuse
	}
	i.actions = i.actions[:from]
	if started {
		i.step(schedule.Event{Kind: schedule.Completed, ID: g.ID})
	}
	return started, refused
}

// reap takes note of launches that have ended without being waited for.
func (i *Island) reap() {
	for k := 0; k < len(i.holding); {
		e := i.holding[k]
		if e.cell.Load() != CellEnded {
			k++
			continue
		}
		i.holding = append(i.holding[:k], i.holding[k+1:]...)
		i.finish(e)
	}
}

// want asks the threads that launch gangs in e's way (all gangs, for nil) to
// report the end, and takes note of those that have ended meanwhile: found says
// whether there were any.
func (i *Island) want(e *entry) (found bool) {
	for k := 0; k < len(i.holding); {
		h := i.holding[k]
		if (e == nil || h.devices.Overlaps(e.devices)) && !h.cell.CompareAndSwap(CellLaunching, CellWanted) && h.cell.Load() == CellEnded {
			i.holding = append(i.holding[:k], i.holding[k+1:]...)
			i.finish(h)
			found = true
			continue
		}
		k++
	}
	return found
}

// finish ends a gang that had its turn.
func (i *Island) finish(e *entry) {
	if e.cell != nil {
		i.cells = append(i.cells, e.cell)
		e.cell = nil
	}
	delete(i.gangs, e.id)
	i.step(schedule.Event{Kind: schedule.Completed, ID: e.id})
	i.room.Broadcast()
}

// step feeds the scheduler and carries out what follows. It reports whether the
// event was refused.
func (i *Island) step(ev schedule.Event) (refused bool) {
	from := len(i.actions)
	i.actions = i.state.Step(ev, i.actions)
	for _, a := range i.actions[from:] {
		e := i.gangs[a.ID]
		switch {
		case a.Kind == schedule.Refuse:
			refused = true
		case e == nil:
		case a.Kind == schedule.Start:
			e.started = true
			i.carryOut(e)
		case a.Kind == schedule.Fail:
			e.failed = a.Err
			i.carryOut(e)
		}
	}
	i.actions = i.actions[:from]
	return refused
}

// carryOut acts on a gang that waited, once both its work and its verdict are
// known.
func (i *Island) carryOut(e *entry) {
	switch {
	case !e.started && e.failed == nil:
	case e.waiter != nil:
		e.waiter <- e.failed
		if e.failed != nil {
			delete(i.gangs, e.id)
		}
	case e.launch != nil:
		l := e.launch
		e.launch = nil
		i.launches.Add(1)
		if e.failed != nil {
			delete(i.gangs, e.id)
			go func() {
				defer i.launches.Done()
				l.Fail(e.id, e.failed)
			}()
			return
		}
		go func() {
			defer i.launches.Done()
			l.Launch(e.id)
			i.Ended(e.id)
		}()
	}
}
