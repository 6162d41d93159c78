// Package reshard plans how an array moves from shards on some devices to other
// shards on others: which region of which source shard becomes which region of which
// destination shard.
//
// # What it guarantees
//
// Every element of a destination shard comes from exactly one source shard. Of the
// sources that have it, the plan uses one on the same device, else one at the same
// site (a worker or host), else any; equally near sources take turns. Each destination
// shard is cut into as few regions as the source's grid allows, and has at least one,
// even if it is empty.
//
// A plan depends only on the arguments of New, and costs time and memory in proportion
// to its number of regions.
//
// The package is pure: no goroutine, lock, clock or randomness. A Plan does not
// change once it is made, so any number of goroutines may read it.
package reshard

import (
	"slices"
	"sort"

	"github.com/openpathways/pathways/core/status"
)

// Shard is the part of an array that one device has: the region of Size elements that
// begins at Start.
type Shard struct {
	Device      int
	Start, Size []int64
}

// Piece is a region of one source shard that becomes a region of one destination shard.
type Piece struct {
	From, To int     // indices of the plan's sources and destinations
	Start    []int64 // of the region in the source shard
	At       []int64 // of the region in the destination shard
	Size     []int64
}

// Whole reports whether a piece covers both its source shard and its destination shard.
func (p *Plan) Whole(piece *Piece) bool {
	return slices.Equal(piece.Size, p.From[piece.From].Size) && slices.Equal(piece.Size, p.To[piece.To].Size)
}

// Plan describes how an array moves. It is read-only.
type Plan struct {
	Dims     []int64
	From, To []Shard
	// Pieces are sorted by destination.
	Pieces []Piece
	first  []int   // index of the first piece, by destination; the last entry is len(Pieces)
	room   []int64 // backs Start, At and Size of pieces to come
}

// Of returns the pieces of a destination shard.
func (p *Plan) Of(to int) []Piece { return p.Pieces[p.first[to]:p.first[to+1]] }

// cell is a region of the array; each source shard that has a part of it has all of it.
type cell struct {
	shards []int         // indices of sources
	device map[int]int   // source by device; nil unless there are many sources
	site   map[int][]int // sources by site; nil unless there are many sources
	turn   int           // which of several equally near sources is next
}

// many is the number of copies from which a table is faster than a search.
const many = 8

// grid describes how the source is cut: along each dimension, at the same places
// everywhere.
type grid struct {
	cuts  [][]int64 // by dimension: the beginnings of cells, and the array's end
	cells []cell    // row-major
}

func (g *grid) at(index []int) *cell {
	k := 0
	for d, i := range index {
		k = k*(len(g.cuts[d])-1) + i
	}
	return &g.cells[k]
}

// New plans the move from some shards of an array to others. Devices for which site
// returns the same number are near each other; if site is nil, all are.
//
// Errors: INVALID_ARGUMENT if a shard is not inside the array, or if the source shards
// are not a grid that covers it.
func New(dims []int64, from, to []Shard, site func(device int) int) (*Plan, error) {
	for i, s := range from {
		if err := s.check(dims); err != nil {
			return nil, status.Wrap(err, "source shard %d", i)
		}
	}
	for i, s := range to {
		if err := s.check(dims); err != nil {
			return nil, status.Wrap(err, "destination shard %d", i)
		}
	}
	if site == nil {
		site = func(int) int { return 0 }
	}
	g, err := cut(dims, from)
	if err != nil {
		return nil, err
	}
	p := &Plan{Dims: dims, From: from, To: to, first: make([]int, 0, len(to)+1)}
	n := len(dims)
	low, high, index := make([]int, n), make([]int, n), make([]int, n)
	for t := range to {
		p.first = append(p.first, len(p.Pieces))
		for d := range dims {
			low[d], high[d] = g.span(d, to[t].Start[d], to[t].Size[d])
		}
		if slices.Contains(to[t].Size, 0) { // one empty region
			for d := range dims {
				high[d] = low[d] + 1
			}
		}
		copy(index, low)
		for {
			p.add(t, g.at(index).choose(from, to[t].Device, site))
			if !next(index, low, high) {
				break
			}
		}
	}
	p.first, p.room = append(p.first, len(p.Pieces)), nil
	return p, nil
}

func (s *Shard) check(dims []int64) error {
	if len(s.Start) != len(dims) || len(s.Size) != len(dims) {
		return status.New(status.InvalidArgument, "start %v and size %v: expected one number for each of %d dimensions",
			s.Start, s.Size, len(dims))
	}
	for d, all := range dims {
		if s.Start[d] < 0 || s.Size[d] < 0 || s.Size[d] > all || s.Start[d] > all-s.Size[d] {
			return status.New(status.InvalidArgument, "the region of size %v at %v is not inside an array of %v", s.Size,
				s.Start, dims)
		}
	}
	return nil
}

