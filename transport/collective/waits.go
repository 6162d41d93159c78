package collective

import (
	"slices"
	"time"

	"github.com/openpathways/pathways/core/xla/spmd"
)

// Wait is a collective that devices of this process are in, and what it waits
// for. It is for people.
type Wait struct {
	Gang    uint64
	Op      spmd.Op
	Site    int
	Came    []int    // local devices, by place in the group
	Missing []int    // those that have not come; until then nothing is asked of other processes
	From    []uint64 // processes whose blocks have not come
	To      []uint64 // processes that have not taken a block
	// Since is how long ago Waits first found it here, in the same round, so that calls need no clock.
	Since time.Duration
}

// Waits returns all collectives under way, in no order. A caller that repeats it
// learns how long they have lasted, less at most the time between two calls.
func (e *Engine) Waits() []Wait {
	now := time.Now()
	e.mu.RLock()
	gangs := make([]*gang, 0, len(e.gangs))
	for _, g := range e.gangs {
		gangs = append(gangs, g)
	}
	e.mu.RUnlock()
	var all []Wait
	index, first := map[*meeting]int{}, map[*lanes]int{} // in all
	for _, g := range gangs {
		g.mu.Lock()
		for _, s := range g.sites {
			if s == nil {
				continue
			}
			for _, m := range s.open {
				all = append(all, m.tell(s.plan, now))
			}
		}
		for _, m := range g.started {
			w := m.tell(g.sites[m.site].plan, now)
			i, ok := first[m.lanes]
			if !ok || m.lanes == nil {
				i, all = len(all), append(all, w)
				first[m.lanes] = i
			}
			all[i].join(w)
			index[m] = i
		}
		g.mu.Unlock()
	}
	if e.board != nil {
		e.board.missing(func(m *meeting, peer int) {
			if i, ok := index[m]; ok {
				all[i].join(Wait{From: m.table.peers[peer : peer+1]})
			}
		})
	}
	// Blocks that have come meanwhile, or by the board, are no longer waited for.
	return slices.DeleteFunc(all, func(w Wait) bool { return len(w.Missing)+len(w.From)+len(w.To) == 0 })
}

// join adds what another lane of the same collective waits for.
func (w *Wait) join(lane Wait) {
	add := func(to *[]uint64, processes []uint64) {
		for _, p := range processes {
			if !slices.Contains(*to, p) {
				*to = append(*to, p)
			}
		}
	}
	add(&w.From, lane.From)
	add(&w.To, lane.To)
}

// tell says what the meeting waits for, except blocks that come by a board. gang.mu is held.
func (m *meeting) tell(p *plan, now time.Time) Wait {
	if m.seen.IsZero() {
		m.seen = now
	}
	w := Wait{Gang: m.gang.id, Op: p.spec.Op, Site: m.site, Since: now.Sub(m.seen)}
	devices := make([]int, m.table.calls)
	for local, s := range p.seats {
		if s.table != nil && s.table.index == m.table.index { // m's table may be a lane
			devices[s.index] = local
		}
	}
	for i, local := range devices {
		if m.calls[i].Done != nil {
			w.Came = append(w.Came, local)
		} else {
			w.Missing = append(w.Missing, local)
		}
	}
	for i := range m.peers { // there are none before all have come
		owes := m.peers[i].owes.Load()
		if owes&aBlock != 0 {
			w.From = append(w.From, m.table.peers[i])
		}
		if owes&toTake != 0 {
			w.To = append(w.To, m.table.peers[i])
		}
	}
	return w
}

// missing lists the blocks that have yet to come, each with its place in the
// meeting's table.peers. It looks into the rings first: blocks lie there until all
// that a meeting waits for have come.
func (b *Board) missing(tell func(m *meeting, peer int)) {
	b.mu.Lock()
	if b.closed.Load() {
		b.mu.Unlock()
		return
	}
	full := b.take(nil)
	for _, w := range b.waits {
		tell(w.m, w.peer)
	}
	b.mu.Unlock()
	for _, m := range full {
		m.delivered(0)
	}
}
