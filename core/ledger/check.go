package ledger

import "fmt"

// check panics where the ledger's own rules do not hold. It looks at every object
// and runs under the build tag invariants.
func (l *Ledger) check() {
	sums := make([]int64, len(l.space.placements))
	owned := make(map[*account]int)
	var shards, total int64
	live := 0
	for i := range l.slots {
		s := l.slot(i)
		if s.owner == nil {
			continue
		}
		live++
		owned[s.owner]++
		sums[s.placement] += s.bytes
		shards += s.bytes
		total += s.bytes * int64(len(l.space.placements[s.placement].devices))
	}
	if live != l.live || shards != l.space.shards || total != l.space.total {
		panic(fmt.Sprintf("ledger: %d objects of %d bytes (%d a device) are counted, there are %d of %d (%d)",
			l.live, l.space.total, l.space.shards, live, total, shards))
	}
	for p := range sums {
		if e := &l.space.placements[p]; e.bytes != sums[p] {
			panic(fmt.Sprintf("ledger: placement %d counts %d bytes, there are %d", p, e.bytes, sums[p]))
		}
	}
	for o, a := range l.owners {
		n := 0
		for i, prev := a.first, none; i != none; i, prev = l.slot(i).next, i {
			if s := l.slot(i); s.owner != a || s.prev != prev {
				panic(fmt.Sprintf("ledger: the list of owner %d is broken at slot %d", o, i))
			}
			n++
		}
		if n != owned[a] {
			panic(fmt.Sprintf("ledger: the list of owner %d has %d objects, the ledger %d", o, n, owned[a]))
		}
		delete(owned, a)
	}
	if len(owned) > 0 {
		panic(fmt.Sprintf("ledger: objects of %d owners that are not known are left", len(owned)))
	}
	for d, n := range l.needs {
		if n != 0 {
			panic(fmt.Sprintf("ledger: a need of %d bytes is left on device %d", n, d))
		}
	}
}
