package watch

import (
	"reflect"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// report says that sessions have taken so many seconds of two devices so far.
func report(gangs uint64, seconds map[uint32]float64) *wire.Report {
	r := &wire.Report{Gangs: gangs, Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{{
		Devices: []*wire.LocalDevice{{}, {}}, Last: &wire.Heartbeat{MemoryInUse: []int64{30, 12}}}}}}}
	for id := uint32(1); id < 9; id++ {
		if s, ok := seconds[id]; ok {
			r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: id, Name: "c", DeviceNs: int64(s * 1e9)})
		}
	}
	return r
}

// The history has rates between looks, by session, also of those that came or went in between.
func TestHistory(t *testing.T) {
	h, at := NewHistory(), time.Unix(100, 0)
	for _, look := range []*wire.Report{
		report(0, map[uint32]float64{1: 0}),
		report(10, map[uint32]float64{1: 1}),
		report(40, map[uint32]float64{1: 1, 2: 3}),
		report(40, map[uint32]float64{2: 4}),
	} {
		h.Add(at, look)
		at = at.Add(2 * time.Second)
	}
	want := Past{At: []float64{102, 104, 106}, Gangs: []float64{5, 15, 0}, Devices: []int{2, 2, 2},
		Memory: []int64{42, 42, 42}, Sessions: []SessionPast{
			{Session: 1, Client: "c", Use: []float64{.5, 0, 0}}, {Session: 2, Client: "c", Use: []float64{0, 1.5, .5}}}}
	if got := h.Past(); !reflect.DeepEqual(got, want) {
		t.Errorf("the history is\n%+v, want\n%+v", got, want)
	}
	for range remembers {
		h.Add(at, report(40, map[uint32]float64{2: 4}))
		at = at.Add(time.Second)
	}
	if got := h.Past(); len(got.At) != remembers || len(got.Sessions) != 0 || len(h.names) != 1 {
		t.Errorf("after %d more looks it has %d samples, %d sessions and %d names; want only those of them", remembers,
			len(got.At), len(got.Sessions), len(h.names))
	}
}
