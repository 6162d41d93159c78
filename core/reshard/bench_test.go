package reshard_test

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/status/statustest"
)

// BenchmarkNew plans the way of a matrix: from rows to rows elsewhere (one region a
// shard), and from rows to tiles of a square mesh (as many regions as its side).
func BenchmarkNew(b *testing.B) {
	site := func(d int) reshard.Site { return reshard.Site{Worker: uint64(d / 4)} }
	for side := 1; side <= 64; side *= 2 {
		n := side * side
		dims := []int64{8192, 8192}
		devices := make([]int, 2*n)
		for i := range devices {
			devices[i] = i
		}
		rows := sharding(dims, []int{n, 1}, 1, devices)
		for name, to := range map[string][]reshard.Shard{
			"rows":  sharding(dims, []int{n, 1}, 1, devices[n:]),
			"tiles": sharding(dims, []int{side, side}, 1, devices[n:]),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					p := statustest.Value(reshard.New(dims, rows, to, site)).OK(b)
					b.ReportMetric(float64(len(p.Pieces)), "regions")
				}
			})
		}
	}
}

// BenchmarkCopy copies regions of 16 MiB, whose rows are so long, as memory goes.
func BenchmarkCopy(b *testing.B) {
	const total = 16 << 20
	src, dst := make([]byte, 2*total), make([]byte, total)
	for _, run := range []int64{4, 8, 64, 4096, total} {
		b.Run(fmt.Sprint(run), func(b *testing.B) {
			b.SetBytes(total)
			n := total / run
			for range b.N {
				reshard.Copy(dst, []int64{n, run}, []int64{0, 0}, src, []int64{n, 2 * run}, []int64{0, run}, []int64{n, run}, 1)
			}
		})
	}
}
