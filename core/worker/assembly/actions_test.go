package assembly

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// history is all that happened to a part. What must have been answered by now follows from it
// alone, in whatever order it happened.
type history struct {
	sends, here, away int
	begun, refused    bool
	pieces            []Event
	ended             []error
}

func (h *history) answers() (want []Action) {
	shard, duties := h.here+h.away > 0, h.sends
	if shard {
		duties++
	}
	failed := slices.ContainsFunc(h.pieces, func(e Event) bool { return e.Err != nil })
	here := 0
	for _, e := range h.pieces {
		if !e.Away {
			here++
		}
	}
	all := len(h.pieces) == h.here+h.away
	if h.begun && h.away > 0 {
		want = append(want, Expect)
	}
	switch {
	case h.begun && shard && all && failed:
		want = append(want, Fail)
	case h.begun && shard && all:
		want = append(want, Make)
	case h.refused && shard && here == h.here:
		want = append(want, Drop)
	}
	if duties > 0 && len(h.ended) == duties {
		want = append(want, End)
	}
	return want
}

// first returns the first error of a list, in the order in which they came.
func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Whatever happens in whatever order, each action is answered once, as soon as all that it needs has
// happened.
func TestActionsFollowFromWhatHappened(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{sends: rapid.IntRange(0, 3).Draw(t, "sends"), here: rapid.IntRange(0, 3).Draw(t, "here"),
			away: rapid.IntRange(0, 3).Draw(t, "away")}
		p := New(h.sends, h.here, h.away)
		refused := rapid.Bool().Draw(t, "refused")
		here, away, sends := h.here, h.away, h.sends
		var answers []Action
		for {
			var may []Event // each of these may happen now
			if !h.begun && !h.refused {
				may = append(may, Event{Kind: Begin})
				if refused {
					may[0].Kind = Refuse
				}
			}
			if here > 0 {
				may = append(may, Event{Kind: Came})
			}
			if h.begun && away > 0 {
				may = append(may, Event{Kind: Came, Away: true})
			}
			if h.begun && sends > 0 {
				may = append(may, Event{Kind: Ended})
			}
			made := slices.Contains(answers, Make) || slices.Contains(answers, Fail)
			if made && len(h.ended)-(h.sends-sends) == 0 {
				may = append(may, Event{Kind: Ended, Away: true}) // Away: of the shard, for this test
			}
			if len(may) == 0 {
				break
			}
			e := rapid.SampledFrom(may).Draw(t, "event")
			if (e.Kind == Came || e.Kind == Ended) && rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
				e.Err = errors.New("why")
			}
			switch e.Kind {
			case Begin:
				h.begun = true
			case Refuse:
				h.refused = true
			case Came:
				h.pieces = append(h.pieces, e)
				if e.Away {
					away--
				} else {
					here--
				}
			case Ended:
				h.ended = append(h.ended, e.Err)
				if !e.Away {
					sends--
				}
			}
			if a := p.Step(e); a != None {
				answers = append(answers, a)
			}
			got, want := slices.Sorted(slices.Values(answers)), slices.Sorted(slices.Values(h.answers()))
			statustest.MustEqualSlices(t, got, want, "after %+v: answers", e)
			statustest.MustEqual(t, p.Err(), first(h.ended), "the part's error")
			var spoilt []error
			for _, e := range h.pieces {
				spoilt = append(spoilt, e.Err)
			}
			statustest.MustEqual(t, p.Spoilt(), first(spoilt), "the pieces' error")
		}
	})
}
