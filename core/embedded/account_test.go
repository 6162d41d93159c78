package embedded

import (
	"fmt"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Many goroutines make, free and drop; the sums agree in the end, and no limit is passed on the way.
func TestAccountKeepsItsSumsUnderConcurrency(t *testing.T) {
	const limit = 64
	memory := statustest.Value(newAccount(2, limit)).OK(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			o := ledger.Owner(g)
			statustest.Check(t, memory.AddOwner(o, fmt.Sprintf("session %d", g)))
			var places []ledger.Placement
			for _, devices := range [][]int{{0}, {1}, {0, 1}} {
				p, err := memory.Place(o, devices)
				statustest.Check(t, err)
				places = append(places, p)
			}
			var kept []ledger.ID
			for i := range 2000 {
				specs := []ledger.Spec{
					{ShardBytes: int64(i % 7), Placement: places[i%3]}, {ShardBytes: 3, Placement: places[(i+g)%3]}}
				made := make([]ledger.ID, 2)
				r := ledger.Request{Specs: specs, Placement: specs[0].Placement}
				if _, err := memory.Admit(o, r, nil, nil, made); err != nil {
					statustest.Fails(t, "the error", err, status.ResourceExhausted)
					for _, id := range kept {
						memory.Free(id)
					}
					kept = kept[:0]
					continue
				}
				if u := memory.Device(i % 2); u.InUse > limit {
					t.Errorf("device %d has %d bytes of %d", i%2, u.InUse, limit)
				}
				memory.Free(made[1])
				kept = append(kept, made[0])
			}
			memory.DropOwner(o)
		})
	}
	wg.Wait()
	if memory.Len() != 0 || memory.Device(0).InUse != 0 || memory.Device(1).InUse != 0 {
		t.Errorf("%d objects of %+v and %+v are left", memory.Len(), memory.Device(0), memory.Device(1))
	}
}
