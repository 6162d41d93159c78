package placement

import (
	"cmp"
	"slices"
)

// Which devices a slice gets. Choosing takes time in proportion to the candidates, and allocates only the result once
// its scratch memory has grown to the size of the cluster.

// candidate is consecutive devices of one worker that may be granted, each at the same cost. Most often these are all
// of the worker's, so a search takes time for the cluster's workers rather than for its devices.
type candidate struct {
	device   int32 // virtual, the first
	number   int32 // in the whole cluster, the first
	count    int32
	run      int32 // of the view: of one worker
	island   int32 // the worker's, by its index
	free     bool  // they could be granted at once
	reserved bool  // for a request before; see appendParts
	cost     int64 // of each
}

// appendPart appends a candidate of count of another one's devices, from the one at index from on.
func appendPart(into []candidate, of *candidate, from, count int32) []candidate {
	into = append(into, *of)
	part := &into[len(into)-1]
	part.device, part.number, part.count = of.device+from, of.number+from, count
	return into
}

// appendParts appends a candidate in parts, of which each is reserved or not.
func appendParts(into []candidate, c *candidate, reserved Numbers) []candidate {
	for from := int32(0); from < c.count; {
		is, count := reserved.run(int(c.number+from), int(c.count-from))
		into = appendPart(into, c, from, int32(count))
		into[len(into)-1].reserved = is
		from += int32(count)
	}
	return into
}

// dropReserved removes those candidates that are reserved.
func dropReserved(from []candidate) []candidate {
	return slices.DeleteFunc(from, func(c candidate) bool { return c.reserved })
}

// The cost of a device that others have, and of one that is reserved for a request before: each is more than any number
// of slices on a device.
const (
	inUse     = 1 << 40
	outOfTurn = 1 << 38
)

// group is candidates that follow one another: of one worker, or of one island.
type group struct {
	lo, hi int32 // in the list of candidates
	offset int32 // at which its rows begin
	take   int32 // of its rows of the limit's cost, how many are chosen
	free   int32 // of them, how many are not
	used   bool
}

// choice is a possible result of choose. Fewer costs are better, then fewer groups.
type choice struct {
	cost   int64
	groups int // number of groups that the devices come from
}

// priced is rows of one cost.
type priced struct {
	cost int64
	rows int32
}

// chooser is scratch of choose.
type chooser struct {
	all     []candidate // of one device each where a row has several
	singles []candidate // scratch of all
	sums    []int64     // before each candidate; only where a row has several
	costs   []priced
	best    choice
	chosen  []candidate // of best
	groups  []group
	islands []group
	byFree  []int32
	starts  []int32
	row     int32
}

// choose returns devices for w among candidates; nil if there are too few. It takes devices of several islands only if
// several is true. The result is valid until the next call.
func (c *chooser) choose(all []candidate, w Want, several bool) []candidate {
	devices := 0
	for i := range all {
		devices += int(all[i].count)
	}
	if devices < w.Devices {
		return nil
	}
	c.all, c.row = all, 1
	if n := len(w.Topology); n > 0 {
		c.row = int32(w.Topology[n-1])
	}
	switch {
	case c.row > 1:
		c.single()
	case devices == w.Devices && (several || all[0].island == all[len(all)-1].island):
		return all // there is no choice
	}
	c.islands = c.split(c.islands[:0], 0, int32(len(c.all)), island)
	found := false
	for _, is := range c.islands {
		for _, by := range []unit{neighbors, anywhere} {
			c.groups = c.split(c.groups[:0], is.lo, is.hi, by)
			if c.pick(int32(w.Devices)/c.row, found) {
				found = true
				break
			}
		}
	}
	for _, by := range []unit{island, anywhere} {
		if found || !several {
			break
		}
		c.groups = c.split(c.groups[:0], 0, int32(len(c.all)), by)
		found = c.pick(int32(w.Devices)/c.row, false)
	}
	if !found {
		return nil
	}
	return c.chosen
}

// single makes each device a candidate of its own, since a row may begin at each, and sums up their costs.
func (c *chooser) single() {
	c.singles, c.sums = c.singles[:0], append(c.sums[:0], 0)
	sum := int64(0)
	for i := range c.all {
		for k := range c.all[i].count {
			sum += c.all[i].cost
			c.singles, c.sums = appendPart(c.singles, &c.all[i], k, 1), append(c.sums, sum)
		}
	}
	c.all = c.singles
}

// unit says which consecutive candidates form a group.
type unit uint8

const (
	neighbors unit = iota // consecutive devices of one worker
	island                // those of one island
	anywhere              // all
)

// split cuts a part of the candidates into groups.
func (c *chooser) split(into []group, lo, hi int32, by unit) []group {
	if lo == hi {
		return into
	}
	first := lo
	if by == island && c.all[lo].island == c.all[hi-1].island {
		by = anywhere // they are sorted by island
	}
	for i := lo + 1; i < hi && by != anywhere; i++ {
		a, b := &c.all[i-1], &c.all[i]
		together := a.island == b.island
		if by == neighbors {
			together = a.run == b.run && a.device+a.count == b.device
		}
		if !together {
			into = append(into, group{lo: first, hi: i})
			first = i
		}
	}
	return append(into, group{lo: first, hi: hi})
}

