package store

import (
	"strconv"
	"testing"
)

func BenchmarkCreateUnref(b *testing.B) {
	for _, n := range []int{1, 8, 4096} {
		b.Run("devices="+strconv.Itoa(n), func(b *testing.B) {
			t, p := benchTable(b, n)
			b.ReportAllocs()
			for b.Loop() {
				id, err := t.Create(1, Spec{ShardBytes: 1 << 20, Placement: p})
				if err != nil || !t.Unref(id) {
					b.Fatal("not made or not freed")
				}
			}
		})
	}
}

// A run's whole part in the table: inputs held, outputs and scratch admitted, all
// released, one output dropped.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1, 8, 4096} {
		for _, limit := range []int64{0, 1 << 40, 5 << 20} { // none, far, near
			b.Run("devices="+strconv.Itoa(n)+"/limit="+size(limit), func(b *testing.B) {
				t, p := benchTable(b, n)
				for d := range n {
					if err := t.SetLimit(d, limit); err != nil {
						b.Fatal(err)
					}
				}
				if limit > 0 { // more than the near limit, but not on one device
					for d := range min(n, 4) {
						q, _ := t.Place([]int{d})
						if _, err := t.Create(1, Spec{ShardBytes: 2 << 20, Placement: q}); err != nil {
							b.Fatal(err)
						}
					}
				}
				in, err := t.Create(1, Spec{ShardBytes: 1 << 20, Placement: p})
				if err != nil {
					b.Fatal(err)
				}
				inputs := []ID{in}
				specs := []Spec{{ShardBytes: 1 << 20, Placement: p}, {ShardBytes: 1 << 20, Placement: p, Purpose: Scratch}}
				var ids, freed []ID
				b.ReportAllocs()
				for b.Loop() {
					if err := t.Hold(inputs); err != nil {
						b.Fatal(err)
					}
					var ok bool
					if ids, ok, err = t.Admit(1, inputs, specs, ids[:0]); !ok {
						b.Fatal("not admitted", err)
					}
					freed = t.Release(inputs, freed[:0])
					freed = t.Release(ids, freed)
					if len(freed) != 1 || !t.Unref(ids[0]) {
						b.Fatal("not freed")
					}
				}
			})
		}
	}
}

func benchTable(tb testing.TB, devices int) (*Table, Placement) {
	t := New()
	if err := t.AddOwner(1, "session 1"); err != nil {
		tb.Fatal(err)
	}
	ids := make([]int, devices)
	for i := range ids {
		ids[i] = i
	}
	p, err := t.Place(ids)
	if err != nil {
		tb.Fatal(err)
	}
	return t, p
}
