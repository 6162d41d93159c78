package schedule

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// A gang that has ended on one of its devices, and waits without end on another, keeps that one alone from others.
func TestFairPlacesGangsWhereAnEarlierOneHasEnded(t *testing.T) {
	s := New(Config{Policy: new(Fair)})
	submit := func(id uint64, session uint32, cost int64, devices ...int) []Action {
		g := Gang{ID: id, Session: session, Cost: cost, Devices: Devices(devices...)}
		return s.Step(Event{Kind: Submit, Gang: g}, nil)
	}
	submit(1, 1, DefaultWindow, 0, 1)
	s.Step(Event{Kind: Launched, ID: 1}, nil)
	statustest.MustEqualSlices(t, submit(2, 2, 0, 1), nil, "gang 2 has a place beside one that fills the window")
	submit(3, 2, 0, 0)
	got := s.Step(Event{Kind: Left, ID: 1, Gang: Gang{Devices: Devices(1)}}, nil)
	if want := (Action{Kind: Start, ID: 2}); !slices.Equal(got, []Action{want}) {
		t.Fatalf("when gang 1 has left device 1: %v, want %v", got, want)
	}
	statustest.MustEqualSlices(t, s.Step(Event{Kind: Left, ID: 1, Gang: Gang{Devices: Devices(1)}}, nil), nil,
		"when it has left the device again")
	got = s.Step(Event{Kind: Completed, ID: 1}, nil)
	if want := (Action{Kind: Start, ID: 3}); !slices.Equal(got, []Action{want}) {
		t.Fatalf("when gang 1 has ended: %v, want %v", got, want)
	}
}

// Whatever gangs leave before they end, all places are given back, and every gang starts.
func TestFairCountsNothingOfGangsThatHaveEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &Fair{Window: 100}
		s := New(Config{Policy: f})
		devices := map[uint64]DeviceSet{} // of gangs that have started
		started := uint64(0)
		step := func(ev Event, all map[uint64]DeviceSet) {
			for _, a := range s.Step(ev, nil) {
				devices[a.ID] = all[a.ID]
				started++
			}
		}
		all := map[uint64]DeviceSet{}
		last := uint64(0)
		pick := func(label string) uint64 { return rapid.SampledFrom(sortedKeys(devices)).Draw(t, label) }
		some := func(label string) DeviceSet {
			return Devices(rapid.SliceOfN(rapid.IntRange(0, 3), 1, 4).Draw(t, label)...)
		}
		end := func(id uint64) {
			delete(devices, id)
			step(Event{Kind: Completed, ID: id, Time: rapid.Int64Range(0, 200).Draw(t, "time")}, all)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case kind == 0 || len(devices) == 0:
				last++
				all[last] = some("on")
				step(Event{Kind: Submit, Gang: Gang{ID: last, Session: rapid.Uint32Range(1, 3).Draw(t, "session"),
					Cost: rapid.Int64Range(0, 150).Draw(t, "cost"), Devices: all[last]}}, all)
			case kind == 1:
				end(pick("ends"))
			default: // not all of its devices: then it has ended
				id := pick("leaves")
				on := slices.Collect(some("left").All())
				if rest := slices.Collect(all[id].All()); slices.Contains(on, rest[0]) {
					on = slices.DeleteFunc(on, func(d int) bool { return d == rest[0] })
				}
				step(Event{Kind: Left, ID: id, Gang: Gang{Devices: Devices(on...)},
					Time: rapid.Int64Range(0, 200).Draw(t, "time")}, all)
			}
			s.check()
		}
		for len(devices) > 0 {
			end(sortedKeys(devices)[0])
		}
		statustest.MustEqual(t, started, last, "gangs that have started")
		for i, at := range f.groups {
			if at.load != 0 || at.gangs != 0 || at.parties != 0 {
				t.Fatalf("group %d has %d gangs of %d parties with %d ns left", i, at.gangs, at.parties, at.load)
			}
		}
	})
}
