package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Admission is the step between perform and the order: a gang enters it only once there is memory for what it makes,
// on all its devices at once, and once the bytes that its session's client has yet to bring are there. Until then it
// is held: it stands in no schedule and in front of no other session. Its own session's later operations wait behind
// it.
//
// # What is counted
//
// The ledger has an object for each array of a session, from the admission of the gang that makes it until the client
// has freed it and all gangs of the session that were dispatched before the free have ended: only they can still read
// it. Of an array that a run donates those bytes go when the run is dispatched that its results take over, as the
// compiler says, and the rest when it has ended. What a session leaves behind goes as its last gangs end. A gang also
// takes the temporary memory of its program from its admission to its end; of the gangs on a device the one that takes
// most counts, since a device runs one after the other.
//
// # Who waits, and why nothing waits without end
//
// A held gang that does not fit waits
//
//	for itself       while gangs under way end, or arrays leave that were freed before: both happen by themselves
//	for its elders   while a gang that is held longer wants one of its devices: see precedes
//	for others       while a session that does not wait itself has arrays there: for Config.MemoryWait at most
//
// Otherwise all that it waits for are held and wait for one another, or the session itself has all arrays there and
// nothing of it is under way. Then, after a moment in which clients may have freed something that they have not said
// yet, one goes on that waits for its elders alone, or else the one that was held last fails, and the others are looked
// at again.
//
// Held gangs are looked at in the order in which they came, and only when something has happened that may let one go
// on.

// freesCome is how long a gang that nothing could let go on waits for frees that its client has yet to tell: clients
// tell of them with the next operation, or after half a millisecond.
const freesCome = 100e6

// hold is what a gang that is held waits for.
type hold struct {
	puts     []uint64 // gangs whose bytes have yet to come from the client; nil: it waits for memory
	since    int64    // when it was held
	message  any      // the operation; nil of a node of a play
	others   int64    // since when it waits for other sessions, 0 where it does not
	hopeless int64    // since when nothing is known that could let it go on, 0 where something is
}

// admit has a gang that was checked, and whose objects are made, go on, or holds it.
func (st *State) admit(g *gang) {
	if len(st.awaits) > 0 || !st.roomFor(g, len(st.held)) {
		st.hold(g)
		return
	}
	st.book(g)
	st.proceedWith(g)
}

// roomFor reports whether a gang may have memory now: it fits, and none of the first n held gangs has to come first.
func (st *State) roomFor(g *gang, n int) bool {
	switch {
	case g.bytes == 0 && g.temp == 0:
		return true
	case n > 0 && st.behind(g, n):
		return false
	}
	return st.fits(g)
}

// fits reports whether there is memory for a gang.
func (st *State) fits(g *gang) bool {
	return st.ledger.Fits(st.needOf(g, false), g.temp) || g.donates() && st.ledger.Fits(st.needOf(g, true), g.temp)
}

// behind reports whether one of the first n held gangs has to come first, see precedes.
func (st *State) behind(g *gang, n int) bool {
	return slices.ContainsFunc(st.held[:n], func(h *gang) bool { return st.precedes(h, g) })
}

// elders returns the sessions of those of the first n held gangs that have to come first.
func (st *State) elders(g *gang, n int) (all []*session) {
	for _, h := range st.held[:n] {
		if st.precedes(h, g) {
			all = append(all, h.s)
		}
	}
	return all
}

