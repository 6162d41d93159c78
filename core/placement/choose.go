package placement

import (
	"cmp"
	"slices"
)

// Which devices a slice gets. Choosing takes time in proportion to the candidates, and allocates only the result once
// its scratch memory has grown to the size of the cluster.

// candidate is a device that may be granted.
type candidate struct {
	device int32 // virtual
	number int32 // in the whole cluster
	run    int32 // of the view: of one worker
	free   bool  // it could be granted at once
	cost   int64
}

// inUse is the cost of reserving a device that others have; it is more than any number of slices on a device.
const inUse = 1 << 40

// group is candidates that follow one another: of one worker, or of one island.
type group struct {
	lo, hi int // in the list of candidates
	offset int // at which its rows begin
	take   int // of its rows of the limit's cost, how many are chosen
	free   int // of them, how many are not
	used   bool
}

// choice is a possible result of choose. Fewer costs are better, then fewer groups.
type choice struct {
	candidates []int32 // indices
	cost       int64
	groups     int // number of groups that the devices come from
}

// chooser is scratch of choose.
type chooser struct {
	view    *View
	all     []candidate
	sums    []int64 // before each candidate; only where a row has several
	costs   []int64
	groups  []group
	islands []group
	byFree  []int
	starts  []int
	row     int
}

// choose returns the indices of devices for w among candidates, of which there must be enough. It takes devices of
// several islands only if several is true.
func (c *chooser) choose(view *View, all []candidate, w Want, several bool) []int32 {
	c.view, c.all, c.row = view, all, 1
	if n := len(w.Topology); n > 0 {
		c.row = w.Topology[n-1]
	}
	if c.row > 1 {
		c.sums = append(c.sums[:0], 0)
		sum := int64(0)
		for i := range all {
			sum += all[i].cost
			c.sums = append(c.sums, sum)
		}
	}
	c.islands = c.split(c.islands[:0], 0, len(all), island)
	var best choice
	found := false
	for _, is := range c.islands {
		for _, by := range []unit{neighbors, anywhere} {
			c.groups = c.split(c.groups[:0], is.lo, is.hi, by)
			if c.pick(w.Devices/c.row, &best, found) {
				found = true
				break
			}
		}
	}
	for _, by := range []unit{island, anywhere} {
		if found || !several {
			break
		}
		c.groups = c.split(c.groups[:0], 0, len(all), by)
		found = c.pick(w.Devices/c.row, &best, false)
	}
	return best.candidates
}

// unit says which consecutive candidates form a group.
type unit uint8

const (
	neighbors unit = iota // consecutive devices of one worker
	island                // those of one island
	anywhere              // all
)

// split cuts a part of the candidates into groups.
func (c *chooser) split(into []group, lo, hi int, by unit) []group {
	if lo == hi {
		return into
	}
	first := lo
	for i := lo + 1; i < hi && by != anywhere; i++ {
		a, b := &c.all[i-1], &c.all[i]
		together := a.run == b.run
		if by == neighbors {
			together = together && a.device+1 == b.device
		} else if !together {
			together = c.view.runs[a.run].worker.Island == c.view.runs[b.run].worker.Island
		}
		if !together {
			into = append(into, group{lo: first, hi: i})
			first = i
		}
	}
	return append(into, group{lo: first, hi: hi})
}

// cost returns the cost of the row that begins at a candidate.
func (c *chooser) cost(at int) int64 {
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
// It reports whether there are n, and sets best if there is none yet or these are better.
func (c *chooser) pick(n int, best *choice, found bool) bool {
	c.costs = slices.Grow(c.costs[:0], len(c.all)/c.row)
	for i := range c.groups {
		g := &c.groups[i]
		c.tile(g)
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			c.costs = append(c.costs, c.cost(at))
		}
	}
	if len(c.costs) < n {
		return false
	}
	limit := smallest(c.costs, n-1) // all rows that cost less are taken, and some of those that cost as much
	got := c.share(limit, n)
	if found && cmp.Or(cmp.Compare(got.cost, best.cost), cmp.Compare(got.groups, best.groups)) >= 0 {
		return true
	}
	got.candidates = make([]int32, 0, n*c.row)
	for i := range c.groups {
		g := &c.groups[i]
		if !g.used {
			continue
		}
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			if cost := c.cost(at); cost == limit && g.take > 0 {
				g.take--
			} else if cost >= limit {
				continue
			}
			for k := range c.row {
				got.candidates = append(got.candidates, int32(at+k))
			}
		}
	}
	*best = got
	return true
}

// smallest returns the number at index k of the sorted list. It reorders the list.
func smallest(list []int64, k int) int64 {
	const most = 64 // rounds; each removes at least one of the costs that differ
	for range most {
		pivot := list[len(list)/2]
		less, equal := 0, 0
		for i, v := range list { // less | equal | greater
			switch {
			case v < pivot:
				list[i] = list[less+equal]
				list[less+equal] = list[less]
				list[less] = v
				less++
			case v == pivot:
				list[i] = list[less+equal]
				list[less+equal] = v
				equal++
			}
		}
		switch {
		case k < less:
			list = list[:less]
		case k < less+equal:
			return pivot
		default:
			list, k = list[less+equal:], k-less-equal
		}
	}
	slices.Sort(list)
	return list[k]
}

// share decides, for n rows that cost limit at most, how many that cost limit each group contributes. Groups that are
// used anyway come first: of these, as of the others, the smallest that has enough, otherwise the largest. It returns
// the cost of the rows, and the number of groups that contribute any.
func (c *chooser) share(limit int64, n int) (got choice) {
	most := 0
	for i := range c.groups {
		g := &c.groups[i]
		for at := g.offset; at+c.row <= g.hi; at += c.row {
			switch cost := c.cost(at); {
			case cost < limit:
				g.used = true
				n--
				got.cost += cost
			case cost == limit:
				g.free++
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
func (g *group) give(rows int, n *int) {
	g.take += rows
	g.free -= rows
	g.used = true
	*n -= rows
}

// sortByFree lists the groups by their free rows in byFree, those with most first, and groups with as many in their
// order.
func (c *chooser) sortByFree(most int) {
	c.starts = append(c.starts[:0], make([]int, most+2)...)
	for i := range c.groups {
		c.starts[most-c.groups[i].free+1]++
	}
	for i := 1; i < len(c.starts); i++ {
		c.starts[i] += c.starts[i-1]
	}
	c.byFree = append(c.byFree[:0], make([]int, len(c.groups))...)
	for i := range c.groups {
		at := &c.starts[most-c.groups[i].free]
		c.byFree[*at] = i
		*at++
	}
}
