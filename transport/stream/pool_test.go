package stream

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// ask makes a claim and reports whether it is granted at once.
func ask(p *pool, need int64, now time.Time) (*claim, bool) {
	c := &claim{need: need}
	return c, slices.Contains(p.ask(c, now), c)
}

func TestPoolServesTheFirstAndTheSmall(t *testing.T) {
	p, now := &pool{half: 10}, time.Now()
	a, at := ask(p, 10, now)
	b, bt := ask(p, 8, now)
	c, ct := ask(p, 9, now)
	d, dt := ask(p, 3, now)
	e, et := ask(p, 2, now)
	if !at || !bt || ct || dt || !et {
		t.Errorf("at once: %v %v %v %v %v, want the first, what fits beside it, and what fits still", at, bt, ct, dt, et)
	}
	for _, step := range []struct {
		name string
		ends *claim
		want []*claim
	}{
		{"a small one ends, and no other fits", e, nil},
		{"the second half is free for the smallest, which leaves too little for the next", b, []*claim{d}},
		{"the first half is free for the one that waits longest", a, []*claim{c}},
		{"nothing waits", d, nil},
		{"nothing is left", c, nil},
	} {
		if got := p.end(step.ends, now); !slices.Equal(got, step.want) {
			t.Errorf("%s: %d are granted, want %d", step.name, len(got), len(step.want))
		}
	}
	if p.first != nil || p.lent != 0 || len(p.holding) > 0 || len(p.waiting) > 0 {
		t.Errorf("left: %+v", p)
	}
}

func TestPoolForgetsAClaimThatWaits(t *testing.T) {
	p, now := &pool{half: 10}, time.Now()
	a, _ := ask(p, 10, now)
	ask(p, 10, now)
	c, _ := ask(p, 7, now)
	d, _ := ask(p, 9, now)
	if got := p.end(c, now); got != nil {
		t.Error("what waited had room to give")
	}
	if got := p.end(a, now); !slices.Equal(got, []*claim{d}) {
		t.Error("the next one is not granted")
	}
}

func TestPoolFindsFramesThatStall(t *testing.T) {
	p, now := &pool{half: 10}, time.Now()
	a, _ := ask(p, 10, now)
	b, _ := ask(p, 10, now)
	tick := func(n time.Duration) []*claim {
		now = now.Add(n)
		return p.stalled(now)
	}
	if tick(lookTime); tick(stallTime) != nil {
		t.Error("frames are ended that no other waits for")
	}
	c, _ := ask(p, 10, now)
	p.grew(a, stallBytes-1, now)
	p.grew(b, stallBytes, now)
	if got := tick(lookTime); !slices.Equal(got, []*claim{a}) {
		t.Errorf("%d stalled, want the one of which too little came", len(got))
	}
	p.end(a, now)
	ask(p, 10, now)
	for range stallTime/lookTime - 2 {
		if got := tick(lookTime); got != nil {
			t.Fatalf("%d stalled before their time", len(got))
		}
	}
	b.whole = true
	if got := tick(lookTime); got != nil {
		t.Error("a frame that has all come stalls")
	}
	if got := tick(lookTime); !slices.Equal(got, []*claim{c}) {
		t.Errorf("%d stalled, want the one that was granted last", len(got))
	}
	if got := tick(3 * stallTime); got != nil {
		t.Error("a process that did not run blames its peers")
	}
}

// Whatever comes and goes: no more is lent than there is, the count is right, and where some wait, one has its turn, so
// that all are served as long as those served end.
func TestPoolNeverLendsTooMuchNorStopsLending(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := &pool{half: 10}, time.Now()
		var all []*claim
		check := func() {
			var lent int64
			for _, c := range p.holding {
				if !c.granted || c == p.first != c.first {
					t.Fatalf("a claim holds that was not granted: %+v", c)
				}
				if !c.first {
					lent += c.need
				}
			}
			if lent != p.lent || lent > p.half || len(p.holding)+len(p.waiting) != len(all) {
				t.Fatalf("%d lent, %d by the count; %d claims of %d", lent, p.lent, len(p.holding)+len(p.waiting), len(all))
			}
			if len(p.waiting) > 0 && p.first == nil {
				t.Fatal("some wait, and none has its turn")
			}
		}
		end := func(c *claim) {
			all = slices.DeleteFunc(all, func(other *claim) bool { return other == c })
			p.end(c, now)
			check()
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if len(all) > 0 && rapid.Bool().Draw(t, "end") {
				end(all[rapid.IntRange(0, len(all)-1).Draw(t, "which")])
				continue
			}
			c, _ := ask(p, rapid.Int64Range(1, 10).Draw(t, "need"), now)
			all = append(all, c)
			check()
		}
		for len(all) > 0 {
			if len(p.holding) == 0 {
				t.Fatal("none is granted of those that are left")
			}
			end(p.holding[0])
		}
	})
}
