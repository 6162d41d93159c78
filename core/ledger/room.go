package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// fits returns why there is no room for objects of an owner, or nil.
func (l *Ledger) fits(a *account, specs []Spec) error {
	if len(specs) > maxIndex-l.live-l.spent {
		return status.New(status.ResourceExhausted, "the ledger is full with %d objects; delete some arrays", l.live)
	}
	sp := &l.space
	var shards, all int64
	for i := range specs {
		s := &specs[i]
		if err := sp.validate(s); err != nil {
			return err
		}
		shards += s.ShardBytes
		if all += s.ShardBytes * int64(len(sp.placements[s.Placement].devices)); all > maxCharge-sp.total {
			return status.New(status.ResourceExhausted,
				"%q, and what is made with it, are more bytes than can be counted", s.Label)
		}
	}
	// No device has more than all placements together: mostly that is enough to know.
	if shards <= sp.minLimit-sp.shards {
		return nil
	}
	for len(l.needs) < len(sp.byDevice) {
		l.needs = append(l.needs, 0)
	}
	for i := range specs {
		for _, d := range sp.placements[specs[i].Placement].devices {
			l.needs[d] += specs[i].ShardBytes
		}
	}
	var err error
	for i := range specs {
		for _, d := range sp.placements[specs[i].Placement].devices {
			need, limit := l.needs[d], sp.limit(int(d))
			l.needs[d] = 0 // each device once, and clean for the next call
			if err == nil && limit > 0 && need > 0 && sp.device(int(d)) > limit-need {
				err = l.exhausted(a, specs[i].Label, int(d), need)
			}
		}
	}
	return err
}

// exhausted is the error of objects that cannot have need bytes on device d; label is of one of them.
func (l *Ledger) exhausted(a *account, label string, d int, need int64) error {
	var b strings.Builder
	limit := l.space.limit(d)
	fmt.Fprintf(&b, "out of memory on device %d: %q of %s needs %s, of a limit of %s",
		d, label, a.name, size(need), size(limit))
	fmt.Fprintf(&b, "; %s is in use", size(l.space.device(d)))
	const most = 3 // holders that a message names
	for i, h := range l.holders(d, most) {
		if i == 0 {
			b.WriteString("; biggest holders: ")
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s of %s in %d × array", size(h.bytes), h.owner.name, h.objects)
		if h.label != "" {
			fmt.Fprintf(&b, " %q", h.label)
		}
	}
	if need > limit {
		b.WriteString("; use smaller arrays, or spread them over more devices")
	} else {
		b.WriteString("; delete arrays that are not needed, or donate inputs")
	}
	return status.New(status.ResourceExhausted, "%s", b.String())
}

// holder is the objects on one device that have owner and label in common.
type holder struct {
	owner   *account
	label   string
	objects int
	bytes   int64 // on the device
}

// holders returns the n biggest holders of a device's memory. It looks at every object of the ledger.
func (l *Ledger) holders(d, n int) []holder {
	type key struct {
		owner *account
		label string
	}
	here := make([]bool, len(l.space.placements))
	for p := range here {
		here[p] = l.space.placements[p].has(d)
	}
	index := make(map[key]int)
	var all []holder
	for i := range l.slots {
		s := l.slot(i)
		if s.owner == nil || s.bytes == 0 || !here[s.placement] {
			continue
		}
		k := key{s.owner, s.label}
		j, ok := index[k]
		if !ok {
			j = len(all)
			index[k] = j
			all = append(all, holder{owner: s.owner, label: s.label})
		}
		all[j].objects++
		all[j].bytes += s.bytes
	}
	slices.SortStableFunc(all, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	return all[:min(n, len(all))]
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
