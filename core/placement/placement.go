// Package placement keeps the devices of a cluster, numbers them for each session,
// and grants slices.
//
// A worker adds devices to an island, which has one platform. A session sees the devices of all islands of its
// platform as one list of virtual devices 0, 1, 2 …: islands in the order in which they joined, within an island the
// workers by name (worker-2 before worker-10), within a worker its devices in their local order. The list is a View.
// Its length is fixed when the session begins, and so are its devices, except those of workers that leave: other
// workers may take their places, see Rebind. A session that asks for a number of devices sees that many.
//
// # What it guarantees
//
// A slice is a set of devices of a session's list that were granted to it together. A grant chooses the devices that
// have the fewest grants of all sessions, never chooses a device of a worker that has left, and ends with its session.
// Both hold because the grants of each device are counted in its worker's record: each grant adds one, its release
// subtracts one, and Leave removes the record.
//
// The same calls in the same order choose the same devices: the package has values and one table, and no goroutine,
// lock, clock or socket. The caller serializes calls of a Map; a View does not change. The package imports only
// core/status.
package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// MaxDevices is the largest number of devices that an island has at one time; it is
// that of core/schedule, whose sets of devices hold their numbers.
const MaxDevices = 1 << 16

// DefaultIsland is the island of workers that name none.
const DefaultIsland = "default"

// Offer describes a worker that joins.
type Offer struct {
	Worker   uint64 // its number, which no other worker ever has
	Name     string // for people
	Island   string // "" means DefaultIsland
	Platform string // of its devices; that of the island's other workers
	// Fingerprint lists the facts that make compiled programs differ, such as the
	// plugin's file and processor features, separated by ", ". All workers of an
	// island have the same one.
	Fingerprint string
	// Versions must agree in the whole cluster, for every key that both sides have.
	Versions map[string]string
	Devices  int
	Kinds    []string // of the devices, by local number; "" beyond its end
	Memories []string // of the devices, by local number: what memories each has
	// First is the number of its first device in the whole cluster, where the caller numbers all devices: workers that
	// are there at one time have different numbers.
	First int
}

// Island is a set of devices that can run one computation together.
type Island struct {
	Name    string
	Index   int // in the order of joining: slice_index
	members []*Worker
	taken   []bool // numbers of devices that are in use
}

// Worker is a worker that has joined. It may have left.
type Worker struct {
	Offer
	Island  *Island
	numbers []int  // of its devices in the island, by local device
	mark    uint64 // Map.mark, where compare has found it in a view
}

// load counts what a device is granted to.
type load struct {
	granted   int32  // number of slices that have it
	viewed    int32  // number of sessions of a fixed size (see ViewOf) that see it
	exclusive *Slice // that has it
}

// cost is what it costs to choose the device: less for one that is granted less often, and slightly less for one that
// the slice has already than for an equal one.
func (l *load) cost(has bool) int64 {
	cost := 2 * int64(l.granted+l.viewed)
	if !has {
		cost++
	}
	return cost
}

// kind returns the kind of a device.
func (w *Worker) kind(local int) string {
	if local < len(w.Kinds) {
		return w.Kinds[local]
	}
	return ""
}

// Map holds the workers that have joined and not left, and the slices of sessions.
// The zero Map is empty.
type Map struct {
	islands   []*Island
	workers   map[uint64]*Worker
	loads     []load    // by number in the whole cluster
	firsts    []*Worker // the same; those that have joined and not left, at the numbers of their first devices
	holders   map[uint32]*holder
	owners    map[string]*owner
	versions  map[string]version // of what workers run
	exclusive int                // number of exclusive slices
	queue     queue
	scratch   scratch
	mark      uint64
	moved     uint64 // counts workers that have come, and gone
	loaded    uint64 // counts changes of loads

	same same
}

// version is the version of one thing that workers have, the same for all, and how many workers have one.
type version struct {
	version string
	workers int
}

// same is what sessions have in common while workers stay the same; its fields are nil if that is not known. So work in
// proportion to the number of workers is done once for many sessions.
type same struct {
	whole *View    // of all devices of some platforms: what View returned last
	of    []string // these

	view *View               // that was compared last
	free []*Worker           // of which it has no devices, in their order
	lost []int               // of its runs, those whose workers have left
	by   map[*Worker]*Worker // what Rebind has put in their places last
	next *View               // the view that it made so; nil if none
}

