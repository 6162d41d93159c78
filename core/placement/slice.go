package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// Want describes the slice that a session asks for.
type Want struct {
	Devices int
	// Topology holds the sizes of the slice's dimensions; their product is Devices. The
	// last dimension is placed on neighbours: consecutive devices of one worker, or, if
	// no worker has enough of them, of one island. If Topology is empty, any devices do.
	Topology []int
	Island   string // "" means any
	Kind     string // of device; "" means any
	// Exclusive: no one else uses the devices while the slice has them. They are in no other slice of anyone, in no
	// other session's view of a fixed size, and Occupied by no other session.
	Exclusive bool
}

// Occupied reports whether any session but this one has arrays or computations on a device. nil stands for one that
// always returns false.
type Occupied func(session uint32, d Device) bool

// MaxSlices and MaxGranted bound what a session may have been granted at one time:
// the number of slices, and the devices of all of them together. They bound the memory
// that one session can take in the controller.
const (
	MaxSlices  = 4096
	MaxGranted = 1 << 20
)

// MaxDimensions bounds the dimensions of a topology.
const MaxDimensions = 16

// TooManyDimensions is the error of a topology of more than MaxDimensions.
func TooManyDimensions(n int) error {
	return status.New(status.InvalidArgument, "a topology of %d dimensions was asked for; expected at most %d", n,
		MaxDimensions)
}

// Slice is a set of devices that were granted to a session together. Unless it is
// exclusive, a slice is advisory: a grant records which devices a session means to use,
// so that the next grant chooses others. Other sessions can still use those devices.
type Slice struct {
	Session uint32
	Number  uint64 // chosen by the session
	Want    Want
	Owner   string // as Request.Owner
	Devices []int  // virtual, row-major in the topology
	behind  []Device
}

// Behind returns the devices that the slice's virtual devices stand for; their workers
// may have left. The caller must not change the returned slice.
func (s *Slice) Behind() []Device { return s.behind }

// allowed checks what a session asks for against its limits.
func (m *Map) allowed(session uint32, number uint64, w Want) error {
	if err := w.Check(); err != nil {
		return err
	}
	mine := m.slices[session]
	if mine[number] != nil {
		return status.New(status.AlreadyExists, "slice %d exists already; a session uses the number of a slice once",
			number)
	}
	granted := 0
	for _, s := range mine {
		granted += len(s.Devices)
	}
	if len(mine) >= MaxSlices || w.Devices > MaxGranted-granted {
		return status.New(status.ResourceExhausted, "the session has %s of %s together, and its limits are %d and %d; "+
			"release some", status.Count(len(mine), "slice"), status.Count(granted, "device"), MaxSlices, MaxGranted)
	}
	return nil
}

// grant makes a slice of these devices.
func (m *Map) grant(r *Request, devices []int) *Slice {
	s := &Slice{Session: r.Session, Number: r.Number, Want: r.Want, Owner: r.Owner}
	m.assign(s, r.View, devices)
	mine := m.slices[r.Session]
	if mine == nil {
		if m.slices == nil {
			m.slices = map[uint32]map[uint64]*Slice{}
		}
		mine = map[uint64]*Slice{}
		m.slices[r.Session] = mine
	}
	mine[r.Number] = s
	return s
}

// Remap chooses devices for a slice again, by the Want that it was granted for. It keeps
// the devices that the slice has unless others are better; each kept device stays at its
// position, unless the slice has a topology.
//
// Errors: NOT_FOUND, and those of Ask for a request that does not wait, which leave the slice as it is.
func (m *Map) Remap(session uint32, number uint64, view *View, occupied Occupied) (*Slice, error) {
	s := m.slices[session][number]
	if s == nil {
		return nil, status.New(status.NotFound, "there is no slice %d; it was released, or never granted", number)
	}
	old := s.Devices
	reserved := m.reservations(occupied)
	for _, d := range s.behind { // what it has it may keep, whoever waits for it
		delete(reserved, spot{m.workers[d.Worker], d.Local})
	}
	m.count(s, -1)
	r := &Request{Session: session, Number: number, View: view, Want: s.Want, Owner: s.Owner}
	devices, err := m.available(r, old, reserved, occupied)
	if err == nil && devices == nil {
		err = status.New(status.ResourceExhausted, "the devices that slice %d could have instead are in use by others",
			number)
	}
	if err != nil {
		m.count(s, +1)
		return nil, err
	}
	if len(s.Want.Topology) == 0 {
		devices = keep(old, devices)
	}
	m.assign(s, view, devices)
	return s, nil
}

// Release ends a grant, and reports whether there was one.
func (m *Map) Release(session uint32, number uint64) bool {
	s := m.slices[session][number]
	if s == nil {
		return false
	}
	m.count(s, -1)
	delete(m.slices[session], number)
	if len(m.slices[session]) == 0 {
		delete(m.slices, session)
	}
	return true
}

