package executor_test

import (
	"strconv"
	"testing"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
)

// A gang as the embedded frontend runs it: its turn is free, and its launch ends before the
// next one is submitted.
func BenchmarkEnter(b *testing.B) {
	for _, n := range []int{1, 8, 128} {
		b.Run("devices="+strconv.Itoa(n), func(b *testing.B) {
			is := executor.NewIsland(newCells(16), schedule.Config{})
			defer is.Close()
			devices := span(0, n)
			b.ReportAllocs()
			for b.Loop() {
				turn, err := is.Enter(&schedule.Gang{Devices: devices}, false)
				if err != nil || !turn.Now {
					b.Fatal("no turn", err)
				}
				end(is, turn)
			}
		})
	}
}

// Threads that launch on the same devices, so that many have to wait.
func BenchmarkContended(b *testing.B) {
	is := executor.NewIsland(newCells(16), schedule.Config{})
	defer is.Close()
	devices := span(0, 8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			turn, err := is.Enter(&schedule.Gang{Devices: devices}, false)
			if err != nil {
				b.Error(err)
				return
			}
			if !turn.Now {
				if err := is.Await(turn.Gang); err != nil {
					b.Error(err)
					return
				}
			}
			end(is, turn)
		}
	})
}
