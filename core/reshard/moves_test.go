//go:build !race && !invariants

package reshard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/status/statustest"
)

// random returns dimensions and two ways to cut them.
func random(r *rand.Rand) (dims []int64, from, to []reshard.Shard) {
	n := r.IntN(4)
	cuts := [2][]int{}
	for range n {
		a, b := 1+r.IntN(4), 1+r.IntN(4)
		dims = append(dims, int64(a*b*r.IntN(3)))
		cuts[0], cuts[1] = append(cuts[0], a), append(cuts[1], b)
	}
	var out [2][]reshard.Shard
	for i, parts := range cuts {
		copies, shards := 1+r.IntN(3), 1
		if r.IntN(4) == 0 {
			copies = 20
		}
		for _, p := range parts {
			shards *= p
		}
		out[i] = sharding(dims, parts, copies, r.Perm(copies*shards+r.IntN(5)))
	}
	return dims, out[0], out[1]
}

func TestPlansMoveEveryElementOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		dims, from, to := random(r)
		where := func(device int) reshard.Site {
			return reshard.Site{Worker: uint64(device / 4), Host: fmt.Sprint(device / 8)}
		}
		p, err := reshard.New(dims, from, to, where)
		statustest.OKf(t, err, "%v from %v to %v", dims, from, to)
		width := []int{1, 2, 3, 4, 8, 16}[r.IntN(6)]
		n := width
		for _, d := range dims {
			n *= int(d)
		}
		array := make([]byte, n)
		for i := range array {
			array[i] = byte(r.Uint32())
		}
		sources := make([][]byte, len(from))
		for i, s := range from {
			sources[i] = bytesOf(array, dims, s, width)
		}
		for i, s := range to {
			want := bytesOf(array, dims, s, width)
			got, times := make([]byte, len(want)), make([]byte, len(want)/width)
			pieces := p.Of(i)
			if len(pieces) == 0 {
				t.Fatalf("%v: no piece for destination %v", dims, s)
			}
			for _, v := range pieces {
				if v.To != i {
					t.Fatalf("piece %v is of another destination than %d", v, i)
				}
				reshard.Copy(got, s.Size, v.At, sources[v.From], from[v.From].Size, v.Start, v.Size, int64(width))
				ones := make([]byte, len(sources[v.From])/width)
				for k := range ones {
					ones[k] = 1
				}
				once := make([]byte, len(times))
				reshard.Copy(once, s.Size, v.At, ones, from[v.From].Size, v.Start, v.Size, 1)
				for k := range once {
					times[k] += once[k]
				}
				if whole := slices.Equal(v.Size, s.Size) && slices.Equal(v.Size, from[v.From].Size); whole != p.Whole(&v) {
					t.Fatalf("piece %v of %v and %v: whole is %v", v, s, from[v.From], !whole)
				}
				nearest(t, from, s, v, where)
			}
			statustest.MustEqualSlices(t, got, want, "%v from %v to %v: shard %d", dims, from, to, i)
			if k := slices.IndexFunc(times, func(n byte) bool { return n != 1 }); k >= 0 {
				t.Fatalf("%v from %v to %v: element %d of shard %d comes %d times", dims, from, to, k, i, times[k])
			}
			if cells := touched(from, s); len(pieces) != cells {
				t.Fatalf("%v from %v to %v: shard %d is of %d pieces, and touches %d regions", dims, from, to, i, len(pieces),
					cells)
			}
		}
	}
}

// touched counts the different regions of the source that a shard touches.
func touched(from []reshard.Shard, to reshard.Shard) int {
	seen := map[string]bool{}
	for _, s := range from {
		meet := true
		for d := range s.Start {
			meet = meet && s.Start[d] < to.Start[d]+to.Size[d] && to.Start[d] < s.Start[d]+s.Size[d]
		}
		if meet {
			seen[fmt.Sprint(s.Start)] = true
		}
	}
	if slices.Contains(to.Size, 0) {
		return 1
	}
	return len(seen)
}

// nearest fails where another source of the same region is nearer.
func nearest(t *testing.T, from []reshard.Shard, to reshard.Shard, v reshard.Piece, site func(int) reshard.Site) {
	t.Helper()
	if slices.Contains(v.Size, 0) {
		return
	}
	rank := func(s reshard.Shard) int {
		switch {
		case s.Device == to.Device:
			return 0
		case site(s.Device).Worker == site(to.Device).Worker:
			return 1
		case site(s.Device).Host == site(to.Device).Host:
			return 2
		}
		return 3
	}
	for _, s := range from {
		if slices.Equal(s.Start, from[v.From].Start) && rank(s) < rank(from[v.From]) {
			t.Fatalf("%v takes from %v, and %v is nearer", to, from[v.From], s)
		}
	}
}
