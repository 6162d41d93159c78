package ledger

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// What a computation takes beside its results counts once a device, the largest, until it has ended; what it takes over
// from its arguments does not count twice.
func TestTemporariesCountOnceADevice(t *testing.T) {
	l := New()
	statustest.OK(t, l.AddOwner(1, "session 1"))
	statustest.OK(t, l.SetLimit(0, 100))
	place := statustest.Value(l.Place(1, []int{0})).OK(t)
	admit := func(bytes, taken, temp int64, want status.Code) ID {
		t.Helper()
		ids := make([]ID, 1)
		r := Request{Specs: []Spec{{ShardBytes: bytes, Placement: place, Label: "step"}}, Placement: place,
			Taken: taken, Temp: temp}
		statustest.Fails(t, fmt.Sprintf("%d bytes, of which %d are taken over, and %d beside", bytes, taken, temp),
			l.Admit(1, r, ids), want)
		return ids[0]
	}
	first := admit(30, 0, 40, status.OK)
	admit(30, 0, 41, status.ResourceExhausted)
	second := admit(30, 0, 40, status.OK) // 60, and 40 beside both
	admit(1, 0, 0, status.ResourceExhausted)
	third := admit(30, 30, 40, status.OK) // in the memory of the first
	l.Free(first)
	l.End(place, 40)
	l.End(place, 40)
	admit(1, 0, 0, status.ResourceExhausted)
	l.End(place, 40)
	fourth := admit(40, 0, 0, status.OK)
	for _, id := range []ID{second, third, fourth} {
		l.Free(id)
	}
	statustest.Equal(t, l.Device(0).InUse, 0, "bytes that are left")
}
