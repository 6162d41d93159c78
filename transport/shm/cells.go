package shm

import "slices"

// slab is a run of equal cells.
type slab struct {
	segment *Segment
	offset  int64
	cell    int64
	cells   int32
	fresh   int32   // cells from here on were never given out
	free    []int32 // cells that came back
	live    int32
}

// take finds a block in the segments there are.
func (a *Arena) take(owner uint64, size int) *Block {
	b := a.find(size)
	if b == nil {
		return nil
	}
	s := b.Segment
	b.Data = s.data[b.Offset : b.Offset+int64(size) : b.Offset+int64(size)]
	if s.live == 0 {
		if i := slices.Index(a.pool.idle, s); i >= 0 {
			a.pool.idle = slices.Delete(a.pool.idle, i, i+1)
		}
	}
	s.live++
	b.owner = owner
	a.count(owner, int64(size))
	return b
}

func (a *Arena) find(size int) *Block {
	if size <= largestCell {
		cell := cellFor(size)
		slabs := &a.slabs[cell/align]
		if len(*slabs) == 0 {
			s, offset := a.run(slabFor(cell))
			if s == nil {
				return nil
			}
			*slabs = append(*slabs, &slab{segment: s, offset: offset, cell: cell, cells: int32(slabFor(cell) / cell)})
		}
		l := (*slabs)[len(*slabs)-1]
		b := l.take()
		if len(l.free) == 0 && l.fresh == l.cells {
			*slabs = (*slabs)[:len(*slabs)-1]
		}
		return b
	}
	length := roundUp(int64(size), page)
	s, offset := a.run(length)
	if s == nil {
		return nil
	}
	return &Block{Segment: s, Offset: offset, length: length}
}

// run takes pages out of a segment.
func (a *Arena) run(length int64) (*Segment, int64) {
	for range 2 {
		for _, s := range a.segments {
			if s.retired {
				continue
			}
			if offset := s.take(length); offset >= 0 {
				return s, offset
			}
		}
		if !a.sweep() {
			break
		}
	}
	return nil, 0
}

// sweep dissolves slabs without blocks.
func (a *Arena) sweep() (swept bool) {
	for i, slabs := range a.slabs {
		a.slabs[i] = slices.DeleteFunc(slabs, func(l *slab) bool {
			if l.live > 0 {
				return false
			}
			l.segment.give(l.offset, slabFor(l.cell))
			swept = true
			return true
		})
	}
	return swept
}

func (l *slab) take() *Block {
	var i int32
	if n := len(l.free); n > 0 {
		i = l.free[n-1]
		l.free = l.free[:n-1]
	} else if l.fresh < l.cells {
		i = l.fresh
		l.fresh++
	} else {
		panic("shm: a slab without room is kept as one with room")
	}
	l.live++
	return &Block{Segment: l.segment, Offset: l.offset + int64(i)*l.cell, slab: l}
}

// cellFor rounds to the cells there are: multiples of 64 bytes, eight to a
// doubling.
func cellFor(size int) int64 {
	units := (int64(size) + align - 1) / align
	step := int64(1)
	for units > 8*step*2 {
		step *= 2
	}
	return roundUp(units, step) * align
}

// slabFor is the length of a slab.
func slabFor(cell int64) int64 { return roundUp(max(slabSize, 8*cell), page) }

// shareFor is how much of a segment a block takes, with its share of what a slab's cells leave.
func shareFor(size int) int64 {
	if size > largestCell {
		return roundUp(int64(size), page)
	}
	cell := cellFor(size)
	cells := slabFor(cell) / cell
	return (slabFor(cell) + cells - 1) / cells
}

// segmentFor is the size of a segment made for a block in an arena of so many
// bytes: as much as it has, within bounds.
func segmentFor(size int, has int64) int64 {
	need := roundUp(int64(size), page)
	if size <= largestCell {
		need = slabFor(cellFor(size))
	}
	return roundUp(max(need, min(has, grownAtMost)), huge)
}
