package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// countable returns an error if so many objects, or bytes, cannot be counted.
func (l *Ledger) countable(specs []Spec) error {
	if len(specs) > l.Room() {
		return status.New(status.ResourceExhausted, "the ledger is full with %d objects; delete some arrays", l.live)
	}
	var all int64
	for i := range specs {
		s := &specs[i]
		if all += max(0, s.ShardBytes) * int64(len(s.Placement.devices)); all > maxCharge-l.space.total {
			return status.New(status.ResourceExhausted,
				"%q, and what is made with it, are more bytes than can be counted", s.Label)
		}
	}
	return nil
}

// Fits reports whether a request fits on all its devices at once: objects as specs say, where negative bytes are taken
// over from existing objects, and a computation on the placement of the first spec that takes temp bytes in addition.
// The placements must not be those of dropped owners.
func (l *Ledger) Fits(specs []Spec, temp int64) bool {
	d, _ := l.lacks(specs, temp, false)
	return d < 0
}

// WillFit reports whether a request would fit without the bytes that are leaving and without the computations under
// way: whether it is enough to wait for work that ends by itself.
func (l *Ledger) WillFit(specs []Spec, temp int64) bool {
	d, _ := l.lacks(specs, temp, true)
	return d < 0
}

// Possible reports whether a request would fit if nothing else were there.
func (l *Ledger) Possible(specs []Spec, temp int64) bool {
	possible := true
	l.look(specs, temp, true, func(d int, need int64) bool {
		possible = possible && need <= l.space.limits[d]
		return possible
	})
	return possible
}

// PossibleBeside reports whether a request would fit if only what an owner has were there.
func (l *Ledger) PossibleBeside(o Owner, specs []Spec, temp int64) bool {
	possible, a := true, l.owners[o]
	l.look(specs, temp, true, func(d int, need int64) bool {
		possible = possible && need+a.on(d) <= l.space.limits[d]
		return possible
	})
	return possible
}

// Shortest returns the device that lacks most for a request, and the bytes that the request needs there.
func (l *Ledger) Shortest(specs []Spec, temp int64) (device int, need int64) {
	most := int64(-1)
	l.look(specs, temp, false, func(d int, n int64) bool {
		if lacks := l.space.used[d] + l.space.temps[d] + n - l.space.limits[d]; lacks > most {
			device, need, most = d, n, lacks
		}
		return true
	})
	return device, need
}

// Blocked appends the devices that have no room for a request, even without what ends by itself.
func (l *Ledger) Blocked(specs []Spec, temp int64, into []int) []int {
	l.look(specs, temp, true, func(d int, _ int64) bool {
		into = append(into, d)
		return true
	})
	return into
}

// lacks returns a device that has no room for a request, with the bytes that the request needs there, or -1.
func (l *Ledger) lacks(specs []Spec, temp int64, later bool) (device int, need int64) {
	sp := &l.space
	if sp.limit == 0 || len(specs) == 0 {
		return -1, 0
	}
	if !later {
		first := specs[0].Placement.extent
		most, same := temp, true
		for i := range specs {
			most += max(0, specs[i].ShardBytes)
			same = same && (specs[i].ShardBytes <= 0 || specs[i].Placement.extent == first)
		}
		if room := sp.leastRoom(first); same && (room == noLimit || most+sp.rise <= room) {
			return -1, 0
		}
	}
	device = -1
	l.look(specs, temp, later, func(d int, n int64) bool {
		device, need = d, n
		return false
	})
	return device, need
}

// look calls found for each device that has no room for a request, with the bytes that the request needs there, until
// found returns false.
func (l *Ledger) look(specs []Spec, temp int64, later bool, found func(device int, need int64) bool) {
	sp := &l.space
	sp.fold()
	l.addNeeds(specs)
	more := true
	for i := range specs {
		for _, d := range specs[i].Placement.devices {
			need, limit, used := l.needs[d], sp.limits[d], sp.used[d]
			l.needs[d] = 0 // each device once, and clean for the next call
			beside := int64(0)
			if i == 0 {
				beside = temp
			}
			if later {
				used -= sp.leaves[d]
			} else {
				used += sp.temps[d]
				beside = max(0, beside-sp.temps[d])
			}
			if need += beside; more && limit > 0 && need > 0 && used+need > limit {
				more = found(int(d), need)
			}
		}
	}
}

// addNeeds adds what a request needs to needs.
func (l *Ledger) addNeeds(specs []Spec) {
	for len(l.needs) < len(l.space.limits) {
		l.needs = append(l.needs, 0)
	}
	for i := range specs {
		addTo(l.needs, specs[i].Placement.devices, specs[i].ShardBytes)
	}
}

// Has reports whether an owner has bytes on one of these devices that are not leaving.
func (l *Ledger) Has(o Owner, devices []int) bool {
	a := l.owners[o]
	if a == nil {
		return false
	}
	for e := a.extents; e != nil; e = e.next {
		if e.bytes > e.leaving && slices.ContainsFunc(devices, e.has) {
			return true
		}
	}
	return false
}

