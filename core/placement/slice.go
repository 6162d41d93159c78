package placement

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Occupied returns the devices on which any session but this one has arrays or computations. The caller of Occupied
// does not change them, and uses them until the next call. nil stands for one that always returns none.
type Occupied func(session uint32) Numbers

// MaxSlices and MaxGranted bound what a session may have been granted at one time:
// the number of slices, and the devices of all of them together. They bound the memory
// that one session can take in the controller.
const (
	MaxSlices  = 4096
	MaxGranted = 1 << 20
)

// Slice is a set of devices that were granted to a session together. Unless it is
// exclusive, a slice is advisory: a grant records which devices a session means to use,
// so that the next grant chooses others. Other sessions can still use those devices.
type Slice struct {
	Session uint32
	Number  uint64 // chosen by the session
	Want    Want
	Devices []int // virtual, row-major in the topology; read only, a remapped slice has others
	View    *View
	owner   *owner
}

// holder is a session that has slices, or requests that wait.
type holder struct {
	slices   map[uint64]*Slice // by number
	requests map[uint64]*Request
	devices  int // of its slices
	// The devices of its slices, by number in the whole cluster; see Held.
	alone, shared Numbers
	stale         bool
}

// holder returns a session's holder, which it makes if there is none.
func (m *Map) holder(session uint32) *holder {
	h := m.holders[session]
	if h == nil {
		if m.holders == nil {
			m.holders = map[uint32]*holder{}
		}
		h = &holder{slices: map[uint64]*Slice{}, requests: map[uint64]*Request{}}
		m.holders[session] = h
	}
	return h
}

// drop forgets a holder that holds nothing any more.
func (m *Map) drop(session uint32) {
	if h := m.holders[session]; h != nil && len(h.slices) == 0 && len(h.requests) == 0 {
		delete(m.holders, session)
	}
}

// owner is a user or tenant whose devices count together.
type owner struct {
	name     string
	devices  int // in slices
	alone    int // in exclusive slices
	requests []*Request
}

// owner returns the owner of this name, which it makes if there is none.
func (m *Map) owner(name string) *owner {
	o := m.owners[name]
	if o == nil {
		if m.owners == nil {
			m.owners = map[string]*owner{}
		}
		o = &owner{name: name}
		m.owners[name] = o
	}
	return o
}

// Owned returns how many devices the slices of an owner have.
func (m *Map) Owned(owner string) int {
	if o := m.owners[owner]; o != nil {
		return o.devices
	}
	return 0
}

// disown forgets an owner that has nothing any more.
func (m *Map) disown(o *owner) {
	if o.devices == 0 && len(o.requests) == 0 && m.owners[o.name] == o {
		delete(m.owners, o.name)
	}
}

// allowed checks a session's request against its limits.
func (m *Map) allowed(session uint32, number uint64, w Want) error {
	if err := w.Check(); err != nil {
		return err
	}
	mine := m.holders[session]
	if mine == nil {
		return nil
	}
	if mine.slices[number] != nil {
		return status.New(status.AlreadyExists, "slice %d exists already; a session uses the number of a slice once",
			number)
	}
	if len(mine.slices) >= MaxSlices || w.Devices > MaxGranted-mine.devices {
		return status.New(status.ResourceExhausted, "the session has %s of %s together, and its limits are %d and %d; "+
			"release some", status.Count(len(mine.slices), "slice"), status.Count(mine.devices, "device"), MaxSlices,
			MaxGranted)
	}
	return nil
}

// grant makes a slice of these devices.
func (m *Map) grant(r *Request, devices []int) *Slice {
	s := &Slice{Session: r.Session, Number: r.Number, Want: r.Want, Devices: devices, View: r.View, owner: r.owner}
	m.holder(r.Session).slices[r.Number] = s
	m.count(s, +1)
	return s
}

