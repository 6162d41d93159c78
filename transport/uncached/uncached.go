// Package uncached copies memory past the processor's caches, for what is not read soon: it would push out of them what
// is. Every function here may be called from any goroutine.
package uncached

import "github.com/openpathways/pathways/core/shape/strided"

const (
	// shortest is the shortest run that is written past the caches: a line of which one store writes a part costs more
	// than it saves.
	shortest = 512
	// fenced is the shortest that Copy waits for.
	fenced = 4 << 10
	// atOnce bounds what Spread copies of one region before it looks at the others.
	atOnce = 1 << 20
	// whole is the alignment of a region's pieces.
	whole = 4 << 10
)

// Copy copies as many bytes as dst has.
func Copy(dst, src []byte) {
	if len(dst) < fenced {
		copy(dst, src)
		return
	}
	stream(dst, src)
	fence()
}

// Target is the destination of a region of an array, and its source. Both layouts have as many bytes.
type Target struct {
	Dst      []byte
	To, From strided.Layout
}

// Spread copies one of so many pieces of each of some regions of an array. It reads the array in the order of memory:
// where regions lie side by side, as the columns of a matrix do, one copied after the other reads a little at many
// places, which takes twice as long.
func Spread(src []byte, targets []Target, piece, pieces int64) (bytes int64) {
	type copying struct {
		dst     []byte
		in, out strided.Cursor
		left    int64 // of the piece
		at, n   int64 // the bytes that are next
	}
	next := func(c *copying) { c.at, c.n = c.in.Take(min(c.left, atOnce)) }
	all := make([]copying, 0, len(targets))
	for _, t := range targets {
		size := t.From.Bytes()
		begin, end := cut(size, piece, pieces), cut(size, piece+1, pieces)
		if begin < end {
			bytes += end - begin
			c := copying{dst: t.Dst, in: t.From.From(begin), out: t.To.From(begin), left: end - begin}
			next(&c)
			all = append(all, c)
		}
	}
	for len(all) > 0 {
		first := 0
		for i := range all {
			if all[i].at < all[first].at {
				first = i
			}
		}
		c := &all[first]
		to, n := c.out.Take(c.n)
		stream(c.dst[to:to+n], src[c.at:c.at+n])
		c.at, c.n, c.left = c.at+n, c.n-n, c.left-n
		switch {
		case c.left == 0:
			all[first] = all[len(all)-1]
			all = all[:len(all)-1]
		case c.n == 0:
			next(c)
		}
	}
	fence()
	return bytes
}

// cut returns where a piece of a region of so many bytes begins: in regions of the same size at the same byte.
func cut(size, piece, pieces int64) int64 {
	if piece == pieces {
		return size
	}
	return size / pieces * piece &^ (whole - 1)
}
