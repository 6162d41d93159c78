package controller

import (
	"fmt"
	"slices"
)

// look is State's progress in checking the held gangs. They are checked in parts, each of which takes about as long as
// the operations of a Step, since checking many of them, on many devices, takes milliseconds. If an event between the
// parts may let one proceed, all are checked once more.
type look struct {
	stage   stage
	next    int   // of held gangs, for the stage
	weighed int64 // in this Step, see weightOfLook
}

// stage is a part of a look.
type stage uint8

const (
	idle    stage = iota
	admits        // gangs that may proceed do
	judging       // what each of the others waits for is found out
)

// The time to check a gang, in nanoseconds: measured by BenchmarkSteps.
const (
	weightOfLook    = 300
	weightOfDevice  = 4  // of the gang's
	weightOfJudged  = 40 // the same, of one that waits for memory of devices, when it is judged
	weightOfSession = 40 // that may have what it wants
)

// stir has the held gangs checked at the end of this Step.
func (st *State) stir() { st.stirred = len(st.held) > 0 }

// looks reports whether held gangs have to be checked.
func (st *State) looks() bool { return st.stirred || st.round.stage != idle }

// mayLook reports whether this Step may check more of them.
func (st *State) mayLook() bool { return st.weight == 0 || st.round.weighed < st.weight }

// lookAtHeld lets held gangs proceed that may, and fails one that never can. It stops when this Step has checked
// enough, and the next one continues.
func (st *State) lookAtHeld() {
	if st.round.stage == idle {
		st.stirred, st.due = false, 0
		st.round.stage, st.round.next = admits, 0
		st.keepCount()
	}
	if st.round.stage == admits {
		if !st.admitHeld() {
			return
		}
		st.round.stage = idle
		for _, g := range st.held {
			if s := g.s; s.ahead && s.names != nil {
				s.ahead = false
				st.passAhead(s)
			}
			if slow := g.held.since + slowHeld; g.held.forMemory() && st.now < slow {
				st.remind(slow)
			}
		}
		if len(st.held) > 0 && !st.stirred {
			st.round.stage, st.round.next = judging, 0
		}
	}
	if st.round.stage == judging && (st.stirred || st.judge()) {
		st.round.stage = idle
	}
}

// nextHeld returns the gang to check next. It returns nil if there is none (all is true), or if this Step has checked
// enough (all is false).
func (st *State) nextHeld() (g *gang, all bool) {
	switch {
	case st.round.next >= len(st.held):
		return nil, true
	case !st.mayLook():
		return nil, false
	}
	g = st.held[st.round.next]
	st.round.weighed += weightOfLook + int64(len(g.place.numbers))*weightOfDevice
	return g, false
}

// admitHeld lets held gangs proceed that may. It reports whether it has checked all.
func (st *State) admitHeld() (all bool) {
	for {
		g, all := st.nextHeld()
		if g == nil {
			return all
		}
		if st.mayGoOn(g, st.round.next) {
			st.letGoOn(g) // the next one has its index then
		} else {
			st.round.next++
		}
	}
}

// mayGoOn reports whether the held gang of index i may proceed.
func (st *State) mayGoOn(g *gang, i int) bool {
	if h := g.held; h.spoiled {
		if h.spoiled = false; st.usable(g) != nil {
			return true // it fails with what it reads, whatever it waits for
		}
	}
	if h := g.held; !h.forMemory() {
		h.puts = slices.DeleteFunc(h.puts, func(n uint64) bool { return st.gangs.Get(n) == nil })
		h.loading = h.loading && st.isLoading(g)
		if len(h.puts) > 0 || h.loading {
			g.s.ahead = g.s.ahead || st.putsMayPass(g.s)
			return false
		}
		h.puts = nil
		st.beFirst(g)
	}
	if st.now >= g.held.first+st.turn() {
		st.beFirst(g)
	} else if st.isFirst(g) {
		st.remind(g.held.first + st.turn())
	}
	g.held.quota, g.held.host, g.held.behind = !st.isInQuota(g), !st.isInHostQuota(g), st.isBehindQuota(g, i)
	return !g.held.quota && !g.held.host && st.roomFor(g, i)
}

// letGoOn admits a gang that was held.
func (st *State) letGoOn(g *gang) {
	s := g.s
	if err := st.usable(g); err != nil { // what it reads has failed meanwhile
		st.giveUp(g, err)
		return
	}
	if g.held.told {
		st.tellGoesOn(g)
	}
	st.unhold(g)
	st.book(g)
	st.proceedWith(g)
	if s.waiting == nil {
		st.wake(s)
	}
}

// giveUp ends a gang that is held.
func (st *State) giveUp(g *gang, err error) {
	st.unhold(g)
	st.refused(g, err)
}

// prospect is what is known about a held gang's wait for memory.
type prospect uint8

