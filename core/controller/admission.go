package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Admission is the step between perform and the order: a gang enters it only once there is memory for what it makes, on
// all its devices at once; once the bytes that its session's client has yet to bring are there; and once its program is
// loaded, where another session uses its workers. Until then it is held: it is in no schedule, and no other session
// waits behind it. Its own session's later operations wait behind it.
//
// # What is counted
//
// The ledger has an object for each array of a session, from the admission of the gang that makes it until the client
// has freed it and all gangs of the session that were dispatched before the free have ended: only they can still read
// it. Puts read nothing, and a client that has stopped never ends them, so of these only its own counts. Of an array
// that a run donates those bytes go when the run is dispatched that its results take over, as the compiler says, and
// the rest when it has ended. What a session leaves behind goes as its last gangs end. A gang also takes the temporary
// memory of its program from its admission to its end; of the gangs on a device the one that takes most counts, since a
// device runs one after the other.
//
// # Who waits, and why nothing waits without end
//
// A held gang that does not fit waits
//
//	for itself       while gangs under way end, or arrays leave that were freed before: both happen by themselves
//	for its elders   while a gang that is held longer wants one of its devices: see precedes
//	for others       while a session that does not wait itself has arrays there: for Config.MemoryWait at most
//
// Sessions that have memory there go past it, since it may wait for what they will free. So that they do not take
// whatever is freed, for as long as they come, it is first for a while, once it has waited for half of
// Config.MemoryWait: then they wait behind it, too, until it has its memory, or until that has not helped although
// nothing of those that have the memory is under way any more, or for half of Config.MemoryWait at most. It is first
// again after as long.
//
// Otherwise all that it waits for are held and wait for one another, or the session itself has all arrays there and
// nothing of it is under way. Then, after a moment in which clients may have freed something that they have not said
// yet, one goes on that waits for its elders alone, or else the one that was held last fails, and the others are looked
// at again.
//
// A held gang that reads an array which fails waits for nothing any more: it fails with it.
//
// Held gangs are looked at in the order in which they came, and only when something has happened that may let one go
// on.

// freesCome is how long a gang that nothing else could let go on waits for frees that its client has not sent yet:
// clients send them with the next operation, or after half a millisecond, unless their machine has no processor for
// them.
const freesCome = 1e9

// hold says what a held gang waits for.
type hold struct {
	puts     []uint64 // gangs whose bytes have yet to come from the client
	loading  bool     // its program is not loaded, see isLoading
	since    int64    // when it was held
	message  any      // the operation; of a node, its play
	others   int64    // since when it waits for other sessions, 0 if it does not
	quota    bool     // it would take its tenant beyond its quota of memory, as far as was looked
	host     bool     // the same of host memory
	behind   bool     // it waits behind such a one of its tenant
	spoiled  bool     // an array of its session has failed since it was last looked at
	told     bool     // its client knows that it waits, see tellHeld
	first    int64    // from when on all others wait behind it, see isFirst
	vain     int64    // when that was found to be in vain: what waited then does not wait behind it
	hopeless int64    // since when nothing is known that could let it go on, 0 where something is
	// What judge has found: nothing is known that could let it go on, unless one of the holders does.
	lost    bool
	holders []*session
}

// forMemory reports whether the gang waits for memory, and for nothing else before.
func (h *hold) forMemory() bool { return h.puts == nil && !h.loading }

// admit lets a gang go on that was checked, and whose objects are made, or holds it.
func (st *State) admit(g *gang) {
	if st.known != nil {
		st.readmit(g, st.known)
		return
	}
	st.settleIn(g)
	if len(st.awaits) > 0 || st.isLoading(g) || !st.roomFor(g, len(st.held)) {
		st.hold(g)
		return
	}
	st.book(g)
	st.proceedWith(g)
}

// settleIn has a gang that was performed count as one that uses its devices and hosts.
func (st *State) settleIn(g *gang) {
	g.occupy()
	if g.play == nil {
		g.hosts = g.hostUses(st.performed)
	} else {
		g.hosts = g.hostUses(&g.play.g.nodes[g.node])
	}
}

// roomFor reports whether a gang may have memory now: it fits, and none of the first n held gangs has to come first.
func (st *State) roomFor(g *gang, n int) bool {
	switch {
	case g.bytes == 0 && g.temp == 0 && g.lacksCode() == 0 && g.hosts == nil:
		return true
	case n > 0 && st.behind(g, n):
		return false
	}
	return st.fits(g)
}

