package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// Want is what a slice is to be.
type Want struct {
	Devices int
	// Topology is the sizes of the slice's dimensions, whose product is Devices. Its
	// last dimension lies on neighbours: devices of one worker in a row, or, where no
	// worker has as many, of one island. Empty: any devices.
	Topology []int
	Island   string // "" is any
	Kind     string // of device; "" is any
}

// MaxSlices and MaxGranted bound what a session may have been granted at one
// time: slices, and devices of all of them together.
const (
	MaxSlices  = 4096
	MaxGranted = 1 << 20
)

// maxDimensions bounds a topology.
const maxDimensions = 16

// Slice is devices that were granted to a session together. A grant is a matter
// of accounts: it says who means to use what, so that the next one is elsewhere.
// What is granted is not kept from others.
type Slice struct {
	Session uint32
	Number  uint64 // the session's own
	Want    Want
	Devices []int // virtual, row-major in the topology
	behind  []Device
}

// Behind tells what the slice's devices are; their workers may have gone. The
// caller does not change the slice.
func (s *Slice) Behind() []Device { return s.behind }

// Grant chooses devices for a session that sees view: of one island, if any has
// enough; there, those that the fewest slices of all sessions, and sessions that
// asked for so many devices, have; of these, as many as can be of one worker.
//
// Errors: INVALID_ARGUMENT for what no cluster could give and for an island or
// kind that is not there; RESOURCE_EXHAUSTED where there are too few such devices,
// or the session has too much already; ALREADY_EXISTS.
func (m *Map) Grant(session uint32, number uint64, view *View, w Want) (*Slice, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	mine := m.slices[session]
	if mine[number] != nil {
		return nil, status.New(status.AlreadyExists, "slice %d is there already; numbers of slices are used once", number)
	}
	granted := 0
	for _, s := range mine {
		granted += len(s.Devices)
	}
	if len(mine) >= MaxSlices || w.Devices > MaxGranted-granted {
		return nil, status.New(status.ResourceExhausted, "the session has %s of %s together, and its limits are %d and %d; release some", status.Count(len(mine), "slice"), status.Count(granted, "device"), MaxSlices, MaxGranted)
	}
	w.Topology = slices.Clone(w.Topology)
	s := &Slice{Session: session, Number: number, Want: w}
	devices, err := m.choose(view, w, nil)
	if err != nil {
		return nil, err
	}
	m.hand(s, view, devices)
	if mine == nil {
		if m.slices == nil {
			m.slices = map[uint32]map[uint64]*Slice{}
		}
		mine = map[uint64]*Slice{}
		m.slices[session] = mine
	}
	mine[number] = s
	return s, nil
}

// Remap chooses devices for a slice again, by what it was granted by. It keeps
// those that it has where others are no better; each of them stays at its place,
// unless the slice has a topology.
//
// Errors: NOT_FOUND, and those of Grant, which leave the slice as it is.
func (m *Map) Remap(session uint32, number uint64, view *View) (*Slice, error) {
	s := m.slices[session][number]
	if s == nil {
		return nil, status.New(status.NotFound, "slice %d is not there; it was released, or never granted", number)
	}
	old := s.Devices
	m.count(s, -1)
	devices, err := m.choose(view, s.Want, old)
	if err != nil {
		m.count(s, +1)
		return nil, err
	}
	if len(s.Want.Topology) == 0 {
		devices = keep(old, devices)
	}
	m.hand(s, view, devices)
	return s, nil
}

// Release ends a grant. It does nothing where there is none.
func (m *Map) Release(session uint32, number uint64) {
	if s := m.slices[session][number]; s != nil {
		m.count(s, -1)
		delete(m.slices[session], number)
		if len(m.slices[session]) == 0 {
			delete(m.slices, session)
		}
	}
}

// ReleaseAll ends all grants of a session.
func (m *Map) ReleaseAll(session uint32) {
	for _, s := range m.slices[session] {
		m.count(s, -1)
	}
	delete(m.slices, session)
}

// Slices gives the slices of a session by number.
func (m *Map) Slices(session uint32) []*Slice {
	mine := m.slices[session]
	out := make([]*Slice, 0, len(mine))
	for _, number := range slices.Sorted(maps.Keys(mine)) {
		out = append(out, mine[number])
	}
	return out
}

// Holders gives the sessions that have slices.
func (m *Map) Holders() []uint32 { return slices.Sorted(maps.Keys(m.slices)) }

// hand gives a slice its devices and counts them.
func (m *Map) hand(s *Slice, view *View, devices []int) {
	s.Devices, s.behind = devices, make([]Device, len(devices))
	for i, d := range devices {
		s.behind[i] = view.Device(d)
	}
	m.count(s, +1)
}

