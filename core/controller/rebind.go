package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A session's devices outlive their workers: when a worker is lost, another one takes its place behind the same
// devices, as soon as there is one, and the session continues. placement.Rebind decides which worker that is.
//
// # The moment
//
// The worker behind a device changes between two operations of the session. The controller cannot choose which two: the
// client sends operations ahead, and sends the bytes of puts to the worker that it knows. So the controller makes an
// offer, and the client answers it between two of its operations; the answer's place among them is the moment of the
// change. Operations that the client has sent before mean the old worker, whenever they are performed, and fail as they
// would have without the offer. Operations after the answer mean the new one. An offer stands until it is answered,
// even if its workers are lost meanwhile: then the next offer replaces these.
//
// # What follows the devices
//
// Places of a binding do not change. A new binding makes new places for everything that uses the changed devices: for
// programs, which their workers load again with the next run, and for graphs, which are sent again. Arrays do not
// follow, since they have lost their shards with their worker (loss.go). Operations that were performed with old places
// keep these until they have ended, and also the slots and numbers of workers that have gone (kept).

// kept is workers that have gone and that their session no longer uses, but operations under way, or in line, still do.
type kept struct {
	workers []*worker
	gangs   int
}

// newest returns the offered binding, or, if there is none, the present one.
func (s *session) newest() *binding {
	if s.offered != nil {
		return s.offered
	}
	return s.binding
}

// The time that offers take, in nanoseconds: measured by BenchmarkSteps.
const (
	weightOfOffer    = 10e3
	weightOfCompared = 15 // a worker of the cluster, once for each list of devices that misses some
	weightOfBound    = 30 // a device, of a list that is new
)

// offerAll schedules offers to all sessions that miss devices: see makeOffers.
func (st *State) offerAll() {
	st.offering = st.offering[:0]
	for id, s := range st.sessions {
		if s.missing > 0 && s.offered == nil {
			st.offering = append(st.offering, id)
		}
	}
	slices.Sort(st.offering)
}

// makeOffers makes offers for about the time that Weigh says, but at least one. Later offers take changes between Steps
// into account.
func (st *State) makeOffers() {
	var compared *placement.View
	for spent := int64(0); len(st.offering) > 0 && (st.weight == 0 || spent < st.weight); {
		s, bound := st.sessions[st.offering[0]], st.bound
		if st.offering = st.offering[1:]; s == nil {
			continue // it has ended
		}
		if s.view != compared {
			compared = s.view
			spent += weightOfCompared * int64(len(st.workers))
		}
		if st.offer(s); s.offered != nil {
			spent += weightOfOffer
		}
		if st.bound != bound {
			spent += weightOfBound * int64(s.view.Len())
		}
	}
}

// offer makes an offer to a session, if it misses devices and there are workers for some of them.
func (st *State) offer(s *session) {
	switch {
	case s.missing == 0 || s.conn == 0 || s.offered != nil || st.stopping:
		return
	case len(st.losing) > 0: // all are made offers again when it has lost what it had there
		return
	case st.comeback != nil: // its client's answer would be passed over: it says what it has first
		return
	}
	next := st.layout.Rebind(s.id, s.view, func(process uint64) bool {
		w := st.processes[process]
		return w != nil && s.spot.reachesWorker(w)
	}, st.occupied())
	if next == nil {
		return
	}
	st.keepOffer(s, st.bind(next))
	st.keepSession(s)
	st.tellOffer(s)
}

// keepOffer records a binding as the one that the session is offered.
func (st *State) keepOffer(s *session, b *binding) {
	s.offered, s.answered = b, false
	come := slices.Clone(b.workers)
	come.without(s.workers)
	come.each(func(slot int) { st.workers[slot].views++ })
}

// tellOffer sends a session's client the offer.
func (st *State) tellOffer(s *session) {
	if t := &st.offers; t.from != s.binding || t.to != s.offered || !slices.Equal(t.platforms, s.platforms) {
		*t = offers{s.binding, s.offered, s.platforms, st.describeOffer(s)}
	}
	// A client that accepts an offer which the next start of the controller does not know could not come back.
	st.sendKept(s.to(), wire.KindRebind, st.offers.m)
}

