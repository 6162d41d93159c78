package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/ledger"
)

// This file counts the memory that programs themselves take on devices, which plugins state as the size of the
// generated code, constants included.
//
// Code counts once on the devices of a place, for all sessions, from the admission of the first run there. It stops
// counting when no session's program is loaded on the place's workers and no run of it is under way there. It is part
// of what that first run needs, so that run waits or fails for it. In the ledger it has an owner of its own, since no
// single session could free it. A program that never runs does not count: plugins may load code later than a program is
// compiled, and GPUs do so with its first run.
//
// This never counts too little, since workers share one executable among all equal programs. It may count too much:
// places of one program that overlap are counted separately, and a place's code counts as long as one of its workers
// has the program.

// programs is the owner of code in the ledger. Sessions are numbered from 1.
const programs = ledger.Owner(0)

// resident is the code of a program on the devices of a place.
type resident struct {
	of      *compiled
	key     uint64 // in compiled.residents
	at      []int  // numbers in the ledger, ascending
	workers set
	slot    int // of the first of these
	charge  ledger.ID
	runs    int  // that have been admitted, and have not ended
	lost    bool // one of the workers has gone: nothing is loaded there any more
}

// codeBytes returns the bytes that a program's code takes of each device.
func (c *compiled) codeBytes() int64 { return max(0, c.info.GetCost().GetCodeBytes()) }

// residentAt returns a program's code on the devices of a place, nil if it is not there, and its key.
func (c *compiled) residentAt(at *place) (r *resident, key uint64) {
	for key = at.hash; ; key++ {
		if r = c.residents[key]; r == nil || &r.at[0] == &at.numbers[0] || slices.Equal(r.at, at.numbers) {
			return r, key
		}
	}
}

// lacksCode returns the bytes of code on each device that a gang needs there first.
func (g *gang) lacksCode() int64 {
	if g.program == nil || g.program.of.codeBytes() == 0 {
		return 0
	}
	if r, _ := g.program.of.residentAt(g.place); r != nil {
		return 0
	}
	return g.program.of.codeBytes()
}

// bookCode counts the code of a gang's program on the gang's devices, until leaveCode.
func (st *State) bookCode(g *gang) {
	if g.program == nil || g.program.of.codeBytes() == 0 {
		return
	}
	c := g.program.of
	r, key := c.residentAt(g.place)
	if r == nil {
		at, err := st.ledger.PlaceSorted(programs, g.place.sorted)
		if err != nil {
			panic(err) // their owner never goes
		}
		r = &resident{of: c, key: key, at: g.place.numbers, workers: g.place.workers, slot: g.place.slot}
		r.charge = st.ledger.Charge(ledger.Spec{ShardBytes: c.codeBytes(), Placement: at, Label: c.info.Name})
		if c.residents == nil {
			c.residents = map[uint64]*resident{}
		}
		c.residents[key] = r
		st.countCode(r, 1)
	}
	g.code = r
	r.runs++
}

// leaveCode ends a gang's use of code.
func (st *State) leaveCode(g *gang) {
	if r := g.code; r != nil {
		g.code = nil
		r.runs--
		st.unloadUnused(r)
	}
}

// tally counts something by the slots of workers.
type tally []int32

func (t tally) at(slot int) int32 {
	if slot < len(t) {
		return t[slot]
	}
	return 0
}

func (t *tally) add(slot int) {
	for len(*t) <= slot {
		*t = append(*t, 0)
	}
	(*t)[slot]++
}

// remove takes back an add. A tally of nothing takes no memory.
func (t *tally) remove(slot int) {
	(*t)[slot]--
	n := len(*t)
	for n > 0 && (*t)[n-1] == 0 {
		n--
	}
	if *t = (*t)[:n]; n == 0 {
		*t = nil
	}
}

// loads counts the workers that are told to load a session's program, and have not been told before.
func (c *compiled) loads(p *program, workers set) {
	if c.codeBytes() == 0 {
		return
	}
	workers.each(func(slot int) {
		if !p.loaded.has(slot) {
			c.loadedOn.add(slot)
		}
	})
}

// letProgram releases a session's program, which no graph of it has any more.
func (st *State) letProgram(p *program) {
	for _, l := range st.losing {
		if l.program == p {
			l.program = p.behind
		}
	}
	p.place.s.allPrograms.remove(p)
	st.unteach(p)
	if c := p.of; c.codeBytes() > 0 {
		p.loaded.each(func(slot int) { c.loadedOn.remove(slot) })
		for _, r := range c.residents {
			st.unloadUnused(r)
		}
	}
	st.letKeptProgram(p)
}

// unloadUnused takes code out of the ledger if nothing uses it any more.
func (st *State) unloadUnused(r *resident) {
	c := r.of
	if r.runs > 0 || !r.lost && c.loadedOn.at(r.slot) > 0 {
		return
	}
	used := false
	r.workers.each(func(slot int) { used = used || !r.lost && c.loadedOn.at(slot) > 0 })
	if used {
		return
	}
	st.ledger.Free(r.charge)
	delete(c.residents, r.key)
	st.countCode(r, -1)
	st.stir()
}

// countCode adds code to the counts of its devices, or subtracts it.
func (st *State) countCode(r *resident, sign int64) {
	for _, d := range r.at {
		for len(st.code) <= d {
			st.code = append(st.code, 0)
		}
		st.code[d] += sign * r.of.codeBytes()
	}
}

// codeOn returns the bytes of code on a device, by its number in the ledger.
func (st *State) codeOn(device int) int64 {
	if device < len(st.code) {
		return st.code[device]
	}
	return 0
}