// Regrant grants a slice again that an earlier Map had granted: of these devices of r's view. No request waits for it.
//
// Errors: those of Ask, and INTERNAL for devices that the earlier Map cannot have granted.
func (m *Map) Regrant(r *Request, devices []int) error {
	if err := m.allowed(r.Session, r.Number, r.Want); err != nil {
		return err
	}
	wrong := status.New(status.Internal, "slice %d of session %d cannot have devices %v", r.Number, r.Session, devices)
	if len(devices) != r.Want.Devices {
		return wrong
	}
	seen := map[int]bool{}
	for _, d := range devices {
		if d < 0 || d >= r.View.Len() || seen[d] {
			return wrong
		}
		seen[d] = true
	}
	for first, count := range m.numbersOf(r.View, devices) {
		for number := first; number < first+count; number++ {
			if r.Want.Exclusive && m.loads[number].exclusive != nil {
				return wrong
			}
		}
	}
	r.Want.Topology = slices.Clone(r.Want.Topology)
	r.owner = m.owner(r.Owner)
	m.grant(r, slices.Clone(devices))
	return nil
}

// Slice returns a slice of a session; nil if there is none of this number.
func (m *Map) Slice(session uint32, number uint64) *Slice {
	if mine := m.holders[session]; mine != nil {
		return mine.slices[number]
	}
	return nil
}

// Remap chooses devices for a slice again, by the Want that it was granted for. It keeps the slice's devices, each at
// its position, unless others are better; a slice with a topology keeps all of them or gets all others. So a second
// Remap changes nothing.
//
// Errors: NOT_FOUND, and those of Ask for a request that does not wait, which leave the slice as it is.
func (m *Map) Remap(session uint32, number uint64, occupied Occupied) (*Slice, error) {
	s := m.Slice(session, number)
	if s == nil {
		return nil, status.New(status.NotFound, "there is no slice %d; it was released, or never granted", number)
	}
	reserved := append(Numbers(nil), m.queue.reserved...)
	for first, count := range m.numbersOf(s.View, s.Devices) { // what it has it may keep, also where others wait for it
		reserved.remove(first, count)
	}
	m.count(s, -1)
	defer m.count(s, +1)
	r := &Request{Session: session, Number: number, View: s.View, Want: s.Want}
	for {
		if err := m.candidates(&m.scratch.found, r, s.Devices, occupied); err != nil {
			return nil, err
		}
		devices := m.available(r, &m.scratch.found, reserved)
		switch {
		case devices == nil:
			return nil, status.New(status.ResourceExhausted,
				"the devices that slice %d could have instead are in use by others", number)
		case len(s.Want.Topology) == 0:
			s.Devices = keep(s.Devices, devices)
			return s, nil
		case !m.areBetter(devices, s, &m.scratch.found, reserved):
			return s, nil
		}
		// Rows of these devices are looked at otherwise than those of the devices that it had, so there may be better
		// ones still.
		s.Devices = devices
	}
}

// areBetter reports whether devices are better than those that a slice with a topology has: it may not have some of
// these any more, or they are farther apart, or in more slices and views. The candidates are those for the slice.
func (m *Map) areBetter(devices []int, s *Slice, of *found, reserved Numbers) bool {
	var chosen Numbers
	for _, d := range devices {
		chosen.Add(d)
	}
	left, cost, has := 0, int64(0), int64(0)
	for _, c := range of.all {
		for k := range c.count {
			if chosen.Has(int(c.device + k)) {
				cost += c.cost
			}
			if m.scratch.had.Has(int(c.device+k)) && c.free && !reserved.Has(int(c.number+k)) {
				left++
				has += c.cost
			}
		}
	}
	row := s.Want.Topology[len(s.Want.Topology)-1]
	return left < len(s.Devices) ||
		cmp.Or(cmp.Compare(s.View.spread(devices, row), s.View.spread(s.Devices, row)), cmp.Compare(cost, has)) < 0
}

// spread returns how far devices are apart: 0 if each row is consecutive devices of one worker, 1 if all are of one
// island, 2 otherwise.
func (v *View) spread(devices []int, row int) (far int) {
	first, _ := v.where(devices[0])
	for i, d := range devices {
		if w, _ := v.where(d); w.Island != first.Island {
			return 2
		}
		if i%row > 0 && (d != devices[i-1]+1 || v.at[d] != v.at[d-1]) {
			far = 1
		}
	}
	return far
}