// cut finds the grid of the source shards.
func cut(dims []int64, from []Shard) (*grid, error) {
	if len(from) == 0 {
		return nil, status.New(status.InvalidArgument, "the array has no source shards; expected at least one")
	}
	g := &grid{cuts: make([][]int64, len(dims))}
	want := 1
	for d, all := range dims {
		starts := make([]int64, 0, len(from)+1)
		for i := range from {
			if last := len(starts) - 1; last < 0 || starts[last] != from[i].Start[d] {
				starts = append(starts, from[i].Start[d])
			}
		}
		slices.Sort(starts)
		starts = slices.Compact(starts)
		if all == 0 {
			starts = starts[:1]
		}
		g.cuts[d] = append(starts, all)
		if want *= len(starts); starts[0] != 0 || want > len(from) {
			return nil, status.New(status.InvalidArgument, "the source shards do not cover the array along dimension %d", d)
		}
	}
	g.cells = make([]cell, want)
	index := make([]int, len(dims))
	for i := range from {
		for d := range dims {
			c := g.cuts[d]
			k, found := slices.BinarySearch(c[:len(c)-1], from[i].Start[d])
			if !found || c[k+1]-c[k] != from[i].Size[d] {
				return nil, status.New(status.InvalidArgument,
					"the source shards are not a grid: one has size %v at %v in an array of %v", from[i].Size, from[i].Start, dims)
			}
			index[d] = k
		}
		c := g.at(index)
		c.shards = append(c.shards, i)
	}
	for i := range g.cells {
		if len(g.cells[i].shards) == 0 {
			return nil, status.New(status.InvalidArgument, "the source shards leave out one of %d regions of the array", want)
		}
	}
	return g, nil
}

// span returns the first cell that a range overlaps along a dimension, and the one after
// the last. For an empty range it returns one cell.
func (g *grid) span(d int, start, size int64) (low, high int) {
	c := g.cuts[d]
	last := len(c) - 1
	low = sort.Search(last, func(i int) bool { return c[i+1] > start })
	low = min(low, last-1)
	high = low + 1
	for high < last && c[high] < start+size {
		high++
	}
	return low, high
}

// choose returns the nearest of the sources that have the cell.
func (c *cell) choose(from []Shard, device int, site func(int) int) int {
	if len(c.shards) == 1 {
		return c.shards[0]
	}
	near := site(device)
	if len(c.shards) < many {
		best, rank := -1, 0
		for k := range c.shards {
			i := c.shards[(c.turn+k)%len(c.shards)]
			switch {
			case from[i].Device == device:
				return i
			case rank < 2 && site(from[i].Device) == near:
				best, rank = i, 2
			case rank < 1:
				best, rank = i, 1
			}
		}
		c.turn++
		return best
	}
	if c.device == nil {
		c.device, c.site = make(map[int]int, len(c.shards)), map[int][]int{}
		for _, i := range c.shards {
			d := from[i].Device
			c.device[d] = i
			c.site[site(d)] = append(c.site[site(d)], i)
		}
	}
	if i, ok := c.device[device]; ok {
		return i
	}
	c.turn++
	if here := c.site[near]; len(here) > 0 {
		return here[c.turn%len(here)]
	}
	return c.shards[c.turn%len(c.shards)]
}

// add adds the piece that a source and a destination have in common.
func (p *Plan) add(to, from int) {
	n := len(p.Dims)
	if len(p.room) < 3*n {
		p.room = make([]int64, 3*n*min(max(len(p.To), len(p.Pieces)), 4096))
	}
	all := p.room[:3*n]
	p.room = p.room[3*n:]
	piece := Piece{From: from, To: to, Start: all[:n:n], At: all[n : 2*n : 2*n], Size: all[2*n:]}
	s, t := &p.From[from], &p.To[to]
	for d := range n {
		begin := max(s.Start[d], t.Start[d])
		end := min(s.Start[d]+s.Size[d], t.Start[d]+t.Size[d])
		begin = min(begin, end) // of an empty destination
		piece.Size[d] = end - begin
		if piece.Size[d] > 0 {
			piece.Start[d], piece.At[d] = begin-s.Start[d], begin-t.Start[d]
		}
	}
	p.Pieces = append(p.Pieces, piece)
}

// next advances index between low and high, the last dimension fastest, and reports
// whether it did.
func next(index, low, high []int) bool {
	for d := len(index) - 1; d >= 0; d-- {
		if index[d]++; index[d] < high[d] {
			return true
		}
		index[d] = low[d]
	}
	return false
}