const (
	hopeful  prospect = iota // something may let it go on
	hopeless                 // nothing is known that could
	changed                  // it was ended, or something was freed: all are looked at again
)

// judge determines what each held gang waits for, and fails one that waits for nothing, or has waited long enough. It
// reports whether it is done; otherwise this Step has checked enough.
func (st *State) judge() (through bool) {
	for {
		g, all := st.nextHeld()
		if g == nil {
			if all {
				st.conclude()
			}
			return all
		}
		h := g.held
		h.lost, h.holders = false, nil
		if h.forMemory() {
			holders, p := st.prospectOf(g, st.round.next)
			st.round.weighed += int64(len(holders)) * weightOfSession
			switch p {
			case hopeful:
				h.hopeless = 0
			case hopeless:
				h.lost, h.holders = true, holders
			case changed:
				return true
			}
		}
		st.round.next++
	}
}

// isLost reports whether a session waits for a gang that nothing known could let proceed.
func (s *session) isLost() bool {
	return s.waiting != nil && s.waiting.held.lost
}

// conclude fails one of the gangs that wait for each other, when all have been judged.
func (st *State) conclude() {
	for more := true; more; { // one that waits for a session which may go on is not hopeless either
		more = false
		for _, g := range st.held {
			if h := g.held; h.lost && slices.ContainsFunc(h.holders, func(s *session) bool { return !s.isLost() }) {
				h.lost, h.hopeless = false, 0
				more = true
			}
		}
	}
	for _, g := range slices.Backward(st.held) {
		if !g.held.lost {
			continue
		}
		if g.held.hopeless == 0 {
			g.held.hopeless = st.now
		}
		if end := g.held.hopeless + freesCome; st.now < end {
			st.remind(end)
			return
		}
		for _, h := range st.held { // one that waits for its turn alone may pass those before it rather than have one fail
			if h.held.lost && st.fits(h) {
				st.letGoOn(h)
				return
			}
		}
		why := "and nothing that is under way will free any"
		if len(g.held.holders) > 0 {
			why = "and all that have it wait for memory themselves"
		}
		st.giveUp(g, st.noRoom(g, why))
		return
	}
}

// prospectOf looks for something that could let the held gang of index i proceed. If the gang is hopeless only if
// others are, it returns the sessions that it waits for, all of which are held themselves.
func (st *State) prospectOf(g *gang, i int) (holders []*session, _ prospect) {
	if !g.s.isCounted() || g.s.line.length > 0 || st.isEnding() {
		return nil, hopeful // frees behind it may be found, or come to their turn, or something goes by itself
	}
	switch {
	case g.held.quota:
		return st.quotaProspect(g)
	case g.held.host:
		return nil, st.hostProspect(g)
	}
	st.round.weighed += int64(len(g.place.numbers)) * weightOfJudged
	need := st.needOf(g, true)
	switch {
	case !st.ledger.Possible(need, g.temp):
		st.giveUp(g, st.noRoom(g, "which is more than there is"))
		return nil, changed
	case !st.ledger.PossibleBeside(programs, need, g.temp):
		st.giveUp(g, st.noRoom(g, "and programs that are loaded leave less, whatever arrays are freed; drop some, such as "+
			"by jax.clear_caches(), or end sessions that have them"))
		return nil, changed
	case st.behind(g, i) && (st.fits(g) || !st.ledger.WillFit(need, g.temp)):
		return st.elders(g, i), hopeless
	case st.ledger.WillFit(need, g.temp):
		return nil, hopeful
	}
	st.blocked = st.ledger.Blocked(need, g.temp, st.blocked[:0])
	return st.prospectWith(g, st.othersOn(g, st.blocked))
}

// prospectWith looks for something that could let a held gang proceed, if these sessions have the memory that it needs.
func (st *State) prospectWith(g *gang, holders []*session) ([]*session, prospect) {
	first := st.isFirst(g)
	if first && st.isVain(g, holders) {
		st.beFirst(g)
		g.held.vain = st.now
		st.stir()
		return nil, changed
	}
	if !first && !slices.ContainsFunc(holders, func(s *session) bool { // one that does not wait may free something
		return s.waiting == nil || s.line.length > 0 || !s.waiting.held.forMemory()
	}) {
		return holders, hopeless
	}
	return nil, st.untilPatient(g)
}

// untilPatient lets a gang wait for others, for Config.MemoryWait at most.
func (st *State) untilPatient(g *gang) prospect {
	h := g.held
	if h.others == 0 {
		h.others = st.now
	}
	if st.now >= h.others+st.config.MemoryWait {
		st.giveUp(g, st.noRoom(g, fmt.Sprintf("and in %.4g s there was never enough free at once",
			float64(st.config.MemoryWait)/1e9)))
		return changed
	}
	st.remind(h.others + st.config.MemoryWait)
	return hopeful
}
