package schedule

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Two States get the same events, but one passes what it can pass. Their verdicts
// and their counts stay the same.
func TestPassIsSubmitAndCompleted(t *testing.T) {
	passed, stepped := 0, 0
	policies := map[string]func(t *rapid.T) (Policy, Policy){
		"FIFO": func(t *rapid.T) (Policy, Policy) {
			n := rapid.IntRange(0, 3).Draw(t, "window")
			return &FIFO{Window: n}, &FIFO{Window: n}
		},
		"threads": func(t *rapid.T) (Policy, Policy) {
			n := rapid.IntRange(4, 8).Draw(t, "pool")
			return &Threads{Pool: n}, &Threads{Pool: n}
		},
	}
	for name, policy := range policies {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			p, q := policy(t)
			most := rapid.IntRange(1, 6).Draw(t, "most queued")
			with, without := New(Config{Policy: p, MaxQueued: most}), New(Config{Policy: q, MaxQueued: most})
			last := uint64(0)
			for range rapid.IntRange(1, 60).Draw(t, "events") {
				ev := Event{Kind: rapid.SampledFrom([]EventKind{Submit, Submit, Launched, Completed, Failed, Cancel}).Draw(t,
					"kind")}
				if ev.Kind != Submit {
					ev.ID = rapid.Uint64Range(1, last+1).Draw(t, "gang")
				} else {
					last++
					ids := rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 1, 3, rapid.ID).Draw(t, "devices")
					ev.Gang = Gang{ID: last, Devices: Devices(ids...), Collective: rapid.Bool().Draw(t, "collective")}
					if last > 1 && rapid.Bool().Draw(t, "reads") {
						ev.Gang.After = []uint64{rapid.Uint64Range(1, last-1).Draw(t, "after")}
					}
				}
				want := without.Step(ev, nil)
				shown, pass := with.Passes(0), ev.Kind == Submit && with.Pass(&ev.Gang)
				if g := &ev.Gang; ev.Kind == Submit && g.Devices.Len() == 1 && len(g.After) == 0 && !g.Collective && shown != pass {
					t.Fatalf("gang %d passes: Passes says %v, Pass %v", last, shown, pass)
				}
				if pass {
					passed++
					want = without.Step(Event{Kind: Completed, ID: last}, want)
					if len(want) != 1 || want[0].Kind != Start || want[0].ID != last {
						t.Fatalf("gang %d passed; step by step it is %v", last, want)
					}
				} else {
					stepped++
					statustest.MustEqualSlices(t, with.Step(ev, nil), want, "%v: got", ev)
				}
				if with.Queued() != without.Queued() || with.Running() != without.Running() {
					t.Fatalf("queued %d, running %d; want %d, %d", with.Queued(), with.Running(), without.Queued(), without.Running())
				}
			}
		}))
	}
	if passed == 0 || stepped == 0 {
		t.Errorf("%d gangs passed and %d events were stepped; the test says nothing", passed, stepped)
	}
}
