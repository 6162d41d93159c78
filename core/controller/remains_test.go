package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/wire"
)

// What gangs under way use takes memory until they have ended, also where its client has freed it since, or where its
// session has ended; or until their worker is lost.
func TestWhatGangsUseCountsUntilTheyEndWhenTheControllerStartsAgain(t *testing.T) {
	client := &wire.Rejoin{Last: 3, Programs: []uint64{1}, Frames: append(
		frames(t, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{5}, FirstOutput: 2}),
		frames(t, wire.KindTransfer, &wire.Transfer{Op: 3, Object: 3, Array: scalar,
			Moves: []*wire.Move{{Source: 6, From: 0, To: 0}}})...)}
	worker := &wire.Rejoin{Last: 71, Holdings: []*wire.Holding{{Session: 1, Programs: []uint64{1}, Leaving: []int64{16},
		Arrays: []*wire.HeldArray{{Object: 1, Devices: []uint32{0}, Bytes: 4}},
		Gangs:  []*wire.HeldGang{{Gang: 70, Op: 2}}}, {Session: 1, Gangs: []*wire.HeldGang{{Gang: 71, Op: 3}}}}}
	for _, c := range []struct {
		name            string
		gone, lost      bool
		both, one, none int64 // bytes on the worker's device while so many gangs are under way
	}{
		{name: "freed", both: 16 + 12, one: 16 + 12, none: 12}, // array 1, and what the two make
		{name: "session ended", gone: true, both: 16 + 4, one: 16 + 4},
		{name: "worker lost", gone: true, lost: true, both: 16 + 4, one: 16 + 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBedThatKeeps(t)
			kept := b.facts()
			b.st = New(Config{Keeps: true, Starts: 2})
			b.st.Restore(kept)
			if c.gone {
				b.step(Event{Kind: Lost, Conn: b.client, Err: errLeft})
			} else {
				b.say(b.client, wire.KindRejoin, client)
			}
			b.say(b.workers[1], wire.KindRejoin, &wire.Rejoin{})
			b.check(b.say(b.workers[0], wire.KindRejoin, worker))
			device := b.st.workers[0].base
			takes := func(when string, want int64) {
				t.Helper()
				if u := b.st.ledger.Device(device); u.InUse != want {
					t.Errorf("%s %d bytes are taken, want %d", when, u.InUse, want)
				}
			}
			takes("while both are under way", c.both)
			b.done(0, 70)
			b.done(1, 70)
			takes("while one is under way", c.one)
			if c.lost {
				b.check(b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft}))
			} else {
				b.done(0, 71)
			}
			takes("when both have ended", c.none)
		})
	}
}
