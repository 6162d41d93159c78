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

// Admission is the step between perform and the order. A gang enters the order only when there is memory for its
// results on all its devices at once; when the bytes that its session's client still has to send have arrived; and, if
// another session uses its workers, when its program is loaded. Until then it is held: it is in no schedule, and no
// other session waits behind it. Later operations of its own session do.
//
// # What is counted
//
// The ledger has an object for each array of a session. It counts from the admission of the gang that makes the array
// until the client has freed it, and all gangs of the session that were dispatched before the free have ended: only
// these can still read it. Of puts, only the array's own is waited for, since puts read nothing, and those of a stopped
// client never end. If a run donates an array, the bytes that its results take over, as the compiler states, stop
// counting when the run is dispatched, and the rest when it has ended. The arrays of a session that has ended stop
// counting as its last gangs end. A gang also takes the temporary memory of its program, from its admission to its end.
// Of the gangs on a device only the one that takes most counts, since a device runs them one after the other.
//
// # Who waits, and why nothing waits without end
//
// A held gang that does not fit waits
//
//	for itself       while gangs under way end, or freed arrays stop counting: both happen by themselves
//	for its elders   while a gang that is held longer wants one of its devices: see precedes
//	for others       while a session that does not wait itself has arrays there: for Config.MemoryWait at most
//
// Sessions that have memory there pass it, since it may wait for what they will free. But they could take everything
// that is freed, again and again. So once it has waited for half of Config.MemoryWait, it is first for a while: then
// they wait behind it, too. That ends when it has its memory; when the sessions that have the memory have nothing under
// way any more, and it still does not fit; or after half of Config.MemoryWait. After as long again, it is first again.
//
// Otherwise nothing can free memory: all sessions that it waits for are held and wait for one another, or its own
// session has all arrays there and nothing under way. Clients may have freed something and not said so yet, so this has
// to last for a moment. Then a gang that waits only for its elders proceeds. If there is none, the gang that was held
// last fails. In both cases the others are checked again.
//
// A held gang fails at once if an array that it reads fails.
//
// Held gangs are checked in the order in which they came, and only when something has happened that may let one
// proceed.

// freesCome is how long a gang that nothing else can help waits for frees that its client has not sent yet. Clients
// send them with the next operation, or after half a millisecond, unless their machine is too busy to run them.
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
	vain     int64    // when that was found not to help: what waited then does not wait behind it
	hopeless int64    // since when nothing is known that could let it proceed; 0: something is
	// What judge has found: nothing is known that could let it proceed, unless one of the holders does.
	lost    bool
	holders []*session
}

// forMemory reports whether the gang waits for memory, and for nothing else before.
func (h *hold) forMemory() bool { return h.puts == nil && !h.loading }

// admit lets a gang proceed whose checks have passed and whose objects are made, or holds it.
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

// settleIn counts a gang that was performed as a user of its devices and hosts.
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
	case !g.takesMemory() && g.hosts == nil:
		return true
	case n > 0 && st.behind(g, n):
		return false
	}
	return st.fits(g)
}

// takesMemory reports whether a gang takes memory of its devices.
func (g *gang) takesMemory() bool { return g.bytes > 0 || g.temp > 0 || g.lacksCode() > 0 }

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

// othersOn returns the sessions, other than the gang's, that have memory on one of these devices, by number.
func (st *State) othersOn(g *gang, devices []int) (all []*session) {
	for _, s := range st.sessions {
		if s != g.s && st.ledger.Has(ledger.Owner(s.id), devices) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return all
}

// precedes reports whether h, which was held before g, has to come first: both need memory of the same devices, and the
// session of g has no memory on the devices of h. A session that has some passes, since h may wait for what it will
// free, unless h is first. A read of an array needs none there.
func (st *State) precedes(h, g *gang) bool {
	switch {
	case !h.held.forMemory(), h.s == g.s, (h.held.quota || h.held.behind) && h.s.tenant != g.s.tenant,
		g.held != nil && g.held.since <= h.held.vain:
		return false
	case h.held.host:
		return g.hosts != nil && h.s.tenant == g.s.tenant && h.to.meets(g.to)
	}
	return g.takesMemory() && h.place.overlaps(g.place) &&
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

// isFirst reports whether a held gang has waited for so long that others wait behind it, even if they have memory
// there.
func (st *State) isFirst(h *gang) bool {
	return st.now >= h.held.first && st.now < h.held.first+st.turn()
}

// turn is how long a held gang waits before it is first, and then how long it stays first.
func (st *State) turn() int64 { return st.config.MemoryWait / 2 }

// isVain reports whether it does not help that others wait behind a gang which is first: the holders of the memory that
// it needs have nothing under way, and have freed nothing for a while.
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

// beFirst makes a gang first after a turn of others.
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

// book enters a gang's results and its temporary memory into the ledger.
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

// computed removes a gang's temporary memory from the ledger.
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
	case g.title != "":
		return g.title
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

// calledAt returns a name, with the line of the user's code if that is known; first is that of wire.Called.
func calledAt(name string, line []byte, first bool) string {
	if called := wire.Called(string(line), first); called != "" {
		return name + ", " + called
	}
	return name
}

// located adds to an error which computation it ended, and the line that called it. It returns the error of other
// operations, which have no line, as it is.
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

// proceedWith continues with a gang after its admission.
func (st *State) proceedWith(g *gang) {
	if !st.waitsForTurn(g) {
		st.goOn(g)
	}
}

// goOn continues with an operation whose turn has come among those of its session.
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

// remind requests a Tick at some time.
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

// number assigns numbers in the ledger to a worker's devices, and sets their limits. It reuses the numbers of workers
// that have gone.
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

// isCounted reports whether arrays in a kind of memory count as the devices' memory: only their default memory does.
// Others are on the host.
func (st *State) isCounted(p *place, memory string) bool {
	return st.workers[p.slot].isCounted(0, memory)
}

// isCounted is the same for one of a worker's devices.
func (w *worker) isCounted(local int, memory string) bool {
	if memory == "" {
		return true
	}
	d := w.offer.Devices[local]
	return int(d.DefaultMemory) < len(d.Memories) && d.Memories[d.DefaultMemory] == memory
}

// putAtOnce is the largest shard, in bytes, that a client sends in a message, right after the put.
const putAtOnce = 16 << 10

// awaitPut makes an operation that reads an object wait for the bytes of the put that makes it, so that a stopped or
// slow client does not delay others. It does not wait for bytes that come with the put's message while no other session
// uses the same workers, since waiting costs a message from a worker and another one to it.
func (st *State) awaitPut(o *object) {
	if o.put == 0 || st.gangs.Get(o.put) == nil {
		o.put = 0
		return
	}
	shared := o.bytes > putAtOnce
	o.place.workers.each(func(slot int) { shared = shared || st.workers[slot].users > 1 })
	if shared {
		st.awaits = append(st.awaits, o.put)
	}
}
