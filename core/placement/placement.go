// Package placement knows which devices there are, gives each session its
// numbers for them, and grants slices.
//
// A worker brings devices to an island. A session sees the devices of all islands
// as one list of virtual devices 0, 1, 2 …: islands in the order in which they
// came, in an island the workers by name (worker-2 before worker-10), in a worker
// its devices in their local order. The list is a View: fixed when the session begins,
// whoever comes or goes later. A session that asks for a number of devices sees
// that many.
//
// A slice is devices of a session's list that it was granted together. Grants
// go by what all sessions have been granted, never to a worker that has gone, and
// end with their session.
//
// It is pure: values and one table, with no goroutine, lock, clock or socket. The
// caller serialises calls of a Map; a View does not change. It imports core/status
// alone; core/controller uses it, and core/client for the devices of its own
// process.
package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// MaxDevices bounds the devices of an island that are there at one time.
const MaxDevices = 1 << 16

// DefaultIsland is the island of workers that name none.
const DefaultIsland = "default"

// Offer is what a worker brings.
type Offer struct {
	Worker   uint64 // never used again
	Name     string // for people
	Island   string // "" is DefaultIsland
	Platform string
	// Fingerprint is what makes compiled programs differ, such as the plugin's file
	// and processor features, as facts with ", " between them. The workers of an
	// island have one.
	Fingerprint string
	// Versions must agree in all of the cluster, key by key where both sides have
	// the key.
	Versions map[string]string
	Devices  int
	Kinds    []string // of the devices, as people call them; "" where it ends before
}

// Island is devices that can run one computation together.
type Island struct {
	Name    string
	Index   int // in the order of coming: slice_index
	members []*Worker
	taken   []bool // numbers of devices that are in use
}

// Worker is a worker that is there.
type Worker struct {
	Offer
	Island  *Island
	numbers []int // of its devices in the island, by local device
	granted []int // slices that have them, by local device
	viewed  []int // sessions that asked for so many devices and see them, by local device
}

// kind is a device's.
func (w *Worker) kind(local int) string {
	if local < len(w.Kinds) {
		return w.Kinds[local]
	}
	return ""
}

// Map is the workers that are there, and the slices of sessions. The zero Map is
// empty.
type Map struct {
	islands []*Island
	workers map[uint64]*Worker
	slices  map[uint32]map[uint64]*Slice // by session, number
}

// Device is what is behind a virtual device.
type Device struct {
	Worker uint64
	Local  int
	Island *Island
	// Number is the device's in its island, for sets of devices: no two devices
	// that are there have one number.
	Number int
}

// Join takes a worker in.
//
// Errors: INVALID_ARGUMENT for an offer of nothing, ALREADY_EXISTS,
// RESOURCE_EXHAUSTED, and FAILED_PRECONDITION for a worker that does not go with
// the others, with both sides named.
func (m *Map) Join(o Offer) (*Worker, error) {
	switch {
	case o.Devices < 1:
		return nil, status.New(status.InvalidArgument, "worker %s offers no devices; a worker needs at least one", o.Name)
	case m.workers[o.Worker] != nil:
		return nil, status.New(status.AlreadyExists, "worker %d is there already", o.Worker)
	}
	o.Island = cmp.Or(o.Island, DefaultIsland)
	if err := m.Agree("worker "+o.Name, o.Versions); err != nil {
		return nil, err
	}
	var is *Island
	for _, known := range m.islands {
		for _, w := range known.members {
			if w.Platform != o.Platform {
				return nil, status.New(status.FailedPrecondition, "worker %s has platform %q and worker %s has %q; all workers of a cluster need one platform", o.Name, o.Platform, w.Name, w.Platform)
			}
		}
		if known.Name == o.Island {
			is = known
		}
	}
	if is != nil && len(is.members) > 0 {
		if w := is.members[0]; w.Fingerprint != o.Fingerprint {
			its, theirs := differ(o.Fingerprint, w.Fingerprint)
			return nil, status.New(status.FailedPrecondition, "worker %s has %q where worker %s of the same island %q has %q; start both with the same plugin on processors of one kind, or give one of them another island", o.Name, its, w.Name, is.Name, theirs)
		}
	}
	used := 0
	if is != nil {
		for _, t := range is.taken {
			if t {
				used++
			}
		}
	}
	if o.Devices > MaxDevices-used {
		return nil, status.New(status.ResourceExhausted, "worker %s offers %s to an island that has %d; an island has at most %d", o.Name, status.Count(o.Devices, "device"), used, MaxDevices)
	}
	if is == nil {
		is = &Island{Name: o.Island, Index: len(m.islands)}
		m.islands = append(m.islands, is)
	}
	o.Versions = maps.Clone(o.Versions)
	o.Kinds = slices.Clone(o.Kinds)
	w := &Worker{Offer: o, Island: is, numbers: make([]int, 0, o.Devices), granted: make([]int, o.Devices), viewed: make([]int, o.Devices)}
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

// differ leaves of two fingerprints the facts that the other lacks.
func differ(a, b string) (string, string) {
	as, bs := strings.Split(a, ", "), strings.Split(b, ", ")
	without := func(facts, others []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(facts), func(f string) bool { return slices.Contains(others, f) }), ", ")
	}
	return without(as, bs), without(bs, as)
}

