package schedule

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// twin is the scheduler written as its rules are told: it looks at everything
// again and again until nothing changes.
type twin struct {
	window, maxQueued int
	gangs             []*twinGang // in the order of submission
	said              []string    // of the step that is taken
}

type twinGang struct {
	id, session uint64
	devices     map[int]bool
	after       map[uint64]bool // producers that have not launched
	phase       phase
}

func (w *twin) find(id uint64) *twinGang {
	for _, g := range w.gangs {
		if g.id == id && g.phase != dead {
			return g
		}
	}
	return nil
}

func (w *twin) count(phases ...phase) (n int) {
	for _, g := range w.gangs {
		if slices.Contains(phases, g.phase) {
			n++
		}
	}
	return n
}

func (w *twin) remove(g *twinGang) {
	w.gangs = slices.DeleteFunc(w.gangs, func(o *twinGang) bool { return o == g })
}

// step returns "start 1", "fail 2" and "refuse 3", sorted.
func (w *twin) step(ev Event) []string {
	w.said = nil
	w.apply(ev)
	for w.advance() {
	}
	slices.Sort(w.said)
	return w.said
}

func (w *twin) say(f string, args ...any) { w.said = append(w.said, fmt.Sprintf(f, args...)) }

// apply takes what happened, without what follows for gangs that waited.
func (w *twin) apply(ev Event) {
	g := w.find(ev.ID)
	switch ev.Kind {
	case Submit:
		w.submit(ev.Gang)
	case Launched:
		if g != nil && g.phase == started {
			g.phase = launched
		}
	case Completed:
		if g != nil && g.phase >= started {
			w.remove(g)
		}
	case Failed:
		switch {
		case g == nil:
		case g.phase == launched: // readers have its launch
			w.remove(g)
		case g.phase == started:
			w.remove(g)
			w.failReaders(g.id)
		default:
			w.fail(g)
		}
	case Cancel:
		if g != nil {
			w.fail(g)
		}
	case SessionClosed:
		for _, g := range slices.Clone(w.gangs) {
			if g.session == uint64(ev.Session) {
				w.fail(g)
			}
		}
	}
}

func (w *twin) submit(gang Gang) {
	full := w.count(pending, placed, dead) >= w.maxQueued
	switch {
	case w.find(gang.ID) != nil:
	case gang.Devices.Len() == 0: // looked at before the bound, After behind it
		w.say("fail %d", gang.ID)
	case full:
		w.say("refuse %d", gang.ID)
	case slices.Contains(gang.After, gang.ID):
		w.say("fail %d", gang.ID)
	default:
		n := &twinGang{id: gang.ID, session: uint64(gang.Session), devices: map[int]bool{}, after: map[uint64]bool{}}
		for d := range gang.Devices.All() {
			n.devices[d] = true
		}
		for _, id := range gang.After {
			if p := w.find(id); p != nil && p.phase != launched {
				n.after[id] = true
			}
		}
		w.gangs = append(w.gangs, n)
	}
}

// fail ends a gang that has not started, and those that read what it makes.
func (w *twin) fail(g *twinGang) {
	if g.phase >= started {
		return
	}
	w.say("fail %d", g.id)
	if g.phase != placed || len(g.devices) < 2 {
		w.remove(g) // it has no place to keep
	}
	g.phase = dead
	w.failReaders(g.id)
}

func (w *twin) failReaders(id uint64) {
	for _, g := range slices.Clone(w.gangs) {
		if g.after[id] {
			w.fail(g)
		}
	}
}

// advance has the first gang that can go on do so, and reports whether there was one.
func (w *twin) advance() bool {
	for i, g := range w.gangs {
		switch {
		case g.phase == pending && (w.window == 0 || w.count(placed, started, launched) < w.window):
			g.phase = placed
			return true
		case (g.phase == placed || g.phase == dead) && w.isFree(i):
			if g.phase == dead {
				w.remove(g)
			} else {
				g.phase = started
				w.say("start %d", g.id)
			}
			return true
		}
	}
	return false
}

// isFree reports whether a gang that is placed, or has died in its place, waits for no other.
func (w *twin) isFree(i int) bool {
	g := w.gangs[i]
	free := true
	for p := range g.after {
		if o := w.find(p); o == nil || o.phase == launched {
			delete(g.after, p)
		} else if g.phase == placed {
			free = false
		}
	}
	for _, o := range w.gangs[:i] {
		if len(g.devices) > 1 && len(o.devices) > 1 && o.phase != launched && w.share(o, g) {
			free = false
		}
	}
	return free
}

func (w *twin) share(a, b *twinGang) bool {
	for d := range a.devices {
		if b.devices[d] {
			return true
		}
	}
	return false
}

// State and its twin get the same random events, and must return the same actions. State's own log must keep what the
// package promises.
func TestStateActsLikeItsTwin(t *testing.T) { rapid.Check(t, twinProperty) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinProperty)) }