// fits reports whether there is memory for a gang.
func (st *State) fits(g *gang) bool {
	return st.isInQuota(g) && st.isInHostQuota(g) &&
		(st.ledger.Fits(st.needOf(g, false), g.temp) || g.donates() && st.ledger.Fits(st.needOf(g, true), g.temp))
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
// what it will free, unless the elder is first.
func (st *State) precedes(h, g *gang) bool {
	switch {
	case !h.held.forMemory(), h.s == g.s, (h.held.quota || h.held.behind) && h.s.tenant != g.s.tenant,
		g.held != nil && g.held.since <= h.held.vain:
		return false
	case h.held.host:
		return g.hosts != nil && h.s.tenant == g.s.tenant && h.to.meets(g.to)
	}
	return h.place.overlaps(g.place) &&
		(st.isFirst(h) || !st.ledger.Has(ledger.Owner(g.s.id), h.place.numbers))
}

// isBehindQuota reports whether one of the first n held gangs has to come before another of its tenant, and waits for
// the tenant's quota.
func (st *State) isBehindQuota(g *gang, n int) bool {
	if t := &g.s.tenant.terms; t.DeviceMemory == 0 && t.HostMemory == 0 {
		return false
	}
	return slices.ContainsFunc(st.held[:n], func(h *gang) bool {
		return h.s.tenant == g.s.tenant && (h.held.quota || h.held.host || h.held.behind) && st.precedes(h, g)
	})
}

// isFirst reports whether a held gang has waited for so long that others wait behind it, also where they have memory
// there.
func (st *State) isFirst(h *gang) bool {
	return st.now >= h.held.first && st.now < h.held.first+st.turn()
}

// turn is how long a held gang waits before it is first, and how long it is.
func (st *State) turn() int64 { return st.config.MemoryWait / 2 }

// isVain reports whether others wait in vain behind a gang which is first: the holders of the memory that it needs have
// nothing under way, and have freed nothing for a while.
func (st *State) isVain(g *gang, holders []*session) bool {
	last := g.held.first
	for _, s := range holders {
		if s.out > s.putting || s.line.length > 0 {
			return false
		}
		last = max(last, s.gave)
	}
	st.remind(last + freesCome)
	return st.now >= last+freesCome
}

// beFirst has a gang be first after a turn of others.
func (st *State) beFirst(g *gang) { g.held.first = st.now + st.turn() }

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

// needOf returns the memory that a gang needs. With donated, the bytes that it will take over are deducted.
func (st *State) needOf(g *gang, donated bool) []ledger.Spec {
	st.need = append(st.need[:0], ledger.Spec{ShardBytes: g.bytes + g.lacksCode(), Placement: g.place.memory})
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
		if o := g.s.objects[g.first+i]; o != nil {
			o.charge = st.ledger.Charge(ledger.Spec{ShardBytes: o.counted, Placement: o.place.memory, Label: g.name()})
		}
	}
	st.bookCode(g)
	st.bookHost(g)
	if g.temp > 0 {
		g.computes = true
		st.ledger.Begin(g.place.memory, g.temp)
	}
}

// computed ends what book says of a gang's computation.
func (st *State) computed(g *gang) {
	st.leaveCode(g)
	st.leaveHost(g)
	if g.computes {
		g.computes = false
		st.ledger.End(g.place.memory, g.temp)
		st.stir()
	}
}

// name is the name by which users know a gang.
func (g *gang) name() string {
	switch {
	case g.program != nil:
		return g.program.of.info.Name
	case g.ran != nil:
		return g.ran.info.Name
	case g.kind == wire.KindPut:
		return "device_put"
	case g.kind == wire.KindFetch:
		return "reading an array"
	}
	return "a transfer"
}

// calledAt returns a name, with the line of the user's code where that is known; first is that of wire.Called.
func calledAt(name string, line []byte, first bool) string {
	if called := wire.Called(string(line), first); called != "" {
		return name + ", " + called
	}
	return name
}

// located adds to an error which computation it ended, and where that was called. For an operation that is no
// computation, and has no line, it returns the error as it is.
func (g *gang) located(err error) error {
	if g.program == nil && g.ran == nil && len(g.line) == 0 {
		return err
	}
	return locate(err, g.name(), g.line, g.firstCall)
}

func locate(err error, name string, line []byte, first bool) error {
	if err == nil {
		return nil
	}
	return status.New(status.CodeOf(err), "%w [%s]", err, calledAt(name, line, first))
}

// proceedWith carries a gang on after its admission.
func (st *State) proceedWith(g *gang) {
	if !st.waitsForTurn(g) {
		st.goOn(g)
	}
}

// goOn lets an operation go on whose turn has come among those of its session.
func (st *State) goOn(g *gang) {
	switch {
	case g.program != nil:
		st.submit(g)
		return
	case g.play != nil:
		st.include(g, g.to, g.conns)
		st.played(g)
	case g.message != nil:
		st.dispatchParts(g)
	default:
		st.dispatch(g, g.kind, g.to, g.conns)
	}
	st.leaveLine(g)
}

