package schedule

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// steps is a State that shares devices, and the gangs that have started.
type steps struct {
	s       *State
	started []uint64
}

func (s *steps) step(ev Event) {
	for _, a := range s.s.Step(ev, nil) {
		if a.Kind == Start {
			s.started = append(s.started, a.ID)
			s.s.Step(Event{Kind: Launched, ID: a.ID, Now: ev.Now}, nil)
		}
	}
}

func (s *steps) submit(g Gang) { s.step(Event{Kind: Submit, Gang: g}) }

func (s *steps) expect(t *testing.T, when string, want ...uint64) {
	t.Helper()
	statustest.EqualSlices(t, s.started, want, "%s gangs that have started", when)
	s.s.check()
}

// A gang of two devices, of which one is in use, has its place shortly before that is free. Until then one that ends
// before has the other device, though it comes later, and one that takes longer comes after both.
func TestFairPlacesShortGangsBeforeAWideOneThatWaits(t *testing.T) {
	s := &steps{s: New(Config{Policy: new(Fair)})}
	s.submit(Gang{ID: 1, Session: 1, Devices: Devices(0), Cost: 30e6})
	for id := range uint64(20) { // for long, no device has been idle for a tenant's sake
		s.submit(Gang{ID: 10 + id, Session: 4 + uint32(id%2), Devices: Devices(1), Cost: 100e6})
		s.step(Event{Kind: Completed, ID: 10 + id, Time: 100e6})
	}
	s.started = nil
	s.submit(Gang{ID: 3, Session: 3, Devices: Devices(0, 1), Cost: 5e6})
	s.submit(Gang{ID: 4, Session: 4, Devices: Devices(1), Cost: 40e6})
	s.submit(Gang{ID: 5, Session: 5, Devices: Devices(1), Cost: 10e6})
	s.expect(t, "at first", 5)
	statustest.Equal(t, s.s.Due(), 25e6, "the gang of both devices is due at")
	s.step(Event{Kind: Completed, ID: 5, Time: 10e6, Now: 10e6})
	s.step(Event{Kind: Resume, Now: 25e6})
	s.expect(t, "when the device in use is about to be free", 5, 3, 4)
}

// A gang that may wait for later ones of its session keeps none of them from its place, however long it takes.
func TestFairWaitsForNoGangThatMayWaitForLaterOnes(t *testing.T) {
	s := &steps{s: New(Config{Policy: new(Fair)})}
	s.submit(Gang{ID: 1, Session: 1, Devices: Devices(0, 1), Calls: true})
	s.submit(Gang{ID: 2, Session: 2, Devices: Devices(2), Cost: 20e6})
	s.submit(Gang{ID: 3, Session: 1, Devices: Devices(1, 2), Cost: 1e6})
	s.step(Event{Kind: Resume, Now: 15e6})
	s.expect(t, "when the other device is about to be free", 1, 2, 3)
}

// A tenant that is ahead of another, or of one that has just left, waits for gangs of its own to end, but for none that
// may wait for later ones: nothing else might happen.
func TestFairKeepsNoGangBackForThoseThatMayWaitForIt(t *testing.T) {
	for _, left := range []bool{false, true} {
		s := &steps{s: New(Config{Policy: new(Fair)})}
		s.submit(Gang{ID: 1, Session: 1, Devices: Devices(0), Calls: true})
		s.submit(Gang{ID: 2, Session: 1, Devices: Devices(0), Calls: true})
		s.submit(Gang{ID: 3, Session: 2, Devices: Devices(0), Calls: true})
		s.submit(Gang{ID: 4, Session: 1, Devices: Devices(0), Cost: 10e6})
		if left {
			s.step(Event{Kind: Completed, ID: 3, Time: 1e6, Now: 1e6})
		}
		s.step(Event{Kind: Completed, ID: 4, Time: 10e6, Now: 11e6})
		s.step(Event{Kind: Submit, Gang: Gang{ID: 5, Session: 1, Devices: Devices(0), Cost: 10e6}, Now: 12e6})
		s.expect(t, fmt.Sprintf("when the other tenant has left (%t)", left), 1, 2, 3, 4, 5)
	}
}
