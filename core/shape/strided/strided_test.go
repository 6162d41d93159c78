package strided

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// region is a region of an array of bytes, and its twin: the offset of each byte, found element by element.
type region struct {
	layout Layout
	size   []int64 // bytes of the array
	at     []int64 // of the region's bytes, in their order
}

func drawn(t *rapid.T, size []int64, width int64) region {
	dims, start := make([]int64, len(size)), make([]int64, len(size))
	all := width
	for k, n := range size {
		start[k] = rapid.Int64Range(0, 2).Draw(t, "start")
		dims[k] = start[k] + n + rapid.Int64Range(0, 2).Draw(t, "behind")
		all *= dims[k]
	}
	r := region{layout: Of(dims, start, size, width), size: []int64{all}}
	var walk func(k int, at int64)
	walk = func(k int, at int64) {
		if k == len(size) {
			for b := range width {
				r.at = append(r.at, at*width+b)
			}
			return
		}
		for i := range size[k] {
			walk(k+1, at*dims[k]+start[k]+i)
		}
	}
	walk(0, 0)
	return r
}

// A region is copied byte for byte, as a whole and from any byte of it on, and nothing beside it is touched.
func TestRegionsAreCopiedByteForByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "size")
		width := rapid.SampledFrom([]int64{1, 2, 4, 8, 16}).Draw(t, "width")
		from, to := drawn(t, size, width), drawn(t, size, width)
		statustest.MustEqual(t, from.layout.Bytes(), int64(len(from.at)), "bytes of %+v", from.layout)
		if end, err := from.layout.Check(int64(len(from.at))); err != nil || end > from.size[0] {
			t.Fatalf("%+v ends at %d of %d: %v", from.layout, end, from.size[0], err)
		}
		src := rapid.SliceOfN(rapid.Byte(), int(from.size[0]), int(from.size[0])).Draw(t, "src")
		dst := bytes.Repeat([]byte{0xee}, int(to.size[0]))
		want := bytes.Clone(dst)
		for i, at := range from.at {
			want[to.at[i]] = src[at]
		}
		Copy(dst, to.layout, src, from.layout)
		if !bytes.Equal(dst, want) {
			t.Fatalf("copied %+v to %+v: %x, want %x", from.layout, to.layout, dst, want)
		}
		if len(from.at) == 0 {
			return
		}
		n := rapid.IntRange(0, len(from.at)-1).Draw(t, "from")
		k := rapid.IntRange(0, len(from.at)-n).Draw(t, "bytes")
		got := bytes.Join(from.layout.Slices(nil, src, int64(n), int64(k)), nil)
		for i := range k {
			if got[i] != src[from.at[n+i]] {
				t.Fatalf("bytes %d to %d of %+v are %x", n, n+k, from.layout, got)
			}
		}
	})
}

// A layout of another process that does not have the bytes it should, or that overflows, is refused.
func TestWrongLayoutsAreRefused(t *testing.T) {
	const far = 1 << 61 // more than any memory
	for _, l := range []Layout{
		{Offset: -1, Run: 8}, {Run: -8}, {Run: 9}, {Run: 7}, {}, {Offset: far, Run: 8},
		{Run: 4, Dims: []Dim{{2, 0}}}, {Run: 4, Dims: []Dim{{2, -4}}}, {Run: 4, Dims: []Dim{{-2, 4}}},
		{Run: 4, Dims: []Dim{{1 << 40, 1 << 40}}}, {Run: 4, Dims: []Dim{{2, far + far}}},
		{Run: 0, Dims: []Dim{{8, 1}}}, {Run: 8, Dims: make([]Dim, MaxDims+1)},
	} {
		if end, err := l.Check(8); err == nil {
			t.Errorf("%+v passes, and ends at %d", l, end)
		}
	}
	if end, err := (Layout{Offset: 3, Run: 4, Dims: []Dim{{2, 10}}}).Check(8); err != nil || end != 17 {
		t.Errorf("a right one ends at %d: %v", end, err)
	}
	statustest.Checkf(t, statustest.Of((Layout{}).Check(0)), "the empty one")
}