// Release ends a grant, and reports whether there was one.
func (m *Map) Release(session uint32, number uint64) bool {
	mine := m.holders[session]
	if mine == nil || mine.slices[number] == nil {
		return false
	}
	s := mine.slices[number]
	m.count(s, -1)
	delete(mine.slices, number)
	m.disown(s.owner)
	m.drop(session)
	return true
}

// ReleaseAll ends all grants of a session, and cancels its requests, which it returns in no order.
func (m *Map) ReleaseAll(session uint32) (cancelled []*Request) {
	mine := m.holders[session]
	if mine == nil {
		return nil
	}
	for number := range mine.slices {
		m.Release(session, number)
	}
	for _, r := range mine.requests {
		cancelled = append(cancelled, r)
	}
	m.remove(cancelled...)
	return cancelled
}

// Slices returns the slices of a session, sorted by number.
func (m *Map) Slices(session uint32) []*Slice {
	mine := m.holders[session]
	if mine == nil {
		return nil
	}
	out := make([]*Slice, 0, len(mine.slices))
	for _, number := range slices.Sorted(maps.Keys(mine.slices)) {
		out = append(out, mine.slices[number])
	}
	return out
}

// Holders returns the sessions that have slices, sorted.
func (m *Map) Holders() (all []uint32) {
	for session, h := range m.holders {
		if len(h.slices) > 0 {
			all = append(all, session)
		}
	}
	slices.Sort(all)
	return all
}

// Held returns the devices that a session's slices have: the exclusive ones, and the others. The caller does not change
// them, and uses them until the next change.
func (m *Map) Held(session uint32) (alone, shared Numbers) {
	mine := m.holders[session]
	if mine == nil {
		return nil, nil
	}
	if mine.stale {
		clear(mine.alone)
		clear(mine.shared)
		for _, s := range mine.slices {
			into := &mine.shared
			if s.Want.Exclusive {
				into = &mine.alone
			}
			for first, count := range m.numbersOf(s.View, s.Devices) {
				into.add(first, count)
			}
		}
		mine.stale = false
	}
	return mine.alone, mine.shared
}

// numbersOf yields the numbers in the whole cluster of some devices of a view, without those whose worker has left: the
// first of some that follow one another, and how many these are.
func (m *Map) numbersOf(v *View, devices []int) iter.Seq2[int, int] {
	return func(yield func(first, count int) bool) {
		for rest := devices; len(rest) > 0; {
			at, local, count := v.lead(rest)
			if m.isHere(at.worker, at.base) && !yield(at.base+local, count) {
				return
			}
			rest = rest[count:]
		}
	}
}

// count adds by to the number of slices that have each of s's devices.
func (m *Map) count(s *Slice, by int32) {
	m.loaded++
	h := m.holders[s.Session]
	h.devices += int(by) * len(s.Devices)
	h.stale = true
	s.owner.devices += int(by) * len(s.Devices)
	var alone *Slice
	if s.Want.Exclusive && by > 0 {
		alone = s
	}
	for first, count := range m.numbersOf(s.View, s.Devices) {
		for number := first; number < first+count; number++ {
			l := &m.loads[number]
			l.granted += by
			if s.Want.Exclusive {
				l.exclusive = alone
			}
		}
	}
	if s.Want.Exclusive {
		m.exclusive += int(by)
		s.owner.alone += int(by) * len(s.Devices)
	}
}

// keep returns devices in an order in which those that are also in old have their old
// positions.
func keep(old, devices []int) []int {
	stays := map[int]bool{}
	for _, d := range devices {
		stays[d] = true
	}
	had := map[int]bool{}
	for _, d := range old {
		had[d] = true
	}
	fresh := slices.DeleteFunc(devices, func(d int) bool { return had[d] })
	out := slices.Clone(old)
	for i, d := range out {
		if !stays[d] {
			out[i], fresh = fresh[0], fresh[1:]
		}
	}
	return out
}