// ReleaseAll ends all grants of a session, and cancels its requests.
func (m *Map) ReleaseAll(session uint32) {
	m.requests = slices.DeleteFunc(m.requests, func(r *Request) bool { return r.Session == session })
	for _, s := range m.slices[session] {
		m.count(s, -1)
	}
	delete(m.slices, session)
}

// Slices returns the slices of a session, sorted by number.
func (m *Map) Slices(session uint32) []*Slice {
	mine := m.slices[session]
	out := make([]*Slice, 0, len(mine))
	for _, number := range slices.Sorted(maps.Keys(mine)) {
		out = append(out, mine[number])
	}
	return out
}

// Holders returns the sessions that have slices, sorted.
func (m *Map) Holders() []uint32 { return slices.Sorted(maps.Keys(m.slices)) }

// assign sets a slice's devices and counts them.
func (m *Map) assign(s *Slice, view *View, devices []int) {
	s.Devices, s.behind = devices, make([]Device, len(devices))
	for i, d := range devices {
		s.behind[i] = view.Device(d)
	}
	m.count(s, +1)
}

// count adds by to the number of slices that have each of s's devices.
func (m *Map) count(s *Slice, by int) {
	for _, d := range s.behind {
		if w := m.workers[d.Worker]; w != nil {
			w.granted[d.Local] += by
			if s.Want.Exclusive {
				w.exclusive[d.Local] = s
				if by < 0 {
					w.exclusive[d.Local] = nil
				}
			}
		}
	}
	if s.Want.Exclusive {
		m.exclusive += by
		if m.owned == nil {
			m.owned = map[string]int{}
		}
		if m.owned[s.Owner] += by * len(s.behind); m.owned[s.Owner] == 0 {
			delete(m.owned, s.Owner)
		}
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

// candidate is a device that may be granted.
type candidate struct {
	device int // virtual
	local  int
	worker *Worker
	island *Island
	cost   int
}

// unit is a set of candidates that are granted together or not at all.
type unit struct {
	all  []candidate
	cost int
}

// choose returns the devices for w, of candidates of which there are enough. It takes devices of several islands only
// if it may.
func choose(all []candidate, w Want, several bool) []int {
	row := 1
	if n := len(w.Topology); n > 0 {
		row = w.Topology[n-1]
	}
	sameIsland := func(a, b candidate) bool { return a.island == b.island }
	sameWorker := func(a, b candidate) bool { return a.worker == b.worker && a.device+1 == b.device }
	anywhere := func(candidate, candidate) bool { return true }
	// first uses the first split that has enough rows.
	first := func(within []candidate, splits ...func(a, b candidate) bool) (choice, bool) {
		for _, together := range splits {
			if c, ok := pick(split(within, together), row, w.Devices/row); ok {
				return c, true
			}
		}
		return choice{}, false
	}
	var best choice
	found := false
	for _, island := range split(all, sameIsland) {
		if c, ok := first(island, sameWorker, anywhere); ok && (!found || c.better(best)) {
			best, found = c, true
		}
	}
	if !found && several {
		best, _ = first(all, sameIsland, anywhere)
	}
	return best.devices
}

// Check returns an error for a Want that no cluster could satisfy.
//
// Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED for more than MaxGranted devices.
func (w Want) Check() error {
	if w.Devices < 1 {
		return status.New(status.InvalidArgument, "a slice of %s was asked for; it needs at least 1",
			status.Count(w.Devices, "device"))
	}
	if w.Devices > MaxGranted {
		return status.New(status.ResourceExhausted, "a slice of %s was asked for; a session may have %d in all",
			status.Count(w.Devices, "device"), MaxGranted)
	}
	if len(w.Topology) > MaxDimensions {
		return TooManyDimensions(len(w.Topology))
	}
	if len(w.Topology) == 0 {
		return nil
	}
	product := 1
	for _, n := range w.Topology {
		if n < 1 || n > w.Devices/product {
			product = 0
			break
		}
		product *= n
	}
	if product != w.Devices {
		return status.New(status.InvalidArgument,
			"topology %v does not have %s; expected positive sizes whose product is the number of devices", w.Topology,
			status.Count(w.Devices, "device"))
	}
	return nil
}

// candidates returns the devices of workers that have not left and that may be granted,
// in the view's order.
func (m *Map) candidates(view *View, w Want, old []int) (all []candidate, err error) {
	had := map[int]bool{}
	for _, d := range old {
		had[d] = true
	}
	islands, kinds := map[string]int{}, map[string]int{} // devices by island; by kind, in the islands that match
	known, lost := w.Island == "", 0
	var worker *Worker
	for i := range view.Len() {
		d := view.Device(i)
		here := w.Island == "" || w.Island == d.Island.Name
		known = known || here
		if worker == nil || worker.Offer.Worker != d.Worker {
			worker = m.workers[d.Worker]
		}
		if worker == nil {
			if here {
				lost++
			}
			continue
		}
		islands[d.Island.Name]++
		if !here {
			continue
		}
		kind := worker.kind(d.Local)
		kinds[kind]++
		if w.Kind != "" && w.Kind != kind {
			continue
		}
		// A device that the slice has already is slightly better than an equal one.
		cost := 2 * (worker.granted[d.Local] + worker.viewed[d.Local])
		if !had[i] {
			cost++
		}
		all = append(all, candidate{device: i, local: d.Local, worker: worker, island: d.Island, cost: cost})
	}
	where := ""
	if w.Island != "" {
		where = fmt.Sprintf(" of island %q", w.Island)
	}
	gone := ""
	if lost > 0 {
		gone = fmt.Sprintf("; %d more were lost with their workers", lost)
	}
	switch {
	case !known:
		return nil, status.New(status.InvalidArgument, "there is no island %q; there are %s", w.Island, counted(islands))
	case len(all) == 0 && len(kinds) > 0:
		return nil, status.New(status.InvalidArgument, "no device%s is of kind %q; there are %s", where, w.Kind,
			counted(kinds))
	case len(all) < w.Devices && w.Kind != "":
		return nil, status.New(status.ResourceExhausted, "a slice of %s of kind %q was asked for, and the cluster has %d%s%s",
			status.Count(w.Devices, "device"), w.Kind, len(all), where, gone)
	case len(all) < w.Devices:
		return nil, status.New(status.ResourceExhausted, "a slice of %s was asked for, and the cluster has %d%s%s",
			status.Count(w.Devices, "device"), len(all), where, gone)
	}
	return all, nil
}

// counted formats counts for people.
func counted(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), CompareNames) {
		parts = append(parts, fmt.Sprintf("%q with %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

// split cuts a list between neighbours that together rejects.
func split(all []candidate, together func(a, b candidate) bool) (parts [][]candidate) {
	for i, c := range all {
		if i == 0 || !together(all[i-1], c) {
			parts = append(parts, all[i:i:len(all)])
		}
		last := &parts[len(parts)-1]
		*last = (*last)[:len(*last)+1]
	}
	return parts
}

// tile cuts a list into rows, beginning at the offset at which they cost least.
func tile(all []candidate, row int) []unit {
	var best []unit
	least := 0
	for offset := 0; offset <= len(all)%row && offset+row <= len(all); offset++ {
		var units []unit
		total := 0
		for rest := all[offset:]; len(rest) >= row; rest = rest[row:] {
			u := unit{all: rest[:row]}
			for _, c := range u.all {
				u.cost += c.cost
			}
			total += u.cost
			units = append(units, u)
		}
		if best == nil || total < least {
			best, least = units, total
		}
	}
	return best
}

// choice is a possible result of choose. Fewer costs are better, then fewer groups.
type choice struct {
	devices []int
	cost    int
	groups  int // number of groups that the devices come from
}

func (c choice) better(than choice) bool {
	return cmp.Or(cmp.Compare(c.cost, than.cost), cmp.Compare(c.groups, than.groups)) < 0
}

// pick takes n rows of the least cost from groups, and among rows of the same cost as
// many as possible from one group.
func pick(groups [][]candidate, row, n int) (choice, bool) {
	var tiles [][]unit
	var costs []int
	for _, g := range groups {
		t := tile(g, row)
		tiles = append(tiles, t)
		for _, u := range t {
			costs = append(costs, u.cost)
		}
	}
	if len(costs) < n {
		return choice{}, false
	}
	slices.Sort(costs)
	limit := costs[n-1] // all rows that cost less are taken, and some of those that cost as much
	some, used := share(tiles, limit, n)
	var c choice
	for i, t := range tiles {
		if used[i] {
			c.groups++
		}
		for _, u := range t {
			if u.cost == limit && some[i] > 0 {
				some[i]--
			} else if u.cost >= limit {
				continue
			}
			c.cost += u.cost
			for _, d := range u.all {
				c.devices = append(c.devices, d.device)
			}
		}
	}
	return c, true
}

// share decides, for n rows that cost limit at most, how many that cost limit each group gives, and which groups give
// any row.
func share(tiles [][]unit, limit, n int) (some []int, used []bool) {
	some = make([]int, len(tiles))
	used = make([]bool, len(tiles))
	free := make([]int, len(tiles)) // rows of cost limit that are not taken
	for i, t := range tiles {
		for _, u := range t {
			switch {
			case u.cost < limit:
				used[i] = true
				n--
			case u.cost == limit:
				free[i]++
			}
		}
	}
	for n > 0 {
		best := -1
		for i := range tiles {
			if free[i] > 0 && (best < 0 || before(used[i], used[best], free[i], free[best], n)) {
				best = i
			}
		}
		take := min(n, free[best])
		some[best] += take
		free[best] -= take
		used[best] = true
		n -= take
	}
	return some, used
}

// before reports whether share should take rows from a group with a free rows rather than
// from one with b, if it needs n more: it prefers a group that is used anyway, then the
// smallest that has enough, then the largest.
func before(aUsed, bUsed bool, a, b, n int) bool {
	switch {
	case aUsed != bUsed:
		return aUsed
	case a >= n && b >= n:
		return a < b
	default:
		return a > b
	}
}
