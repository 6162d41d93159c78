package store

import "fmt"

// check panics where the table's own rules do not hold. It looks at every object
// and runs under the build tag invariants.
func (t *Table) check() {
	sums := make([]extent, len(t.space.placements))
	owned := make(map[*account]int)
	byPurpose := make(map[*account]*[Purposes]int64)
	var shards, total int64
	live := 0
	for i := range t.slots {
		s := t.slot(i)
		if s.owner == nil {
			continue
		}
		live++
		owned[s.owner]++
		if byPurpose[s.owner] == nil {
			byPurpose[s.owner] = new([Purposes]int64)
		}
		contents := s.refs > 0 && (s.state == Pending || s.state == Ready)
		stays := contents || s.waits > 0 || s.pins > 0
		kept := s.holds > 0 || s.waits > 0 || s.pins > 0
		switch {
		case s.refs < 0 || s.waits < 0 || s.holds < 0 || s.pins < 0:
			panic(fmt.Sprintf("store: object %v has a negative count", s.id(i)))
		case s.refs == 0 && !kept:
			panic(fmt.Sprintf("store: nothing keeps object %v", s.id(i)))
		case s.charged != (contents || kept):
			panic(fmt.Sprintf("store: object %v is charged: %t, want %t", s.id(i), s.charged, !s.charged))
		case s.leaving != (s.charged && !stays):
			panic(fmt.Sprintf("store: object %v is leaving: %t, want %t", s.id(i), s.leaving, !s.leaving))
		case (s.state == Failed) != (s.err != nil):
			panic(fmt.Sprintf("store: object %v is %v with error %v", s.id(i), s.state, s.err))
		case s.owner.dropped && s.refs > 0:
			panic(fmt.Sprintf("store: object %v has references past its owner", s.id(i)))
		case t.owners[s.owner.owner] != s.owner:
			panic(fmt.Sprintf("store: object %v has a forgotten owner", s.id(i)))
		}
		if !s.charged {
			continue
		}
		n := int64(len(t.space.placements[s.placement].devices))
		sums[s.placement].bytes += s.bytes
		sums[s.placement].byPurpose[s.purpose] += s.bytes
		byPurpose[s.owner][s.purpose] += s.bytes * n
		if s.leaving {
			sums[s.placement].leaving += s.bytes
		}
		shards += s.bytes
		total += s.bytes * n
	}
	if live != t.live || shards != t.space.shards || total != t.space.total {
		panic(fmt.Sprintf("store: %d objects of %d bytes (%d a device) are counted, there are %d of %d (%d)",
			t.live, t.space.total, t.space.shards, live, total, shards))
	}
	for p := range sums {
		e := &t.space.placements[p]
		if e.bytes != sums[p].bytes || e.leaving != sums[p].leaving || e.byPurpose != sums[p].byPurpose {
			panic(fmt.Sprintf("store: placement %d counts %d bytes (%d leaving), there are %d (%d)", p, e.bytes, e.leaving, sums[p].bytes, sums[p].leaving))
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
		want := byPurpose[a]
		if want == nil {
			want = new([Purposes]int64)
		}
		if n != a.objects || n != owned[a] || a.byPurpose != *want || a.dropped && n == 0 {
			panic(fmt.Sprintf("store: owner %d counts %d objects, its list has %d, the table %d", o, a.objects, n, owned[a]))
		}
	}
	for d, n := range t.needs {
		if n != 0 {
			panic(fmt.Sprintf("store: a need of %d bytes is left on device %d", n, d))
		}
	}
}
