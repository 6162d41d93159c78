package uncached

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status/statustest"
)

// random returns n bytes.
func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// The same bytes are copied as by copy, from and to any address, and no others are written.
func TestCopiesLikeCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3*fenced).Draw(t, "bytes")
		from, to := rapid.IntRange(0, 200).Draw(t, "from"), rapid.IntRange(0, 200).Draw(t, "to")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		src, got := random(rng, 200+n), random(rng, 400+n)
		want := bytes.Clone(got)
		copy(want[to:to+n], src[from:from+n])
		Copy(got[to:to+n], src[from:from+n])
		if !bytes.Equal(got, want) {
			t.Fatal("the bytes differ")
		}
	})
}

// Regions of one array are copied together as they are one by one, whole or in any number of pieces.
func TestSpreadsRegionsAsTheyAreCopied(t *testing.T) {
	const rows, columns = 40, 16
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.SampledFrom([]int64{1, 4, 700}).Draw(t, "width")
		starts := rapid.SliceOfN(rapid.Int64Range(0, columns/2), 0, 5).Draw(t, "starts")
		n := rapid.Int64Range(0, rows).Draw(t, "rows")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		src := random(rng, int(rows*columns*width))
		var targets []Target
		var want [][]byte
		for _, start := range starts {
			size := []int64{n, rapid.Int64Range(1, columns/2).Draw(t, "columns")}
			from := strided.Of([]int64{rows, columns}, []int64{rows - n, start}, size, width)
			to := strided.Of([]int64{rows, columns}, []int64{0, start}, size, width)
			if rapid.Bool().Draw(t, "dense") {
				to = strided.Dense(from.Bytes())
			}
			dst := random(rng, len(src))
			copied := bytes.Clone(dst)
			strided.Copy(copied, to, src, from)
			want, targets = append(want, copied), append(targets, Target{dst, to, from})
		}
		pieces := rapid.Int64Range(1, 5).Draw(t, "pieces")
		var total int64
		for _, piece := range rng.Perm(int(pieces)) {
			total += Spread(src, targets, int64(piece), pieces)
		}
		for i, target := range targets {
			if !bytes.Equal(target.Dst, want[i]) {
				t.Fatalf("region %d of %d, %+v to %+v, differs", i, len(targets), target.From, target.To)
			}
			total -= target.From.Bytes()
		}
		statustest.MustEqual(t, total, 0, "bytes too many are said to be copied")
	})
}