// hold makes a gang wait, and its session's later operations behind it.
func (st *State) hold(g *gang) {
	if g.s.waiting != nil { // what goes past a held gang goes only where there is room: a session waits for one gang
		st.refused(g, st.noRoom(g, "and an earlier operation of the session waits already"))
		return
	}
	g.held = &hold{since: st.now, message: st.performed}
	if g.play != nil {
		g.held.message = g.play.message
	}
	if len(st.awaits) > 0 {
		g.held.puts = slices.Clone(st.awaits)
	}
	g.held.loading = st.isLoading(g)
	g.held.quota, g.held.host = !st.isInQuota(g), !st.isInHostQuota(g)
	g.held.behind = st.isBehindQuota(g, len(st.held))
	st.beFirst(g)
	g.keepPayload()
	g.s.waiting, g.s.ahead = g, true
	st.held = append(st.held, g)
	st.stir()
}

// unhold removes a gang from those that are held.
func (st *State) unhold(g *gang) {
	g.held = nil
	if g.s.waiting == g {
		g.s.waiting = nil
	}
	if i := slices.Index(st.held, g); i >= 0 {
		st.held = slices.Delete(st.held, i, i+1)
		if i < st.round.next {
			st.round.next--
		}
	}
	st.stir()
}

// remind has a Tick come at some time.
func (st *State) remind(at int64) {
	if st.due == 0 || at < st.due {
		st.due = at
	}
}

// Due is the time at which a Tick has to come at the latest, 0 if there is none.
func (st *State) Due() int64 {
	first := int64(0)
	if len(st.held) > 0 { // whom st.due is for
		first = st.due
	}
	if st.until != 0 && (first == 0 || st.until < first) {
		first = st.until
	}
	for _, is := range st.islands {
		if due := is.sched.Due(); due != 0 && (first == 0 || due < first) {
			first = due
		}
	}
	return first
}

// noRoom is the error of a gang that gets no memory.
func (st *State) noRoom(g *gang, why string) error {
	if err := st.hostShortage(g, why); err != nil && (g.held == nil || g.held.host && !g.held.quota) {
		return err
	}
	var b strings.Builder
	text, on := st.quotaText(g)
	remedy := "ask the cluster's operator for a larger quota (device-memory)"
	if on < 0 {
		text, on = st.shortageText(g)
		remedy = "start the worker with a larger --memory-limit"
	}
	fmt.Fprintf(&b, "%s; %s; free arrays that are no longer needed, or %s [%s", text, why, remedy,
		calledAt(g.name(), g.line, g.firstCall))
	if w := st.workerOf(on); w != nil {
		fmt.Fprintf(&b, ", on device %d of worker %s", on-w.base, w.name)
	}
	b.WriteString("]")
	return status.New(status.ResourceExhausted, "%s", b.String())
}

// shortageText returns what a gang needs, and which sessions have the memory of the device that lacks most for it.
func (st *State) shortageText(g *gang) (text string, device int) {
	on, bytes := st.ledger.Shortest(st.needOf(g, true), g.temp)
	use := st.ledger.Device(on)
	var b strings.Builder
	fmt.Fprintf(&b, "%s makes %s,", g.name(), shape.BytesText(bytes))
	switch code := g.lacksCode() > 0; {
	case code && g.temp > 0:
		b.WriteString(" temporary memory and its code included,")
	case code:
		b.WriteString(" its code included,")
	case g.temp > 0:
		b.WriteString(" temporary memory included,")
	}
	fmt.Fprintf(&b, " and a device has %s, of which %s are in use", shape.BytesText(use.Limit),
		shape.BytesText(use.InUse))
	if text := st.ledger.HoldersText(on); text != "" {
		b.WriteString(": " + text)
	}
	return b.String(), on
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

// workerOf returns the worker of a device by its number in the ledger, nil if it has gone.
func (st *State) workerOf(number int) *worker {
	for _, w := range st.workers {
		if w != nil && w.gone == nil && number >= w.base && number < w.base+len(w.offer.Devices) {
			return w
		}
	}
	return nil
}

// unnumber frees the numbers of a worker that has gone, on whose devices no session has anything.
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
	return st.workers[p.slot].isCounted(0, memory)
}

// isCounted is the same of one of a worker's devices.
func (w *worker) isCounted(local int, memory string) bool {
	if memory == "" {
		return true
	}
	d := w.offer.Devices[local]
	return int(d.DefaultMemory) < len(d.Memories) && d.Memories[d.DefaultMemory] == memory
}

// putAtOnce is how large a shard may be whose bytes a client sends in a message, right behind the put.
const putAtOnce = 16 << 10

// awaitPut has an operation that reads an object wait for the bytes of the put that makes it: a client that is stopped,
// or slow, must not hold up others, nor those that come later. It does not wait for bytes that are there at once while
// no other session uses the same workers, since that costs a message from a worker and another one to it.
func (st *State) awaitPut(o *object) {
	if o.put == 0 || st.gangs[o.put] == nil {
		o.put = 0
		return
	}
	shared := o.bytes > putAtOnce
	o.place.workers.each(func(slot int) { shared = shared || st.workers[slot].users > 1 })
	if shared {
		st.awaits = append(st.awaits, o.put)
	}
}
