package cluster

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A tiny computation on the CPU plugin, one call at a time and as fast as they
// can be submitted, on workers of one device each: without and with a collective.
func BenchmarkTiny(b *testing.B) {
	for _, c := range []struct {
		workers, program int
		name             string
	}{{1, 0, "add"}, {2, 0, "add"}, {8, 0, "add"}, {2, 1, "all-reduce"}, {8, 1, "all-reduce"}} {
		r := open(b, c.workers, 1)
		s := r.connect(b, "client")
		p := programs(max(2, c.workers))[c.program]
		if c.workers == 1 {
			p.replicas = 1
		}
		step := s.compile(p)
		x := s.Array(input, clustertest.UpTo(c.workers), values)
		token, y := s.Start(step, x)
		statustest.OK(b, s.Wait(token))
		s.Free([]uint64{y})
		b.Run(fmt.Sprintf("%s/workers=%d/sync", c.name, c.workers), func(b *testing.B) {
			for range b.N {
				token, y := s.Start(step, x)
				statustest.OK(b, s.Wait(token))
				s.Free([]uint64{y})
			}
		})
		b.Run(fmt.Sprintf("%s/workers=%d/async", c.name, c.workers), func(b *testing.B) {
			var last uint64
			for range b.N {
				token, y := s.Start(step, x)
				s.Free([]uint64{y})
				last = token
			}
			statustest.OK(b, s.Wait(last))
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
		})
		s.Free([]uint64{x})
		s.Close()
		r.Close()
	}
}
