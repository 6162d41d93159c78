package controller

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever workers get, lose and ask for, the one that is picked has it, is not the one that asks, and sends it to as
// few as any, by a count of what is on its way.
func TestSendersPickTheOneWithMostTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all [6]*worker
		for i := range all {
			all[i] = new(worker)
		}
		var s senders
		holders, from := []*worker{}, map[*worker]*worker{}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w := all[rapid.IntRange(0, len(all)-1).Draw(t, "worker")]
			gone := func(h *worker) bool { return h == w }
			switch holds := slices.Contains(holders, w); rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				s.ended(w)
				delete(from, w)
			case 1:
				if !holds {
					s.add(w)
					holders = append(holders, w)
				}
			case 2:
				s.lost(w)
				delete(from, w)
				for to, by := range from {
					if by == w {
						delete(from, to)
					}
				}
				if holds {
					s.remove(w)
					holders = slices.DeleteFunc(holders, gone)
				}
			case 3:
				if holds { // and goes on sending
					s.remove(w)
					holders = slices.DeleteFunc(holders, gone)
				}
			default:
				if from[w] != nil {
					continue
				}
				sends := func(h *worker) (n int) {
					for _, by := range from {
						if by == h {
							n++
						}
					}
					return n
				}
				least := maxGiven
				for _, h := range holders {
					if h != w {
						least = min(least, sends(h))
					}
				}
				got := s.pick(w)
				if got == nil != (least == maxGiven) ||
					got != nil && (got == w || !slices.Contains(holders, got) || sends(got) != least) {
					t.Fatalf("it is picked who sends to %d, want one who sends to %d", sends(got), least)
				}
				if got != nil {
					s.begin(got, w)
					from[w] = got
				}
			}
			if !slices.Equal(s.holders, holders) {
				t.Fatalf("%d have it, want %d", len(s.holders), len(holders))
			}
		}
	})
}