// Device is the physical device that a virtual device stands for.
type Device struct {
	Worker uint64
	Local  int
	Island *Island
	// Number is the device's number in its island, for sets of devices. No two devices
	// of an island have the same number at one time.
	Number int
}

// Join adds a worker and its devices.
//
// Errors: INVALID_ARGUMENT for an offer without devices, ALREADY_EXISTS,
// RESOURCE_EXHAUSTED, and FAILED_PRECONDITION for a worker that does not match the
// others; the message names both sides.
func (m *Map) Join(o Offer) (*Worker, error) {
	o.Island = cmp.Or(o.Island, DefaultIsland)
	is, err := m.islandFor(o)
	if err != nil {
		return nil, err
	}
	if is == nil {
		is = m.AddIsland(o.Island)
	}
	w := newWorker(o, is)
	if more := o.First + o.Devices - len(m.loads); more > 0 {
		m.loads, m.firsts = append(m.loads, make([]load, more)...), append(m.firsts, make([]*Worker, more)...)
	}
	m.firsts[o.First] = w
	clear(m.loads[o.First : o.First+o.Devices])
	for n := 0; len(w.numbers) < o.Devices; n++ {
		if n == len(is.taken) {
			is.taken = append(is.taken, false)
		}
		if !is.taken[n] {
			is.taken[n] = true
			w.numbers = append(w.numbers, n)
		}
	}
	at, _ := slices.BinarySearchFunc(is.members, w, func(a, b *Worker) int {
		return cmp.Or(CompareNames(a.Offer.Name, b.Offer.Name), cmp.Compare(a.Offer.Worker, b.Offer.Worker))
	})
	is.members = slices.Insert(is.members, at, w)
	m.same = same{}
	m.moved++
	if m.workers == nil {
		m.workers, m.versions = map[uint64]*Worker{}, map[string]version{}
	}
	for key, has := range w.Versions {
		m.versions[key] = version{has, m.versions[key].workers + 1}
	}
	m.workers[o.Worker] = w
	return w, nil
}

// Recall returns a worker that has left, as an earlier Map knew it, for ViewAs. Others may have got the numbers of its
// devices.
func (m *Map) Recall(o Offer) *Worker {
	o.Island = cmp.Or(o.Island, DefaultIsland)
	var is *Island
	if at := slices.IndexFunc(m.islands, func(is *Island) bool { return is.Name == o.Island }); at >= 0 {
		is = m.islands[at]
	} else {
		is = m.AddIsland(o.Island)
	}
	w := newWorker(o, is)
	for n := range o.Devices {
		w.numbers = append(w.numbers, n)
	}
	return w
}

// AddIsland adds an island of a new name, without workers. Join and Recall do that by themselves; it is for a Map that
// is to have the islands of an earlier one, in their order.
func (m *Map) AddIsland(name string) *Island {
	is := &Island{Name: name, Index: len(m.islands)}
	m.islands = append(m.islands, is)
	return is
}

func newWorker(o Offer, is *Island) *Worker {
	o.Versions = maps.Clone(o.Versions)
	o.Kinds, o.Memories = slices.Clone(o.Kinds), slices.Clone(o.Memories)
	return &Worker{Offer: o, Island: is, numbers: make([]int, 0, o.Devices)}
}

