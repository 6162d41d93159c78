package ledger

import "fmt"

// check panics if one of the ledger's invariants does not hold. It examines every object, and runs only with the build
// tag invariants.
func (l *Ledger) check() {
	bytes, live := l.checkSlots()
	leaving, objects := map[*extent]int64{}, map[*extent]int{}
	for o, a := range l.owners {
		live -= l.checkLists(o, a, leaving, objects)
		checkExtents(o, a, bytes, leaving, objects)
	}
	if len(objects) != 0 {
		panic(fmt.Sprintf("ledger: %d placements with objects are in no list", len(objects)))
	}
	if live != 0 {
		panic(fmt.Sprintf("ledger: %d objects are in no list", live))
	}
	for e, n := range bytes {
		if n != 0 || e.bytes != 0 {
			panic(fmt.Sprintf("ledger: a placement with %d bytes is in no list", n))
		}
	}
	l.checkRises()
	for d, n := range l.needs {
		if n != 0 {
			panic(fmt.Sprintf("ledger: a need of %d bytes is left on device %d", n, d))
		}
	}
}

// checkSlots returns the bytes of each placement's objects, and how many objects there are.
func (l *Ledger) checkSlots() (bytes map[*extent]int64, live int) {
	bytes = map[*extent]int64{}
	var total int64
	for i := range l.slots {
		s := l.slot(i)
		if !s.isUsed() {
			continue
		}
		live++
		bytes[s.extent] += s.bytes
		total += s.bytes * int64(len(s.extent.devices))
	}
	if live != l.live || total != l.space.total {
		panic(fmt.Sprintf("ledger: %d objects of %d bytes are counted, there are %d of %d", l.live, l.space.total, live,
			total))
	}
	return bytes, live
}

// checkLists walks an owner's two lists. It returns how many objects are in them, and adds by placement those that live
// and the bytes of those that leave.
func (l *Ledger) checkLists(o Owner, a *account, leaving map[*extent]int64, objects map[*extent]int) (n int) {
	last := none
	for i := a.first; i != none; i = l.slot(i).next {
		s := l.slot(i)
		if s.extent.owner != a || s.prev != last || s.retired {
			panic(fmt.Sprintf("ledger: the list of owner %d is broken at slot %d", o, i))
		}
		if a.left {
			leaving[s.extent] += s.bytes
		} else {
			objects[s.extent]++
		}
		last = i
		n++
	}
	if last != a.last {
		panic(fmt.Sprintf("ledger: the list of owner %d ends at slot %d", o, int32(a.last)))
	}
	last = none
	for i := a.retired; i != none; i = l.slot(i).next {
		s := l.slot(i)
		if s.extent.owner != a || !s.retired || last != none && l.slot(last).horizon > s.horizon {
			panic(fmt.Sprintf("ledger: the list of what owner %d retired is broken at slot %d", o, i))
		}
		leaving[s.extent] += s.bytes
		last = i
		n++
	}
	if last != a.lastRetired {
		panic(fmt.Sprintf("ledger: the list of what owner %d retired ends at slot %d", o, int32(a.lastRetired)))
	}
	if n != a.live {
		panic(fmt.Sprintf("ledger: owner %d counts %d objects, there are %d", o, a.live, n))
	}
	return n
}

// checkExtents compares an owner's placements with the sums that were found, and removes these from the maps.
func checkExtents(o Owner, a *account, bytes, leaving map[*extent]int64, objects map[*extent]int) {
	for e := a.extents; e != nil; e = e.next {
		if e.objects != objects[e] {
			panic(fmt.Sprintf("ledger: a placement of owner %d counts %d objects, there are %d", o, e.objects, objects[e]))
		}
		delete(objects, e)
		if e.bytes != bytes[e] || e.leaving != leaving[e] || !e.linked || e.owner != a {
			panic(fmt.Sprintf("ledger: a placement of owner %d counts %d bytes, %d of them leaving, there are %d and %d",
				o, e.bytes, e.leaving, bytes[e], leaving[e]))
		}
		delete(bytes, e)
	}
}

// checkRises compares what placements have risen since the last fold with the sums of it.
func (l *Ledger) checkRises() {
	rise := int64(0)
	rises := map[*Group]int64{}
	for _, e := range l.space.dirty {
		more := max(0, e.bytes-e.folded)
		rise += more + max(0, e.temp-e.foldedTemp)
		rises[e.owner.group] += more
	}
	for _, a := range l.owners {
		if g := a.group; g != nil && g.rise != rises[g] {
			panic(fmt.Sprintf("ledger: a rise of %d bytes is counted in a group, there is one of %d", g.rise, rises[g]))
		}
	}
	if rise != l.space.rise {
		panic(fmt.Sprintf("ledger: a rise of %d bytes is counted, there is one of %d", l.space.rise, rise))
	}
}
