package controller

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/wire"
)

// Values of Report.Held.waits_for.
const (
	waitsForClient  = "client"
	waitsForProgram = "program"
	waitsForWork    = "work"
	waitsForTurn    = "turn"
	waitsForMemory  = "memory"
	waitsForFrees   = "frees"
	waitsForQuota   = "quota"
	waitsForHost    = "host-quota"
)

// slowHeld is how long an operation may wait for other sessions before its client is told.
const slowHeld = 2e9 // nanoseconds

// tellHeld tells clients what their operations wait for. Waits for a session's own work and bytes are not reported: no
// other session can end them.
func (st *State) tellHeld() {
	for _, g := range st.held {
		if g.s.waiting != g || g.held.told || st.now < g.held.since+slowHeld || g.s.conn == 0 {
			continue
		}
		if what, _ := st.waitOf(g); what != waitsForTurn && what != waitsForMemory && what != waitsForQuota &&
			what != waitsForHost {
			continue
		}
		g.held.told = true
		m := &wire.Held{Held: st.heldOf(g.s)}
		m.Held.Line = "" // of any length
		if g.held.others != 0 {
			m.FailsInMs = max(1, (g.held.others+st.config.MemoryWait-st.now)/1e6)
		}
		st.send(g.s.to(), wire.KindHeld, m)
	}
}

// tellGoesOn tells a client that an operation which tellHeld has reported no longer waits.
func (st *State) tellGoesOn(g *gang) {
	st.send(g.s.to(), wire.KindHeld, &wire.Held{GoesOn: true,
		Held: &wire.Report_Held{What: g.name(), SinceMs: (st.now - g.held.since) / 1e6}})
}

// heldOf describes the operation of a session that is held: what it waits for, and since when. It returns nil if none
// is held, and changes nothing.
func (st *State) heldOf(s *session) *wire.Report_Held {
	g := s.waiting
	if g == nil {
		return nil
	}
	r := &wire.Report_Held{Operations: 1, What: g.name(), Line: wire.Line(g.line), FirstCall: g.firstCall,
		SinceMs: (st.now - g.held.since) / 1e6}
	for i := s.head; i < len(s.queue); i++ {
		if q := &s.queue[i]; q.op != 0 {
			r.Operations += uint64(max(1, q.nodes))
		}
	}
	if p := s.play; p != nil {
		r.Operations += uint64(len(p.g.nodes) - p.next)
	}
	on, _, bytes := st.beyondQuota(g, true, false)
	if on < 0 {
		on, bytes = st.ledger.Shortest(st.needOf(g, true), g.temp)
	}
	if bytes == 0 { // there is room: it waits for something else
		on, bytes = g.place.numbers[0], g.bytes+g.temp
	}
	r.Need = bytes
	if w := st.workerOf(on); w != nil {
		r.Worker, r.WorkerName, r.Local = w.process.Number, w.name, uint32(on-w.base)
	}
	what, holders := st.waitOf(g)
	r.WaitsFor = what
	slot := -1
	if r.WaitsFor == waitsForHost {
		slot, _, r.Need = st.beyondHost(g)
		w := st.workers[slot]
		r.Worker, r.WorkerName, r.Local = w.process.Number, w.name, 0
	}
	for _, h := range holders {
		bytes := st.ledger.On(ledger.Owner(h.id), on)
		if slot >= 0 {
			bytes = g.s.tenant.hosts[slot][h]
		}
		r.Holders = append(r.Holders, &wire.Report_Holder{Session: h.id, Client: h.name, User: h.user, Host: h.host,
			Bytes: bytes})
	}
	slices.SortStableFunc(r.Holders, func(a, b *wire.Report_Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return r
}

// whereBytesGo returns the sessions that devices compute for which puts go to. Bytes that have come may wait there.
func (st *State) whereBytesGo(puts []uint64) (all []*session) {
	for _, n := range puts {
		put := st.gangs.Get(n)
		if put == nil {
			continue
		}
		put.waits.each(func(slot int) {
			w := st.workers[slot]
			for _, r := range w.last.GetRunning() {
				s := st.sessions[r.Session]
				if s != nil && !slices.Contains(all, s) && slices.ContainsFunc(r.Devices, func(d uint32) bool {
					return slices.Contains(put.place.numbers, w.base+int(d))
				}) {
					all = append(all, s)
				}
			}
		})
	}
	return all
}

// waitOf returns what a held gang waits for, by its name in waits_for of Report.Held, and the sessions that it waits
// for. judge checks the same conditions in the same order.
func (st *State) waitOf(g *gang) (what string, holders []*session) {
	i := slices.Index(st.held, g)
	need := st.needOf(g, true)
	switch {
	case g.held.puts != nil:
		return waitsForClient, st.whereBytesGo(g.held.puts)
	case g.held.loading:
		return waitsForProgram, nil
	case g.s.line.length > 0:
		return waitsForWork, nil
	case g.held.quota:
		on, _, _ := st.beyondQuota(g, true, true)
		if on < 0 {
			return waitsForWork, nil
		}
		if holders = st.inTheWay(g, on); len(holders) == 0 {
			return waitsForFrees, []*session{g.s}
		}
		return waitsForQuota, holders
	case g.held.host:
		slot, _, _ := st.beyondHost(g)
		if slot < 0 {
			return waitsForWork, nil
		}
		return waitsForHost, st.onHost(g, slot)
	case st.behind(g, i):
		return waitsForTurn, st.elders(g, i)
	case st.ledger.WillFit(need, g.temp):
		return waitsForWork, nil
	}
	holders = st.othersOn(g, st.ledger.Blocked(need, g.temp, nil))
	if len(holders) == 0 {
		return waitsForFrees, []*session{g.s}
	}
	if g.held.hopeless != 0 { // all of them wait, too
		return waitsForFrees, holders
	}
	return waitsForMemory, holders
}