// othersOn returns the other sessions than a gang's that have memory on one of these devices, by number.
func (st *State) othersOn(g *gang, devices []int) (all []*session) {
	for _, s := range st.sessions {
		if s != g.s && st.ledger.Has(ledger.Owner(s.id), devices) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return all
}

// precedes reports whether a gang that was held before another has to come first: it waits for memory of the same
// devices, and the other's session has none on any of its own. One that has some goes on, since the elder may wait for
// what it will free.
func (st *State) precedes(h, g *gang) bool {
	return h.held.puts == nil && h != g && h.s != g.s && h.place.overlaps(g.place) &&
		!st.ledger.Has(ledger.Owner(g.s.id), h.place.numbers)
}

// overlaps reports whether two places, of any sessions, have a device in common.
func (p *place) overlaps(o *place) bool {
	if !p.workers.meets(o.workers) {
		return false
	}
	if len(p.numbers) > len(o.numbers) {
		p, o = o, p
	}
	return slices.ContainsFunc(p.numbers, func(d int) bool {
		_, found := slices.BinarySearch(o.numbers, d)
		return found
	})
}

// needOf returns what a gang needs. With donated, what it will take over is deducted.
func (st *State) needOf(g *gang, donated bool) []ledger.Spec {
	st.need = append(st.need[:0], ledger.Spec{ShardBytes: g.bytes, Placement: g.place.memory})
	if donated {
		st.donations(g, func(o *object, taken int64) {
			if o.charge != 0 && taken > 0 {
				st.need = append(st.need, ledger.Spec{ShardBytes: -taken, Placement: o.place.memory})
			}
		})
	}
	return st.need
}

// book enters what a gang makes into the ledger, and its computation.
func (st *State) book(g *gang) {
	for i := range uint64(g.makes) {
		if o := g.s.objects[g.first+i]; o != nil && o.counted > 0 {
			o.charge = st.ledger.Charge(ledger.Spec{ShardBytes: o.counted, Placement: o.place.memory, Label: g.name()})
		}
	}
	if g.temp > 0 {
		g.computes = true
		st.ledger.Begin(g.place.memory, g.temp)
	}
}

// computed ends what book says of a gang's computation.
func (st *State) computed(g *gang) {
	if g.computes {
		g.computes = false
		st.ledger.End(g.place.memory, g.temp)
		st.stir()
	}
}

// name is what users know a gang by.
func (g *gang) name() string {
	switch {
	case g.program != nil:
		return g.program.of.info.Name
	case g.ran != nil:
		return g.ran.info.Name
	case g.kind == wire.KindPut:
		return "device_put"
	}
	return "a transfer"
}

// retire takes an object that was freed out of the ledger, as soon as the session's gangs so far have ended.
func (st *State) retire(s *session, o *object) {
	if o.charge == 0 {
		return
	}
	if s.firstGang == nil {
		st.ledger.Free(o.charge)
	} else {
		st.ledger.Retire(o.charge, s.entered)
	}
	o.charge = 0
	st.stir()
}

// list appends a gang to those of its session that are under way.
func (s *session) list(g *gang) {
	s.entered++
	g.turn = s.entered
	if g.before = s.lastGang; g.before != nil {
		g.before.behind = g
	} else {
		s.firstGang = g
	}
	s.lastGang = g
}

// unlist takes a gang that has ended out of the list. What was freed when all under way were later ones, or none,
// leaves.
func (st *State) unlist(g *gang) {
	s, first := g.s, g.before == nil
	if first {
		s.firstGang = g.behind
	} else {
		g.before.behind = g.behind
	}
	if g.behind != nil {
		g.behind.before = g.before
	} else {
		s.lastGang = g.before
	}
	if !first {
		return
	}
	ended := s.entered
	if s.firstGang != nil {
		ended = s.firstGang.turn - 1
	}
	if st.ledger.Passed(ledger.Owner(s.id), ended) {
		st.stir()
	}
}

// outlive keeps a gang whose session ends on the session's account until its workers have reported it.
func (st *State) outlive(g *gang) {
	delete(st.gangs, g.number)
	st.leaving[g.number] = g
	g.s.out--
	if g.island != nil {
		st.feed(g.island, schedule.Event{Kind: schedule.Completed, ID: g.ticket, Time: st.charge(g)})
	}
}

// outlived is the end of a worker's part of a gang whose session has ended, if it has one.
func (st *State) outlived(g *gang, w *worker) {
	if g == nil || !g.waits.has(w.slot) {
		return
	}
	g.waits.remove(w.slot)
	if g.left--; g.left > 0 {
		return
	}
	delete(st.leaving, g.number)
	st.computed(g)
	st.unlist(g)
	if g.s.firstGang == nil {
		st.ledger.DropOwner(ledger.Owner(g.s.id))
	}
	st.stir()
	st.recycle(g)
}

// proceedWith is what follows admission.
func (st *State) proceedWith(g *gang) {
	switch {
	case g.program != nil:
		st.submit(g)
	case g.play != nil:
		st.include(g, g.to, g.conns)
		g.play = nil
	case g.message != nil:
		st.dispatchParts(g)
	default:
		payload := g.payload
		g.payload = nil
		st.dispatch(g, g.kind, g.to, g.conns, payload)
	}
}

// hold has a gang wait, and its session's later operations behind it.
func (st *State) hold(g *gang) {
	g.held = &hold{since: st.now, message: st.performed}
	if len(st.awaits) > 0 {
		g.held.puts = slices.Clone(st.awaits)
	}
	g.payload = slices.Clone(g.payload)
	g.s.waiting, g.s.ahead = g, true
	st.held = append(st.held, g)
	st.stir()
}

// unhold takes a gang out of those that are held.
func (st *State) unhold(g *gang) {
	g.held = nil
	g.s.waiting = nil
	st.held = slices.DeleteFunc(st.held, func(h *gang) bool { return h == g })
	st.stir()
}

// stir has held gangs looked at at the end of this Step.
func (st *State) stir() { st.stirred = len(st.held) > 0 }

// lookAtHeld lets held gangs go on that may, and fails one that never will.
func (st *State) lookAtHeld() {
	st.stirred, st.due = false, 0
	for i := 0; i < len(st.held); {
		g := st.held[i]
		if g.held.puts != nil {
			g.held.puts = slices.DeleteFunc(g.held.puts, func(n uint64) bool { return st.gangs[n] == nil })
			if len(g.held.puts) > 0 {
				i++
				continue
			}
			g.held.puts = nil
		}
		if !st.roomFor(g, i) {
			i++
			continue
		}
		st.letGoOn(g)
	}
	for _, g := range st.held {
		if s := g.s; s.ahead {
			s.ahead = false
			if s.fetches > 0 {
				st.fetchAhead(s)
			}
		}
	}
	if len(st.held) > 0 && !st.stirred {
		st.judge()
	}
}

// letGoOn admits a gang that was held.
func (st *State) letGoOn(g *gang) {
	s := g.s
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

// prospect is what is known of a held gang's wait for memory.
type prospect uint8

const (
	hopeful  prospect = iota // something may let it go on
	hopeless                 // nothing is known that could
	changed                  // it was ended, or something was freed: all are looked at again
)

// judge finds out what each held gang waits for, and fails one that waits for nothing, or has waited long enough.
func (st *State) judge() {
	lost := make(map[*gang][]*session) // the hopeless ones, each with those that have what it wants
	for i, g := range st.held {
		if g.held.puts != nil {
			continue
		}
		switch holders, p := st.prospectOf(g, i); p {
		case hopeful:
			g.held.hopeless = 0
		case hopeless:
			lost[g] = holders
		case changed:
			return
		}
	}
	for more := true; more; { // one that waits for a session which may go on is not hopeless either
		more = false
		for g, holders := range lost {
			if slices.ContainsFunc(holders, func(s *session) bool { _, is := lost[s.waiting]; return !is }) {
				g.held.hopeless = 0
				delete(lost, g)
				more = true
			}
		}
	}
	for _, g := range slices.Backward(st.held) {
		holders, is := lost[g]
		if !is {
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
			if _, is := lost[h]; is && st.fits(h) {
				st.letGoOn(h)
				return
			}
		}
		why := "and nothing that is under way will free any"
		if len(holders) > 0 {
			why = "and all that have it wait for memory themselves"
		}
		st.giveUp(g, st.noRoom(g, why))
		return
	}
}

// prospectOf looks at what could let the held gang of index i go on. For one that is hopeless if they are, it returns
// the other sessions that it waits for, all of which are held themselves.
func (st *State) prospectOf(g *gang, i int) (holders []*session, _ prospect) {
	need := st.needOf(g, true)
	switch {
	case !st.ledger.Possible(need, g.temp):
		st.giveUp(g, st.noRoom(g, "which is more than there is"))
		return nil, changed
	case st.behind(g, i):
		return st.elders(g, i), hopeless
	case st.ledger.WillFit(need, g.temp):
		return nil, hopeful
	case st.freeAhead(g):
		return nil, changed
	}
	st.blocked = st.ledger.Blocked(need, g.temp, st.blocked[:0])
	holders = st.othersOn(g, st.blocked)
	if !slices.ContainsFunc(holders, func(s *session) bool { // one that does not wait may free something
		return s.waiting == nil || s.waiting.held == nil || s.waiting.held.puts != nil
	}) {
		return holders, hopeless
	}
	h := g.held
	if h.others == 0 {
		h.others = st.now
	}
	if st.now >= h.others+st.config.MemoryWait {
		st.giveUp(g, st.noRoom(g, fmt.Sprintf("and nothing was freed in %.4g s", float64(st.config.MemoryWait)/1e9)))
		return nil, changed
	}
	st.remind(h.others + st.config.MemoryWait)
	return nil, hopeful
}

// remind has a Tick come at some time.
func (st *State) remind(at int64) {
	if st.due == 0 || at < st.due {
		st.due = at
	}
}

// Due is the time at which a Tick has to come at the latest, 0 where there is none.
func (st *State) Due() int64 { return st.due }

// noRoom is the error of a gang that gets no memory.
func (st *State) noRoom(g *gang, why string) error {
	need := st.needOf(g, true)
	on, bytes := st.ledger.Shortest(need, g.temp)
	use := st.ledger.Device(on)
	var b strings.Builder
	fmt.Fprintf(&b, "%s makes %s,", g.name(), shape.BytesText(bytes))
	if g.temp > 0 {
		fmt.Fprintf(&b, " temporary memory included,")
	}
	fmt.Fprintf(&b, " and the arrays of a device may have %s, of which %s are in use", shape.BytesText(use.Limit),
		shape.BytesText(use.InUse))
	if text := st.ledger.HoldersText(on); text != "" {
		b.WriteString(": " + text)
	}
	fmt.Fprintf(&b, "; %s; free arrays that are no longer needed, or start the worker with a larger --memory-limit [%s",
		why, g.name())
	if g.run != nil && len(g.run.Trace) > 0 {
		fmt.Fprintf(&b, ", called at %s", g.run.Trace)
	}
	if w := st.workerOf(on); w != nil {
		fmt.Fprintf(&b, ", on device %d of worker %s", on-w.base, w.name)
	}
	b.WriteString("]")
	return status.New(status.ResourceExhausted, "%s", b.String())
}

// number assigns numbers in the ledger to a worker's devices, and sets their limits. Numbers of a worker that has gone
// are used again.
func (st *State) number(w *worker) error {
	n := len(w.offer.Devices)
	if free := st.numbers[n]; len(free) > 0 {
		w.base, st.numbers[n] = free[len(free)-1], free[:len(free)-1]
	} else if st.numbered+n > ledger.MaxDevices {
		return status.New(status.ResourceExhausted, "the cluster has no numbers left for %d devices of worker %s", n, w.name)
	} else {
		w.base, st.numbered = st.numbered, st.numbered+n
	}
	for i, d := range w.offer.Devices {
		if err := st.ledger.SetLimit(w.base+i, max(0, d.MemoryLimit)); err != nil {
			return err
		}
	}
	return nil
}

// workerOf returns the worker of a device by its number in the ledger, nil where it has gone.
func (st *State) workerOf(number int) *worker {
	for _, w := range st.workers {
		if w != nil && w.gone == nil && number >= w.base && number < w.base+len(w.offer.Devices) {
			return w
		}
	}
	return nil
}

// unnumber gives back what number gave to a worker that has gone, and on whose devices no session has anything.
func (st *State) unnumber(w *worker) {
	for i := range w.offer.Devices {
		_ = st.ledger.SetLimit(w.base+i, 0)
	}
	n := len(w.offer.Devices)
	st.numbers[n] = append(st.numbers[n], w.base)
}

// isCounted reports whether arrays of a kind of memory take the memory of a place's devices: those of their default
// memory. Others are on the host.
func (st *State) isCounted(p *place, memory string) bool {
	if memory == "" {
		return true
	}
	d := st.workers[p.slot].offer.Devices[0]
	return int(d.DefaultMemory) < len(d.Memories) && d.Memories[d.DefaultMemory] == memory
}

// awaitPut has an operation that reads an object wait for the bytes of the put that makes it, if another session uses
// the same workers: a client that is stopped, or slow, must not hold up others.
func (st *State) awaitPut(o *object) {
	if o.put == 0 || st.gangs[o.put] == nil {
		o.put = 0
		return
	}
	shared := false
	o.place.workers.each(func(slot int) { shared = shared || st.workers[slot].users > 1 })
	if shared {
		st.awaits = append(st.awaits, o.put)
	}
}
