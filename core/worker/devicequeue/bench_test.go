package devicequeue

import (
	"testing"
)

// chain returns a function that has a queue go through a computation: it reads what the
// one before made, which is freed.
func chain(limit int64) func() {
	q := New(Config{Worker: "w", Window: 16, MemoryLimit: limit, Owner: owner})
	r := &Recipe{Name: "step", Makes: 1, Sizes: []int64{16}, Bytes: 16}
	g := &Gang{Session: 1, Recipe: r, First: 1}
	frees := &Gang{Session: 1, Recipe: &Frees, Objects: []uint64{0}}
	buffer := &paper{}
	return func() {
		q.Submit(Part{Gang: g})
		q.Submit(Part{Gang: frees})
		a := q.Next(Facts{})
		q.Launched(a.Flight)
		q.Fill(a.Flight.Made[0], buffer)
		q.Ended(a.Flight, nil)
		if q.Next(Facts{}); len(q.Discarded()) > 1 || a.Kind != Begin {
			panic("the chain is broken")
		}
		g.ID++
		frees.Objects[0] = g.First
		g.First++
		g.Objects = append(g.Objects[:0], g.First-1)
	}
}

// What the decisions on a computation cost, from Submit to its end.
func BenchmarkStep(b *testing.B) {
	step := chain(0)
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}

func TestStepsDoNotAllocate(t *testing.T) {
	step := chain(0)
	if n := testing.AllocsPerRun(1000, step); n > 0 {
		t.Errorf("a step allocates %v times, want 0", n)
	}
}
