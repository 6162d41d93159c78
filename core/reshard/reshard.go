// Package reshard plans how an array moves from shards on some devices to other
// shards on others: which region of which source shard becomes which region of which
// destination shard.
//
// # What it guarantees
//
// Every element of a destination shard comes from exactly one source shard. Of the
// sources that have it, the plan uses one on the same device, else one of the same
// worker, else one on the same host, else any; equally near sources take turns. Each destination
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
	"fmt"
	"slices"
	"sort"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Shard is the part of an array that one device has: the region of Size elements that
// begins at Start.
type Shard struct {
	Device      int
	Start, Size []int64
}

// Site is where a device is.
type Site struct {
	Worker uint64
	Host   string
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

// cell is a region of the array that each source shard has either whole or not at all.
type cell struct {
	shards []int // indices of sources
	turn   int   // which of several equally near sources is next
	// Of many sources, else nil: the source on a device, and those of a worker and on a host.
	device map[int]int
	worker map[uint64][]int
	host   map[string][]int
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

// New plans the move from some shards of an array to others. Site returns where a device
// is; if it is nil, all are of one worker.
//
// Errors: INVALID_ARGUMENT if a shard is not inside the array, or if the source shards
// are not a grid that covers it.
func New(dims []int64, from, to []Shard, site func(device int) Site) (*Plan, error) {
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
		site = func(int) Site { return Site{} }
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

// Steps plans the move as New does, and in two steps where several devices of a host need the same region from another
// host: first each of them gets a part of it, then they get the rest from each other. So no byte comes to a host twice.
//
// Errors: those of New.
func Steps(dims []int64, from, to []Shard, site func(device int) Site) ([]*Plan, error) {
	p, err := New(dims, from, to, site)
	if err != nil {
		return nil, err
	}
	var parts []Shard
	if site != nil && len(to) > 0 {
		parts = p.spread(site)
	}
	if parts == nil {
		return []*Plan{p}, nil
	}
	first, err := New(dims, from, parts, site)
	if err != nil {
		return nil, err
	}
	second, err := New(dims, parts, to, site)
	if err != nil { // the destination has gaps
		return []*Plan{p}, nil
	}
	return []*Plan{first, second}, nil
}

// stepFrom is from how many elements of a destination shard on a second step takes less time than it saves.
const stepFrom = 1 << 18

// spread cuts the destination shards so that all copies of a region on a host together have it once. It returns nil if
// no region would come to a host less often, or the shards cannot be cut into equal parts.
func (p *Plan) spread(site func(int) Site) []Shard {
	size := p.To[0].Size
	elements := int64(1)
	for _, n := range size {
		elements *= n
	}
	if elements < stepFrom || !p.crosses(site) {
		return nil
	}
	type region struct{ host, at string }
	copies := map[region][]int{}
	for t := range p.To {
		if !slices.Equal(p.To[t].Size, size) {
			return nil
		}
		r := region{site(p.To[t].Device).Host, fmt.Sprint(p.To[t].Start)}
		copies[r] = append(copies[r], t)
	}
	times := int64(len(p.To) / len(copies))
	along := slices.IndexFunc(size, func(n int64) bool { return n%times == 0 })
	if times == 1 || along < 0 {
		return nil
	}
	parts := make([]Shard, len(p.To))
	for _, same := range copies {
		if int64(len(same)) != times {
			return nil
		}
		for k, t := range same {
			s := Shard{p.To[t].Device, slices.Clone(p.To[t].Start), slices.Clone(size)}
			s.Size[along] /= times
			s.Start[along] += int64(k) * s.Size[along]
			parts[t] = s
		}
	}
	return parts
}

// crosses reports whether anything comes from another host.
func (p *Plan) crosses(site func(int) Site) bool {
	return slices.ContainsFunc(p.Pieces, func(v Piece) bool {
		return site(p.From[v.From].Device).Host != site(p.To[v.To].Device).Host
	})
}

func (s *Shard) check(dims []int64) error {
	if len(s.Start) != len(dims) || len(s.Size) != len(dims) {
		return status.New(status.InvalidArgument, "start %v and size %v: expected one number for each of %d dimensions",
			s.Start, s.Size, len(dims))
	}
	if !shape.Within(s.Start, s.Size, dims) {
		return status.New(status.InvalidArgument, "the region of size %v at %v is not inside an array of %v", s.Size,
			s.Start, dims)
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
func (c *cell) choose(from []Shard, device int, site func(int) Site) int {
	if len(c.shards) == 1 {
		return c.shards[0]
	}
	near := site(device)
	if len(c.shards) < many {
		best, rank := -1, -1
		for k := range c.shards {
			i := c.shards[(c.turn+k)%len(c.shards)]
			if from[i].Device == device {
				return i
			}
			if r := near.rank(site(from[i].Device)); r > rank {
				best, rank = i, r
			}
		}
		c.turn++
		return best
	}
	if c.device == nil {
		c.device, c.worker, c.host = make(map[int]int, len(c.shards)), map[uint64][]int{}, map[string][]int{}
		for _, i := range c.shards {
			d := from[i].Device
			at := site(d)
			c.device[d] = i
			c.worker[at.Worker] = append(c.worker[at.Worker], i)
			c.host[at.Host] = append(c.host[at.Host], i)
		}
	}
	if i, ok := c.device[device]; ok {
		return i
	}
	c.turn++
	for _, here := range [][]int{c.worker[near.Worker], c.host[near.Host]} {
		if len(here) > 0 {
			return here[c.turn%len(here)]
		}
	}
	return c.shards[c.turn%len(c.shards)]
}

// rank says how near another device is: more is nearer.
func (s Site) rank(other Site) int {
	switch {
	case s.Worker == other.Worker:
		return 2
	case s.Host == other.Host:
		return 1
	}
	return 0
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