// islandFor returns the island that an offer is for, nil if there is none of that name yet, or why the worker cannot
// join.
func (m *Map) islandFor(o Offer) (*Island, error) {
	switch {
	case o.Devices < 1:
		return nil, status.New(status.InvalidArgument, "worker %s offers no devices; a worker needs at least one", o.Name)
	case m.workers[o.Worker] != nil:
		return nil, status.New(status.AlreadyExists, "worker %d has joined already; a worker's number is used once", o.Worker)
	}
	if err := m.Agree("worker "+o.Name, o.Versions); err != nil {
		return nil, err
	}
	var is *Island
	for _, known := range m.islands {
		if known.Name == o.Island {
			is = known
		}
	}
	used := 0
	if is != nil {
		if p := is.Platform(); p != "" && p != o.Platform {
			return nil, status.New(status.FailedPrecondition, "worker %s has devices of platform %s where worker %s of the "+
				"same island %q has %s; an island has devices of one platform: give one of them another island", o.Name, o.Platform,
				is.members[0].Name, is.Name, p)
		}
		if len(is.members) > 0 && is.members[0].Fingerprint != o.Fingerprint {
			w := is.members[0]
			its, theirs := differ(o.Fingerprint, w.Fingerprint)
			return nil, status.New(status.FailedPrecondition, "worker %s has %q where worker %s of the same island %q has %q; "+
				"start both with the same plugin on processors of one kind, or give one of them another island", o.Name, its,
				w.Name, is.Name, theirs)
		}
		for _, t := range is.taken {
			if t {
				used++
			}
		}
	}
	if o.Devices > MaxDevices-used {
		return nil, status.New(status.ResourceExhausted,
			"worker %s offers %s to an island that has %d; an island has at most %d", o.Name, status.Count(o.Devices, "device"),
			used, MaxDevices)
	}
	return is, nil
}

// differ returns the facts of each fingerprint that the other one lacks.
func differ(a, b string) (string, string) {
	as, bs := strings.Split(a, ", "), strings.Split(b, ", ")
	without := func(facts, others []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(facts), func(f string) bool { return slices.Contains(others, f) }),
			", ")
	}
	return without(as, bs), without(bs, as)
}

// Agree compares versions with those of all workers; who names their owner in the
// error.
//
// Errors: FAILED_PRECONDITION; the message names both sides.
func (m *Map) Agree(who string, versions map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(versions)) {
		have := m.versions[key]
		if have.workers == 0 || have.version == versions[key] {
			continue
		}
		return status.New(status.FailedPrecondition, "%s has %s %s and worker %s has %s; install the same version on both",
			who, key, versions[key], m.firstWith(key).Name, have.version)
	}
	return nil
}

// firstWith returns the first of the workers that have a version of something.
func (m *Map) firstWith(key string) *Worker {
	for _, is := range m.islands {
		for _, w := range is.members {
			if _, ok := w.Versions[key]; ok {
				return w
			}
		}
	}
	return nil
}

// Leave removes a worker. The next worker may get the numbers of its devices.
func (m *Map) Leave(worker uint64) {
	w := m.workers[worker]
	if w == nil {
		return
	}
	delete(m.workers, worker)
	for key := range w.Versions {
		if have := m.versions[key]; have.workers > 1 {
			m.versions[key] = version{have.version, have.workers - 1}
		} else {
			delete(m.versions, key)
		}
	}
	m.firsts[w.First] = nil
	for _, h := range m.holders {
		h.stale = true
	}
	m.queue.search.cancel()
	m.queue.reserved.remove(w.First, w.Devices)
	m.queue.next.remove(w.First, w.Devices)
	for _, n := range w.numbers {
		w.Island.taken[n] = false
	}
	w.Island.members = slices.DeleteFunc(w.Island.members, func(o *Worker) bool { return o == w })
	m.same = same{}
	m.moved++
}

// isHere reports whether a worker, whose first device has this number in the whole cluster, has not left. It does not
// look at the worker: to fetch each one's memory takes most of the time of a search over many.
func (m *Map) isHere(w *Worker, first int) bool { return first < len(m.firsts) && m.firsts[first] == w }

// Platform returns the platform of an island's devices; "" while it has no workers.
func (is *Island) Platform() string {
	if len(is.members) == 0 {
		return ""
	}
	return is.members[0].Offer.Platform
}

// Platforms returns the platforms of the workers that are there, in the order of their islands.
func (m *Map) Platforms() (all []string) {
	for _, is := range m.islands {
		if p := is.Platform(); p != "" && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// host is the platform of devices that every machine has.
const host = "cpu"

// DefaultPlatform returns the platform of sessions that name none: of the workers with accelerators that of the first
// by name, whichever joined first, or else the host's; "" if there are no workers.
func (m *Map) DefaultPlatform() (platform string) {
	first := ""
	for _, is := range m.islands {
		p := is.Platform()
		if p == "" || p == host && platform != "" {
			continue
		}
		if name := is.members[0].Name; platform == "" || platform == host || CompareNames(name, first) < 0 {
			platform, first = p, name
		}
	}
	return platform
}