// cost returns the cost of a row that begins at a candidate. So many begin there as it has devices, see single.
func (c *chooser) cost(at int32) int64 {
	if c.row == 1 {
		return c.all[at].cost
	}
	return c.sums[at+c.row] - c.sums[at]
}

// tile makes a group's rows begin at the offset at which they cost least.
func (c *chooser) tile(g *group) {
	g.offset = g.lo
	if c.row == 1 {
		return
	}
	rows := (g.hi - g.lo) / c.row
	least := int64(-1)
	for offset := g.lo; offset+rows*c.row <= g.hi && rows > 0; offset++ {
		if total := c.sums[offset+rows*c.row] - c.sums[offset]; least < 0 || total < least {
			g.offset, least = offset, total
		}
	}
}

// pick takes the n cheapest rows from the groups, and among rows of the same cost as many as possible from one group.
// It reports whether there are n, and makes them the best if none was found yet or these are better.
func (c *chooser) pick(n int32, found bool) bool {
	c.costs = slices.Grow(c.costs[:0], len(c.all)/int(c.row))
	rows := int32(0)
	for i := range c.groups {
		g := &c.groups[i]
		c.tile(g)
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			c.costs = append(c.costs, priced{c.cost(at), c.all[at].count})
			rows += c.all[at].count
		}
	}
	if rows < n {
		return false
	}
	limit := smallest(c.costs, n-1) // all rows that cost less are taken, and some of those that cost as much
	got := c.share(limit, n)
	if found && cmp.Or(cmp.Compare(got.cost, c.best.cost), cmp.Compare(got.groups, c.best.groups)) >= 0 {
		return true
	}
	c.best, c.chosen = got, c.chosen[:0]
	for i := range c.groups {
		g := &c.groups[i]
		if !g.used {
			continue
		}
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			take := c.all[at].count
			if cost := c.cost(at); cost > limit {
				continue
			} else if cost == limit {
				take = min(take, g.take)
				g.take -= take
			}
			for k := int32(0); k < c.row && take > 0; k++ {
				c.chosen = appendPart(c.chosen, &c.all[at+k], 0, take)
			}
		}
	}
	return true
}

// smallest returns the cost of the row at index k of all rows sorted by cost. It reorders the list.
func smallest(list []priced, k int32) int64 {
	const most = 64 // rounds; each removes at least one of the costs that differ
	for range most {
		pivot := list[len(list)/2].cost
		less, equal := 0, 0
		cheaper, same := int32(0), int32(0) // rows of these
		for i, v := range list {            // less | equal | greater
			switch {
			case v.cost < pivot:
				list[i] = list[less+equal]
				list[less+equal] = list[less]
				list[less] = v
				less++
				cheaper += v.rows
			case v.cost == pivot:
				list[i] = list[less+equal]
				list[less+equal] = v
				equal++
				same += v.rows
			}
		}
		switch {
		case k < cheaper:
			list = list[:less]
		case k < cheaper+same:
			return pivot
		default:
			list, k = list[less+equal:], k-cheaper-same
		}
	}
	slices.SortFunc(list, func(a, b priced) int { return cmp.Compare(a.cost, b.cost) })
	for k >= list[0].rows {
		list, k = list[1:], k-list[0].rows
	}
	return list[0].cost
}

// share decides, for n rows that cost limit at most, how many that cost limit each group contributes. Groups that are
// used anyway come first: of these, as of the others, the smallest that has enough, otherwise the largest. It returns
// the cost of the rows, and the number of groups that contribute any.
func (c *chooser) share(limit int64, n int32) (got choice) {
	most := int32(0)
	for i := range c.groups {
		g := &c.groups[i]
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			rows := c.all[at].count
			switch cost := c.cost(at); {
			case cost < limit:
				g.used = true
				n -= rows
				got.cost += int64(rows) * cost
			case cost == limit:
				g.free += rows
			}
		}
		most = max(most, g.free)
	}
	got.cost += int64(n) * limit
	c.sortByFree(most)
	for _, used := range []bool{true, false} {
		var enough *group // the smallest that has enough
		for _, i := range c.byFree {
			g := &c.groups[i]
			if n == 0 || g.free < n && enough != nil {
				break
			}
			switch {
			case g.used != used || g.free == 0:
			case g.free >= n:
				if enough == nil || g.free < enough.free {
					enough = g
				}
			default:
				g.give(g.free, &n)
			}
		}
		if enough != nil && n > 0 {
			enough.give(n, &n)
		}
	}
	for i := range c.groups {
		if c.groups[i].used {
			got.groups++
		}
	}
	return got
}

// give takes some rows of the limit's cost from a group.
func (g *group) give(rows int32, n *int32) {
	g.take += rows
	g.free -= rows
	g.used = true
	*n -= rows
}

// sortByFree lists the groups by their free rows in byFree, those with most first, and groups with as many in their
// order.
func (c *chooser) sortByFree(most int32) {
	c.starts = append(c.starts[:0], make([]int32, most+2)...)
	for i := range c.groups {
		c.starts[most-c.groups[i].free+1]++
	}
	for i := 1; i < len(c.starts); i++ {
		c.starts[i] += c.starts[i-1]
	}
	c.byFree = append(c.byFree[:0], make([]int32, len(c.groups))...)
	for i := range c.groups {
		at := &c.starts[most-c.groups[i].free]
		c.byFree[*at] = int32(i)
		*at++
	}
}