// Agree compares versions with those of all workers.
//
// Errors: FAILED_PRECONDITION, with both sides named.
func (m *Map) Agree(who string, versions map[string]string) error {
	for _, is := range m.islands {
		for _, w := range is.members {
			for _, key := range slices.Sorted(maps.Keys(versions)) {
				if have, ok := w.Versions[key]; ok && have != versions[key] {
					return status.New(status.FailedPrecondition, "%s has %s %s and worker %s has %s; install the same version on both", who, key, versions[key], w.Name, have)
				}
			}
		}
	}
	return nil
}

// Leave forgets a worker. The numbers of its devices are free for the next.
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

// Islands gives all islands that ever came, by index. The caller does not change
// the slice.
func (m *Map) Islands() []*Island { return m.islands }

// Workers gives the workers of an island by name. The caller does
// not change the slice.
func (is *Island) Workers() []*Worker { return is.members }

// View is a session's numbers for devices.
type View struct {
	devices []Device
	some    bool // it is of a number of devices that was asked for, see ViewOf
}

// View numbers the devices that are there now.
func (m *Map) View() *View {
	v := &View{}
	for _, is := range m.islands {
		for _, w := range is.members {
			for local, n := range w.numbers {
				v.devices = append(v.devices, Device{Worker: w.Offer.Worker, Local: local, Island: is, Number: n})
			}
		}
	}
	return v
}

// ViewOf numbers so many of the devices that are there, chosen as those of a slice
// are: of one island if one has enough; there, those that the fewest slices and
// views of this kind have; of these, as many as can be of one worker. Retire ends
// the view.
//
// Errors: INVALID_ARGUMENT for fewer than one, RESOURCE_EXHAUSTED where there are
// too few.
func (m *Map) ViewOf(devices int) (*View, error) {
	all := m.View()
	switch {
	case devices < 1:
		return nil, status.New(status.InvalidArgument, "a session of %s was asked for; expected at least 1", status.Count(devices, "device"))
	case devices > all.Len():
		return nil, status.New(status.ResourceExhausted, "a session of %s was asked for, and the cluster has %d in %s; start more workers, or ask for fewer devices", status.Count(devices, "device"), all.Len(), status.Count(len(m.workers), "worker"))
	}
	chosen, err := m.choose(all, Want{Devices: devices}, nil)
	if err != nil {
		return nil, err
	}
	v := &View{some: true}
	for _, d := range chosen {
		v.devices = append(v.devices, all.devices[d])
	}
	m.see(v, +1)
	return v, nil
}

// Retire ends a view: its devices are chosen for others again. It is called once
// for a view.
func (m *Map) Retire(v *View) {
	if v.some {
		m.see(v, -1)
	}
}

// see adds to how many views have a view's devices.
func (m *Map) see(v *View, by int) {
	for _, d := range v.devices {
		if w := m.workers[d.Worker]; w != nil {
			w.viewed[d.Local] += by
		}
	}
}

// Len is the number of virtual devices.
func (v *View) Len() int { return len(v.devices) }

// Device tells what is behind a virtual device, which is in [0, Len).
func (v *View) Device(virtual int) Device { return v.devices[virtual] }

// Span is devices of one worker in a row.
type Span struct {
	Worker uint64
	Local  int // the first
	Count  int
}

// Spans gives the virtual devices run-length coded.
func (v *View) Spans() []Span { return Spans(v.devices) }

// Spans gives devices run-length coded, in their order.
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
