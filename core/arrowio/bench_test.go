package arrowio

import (
	"fmt"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status/statustest"
)

// What a record's column costs to bring to two simulated devices, and back whole and
// by chunks.
func BenchmarkArrays(b *testing.B) {
	r := open(b, 1)
	r.run()
	for _, size := range []int{1 << 10, 1 << 20, 1 << 25} {
		in := r.made(arrow.PrimitiveTypes.Float32, 0, size/4, 0)
		kept := statustest.Value(Put(r.Session, in, sharded.Rows(0, 1))).OK(b)
		b.Run(fmt.Sprintf("Put/%d KiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				a, err := Put(r.Session, in, sharded.Rows(0, 1))
				if err == nil {
					err = a.Wait(b.Context())
				}
				statustest.OK(b, err)
				a.Free()
			}
		})
		b.Run(fmt.Sprintf("Read/%d KiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				out := statustest.Value(Read(b.Context(), kept, r.mem)).OK(b)
				out.Release()
			}
		})
		b.Run(fmt.Sprintf("Chunks/%d KiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				out := statustest.Value(Chunks(b.Context(), kept, r.mem)).OK(b)
				out.Release()
			}
		})
		kept.Free()
		in.Release()
	}
}
