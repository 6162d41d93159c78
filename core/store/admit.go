package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// Admit starts a run: the holds on its inputs become those of running work, and its
// outputs and scratch are made, all at once. Each of these is pending and has one
// hold, which the run releases with those of its inputs when it has ended, and,
// but for Scratch, one reference, which is the caller's. Their IDs are appended to
// ids in the order of specs.
//
// Where the limit of a device leaves no room, nothing changes. With ok false and
// no error the run waits: Admit is to be called again when anything is freed. An
// error says that waiting does not help: that of the first input that has failed,
// or RESOURCE_EXHAUSTED where what is in use does not leave by itself. The run's
// holds are then to be abandoned.
func (t *Table) Admit(o Owner, inputs []ID, specs []Spec, ids []ID) (made []ID, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.account(o)
	if err != nil {
		return ids, false, err
	}
	taken, err := t.take(inputs)
	if err == nil {
		ok, err = t.fits(a, specs)
	}
	if !ok {
		for _, id := range inputs[:taken] {
			t.alive(id).waits++
		}
		return ids, false, err
	}
	for _, id := range inputs {
		s := t.alive(id)
		s.holds++
		t.settle(id, s)
	}
	for i := range specs {
		refs := int64(1)
		if specs[i].Purpose == Scratch {
			refs = 0
		}
		ids = append(ids, t.create(a, &specs[i], refs, 1))
	}
	t.verify()
	return ids, true, nil
}

// take takes one waiting hold off each input and says off how many it did. The
// accounts do not change before settle.
func (t *Table) take(inputs []ID) (taken int, err error) {
	for i, id := range inputs {
		s := t.alive(id)
		if s == nil || s.waits == 0 {
			return i, status.New(status.Internal, "input %v of a run is not held; Hold comes before Admit, once for each time it is an input", id)
		}
		if s.state == Failed {
			return i, s.err
		}
		s.waits--
	}
	return len(inputs), nil
}

// fits reports whether there is room for specs on every device, and an error where
// there will be none.
func (t *Table) fits(a *account, specs []Spec) (ok bool, err error) {
	if err := t.room(len(specs)); err != nil {
		return false, err
	}
	sp := &t.space
	var shards, all int64
	for i := range specs {
		if err := sp.validate(&specs[i]); err != nil {
			return false, err
		}
		shards += specs[i].ShardBytes
		if all += specs[i].ShardBytes * int64(len(sp.placements[specs[i].Placement].devices)); all > maxCharge-sp.total {
			return false, status.New(status.ResourceExhausted, "%q and the run's other objects are more than can be counted", specs[i].Label)
		}
	}
	// No device has more than all placements together: mostly that is enough to know.
	if shards <= sp.minLimit-sp.shards {
		return true, nil
	}
	for len(t.needs) < len(sp.byDevice) {
		t.needs = append(t.needs, 0)
	}
	for i := range specs {
		for _, d := range sp.placements[specs[i].Placement].devices {
			t.needs[d] += specs[i].ShardBytes
		}
	}
	ok = true
	for i := range specs {
		for _, d := range sp.placements[specs[i].Placement].devices {
			need, limit := t.needs[d], sp.limit(int(d))
			t.needs[d] = 0 // each device once, and clean for the next call
			if err != nil || need == 0 || limit == 0 {
				continue
			}
			bytes, leaving := sp.device(int(d))
			if bytes+need <= limit {
				continue
			}
			if ok = false; bytes-leaving+need > limit {
				err = t.exhausted(a, specs, int(d), need)
			}
		}
	}
	return ok, err
}

// exhausted is the error of a run that cannot have need bytes on device d.
func (t *Table) exhausted(a *account, specs []Spec, d int, need int64) error {
	bytes, leaving := t.space.device(d)
	var b strings.Builder
	label := ""
	for _, s := range specs {
		if s.Label != "" {
			label = s.Label
			break
		}
	}
	fmt.Fprintf(&b, "out of memory on device %d: %q of %s needs %s, of a limit of %s", d, label, a.name, size(need), size(t.space.limit(d)))
	fmt.Fprintf(&b, " %s is in use, and running work will free %s of it", size(bytes), size(leaving))
	for i, h := range t.holders(d, 3) {
		if i == 0 {
			b.WriteString("; biggest holders: ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(h.String())
	}
	if need > t.space.limit(d) {
		b.WriteString("; use smaller arrays, or spread them over more devices")
	} else {
		b.WriteString("; delete arrays that are not needed, or donate inputs")
	}
	return status.New(status.ResourceExhausted, "%s", b.String())
}

// Holder is the objects on one device that have owner, label and purpose in common.
type Holder struct {
	Owner   Owner
	Name    string // of the owner
	Gone    bool   // the owner was dropped
	Label   string
	Purpose Purpose
	Objects int
	Bytes   int64 // on the device
	Pinned  int64 // of Bytes, what is pinned from outside
}

// String writes the holder for messages.
func (h Holder) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s", size(h.Bytes), h.Name)
	if h.Gone {
		b.WriteString(" (closed)")
	}
	fmt.Fprintf(&b, " in %d × %s", h.Objects, h.Purpose)
	if h.Label != "" {
		fmt.Fprintf(&b, " %q", h.Label)
	}
	if h.Pinned > 0 {
		fmt.Fprintf(&b, " (%s held by NumPy, DLPack or Arrow)", size(h.Pinned))
	}
	return b.String()
}

// Holders gives the n biggest holders of a device's memory. It looks at every
// object of the table.
func (t *Table) Holders(device, n int) []Holder {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holders(device, n)
}

func (t *Table) holders(d, n int) []Holder {
	type key struct {
		owner   *account
		label   string
		purpose Purpose
	}
	here := make([]bool, len(t.space.placements))
	for p := range here {
		here[p] = t.space.placements[p].has(d)
	}
	index := make(map[key]int)
	var all []Holder
	for i := range t.slots {
		s := t.slot(i)
		if !s.charged || s.bytes == 0 || !here[s.placement] {
			continue
		}
		k := key{s.owner, s.label, s.purpose}
		j, ok := index[k]
		if !ok {
			j = len(all)
			index[k] = j
			all = append(all, Holder{Owner: s.owner.owner, Name: s.owner.name, Gone: s.owner.dropped, Label: s.label, Purpose: s.purpose})
		}
		all[j].Objects++
		all[j].Bytes += s.bytes
		if s.pins > 0 {
			all[j].Pinned += s.bytes
		}
	}
	slices.SortStableFunc(all, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all[:min(max(n, 0), len(all))]
}

// size writes bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
