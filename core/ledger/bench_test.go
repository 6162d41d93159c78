package ledger

import (
	"strconv"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A run's whole part in the ledger: its outputs made, and freed.
func BenchmarkAdmitFree(b *testing.B) {
	for _, n := range []int{1, 8, 4096} {
		for _, limit := range []int64{0, 1 << 40, 5 << 20} { // none, far, near
			b.Run("devices="+strconv.Itoa(n)+"/limit="+shape.BytesText(limit), func(b *testing.B) {
				l, p := benchLedger(b, n, limit)
				var ids [2]ID
				if limit > 0 { // more than the near limit, but not on one device
					for d := range min(n, 4) {
						q, _ := l.Place(1, []int{d})
						statustest.OK(b, l.Admit(1, Request{Specs: []Spec{{ShardBytes: 2 << 20, Placement: q}}}, ids[:1]))
					}
				}
				specs := []Spec{{ShardBytes: 1 << 20, Placement: p}, {ShardBytes: 1 << 20, Placement: p}}
				b.ReportAllocs()
				for b.Loop() {
					statustest.OK(b, l.Admit(1, Request{Specs: specs}, ids[:]))
					for _, id := range ids {
						l.Free(id)
					}
				}
			})
		}
	}
}

// benchLedger returns a ledger of devices with this limit, 0 for none, and the placement of session 1 on all of them.
func benchLedger(tb testing.TB, devices int, limit int64) (*Ledger, Placement) {
	l := New()
	statustest.OK(tb, l.AddOwner(1, "session 1"))
	ids := make([]int, devices)
	for i := range ids {
		ids[i] = i
		statustest.OK(tb, l.SetLimit(i, limit))
	}
	p := statustest.Value(l.Place(1, ids)).OK(tb)
	return l, p
}

// A gang's whole part in the ledger: does it fit, its computation, its output, and the free that goes when it has
// ended.
func BenchmarkGang(b *testing.B) {
	for _, n := range []int{1, 64, 2048} {
		for _, limit := range []int64{0, 1 << 40, 5 << 20} { // none, far, near
			b.Run("devices="+strconv.Itoa(n)+"/limit="+shape.BytesText(limit), func(b *testing.B) {
				l, p := benchLedger(b, n, limit)
				gang := uint64(0)
				specs := [1]Spec{{ShardBytes: 1 << 20, Placement: p, Label: "step"}}
				last := l.Charge(specs[0])
				b.ReportAllocs()
				for b.Loop() {
					if gang++; !l.Fits(specs[:], 1<<20) {
						b.Fatal("it does not fit")
					}
					made := l.Charge(specs[0])
					l.Begin(p, 1<<20)
					l.Retire(last, gang)
					l.End(p, 1<<20)
					l.Passed(1, gang)
					last = made
				}
			})
		}
	}
}
