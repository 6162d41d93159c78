package worker

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
)

// A box is copied as its elements are, one by one.
func TestBoxIsCopiedElementByElement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rank := rapid.IntRange(0, 4).Draw(t, "rank")
		width := rapid.SampledFrom([]int64{1, 2, 4, 8}).Draw(t, "width")
		var b box
		var to []int64
		n, m, count := width, width, int64(1)
		for range rank {
			size := rapid.Int64Range(0, 4).Draw(t, "size")
			start := rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "start")
			at := rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "at")
			from := start + size + rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "rest")
			into := at + size + rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "rest")
			b.from, b.start, b.size, b.at, to = append(b.from, from), append(b.start, start), append(b.size, size),
				append(b.at, at), append(to, into)
			n, m, count = n*from, m*into, count*size
		}
		if err := b.check(); err != nil {
			t.Fatal(err)
		}
		src, got, want := make([]byte, n), make([]byte, m), make([]byte, m)
		for i := range src {
			src[i] = byte(1 + i)
		}
		b.copy(got, to, src, width)
		for k := range count {
			i, o, rest := int64(0), int64(0), k
			at := make([]int64, rank)
			for d := rank - 1; d >= 0; d-- {
				at[d], rest = rest%b.size[d], rest/b.size[d]
			}
			for d := range rank {
				i, o = i*b.from[d]+b.start[d]+at[d], o*to[d]+b.at[d]+at[d]
			}
			copy(want[o*width:(o+1)*width], src[i*width:])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%+v into %v of %d bytes: %v, want %v", b, to, width, got, want)
		}
	})
}

// A box outside its array is refused before anything is copied.
func TestBoxRefuses(t *testing.T) {
	for _, b := range []box{
		{from: []int64{4}, start: []int64{3}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{-1}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{0}, size: []int64{-2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{1 << 62}, size: []int64{4}, at: []int64{0}},
		{from: []int64{4, 4}, start: []int64{0}, size: []int64{1}, at: []int64{0}},
	} {
		if err := b.check(); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%+v: %v, want INVALID_ARGUMENT", b, err)
		}
	}
}
