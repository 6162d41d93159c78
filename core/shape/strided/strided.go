// Package strided describes where the bytes of a region of an array lie in memory, and copies them from one such place
// to another.
//
// The bytes of a region have one order: that of a dense row-major array of the region's size. A Layout says where each
// of them lies, as runs of equal length at regular distances. So the sender and the receiver of a region need to agree
// on its size alone: each reads or writes the same order of bytes by a layout of its own, and any part of that order
// can travel by itself.
//
// The package is pure, and a Layout is a value that does not change.
package strided

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Layout says where the bytes of a region lie.
type Layout struct {
	Offset int64 // of the first byte
	Run    int64 // bytes that lie together, at each place that Dims name; 0 if the region is empty
	Dims   []Dim // from the outermost
}

// Dim is so many places, Step bytes from each to the next.
type Dim struct{ Count, Step int64 }

// MaxDims bounds the dimensions of a layout that comes from elsewhere. XLA's arrays have fewer.
const MaxDims = 64

// Dense returns the layout of contiguous bytes.
func Dense(bytes int64) Layout { return Layout{Run: bytes} }

// Of returns the layout of the region of a dense row-major array that begins at start, where elements have width bytes.
// The region lies in the array.
func Of(dims, start, size []int64, width int64) Layout {
	if slices.Contains(size, 0) {
		return Layout{}
	}
	l, step := Layout{Run: width}, width
	for k := len(dims) - 1; k >= 0; k-- {
		l.Offset += start[k] * step
		switch outer := len(l.Dims) - 1; {
		case size[k] == 1:
		case outer < 0 && step == l.Run:
			l.Run *= size[k]
		case outer >= 0 && step == l.Dims[outer].Count*l.Dims[outer].Step:
			l.Dims[outer].Count *= size[k]
		default:
			l.Dims = append(l.Dims, Dim{size[k], step})
		}
		step *= dims[k]
	}
	slices.Reverse(l.Dims)
	return l
}

// Bytes returns how many bytes the region has.
func (l Layout) Bytes() int64 {
	n := l.Run
	for _, d := range l.Dims {
		n *= d.Count
	}
	return n
}

// End returns the offset behind the last byte.
func (l Layout) End() int64 {
	end := l.Offset + l.Run
	for _, d := range l.Dims {
		end += (d.Count - 1) * d.Step
	}
	return end
}

// IsDense reports whether the bytes are contiguous.
func (l Layout) IsDense() bool { return len(l.Dims) == 0 }

// Check returns the offset behind the last byte of a layout that comes from elsewhere, which is to have so many bytes.
//
// Errors: INVALID_ARGUMENT.
func (l Layout) Check(bytes int64) (end int64, err error) {
	const most = 1 << 60 // so that nothing below overflows, and far above any memory
	wrong := func() (int64, error) {
		return 0, status.New(status.InvalidArgument, "a layout of runs of %d bytes at %d, %v, for %d bytes", l.Run, l.Offset,
			l.Dims, bytes)
	}
	if l.Offset < 0 || l.Offset > most || bytes > most || l.Run < 0 || l.Run > bytes || len(l.Dims) > MaxDims {
		return wrong()
	}
	end, n := l.Offset+l.Run, l.Run
	for _, d := range l.Dims {
		if d.Count < 1 || d.Step < 1 || l.Run == 0 || n > bytes/d.Count || d.Count-1 > (most-end)/d.Step {
			return wrong()
		}
		n *= d.Count
		end += (d.Count - 1) * d.Step
	}
	if n != bytes {
		return wrong()
	}
	return end, nil
}

// atOnce bounds a copy that cannot be interrupted: some 100 µs.
const atOnce = 1 << 20

// Copy copies a region from its place in src to its place in dst. Both layouts have as many bytes.
func Copy(dst []byte, to Layout, src []byte, from Layout) {
	in, out := from.From(0), to.From(0)
	for left := from.Bytes(); left > 0; {
		n := min(in.left, out.left, atOnce)
		copy(dst[out.at:out.at+n], src[in.at:in.at+n])
		in.advance(n)
		out.advance(n)
		left -= n
	}
}

// Cursor walks over the runs of a layout in their order.
type Cursor struct {
	layout Layout
	at     int64   // the next byte
	left   int64   // of its run
	place  []int64 // of the run, by dimension
}

// From returns a cursor at byte n of the region, which may be its end.
func (l Layout) From(n int64) Cursor {
	c := Cursor{layout: l, at: l.Offset, left: l.Run}
	if len(l.Dims) > 0 {
		c.place = make([]int64, len(l.Dims))
	}
	if l.Run == 0 {
		return c
	}
	run := n / l.Run
	for k := len(l.Dims) - 1; k >= 0; k-- {
		d := l.Dims[k]
		c.place[k] = run % d.Count
		c.at += c.place[k] * d.Step
		run /= d.Count
	}
	c.at += n % l.Run
	c.left = l.Run - n%l.Run
	return c
}

// Take returns the offset of the next bytes, and how many of them are contiguous, at most as many as asked for, and
// advances past them.
func (c *Cursor) Take(most int64) (at, n int64) {
	at, n = c.at, min(c.left, most)
	c.advance(n)
	return at, n
}

// advance passes n bytes of the run.
func (c *Cursor) advance(n int64) {
	c.at += n
	if c.left -= n; c.left > 0 {
		return
	}
	c.at -= c.layout.Run
	for k := len(c.place) - 1; k >= 0; k-- {
		d := c.layout.Dims[k]
		c.at += d.Step
		if c.place[k]++; c.place[k] < d.Count {
			break
		}
		c.at -= d.Count * d.Step
		c.place[k] = 0
	}
	c.left = c.layout.Run
}

// Slices appends the pieces of memory that hold bytes n to n+size of the region, in their order.
func (l Layout) Slices(to [][]byte, memory []byte, n, size int64) [][]byte {
	c := l.From(n)
	for size > 0 {
		at, k := c.Take(size)
		to = append(to, memory[at:at+k:at+k])
		size -= k
	}
	return to
}