// offers is what clients were told last. Most sessions have the same devices, and are told the same.
type offers struct {
	from, to  *binding
	platforms []string
	m         *wire.Rebind
}

func (st *State) describeOffer(s *session) *wire.Rebind {
	b := s.offered
	m := &wire.Rebind{Epoch: b.view.Epoch()}
	var told set
	for i, span := range b.spans {
		w := b.at[i]
		if w == s.at[i] {
			continue
		}
		if !told.has(w.slot) {
			told.add(w.slot)
			m.Workers = append(m.Workers, w.process)
		}
		for k, local := range w.offer.Devices[span.Local : span.Local+span.Count] {
			m.Devices = append(m.Devices, describeDevice(int(b.first(i))+k, span.Worker, uint32(w.island.index),
				w.platformIn(s.platforms), local, st.sharing[w.process.Host]))
		}
	}
	return m
}

// rebindLater receives a client's answer to an offer.
func (st *State) rebindLater(s *session, ev *Event, m *wire.Rebind) error {
	if s.offered == nil || s.answered || m.Epoch != s.offered.view.Epoch() {
		return status.New(status.InvalidArgument, "the client answers an offer of epoch %d, which was not made", m.Epoch)
	}
	s.answered = true
	st.enqueue(s, &queued{kind: ev.Wire, message: ev.Message}, nil)
	return nil
}

// rebind puts the offered workers behind the session's devices, at the answer's turn.
func (st *State) rebind(s *session) {
	old, next := s.binding, s.offered
	s.binding, s.offered, s.seen = next, nil, nil
	st.keepSession(s)
	st.countMissing(s) // those that come may have gone, too: since the offer
	var changed set
	var come, gone set // slots
	for i, w := range next.at {
		if w == old.at[i] {
			continue
		}
		for k := range next.spans[i].Count {
			changed.add(int(next.first(i) + k))
		}
		gone.add(old.at[i].slot)
		if s.told.has(w.slot) { // others are told when they are needed
			come.add(w.slot)
		}
	}
	gone.without(next.workers)
	st.pastPlaces(s, changed)
	var names []string
	next.workers.each(func(slot int) {
		if w := st.workers[slot]; !old.workers.has(slot) {
			names = append(names, w.name)
		}
	})
	st.reach++
	st.tellDevices(s, come)
	st.replacePrograms(s, changed)
	st.replaceGraphs(s, changed)
	st.note(s.about(wire.EventRebound), fmt.Sprintf("%s has %s now on %s", s.owner(),
		status.Count(changed.count(), "device"), listed(names)), nil)
	st.keepGone(s, gone)
	st.serve = true
	st.stir()
	compiles := s.postponed
	s.postponed = nil
	for _, c := range compiles {
		st.compileFor(s, c.m, c.r)
	}
	st.offer(s)
}

// countMissing counts those of the session's workers that have gone.
func (st *State) countMissing(s *session) {
	s.missing = 0
	s.workers.each(func(slot int) {
		if st.workers[slot].gone != nil {
			s.missing++
		}
	})
}

// keepGone forgets workers that have gone and that a session no longer uses, once no operation uses them.
func (st *State) keepGone(s *session, gone set) {
	k := new(kept)
	gone.each(func(slot int) {
		w := st.workers[slot]
		if s.told.has(slot) {
			s.told.remove(slot)
			w.users--
		}
		k.workers = append(k.workers, w)
	})
	keep := func(g *gang) {
		if g == nil || !g.to.meets(gone) && (g.place == nil || !g.place.workers.meets(gone)) {
			return
		}
		g.keeps = append(g.keeps, k) // beside what it keeps since an earlier time, which others may keep with it
		k.gangs++
	}
	for g := range s.dispatched {
		keep(g)
	}
	for e := s.line.first; e != nil; e = e.behind {
		keep(e.g)
	}
	keep(s.waiting)
	k.gangs++
	st.letGone(k)
}