// scratch is memory that searches for devices reuse.
type scratch struct {
	found   found
	some    []candidate
	free    []candidate // for found, when a ViewSearch has taken that; nil while one has
	had     Numbers     // by virtual device
	wants   Numbers     // for yields
	chooser chooser
}

// found is the devices that a slice may have.
type found struct {
	all      []candidate
	devices  int  // of these
	free     int  // of them, those that could be granted at once
	ofIsland int  // of one island at most
	several  bool // no island has enough, so the slice may be of several

	basis basis
	used  Numbers // by others, where that matters
}

// basis is what the devices that a slice may have depend on, apart from what is in use.
type basis struct {
	view         *View // nil: also on the devices that it had
	island, kind string
	alone        bool
	moved        uint64 // Map.moved
	loaded       uint64 // Map.loaded
}

// candidates finds the devices of workers that have not left and that may be granted, in the view's order, and marks
// those that could be granted at once. It takes what was found before if nothing has changed that it depends on: most
// requests are for devices of any kind, by sessions that see the same ones and use none.
func (m *Map) candidates(into *found, r *Request, old []int, occupied Occupied) error {
	free := m.freeFor(r, occupied)
	on := basis{r.View, r.Want.Island, r.Want.Kind, r.Want.Exclusive, m.moved, m.loaded}
	if len(old) > 0 {
		on = basis{}
	}
	if on.view == nil || on != into.basis || !slices.Equal(free.used, into.used) {
		m.find(into, r, old, &free)
		into.basis, into.used = on, append(into.used[:0], free.used...)
	}
	into.several = into.ofIsland < r.Want.Devices
	if into.devices < r.Want.Devices || into.devices == 0 {
		return m.tooFew(r.View, r.Want, into.devices)
	}
	return nil
}

// find is candidates without what was found before.
func (m *Map) find(into *found, r *Request, old []int, free *free) {
	had := m.scratch.had[:0]
	for _, d := range old {
		had.Add(d)
	}
	m.scratch.had = had
	var island *Island
	ofIsland := 0 // how many
	all := slices.Grow(into.all[:0], len(r.View.runs))
	into.devices, into.free, into.ofIsland = 0, 0, 0
	for i, at := range m.wanted(r.View, r.Want) {
		if at.island != island { // devices are sorted by island
			island, ofIsland = at.island, 0
		}
		first := at.base + at.local
		for k := range at.count {
			if r.Want.Kind != "" && r.Want.Kind != at.worker.kind(at.local+k) {
				continue
			}
			cost, isFree := m.loads[first+k].cost(had.Has(at.device+k)), free.has(first+k)
			ofIsland++
			into.devices++
			if isFree {
				into.free++
			}
			if n := len(all) - 1; n >= 0 && all[n].run == int32(i) && all[n].device+all[n].count == int32(at.device+k) &&
				all[n].cost == cost && all[n].free == isFree {
				all[n].count++
				continue
			}
			all = append(all, candidate{device: int32(at.device + k), number: int32(first + k), count: 1, run: int32(i),
				island: int32(island.Index), cost: cost, free: isFree})
		}
		into.ofIsland = max(into.ofIsland, ofIsland)
	}
	into.all = all
}

// free is the devices that could be granted to a request at once.
type free struct {
	loads []load
	alone bool    // the request is for an exclusive slice
	own   int32   // sessions that see the devices, and are the one that asks
	used  Numbers // by others, where alone
}

func (m *Map) freeFor(r *Request, occupied Occupied) free {
	f := free{loads: m.loads, alone: r.Want.Exclusive}
	if f.alone && occupied != nil {
		f.used = occupied(r.Session)
	}
	if r.View.sized {
		f.own = 1
	}
	return f
}

// has reports whether a device, by its number in the whole cluster, belongs to no exclusive slice and, for a request of
// an exclusive one, is not in use.
func (f *free) has(number int) bool {
	l := &f.loads[number]
	return l.exclusive == nil && (!f.alone || l.granted == 0 && l.viewed <= f.own && !f.used.Has(number))
}