func twinProperty(t *rapid.T) {
	window := rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "window")
	w := &twin{window: window, maxQueued: rapid.SampledFrom([]int{1, 4, 12, 30}).Draw(t, "max queued")}
	s := New(Config{MaxQueued: w.maxQueued, Policy: &FIFO{Window: window}})
	var (
		next    uint64
		verdict = map[uint64]string{}
		log     = newLaunches()
	)
	for range rapid.SampledFrom([]int{10, 80, 80}).Draw(t, "events") { // IntRange would mostly be few
		ev := w.drawEvent(t, next+1)
		if ev.Kind == Submit && ev.Gang.ID <= next && s.gangs[ev.Gang.ID] == nil {
			continue // a new gang under an old number
		}
		next = max(next, ev.Gang.ID)
		wasStarted := s.gangs[ev.ID] != nil && s.gangs[ev.ID].phase == started
		actions := s.Step(ev, nil)
		s.check()
		if wasStarted && (ev.Kind == Launched || ev.Kind == Completed || ev.Kind == Failed) {
			delete(log.open, ev.ID)
		}

		var got []string
		for _, a := range actions {
			var line string
			switch a.Kind {
			case Start:
				line = fmt.Sprintf("start %d", a.ID)
				devices := DeviceSet{}
				if r := s.gangs[a.ID]; r != nil {
					devices = r.gang.Devices
				}
				statustest.OK(t, log.start(a.ID, devices))
			case Fail:
				line = fmt.Sprintf("fail %d", a.ID)
				if a.Err == nil || (ev.Kind == Failed || ev.Kind == Cancel) && ev.Err != nil && a.Err != ev.Err {
					t.Fatalf("gang %d fails with %v, want %v", a.ID, a.Err, ev.Err)
				}
			case Refuse:
				line = fmt.Sprintf("refuse %d", a.ID)
			}
			if old, ok := verdict[a.ID]; ok {
				t.Fatalf("gang %d: %s after %s", a.ID, line, old)
			}
			verdict[a.ID] = line
			got = append(got, line)
		}
		slices.Sort(got)
		want := w.step(ev)
		statustest.MustEqualSlices(t, got, want, "%+v: got", ev)
		if s.Queued() != w.count(pending, placed, dead) || s.Running() != w.count(started, launched) {
			t.Fatalf("queued %d, running %d; want %d and %d", s.Queued(), s.Running(), w.count(pending, placed, dead),
				w.count(started, launched))
		}
	}

	// What has started ends; then nothing is left behind.
	for s.Running() > 0 {
		for id, r := range s.gangs {
			if r.phase >= started {
				s.check()
				for _, a := range s.Step(Event{Kind: Completed, ID: id}, nil) {
					verdict[a.ID] = "start"
				}
				break
			}
		}
	}
	if s.Queued() != 0 || len(s.gangs) != 0 || s.first != nil {
		t.Fatalf("%d gangs are left in the queue with nothing running", s.Queued())
	}
	for id := uint64(1); id <= next; id++ {
		if verdict[id] == "" {
			t.Fatalf("gang %d got no verdict", id)
		}
	}
}

// drawEvent draws what happens next: mostly a gang that comes, under a new number or, seldom, the one before it.
func (w *twin) drawEvent(t *rapid.T, number uint64) Event {
	known := make([]uint64, 0, len(w.gangs))
	for _, g := range w.gangs {
		known = append(known, g.id)
	}
	// Some of the devices lie past the first word.
	device := rapid.Map(rapid.IntRange(0, 5), func(i int) int { return i * 31 })
	ev := Event{Kind: rapid.SampledFrom([]EventKind{Submit, Submit, Submit, Submit, Launched, Launched, Launched,
		Completed, Failed, Cancel, SessionClosed}).Draw(t, "kind")}
	switch ev.Kind {
	case Submit:
		g := Gang{ID: number, Session: uint32(rapid.IntRange(1, 3).Draw(t, "session"))}
		g.Devices = Devices(rapid.SliceOfN(device, 0, 4).Draw(t, "devices")...)
		if len(known) > 0 {
			g.After = rapid.SliceOfN(rapid.SampledFrom(append(known, number, 1)), 0, 3).Draw(t, "after")
		}
		if number > 1 && rapid.IntRange(0, 15).Draw(t, "again") == 0 {
			g.ID--
		}
		ev.Gang = g
	case SessionClosed:
		ev.Session = uint32(rapid.IntRange(1, 4).Draw(t, "session"))
	default:
		ev.ID = rapid.SampledFrom(append(known, number)).Draw(t, "id")
		ev.Err = rapid.SampledFrom([]error{nil, errors.New("boom")}).Draw(t, "error")
	}
	return ev
}

// launches are the gangs of several devices between Start and Launched.
type launches struct {
	open map[uint64]DeviceSet
}

func newLaunches() *launches { return &launches{open: map[uint64]DeviceSet{}} }

func (l *launches) start(id uint64, devices DeviceSet) error {
	if devices.Len() < 2 {
		return nil
	}
	for o, d := range l.open {
		if d.overlaps(&devices.mask) {
			return fmt.Errorf("gang %d on %v starts before gang %d on %v has launched", id, devices, o, d)
		}
	}
	l.open[id] = devices
	return nil
}