// count adds to how many slices have a slice's devices.
func (m *Map) count(s *Slice, by int) {
	for _, d := range s.behind {
		if w := m.workers[d.Worker]; w != nil {
			w.granted[d.Local] += by
		}
	}
}

// keep puts the devices that a slice had before at their old places.
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
	worker uint64
	island *Island
	cost   int
}

// unit is candidates that are granted together or not at all.
type unit struct {
	all  []candidate
	cost int
}

// choose gives the devices for a slice that has had some of them before.
func (m *Map) choose(view *View, w Want, old []int) ([]int, error) {
	all, err := m.candidates(view, w, old)
	if err != nil {
		return nil, err
	}
	row := 1
	if n := len(w.Topology); n > 0 {
		row = w.Topology[n-1]
	}
	sameIsland := func(a, b candidate) bool { return a.island == b.island }
	sameWorker := func(a, b candidate) bool { return a.worker == b.worker && a.device+1 == b.device }
	anywhere := func(candidate, candidate) bool { return true }
	// The first split that has enough rows is taken.
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
	if !found { // then of several islands
		best, _ = first(all, sameIsland, anywhere)
	}
	return best.devices, nil
}

// Check says what no cluster could give.
//
// Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED for more than MaxGranted devices.
func (w Want) Check() error {
	if w.Devices < 1 {
		return status.New(status.InvalidArgument, "a slice of %s was asked for; it needs at least 1", status.Count(w.Devices, "device"))
	}
	if w.Devices > MaxGranted {
		return status.New(status.ResourceExhausted, "a slice of %s was asked for; a session may have %d in all", status.Count(w.Devices, "device"), MaxGranted)
	}
	if len(w.Topology) > maxDimensions {
		return status.New(status.InvalidArgument, "a topology of %d dimensions was asked for; expected at most %d", len(w.Topology), maxDimensions)
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
		return status.New(status.InvalidArgument, "topology %v is no shape of %s; expected positive sizes whose product is the number of devices", w.Topology, status.Count(w.Devices, "device"))
	}
	return nil
}

// candidates gives the devices that are there and may be granted, in the view's
// order.
func (m *Map) candidates(view *View, w Want, old []int) (all []candidate, err error) {
	had := map[int]bool{}
	for _, d := range old {
		had[d] = true
	}
	islands, kinds := map[string]int{}, map[string]int{} // devices there, by island; by kind in islands that will do
	known, lost := w.Island == "", 0
	for i := range view.Len() {
		d := view.Device(i)
		here := w.Island == "" || w.Island == d.Island.Name
		known = known || here
		worker := m.workers[d.Worker]
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
		// What a slice has already is a little better than the like of it.
		cost := 2 * (worker.granted[d.Local] + worker.viewed[d.Local])
		if !had[i] {
			cost++
		}
		all = append(all, candidate{device: i, worker: d.Worker, island: d.Island, cost: cost})
	}
	where := ""
	if w.Island != "" {
		where = fmt.Sprintf(" of island %q", w.Island)
	}
	gone := ""
	if lost > 0 {
		gone = fmt.Sprintf("; lost with their workers: %d more", lost)
	}
	switch {
	case !known:
		return nil, status.New(status.InvalidArgument, "there is no island %q; there are %s", w.Island, counted(islands))
	case len(all) == 0 && len(kinds) > 0:
		return nil, status.New(status.InvalidArgument, "no device%s is of kind %q; there are %s", where, w.Kind, counted(kinds))
	case len(all) < w.Devices && w.Kind != "":
		return nil, status.New(status.ResourceExhausted, "a slice of %s of kind %q was asked for, and the cluster has %d%s%s", status.Count(w.Devices, "device"), w.Kind, len(all), where, gone)
	case len(all) < w.Devices:
		return nil, status.New(status.ResourceExhausted, "a slice of %s was asked for, and the cluster has %d%s%s", status.Count(w.Devices, "device"), len(all), where, gone)
	}
	return all, nil
}

// counted writes counts for people.
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

// split cuts a list where neighbours do not go together.
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

// tile cuts a list into rows, at that offset where they cost least.
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

// choice is devices with what speaks against them.
type choice struct {
	devices []int
	cost    int
	groups  int // that they are of
}

func (c choice) better(than choice) bool {
	return cmp.Or(cmp.Compare(c.cost, than.cost), cmp.Compare(c.groups, than.groups)) < 0
}

// pick takes n rows of the least cost out of groups, and of those that cost the
// same as many as can be of one group.
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
	limit := costs[n-1] // what costs less is taken, of what costs as much some
	var c choice
	some := make([]int, len(tiles))  // of each group, rows that cost as much and are taken
	free := make([]int, len(tiles))  // and are not
	used := make([]bool, len(tiles)) // something of it is taken
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

// before says whether a group with a free rows is to be taken from rather than
// one with b, where n are needed: one that is used anyway, the smallest that has
// enough, the largest.
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
