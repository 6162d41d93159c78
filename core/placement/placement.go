// Package placement keeps the devices of a cluster, numbers them for each session,
// and grants slices.
//
// A worker adds devices to an island. A session sees the devices of all islands
// as one list of virtual devices 0, 1, 2 …: islands in the order in which they
// joined, within an island the workers by name (worker-2 before worker-10), within a
// worker its devices in their local order. The list is a View. It is fixed when the
// session begins: workers that join or leave later do not change it. A session that
// asks for a number of devices sees that many.
//
// # What it guarantees
//
// A slice is a set of devices of a session's list that were granted to it together.
// A grant chooses the devices that have the fewest grants of all sessions, never
// chooses a device of a worker that has left, and ends with its session. Both hold
// because the grants of each device are counted in its worker's record: each grant
// adds one, its release subtracts one, and Leave removes the record.
//
// The same calls in the same order choose the same devices: the package has values
// and one table, and no goroutine, lock, clock or socket. The caller serialises calls
// of a Map; a View does not change. The package imports only core/status.
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
	Platform string
	// Fingerprint lists the facts that make compiled programs differ, such as the
	// plugin's file and processor features, separated by ", ". All workers of an
	// island have the same one.
	Fingerprint string
	// Versions must agree in the whole cluster, for every key that both sides have.
	Versions map[string]string
	Devices  int
	Kinds    []string // of the devices, by local number; "" beyond its end
}

// Island is a set of devices that can run one computation together.
type Island struct {
	Name    string
	Index   int // in the order of joining: slice_index
	members []*Worker
	taken   []bool // numbers of devices that are in use
}