// letGone handles the end of an operation that kept workers which have gone.
func (st *State) letGone(k *kept) {
	if k.gangs--; k.gangs > 0 {
		return
	}
	for _, w := range k.workers {
		w.views--
		st.release(w)
	}
	k.workers = nil
}

// leaveBindings ends a session's use of its workers.
func (st *State) leaveBindings(s *session) {
	all := slices.Clone(s.workers)
	all.union(s.newest().workers)
	all.each(func(slot int) {
		w := st.workers[slot]
		w.views--
		st.release(w)
	})
}

// pastPlaces ends the session's places that have some of these devices.
func (st *State) pastPlaces(s *session, changed set) {
	for key, p := range s.places {
		if p.has.meets(changed) {
			st.passes(p)
			delete(s.places, key)
		}
	}
	changed.each(func(d int) {
		if p := s.alone(uint32(d)); p != nil {
			st.passes(p)
			s.single[d] = nil
		}
	})
}

// passes ends a place that has lost a worker: operations that were sent before the loss fail with that loss.
func (st *State) passes(p *place) {
	for _, d := range p.rows {
		if w := st.workers[p.in.slot(d)]; p.past == nil && w != nil && w.gone != nil {
			p.past = w.gone
		}
	}
}

// replace returns a place of the same devices as they are now.
func (st *State) replace(s *session, p *place, changed set) *place {
	if p == nil || !p.has.meets(changed) {
		return p
	}
	st.passes(p)
	next, err := st.place(s, p.rows)
	if err != nil {
		return p // there are no more numbers for places: what uses it fails
	}
	return next
}

// replacePrograms moves programs to the workers that now have their devices. Programs of several workers are loaded
// again on all of them, since each may know where the others are.
func (st *State) replacePrograms(s *session, changed set) {
	for _, c := range s.compiling {
		for i := range c.waiting {
			if w := &c.waiting[i]; w.s == s {
				w.place = st.replace(s, w.place, changed)
			}
		}
	}
	var to set
	forget := &wire.Forget{Session: s.id}
	for p := range s.allPrograms.each {
		if !p.place.has.meets(changed) {
			continue
		}
		p.place = st.replace(s, p.place, changed)
		if len(p.place.rows) == 1 {
			continue // what other workers have loaded of it stays right
		}
		to.union(p.loaded)
		forget.Programs = append(forget.Programs, p.id)
		st.unteach(p)
		for _, slot := range p.loaded.all() {
			st.unloaded(p, slot)
		}
	}
	slices.Sort(forget.Programs)
	if len(forget.Programs) > 0 {
		st.send(st.connsOf(to), wire.KindForget, forget)
	}
}

// replaceGraphs sends graphs again whose nodes have other workers now.
func (st *State) replaceGraphs(s *session, changed set) {
	for _, id := range slices.Sorted(maps.Keys(s.graphs)) {
		g := s.graphs[id]
		if g.err != nil || !g.all.has.meets(changed) {
			continue
		}
		d := &sketch{s: s, in: s.binding, m: g.message, programs: map[uint64]*program{}, named: map[uint64]int{},
			places: map[string]*place{}}
		for _, p := range g.programs {
			d.programs[p.id] = p
		}
		d.draw()
		next := &d.g
		if next.err == nil {
			next.err = st.adoptPlaces(s, d)
		}
		if next.err != nil { // it could be drawn before, so it lacks numbers for places
			g.err = next.err
			continue
		}
		s.graphs[id] = next
		st.announce(s, d, encoded(g.message), true)
	}
}

// listed joins names for people.
func listed(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "no worker"
	case n == 1:
		return workerNamed(names[0])
	case n <= 3:
		return "workers " + strings.Join(names, ", ")
	default:
		return fmt.Sprintf("%d workers", n)
	}
}
