package store

import "fmt"

// check panics where the table's own rules do not hold. It looks at every object
// and runs under the build tag invariants.
func (t *Table) check() {
	sums := make([]int64, len(t.space.placements))
	owned := make(map[*account]int)
	var shards, total int64
	live := 0
	for i := range t.slots {
		s := t.slot(i)
		if s.owner == nil {
			continue
		}
		live++
		owned[s.owner]++
		sums[s.placement] += s.bytes
		shards += s.bytes
		total += s.bytes * int64(len(t.space.placements[s.placement].devices))
	}
	if live != t.live || shards != t.space.shards || total != t.space.total {
		panic(fmt.Sprintf("store: %d objects of %d bytes (%d a device) are counted, there are %d of %d (%d)",
			t.live, t.space.total, t.space.shards, live, total, shards))
	}
	for p := range sums {
		if e := &t.space.placements[p]; e.bytes != sums[p] {
			panic(fmt.Sprintf("store: placement %d counts %d bytes, there are %d", p, e.bytes, sums[p]))
		}
	}
	for o, a := range t.owners {
		n := 0
		for i, prev := a.first, none; i != none; i, prev = t.slot(i).next, i {
			if s := t.slot(i); s.owner != a || s.prev != prev {
				panic(fmt.Sprintf("store: the list of owner %d is broken at slot %d", o, i))
			}
			n++
		}
		if n != owned[a] {
			panic(fmt.Sprintf("store: the list of owner %d has %d objects, the table %d", o, n, owned[a]))
		}
		delete(owned, a)
	}
	if len(owned) > 0 {
		panic(fmt.Sprintf("store: objects of %d owners that are not known are left", len(owned)))
	}
	for d, n := range t.needs {
		if n != 0 {
			panic(fmt.Sprintf("store: a need of %d bytes is left on device %d", n, d))
		}
	}
}
