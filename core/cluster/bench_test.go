package cluster_test

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/device/sim"
)

// Gangs a second through the whole control plane: a client, the controller, and
// workers with four simulated devices each, whose computations take no time. One
// computation is on all devices and reads the results of the one before; 64 are
// under way at once.
func BenchmarkGangs(b *testing.B) {
	for _, workers := range []int{1, 16, 128, 512} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			l, _ := open(b, workers, 4)
			s := connect(b, l, "client")
			devices := upTo(4 * workers)
			step := s.program(sim.Program{Name: "step", Gang: true, Params: vectorParam, Results: []sim.Result{{Op: "zeros", DType: "f32", Dims: []int64{4}}}}, devices...)
			x := s.vector(devices, ramp)
			b.ReportAllocs()
			b.ResetTimer()
			var tokens []uint64
			for range b.N {
				token, y := s.start(step, x)
				s.Free([]uint64{x})
				x = y
				if tokens = append(tokens, token); len(tokens) > 64 {
					if err := s.wait(tokens[0]); err != nil {
						b.Fatal(err)
					}
					tokens = tokens[1:]
				}
			}
			for _, token := range tokens {
				if err := s.wait(token); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "gangs/s")
			s.Close()
			l.Close()
		})
	}
}