// Worker is a worker that has joined and not left.
type Worker struct {
	Offer
	Island  *Island
	numbers []int // of its devices in the island, by local device
	granted []int // number of slices that have the device, by local device
	// The exclusive slice that has the device, by local device.
	exclusive []*Slice
	viewed    []int // number of sessions of a fixed size (see ViewOf) that see it, by local device
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
	islands []*Island
	workers map[uint64]*Worker
	slices  map[uint32]map[uint64]*Slice // by session, number
	// Requests for slices that wait, in the order of their turns as Serve found them; new ones at the end.
	requests  []*Request
	exclusive int            // number of exclusive slices
	owned     map[string]int // devices in exclusive slices, by owner
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
		is = &Island{Name: o.Island, Index: len(m.islands)}
		m.islands = append(m.islands, is)
	}
	o.Versions = maps.Clone(o.Versions)
	o.Kinds = slices.Clone(o.Kinds)
	w := &Worker{Offer: o, Island: is, numbers: make([]int, 0, o.Devices), granted: make([]int, o.Devices),
		exclusive: make([]*Slice, o.Devices), viewed: make([]int, o.Devices)}
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
	if m.workers == nil {
		m.workers = map[uint64]*Worker{}
	}
	m.workers[o.Worker] = w
	return w, nil
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
		for _, w := range known.members {
			if w.Platform != o.Platform {
				return nil, status.New(status.FailedPrecondition,
					"worker %s has platform %q and worker %s has %q; all workers of a cluster need one platform", o.Name, o.Platform,
					w.Name, w.Platform)
			}
		}
		if known.Name == o.Island {
			is = known
		}
	}
	used := 0
	if is != nil {
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
	keys := slices.Sorted(maps.Keys(versions))
	for _, is := range m.islands {
		for _, w := range is.members {
			for _, key := range keys {
				if have, ok := w.Versions[key]; ok && have != versions[key] {
					return status.New(status.FailedPrecondition, "%s has %s %s and worker %s has %s; install the same version on both",
						who, key, versions[key], w.Name, have)
				}
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
	for _, n := range w.numbers {
		w.Island.taken[n] = false
	}
	w.Island.members = slices.DeleteFunc(w.Island.members, func(o *Worker) bool { return o == w })
}

// Islands returns every island that has ever had a worker, by index. The caller must
// not change the slice.
func (m *Map) Islands() []*Island { return m.islands }

// Workers returns the workers of an island, sorted by name. The caller must not change
// the slice.
func (is *Island) Workers() []*Worker { return is.members }

// View is a session's list of devices: it numbers them from 0.
type View struct {
	devices []Device
	sized   bool // made by ViewOf: the session asked for this number of devices
}

// View returns a view of all devices that the cluster has now.
func (m *Map) View() *View {
	v, n := &View{}, 0
	for _, is := range m.islands {
		for _, w := range is.members {
			n += len(w.numbers)
		}
	}
	v.devices = make([]Device, 0, n)
	for _, is := range m.islands {
		for _, w := range is.members {
			for local, n := range w.numbers {
				v.devices = append(v.devices, Device{Worker: w.Offer.Worker, Local: local, Island: is, Number: n})
			}
		}
	}
	return v
}

// ViewOf returns a view of the given number of devices, chosen like those of a slice:
// from one island if one has enough; there, those that the fewest slices and views of
// this kind have; among these, as many as possible from one worker. Retire ends the
// view. Devices of exclusive slices, and those that are reserved for requests that wait, are not chosen.
//
// Errors: INVALID_ARGUMENT for fewer than one device, RESOURCE_EXHAUSTED if the cluster
// has too few.
func (m *Map) ViewOf(devices int, occupied Occupied) (*View, error) {
	all := m.View()
	switch {
	case devices < 1:
		return nil, status.New(status.InvalidArgument, "a session of %s was asked for; expected at least 1",
			status.Count(devices, "device"))
	case devices > all.Len():
		return nil, status.New(status.ResourceExhausted, "a session of %s was asked for, and the cluster has %d in %s; "+
			"start more workers, or ask for fewer devices", status.Count(devices, "device"), all.Len(),
			status.Count(len(m.workers), "worker"))
	}
	r := &Request{View: all, Want: Want{Devices: devices}}
	chosen, err := m.available(r, nil, m.reservations(occupied), nil)
	switch {
	case err != nil:
		return nil, err
	case chosen == nil:
		return nil, status.New(status.ResourceExhausted, "a session of %s was asked for, and of the %d in %s too many "+
			"are in exclusive slices, or reserved for requests that wait; \"pathways queue\" shows whose",
			status.Count(devices, "device"), all.Len(), status.Count(len(m.workers), "worker"))
	}
	v := &View{sized: true}
	for _, d := range chosen {
		v.devices = append(v.devices, all.devices[d])
	}
	m.countView(v, +1)
	return v, nil
}

// Retire ends a view: its devices no longer count as seen. It must be called once per
// view.
func (m *Map) Retire(v *View) {
	if v.sized {
		m.countView(v, -1)
	}
}

// countView adds by to the number of views that see each of v's devices.
func (m *Map) countView(v *View, by int) {
	for _, d := range v.devices {
		if w := m.workers[d.Worker]; w != nil {
			w.viewed[d.Local] += by
		}
	}
}

// Sized reports whether the session asked for this number of devices.
func (v *View) Sized() bool { return v.sized }

// Len returns the number of virtual devices.
func (v *View) Len() int { return len(v.devices) }

// Device returns the device that a virtual device in [0, Len) stands for.
func (v *View) Device(virtual int) Device { return v.devices[virtual] }

// Span is a run of consecutive devices of one worker.
type Span struct {
	Worker uint64
	Local  int // the first
	Count  int
}

// Spans returns the view's devices, run-length coded.
func (v *View) Spans() []Span { return Spans(v.devices) }

// Spans returns devices run-length coded, in their order.
func Spans(devices []Device) []Span {
	var spans []Span
	for _, d := range devices {
		if n := len(spans); n > 0 && spans[n-1].Worker == d.Worker && spans[n-1].Local+spans[n-1].Count == d.Local {
			spans[n-1].Count++
			continue
		}
		spans = append(spans, Span{Worker: d.Worker, Local: d.Local, Count: 1})
	}
	return spans
}
