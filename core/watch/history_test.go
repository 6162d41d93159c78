package watch

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// report says that sessions have taken so many seconds of two devices in the controller's first seconds.
func report(second int64, gangs uint64, seconds map[uint32]float64) *wire.Report {
	w := &wire.Report_Worker{Devices: []*wire.LocalDevice{{}, {}}, Last: &wire.Heartbeat{MemoryInUse: []int64{30, 12}}}
	r := &wire.Report{UptimeMs: 1e3 * second, Gangs: gangs,
		Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{w}}}}
	for id := uint32(1); id < 9; id++ {
		if s, ok := seconds[id]; ok {
			r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: id, Name: "c", DeviceNs: int64(s * 1e9)})
		}
	}
	return r
}

// The history has rates between looks, by session, also of those that came or went in between. A report that is known
// adds nothing, nor does the first one of another controller, or of one that has its cluster back.
func TestHistoryHasRatesBetweenReports(t *testing.T) {
	h, at := NewHistory(), time.Unix(100, 0)
	other := report(9, 50, map[uint32]float64{2: 4})
	other.Cluster = "another"
	waits, back := report(10, 0, nil), report(12, 5000, map[uint32]float64{2: 9})
	waits.Cluster, back.Cluster, waits.Waits = other.Cluster, other.Cluster, "waits for worker w0"
	for _, look := range []*wire.Report{
		report(0, 0, map[uint32]float64{1: 0}),
		report(2, 10, map[uint32]float64{1: 1}),
		report(4, 40, map[uint32]float64{1: 1, 2: 3}),
		report(4, 40, map[uint32]float64{1: 1, 2: 3}),
		report(6, 40, map[uint32]float64{2: 4}),
		other, waits, back,
	} {
		h.Add(at, look)
		at = at.Add(2 * time.Second)
	}
	want := Past{At: []float64{102, 104, 108}, Gangs: []float64{5, 15, 0}, Devices: []int{2, 2, 2},
		Memory: []int64{42, 42, 42}, Sessions: []SessionPast{
			{Session: 1, Client: "c", Use: []float64{.5, 0, 0}}, {Session: 2, Client: "c", Use: []float64{0, 1.5, .5}}}}
	if got := h.Past(); !reflect.DeepEqual(got, want) {
		t.Errorf("the history is\n%+v, want\n%+v", got, want)
	}
}

// A computation counts in the seconds in which it ran, though a report tells of it when it has ended: the history never
// has more of the devices than there are. What came before the first look is not there.
func TestHistorySpreadsLongComputations(t *testing.T) {
	h := NewHistory()
	for second, seconds := range []map[uint32]float64{{}, {1: 1}, {1: 2}, {1: 2}, {1: 2, 2: 6}, {1: 2, 2: 106}} {
		h.Add(time.Unix(int64(second), 0), report(int64(second), 0, seconds))
		use := map[uint32][]float64{}
		for _, s := range h.Past().Sessions {
			use[s.Session] = s.Use
		}
		switch second {
		case 4: // six seconds of two devices: the last two seconds whole, and what was left of those before
			if one, two := use[1], use[2]; !near(one, []float64{1, 1, 0, 0}) || !near(two, []float64{1, 1, 2, 2}) {
				t.Errorf("the sessions used %v and %v", one, two)
			}
		case 5:
			for i := range 5 {
				if all := use[1][i] + use[2][i]; math.Abs(all-2) > 1e-9 {
					t.Errorf("%v devices of two were used at look %d", all, i)
				}
			}
		}
	}
}

func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
}

// The history is of the last looks: it has as much memory after a day as after ten minutes, however many sessions came
// and went.
func TestHistoryDoesNotGrow(t *testing.T) {
	h := NewHistory()
	look := func(second int64) {
		r := report(second, 0, map[uint32]float64{1: float64(second)})
		r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: uint32(10 + second), DeviceNs: 1e9})
		h.Add(time.Unix(second, 0), r)
	}
	for second := range int64(10 * remembers) {
		look(second)
	}
	// The samples lie in an array that is twice as long at most, and each sample has the sessions of its time.
	if len(h.samples) != remembers || cap(h.samples) > 2*remembers || len(h.names) != remembers+1 {
		t.Errorf("it has %d samples of %d, and %d names", len(h.samples), cap(h.samples), len(h.names))
	}
	if p := h.Past(); len(p.At) != remembers || len(p.Sessions) != remembers+1 || p.At[0] != float64(9*remembers) {
		t.Errorf("it tells %d samples from %v on, of %d sessions", len(p.At), p.At[0], len(p.Sessions))
	}
}