// On returns an owner's bytes on a device that are not leaving.
func (l *Ledger) On(o Owner, device int) int64 { return l.owners[o].on(device) }

// on is On. The nil account, of no owner, has nothing.
func (a *account) on(device int) (bytes int64) {
	if a == nil {
		return 0
	}
	for e := a.extents; e != nil; e = e.next {
		if e.has(device) {
			bytes += e.bytes - e.leaving
		}
	}
	return bytes
}

// Each calls f for each of an owner's placements that has bytes which are not leaving, with the bytes on each of its
// devices. It takes time in proportion to these placements, not to their devices. The devices passed to f do not
// change.
func (l *Ledger) Each(o Owner, f func(on Devices, bytes int64)) {
	a := l.owners[o]
	if a == nil {
		return
	}
	for e := a.extents; e != nil; e = e.next {
		if bytes := e.bytes - e.leaving; bytes > 0 {
			f(e.devices, bytes)
		}
	}
}

// Used adds the devices on which an owner has objects that are not retired, even without bytes, to a set, 64 in a word.
// It takes time in proportion to the owner's placements and to the set's words.
func (l *Ledger) Used(o Owner, into []uint64) []uint64 {
	a := l.owners[o]
	if a == nil {
		return into
	}
	for e := a.extents; e != nil; e = e.next {
		if e.objects > 0 {
			into = Placement{e}.AddTo(into)
		}
	}
	return into
}

// Uses returns a count that changes whenever the result of Used may change.
func (l *Ledger) Uses(o Owner) uint64 {
	if a := l.owners[o]; a != nil {
		return a.uses
	}
	return 0
}

// AddTo adds a placement's devices to a set, 64 in a word.
func (p Placement) AddTo(set []uint64) []uint64 {
	e := p.extent
	for last := int(e.devices[len(e.devices)-1]); len(set) <= last>>6; {
		set = append(set, 0)
	}
	if e.mask == nil && len(e.devices) > len(set) { // otherwise that is no slower
		e.mask = make([]uint64, e.devices[len(e.devices)-1]>>6+1)
		for _, d := range e.devices {
			e.mask[d>>6] |= 1 << (d & 63)
		}
	}
	if e.mask == nil {
		for _, d := range e.devices {
			set[d>>6] |= 1 << (d & 63)
		}
		return set
	}
	for i, word := range e.mask {
		set[i] |= word
	}
	return set
}

func labelOn(specs []Spec, d int) string {
	for i := range specs {
		if specs[i].Placement.has(d) {
			return specs[i].Label
		}
	}
	return ""
}

// exhausted is the error of objects that cannot have need bytes on device d; label is of one of them.
func (l *Ledger) exhausted(a *account, label string, d int, need int64) error {
	var b strings.Builder
	use := l.Device(d)
	fmt.Fprintf(&b, "out of memory on device %d: %q of %s needs %s, of a limit of %s",
		d, label, a.name, shape.BytesText(need), shape.BytesText(use.Limit))
	fmt.Fprintf(&b, "; %s is in use", shape.BytesText(use.InUse))
	if text := l.HoldersText(d); text != "" {
		b.WriteString(": " + text)
	}
	if need > use.Limit {
		b.WriteString("; use smaller arrays, or spread them over more devices")
	} else {
		b.WriteString("; delete arrays that are not needed, or donate inputs")
	}
	return status.New(status.ResourceExhausted, "%s", b.String())
}

// Holder is the objects of one owner with one label on one device.
type Holder struct {
	Owner   string // its name
	Label   string
	Objects int
	Bytes   int64 // on the device
}

// Holders returns the n biggest holders of a device's memory, without the temporary memory of computations. It examines
// every object of the ledger.
func (l *Ledger) Holders(d, n int) []Holder {
	type key struct {
		owner *account
		label string
	}
	here := make(map[*extent]bool)
	for _, a := range l.owners {
		for e := a.extents; e != nil; e = e.next {
			here[e] = e.has(d)
		}
	}
	index := make(map[key]int)
	var all []Holder
	for i := range l.slots {
		s := l.slot(i)
		if s.bytes == 0 || !here[s.extent] { // which no placement of a free slot is
			continue
		}
		k := key{s.extent.owner, s.label}
		j, ok := index[k]
		if !ok {
			j = len(all)
			index[k] = j
			all = append(all, Holder{Owner: k.owner.name, Label: k.label})
		}
		all[j].Objects++
		all[j].Bytes += s.bytes
	}
	slices.SortStableFunc(all, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all[:min(n, len(all))]
}

// HoldersText names the biggest holders of a device's memory for people, such as "8 MiB in 2 of params, session 1"; ""
// if there are none. It examines every object of the ledger.
func (l *Ledger) HoldersText(d int) string {
	const most = 4 // that a message names
	var all []string
	for _, h := range l.Holders(d, most) {
		all = append(all, fmt.Sprintf("%s in %d of %s, %s", shape.BytesText(h.Bytes), h.Objects, cmp.Or(h.Label, "an array"),
			h.Owner))
	}
	return strings.Join(all, ", ")
}
