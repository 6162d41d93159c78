package devicequeue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

// numbered is a buffer.
type numbered struct{ number int }

func TestQueueActsLikeItsTwin(t *testing.T) { rapid.Check(t, twinCheck) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinCheck)) }

// twinCheck has a queue and its twin go through the same random events.
func twinCheck(t *rapid.T) {
	c := Config{Worker: "w", Window: rapid.IntRange(1, 3).Draw(t, "window"), Owner: owner}
	c.MemoryLimit = rapid.SampledFrom([]int64{0, 3, 6}).Draw(t, "memory")
	w := &twin{config: c, begun: map[Part]*twinPart{}, lost: map[[2]uint64]error{}, sessions: map[uint32]bool{}}
	s := &pair{t: t, q: New(c), w: w, flights: map[Part]*Flight{}, launched: map[Part]bool{}, facts: map[uint64]*Facts{},
		inputs: map[Part][]Input{}, made: map[Part][]*Shard{}, writing: map[*twinArray]*Charge{}}
	for range rapid.SampledFrom([]int{10, 60, 60}).Draw(t, "events") {
		s.event()
		s.advance()
	}
	// All that is under way ends, and the sessions do; then nothing is left.
	for _, f := range s.facts {
		*f = Facts{Failed: errors.New("it is over")}
	}
	for session := range uint32(3) {
		s.drop(session)
	}
	s.quiet = true
	for {
		s.advance()
		if len(s.w.begun) == 0 && len(s.writing) == 0 && s.w.copies == 0 {
			break
		}
		s.event()
	}
	for session := range uint32(3) {
		s.drop(session)
	}
	s.advance()
	if s.q.Objects() != 0 || s.q.flying != 0 || s.q.room.used != 0 || len(s.q.parts) != 0 || s.open != 0 {
		t.Fatalf("%d objects, %d computations, %d bytes, %d parts and %d open buffers are left",
			s.q.Objects(), s.q.flying, s.q.room.used, len(s.q.parts), s.open)
	}
}

// pair is a queue and its twin, and what a caller keeps of them.
type pair struct {
	t        *rapid.T
	q        *Queue
	w        *twin
	gangs    uint64
	objects  uint64
	buffers  int
	open     int
	quiet    bool // nothing new comes
	busy     bool
	flights  map[Part]*Flight
	launched map[Part]bool
	facts    map[uint64]*Facts
	inputs   map[Part][]Input
	made     map[Part][]*Shard
	writing  map[*twinArray]*Charge // by array
}

func (s *pair) drop(session uint32) {
	s.q.Drop(session)
	s.w.drop(session)
	if len(s.w.waiting) > 0 {
		s.w.waiting = append(s.w.waiting, Part{Gang: &Gang{Session: session, Recipe: &leaves}})
	}
}

// event draws something that may happen.
func (s *pair) event() {
	t, q, w := s.t, s.q, s.w
	type event struct {
		name string
		does func()
	}
	var events []event
	may := func(name string, does func()) { events = append(events, event{name, does}) }
	if !s.quiet {
		for range 4 {
			may("a part", s.submit)
		}
		may("a session ends", func() { s.drop(uint32(rapid.IntRange(0, 2).Draw(t, "session"))) })
		may("a copy begins", func() { w.copies++; q.CopyBegun() })
		may("the caller is busy or not", func() { s.busy = !s.busy })
	}
	if w.copies > 0 {
		may("a copy ends", func() { w.copies--; q.CopyEnded() })
	}
	if p, ok := w.first(); ok && s.facts[p.Gang.ID] != nil {
		f := s.facts[p.Gang.ID]
		may("the first part's gang fails", func() { f.Failed = fmt.Errorf("gang %d has failed", p.Gang.ID) })
		may("its program is loaded", func() { f.Loading = false })
		may("others have come", func() { f.Absent = 0 })
		if w.gathers != nil {
			may("it is being launched", func() { f.Launched = true })
		}
	}
	// In the order of the gangs, so that a seed always says the same.
	var begun []Part
	for p := range w.begun {
		begun = append(begun, p)
	}
	slices.SortFunc(begun, func(a, b Part) int { return int(a.Gang.ID) - int(b.Gang.ID) })
	for _, p := range begun {
		x := w.begun[p]
		if p.Gang.Recipe.Kind == Run {
			s.computation(p, x, may)
			continue
		}
		if x.pinned && len(x.reads) > 0 {
			may("a copy was read", func() {
				for _, in := range s.inputs[p] {
					q.Unpin(in.Shard)
				}
				x.pinned = false
				s.settle(p, x)
			})
		}
		for k, a := range x.makes {
			if a.state != pending {
				continue
			}
			may("bytes come", func() {
				s.writing[a] = q.Writing(s.made[p][k])
				q.Fill(s.made[p][k], s.buffer(a))
				a.writing = true
				s.settle(p, x)
			})
			may("bytes do not come", func() {
				err := fmt.Errorf("no bytes for %d", a.object)
				q.Spoil(s.made[p][k], err)
				a.state, a.err = failed, err
				s.settle(p, x)
			})
		}
	}
	for _, a := range w.all {
		if a.writing {
			may("bytes are written", func() { s.written(a, nil) })
			may("bytes are not written after all", func() { s.written(a, fmt.Errorf("%d was not written", a.object)) })
		}
	}
	if len(events) == 0 {
		return
	}
	e := events[rapid.IntRange(0, len(events)-1).Draw(t, "event")]
	t.Log(e.name)
	e.does()
}

func (s *pair) written(a *twinArray, err error) {
	s.q.Written(s.writing[a])
	delete(s.writing, a)
	a.writing = false
	if err != nil {
		s.q.Fault(a.session, a.object, err)
		s.w.fault(a.session, a.object, err)
	}
}

// settle forgets a part that is no computation once it is over.
func (s *pair) settle(p Part, x *twinPart) {
	coming := slices.ContainsFunc(x.makes, func(a *twinArray) bool { return a.state == pending })
	if !coming && (!x.pinned || len(x.reads) == 0) {
		delete(s.w.begun, p)
	}
}

func (s *pair) buffer(a *twinArray) Buffer {
	s.buffers++
	s.open++
	a.state, a.buffer = ready, s.buffers
	return numbered{s.buffers}
}

// computation says what may happen to one that has begun.
func (s *pair) computation(p Part, x *twinPart, may func(string, func())) {
	q, w, f := s.q, s.w, s.flights[p]
	gathers := func() bool { return w.gathers == x }
	end := func() {
		delete(w.begun, p)
		delete(s.flights, p)
		delete(s.launched, p)
	}
	if s.launched[p] {
		may("a computation ends", func() { q.Ended(f, nil); end() })
		may("a computation fails", func() {
			err := fmt.Errorf("computation %d has failed", p.Gang.ID)
			var cause error
			for _, a := range p.Gang.reads(p.Index) {
				if b := w.find(p.Gang.Session, a); b == nil {
					cause = w.lost[[2]uint64{uint64(p.Gang.Session), a}]
				} else if b.state == failed && b.err != errDonated {
					cause = b.err
				}
				if cause != nil {
					break
				}
			}
			statustest.MustEqual(s.t, q.Cause(p.Gang.Session, p.Reads()), cause, "the cause of gang %d's failure", p.Gang.ID)
			q.Ended(f, err)
			end()
			for k := range p.Gang.Recipe.Makes {
				w.fault(p.Gang.Session, p.Gang.First+uint64(k), err)
			}
		})
		return
	}
	if gathers() && p.Gang.Recipe.Calls {
		may("a gang departs", func() { q.Depart(f); w.gathers = nil })
	}
	may("a computation is launched", func() {
		x.pinned = false
		for k, a := range x.reads {
			if p.Gang.donates(k) && a.state == ready {
				a.state, a.err = failed, errDonated
			}
		}
		q.Launched(f)
		for k, a := range x.makes {
			q.Fill(f.Made[k], s.buffer(a))
		}
		s.launched[p] = true
		if gathers() {
			w.gathers = nil
		}
	})
	may("a launch fails", func() {
		err := fmt.Errorf("gang %d was not launched", p.Gang.ID)
		q.Failed(f, err)
		if gathers() {
			w.gathers = nil
		}
		end()
		for _, a := range x.makes {
			a.state, a.err = failed, err
		}
	})
}

// submit draws a part.
func (s *pair) submit() {
	t := s.t
	r := &Recipe{Name: "it"}
	session := uint32(rapid.IntRange(0, 1).Draw(t, "session"))
	var known []uint64
	for _, a := range s.w.all {
		if a.session == session && a.known {
			known = append(known, a.object)
		}
	}
	for _, p := range s.w.waiting { // what will be there
		if p.Gang.Session == session && p.Gang.Recipe.Makes > 0 {
			known = append(known, p.Gang.First)
		}
	}
	known = append(known, 99) // which is never made
	some := func(most int) []uint64 {
		itself := func(o uint64) uint64 { return o }
		return rapid.SliceOfNDistinct(rapid.SampledFrom(known), 0, min(most, len(known)), itself).Draw(t, "objects")
	}
	if rapid.IntRange(0, 3).Draw(t, "free") == 0 {
		p := Part{Gang: &Gang{Session: session, Recipe: &Frees, Objects: some(3)}}
		s.q.Submit(p)
		s.w.waiting = append(s.w.waiting, p)
		return
	}
	flag := func(name string) bool { return rapid.IntRange(0, 4).Draw(t, name) == 0 }
	r.Makes = rapid.IntRange(0, 2).Draw(t, "makes")
	for range r.Makes {
		n := int64(rapid.IntRange(0, 2).Draw(t, "bytes"))
		r.Sizes, r.Bytes = append(r.Sizes, n), r.Bytes+n
	}
	if rapid.IntRange(0, 2).Draw(t, "transfer") == 0 {
		r.Kind, r.Announced = Transfer, flag("announced")
	} else {
		r.Alone, r.Together, r.Calls = flag("alone"), flag("together"), flag("calls")
		r.Pooled = r.Together && !r.Alone && flag("pooled")
		r.Donates = rapid.SampledFrom([][]int{nil, nil, {0}, {0, 1}}).Draw(t, "donates")
	}
	s.gangs++
	g := &Gang{ID: s.gangs, Session: session, Recipe: r, Objects: some(3), First: 100 + s.objects}
	s.objects += uint64(r.Makes)
	if flag("exceptions") {
		g.But = &Exceptions{Reads: [][]uint64{nil, some(2)}, MakesNone: []bool{false, flag("makes none")}, Kept: []int{0}}
	}
	p := Part{Gang: g, Index: rapid.IntRange(0, 1).Draw(t, "part")}
	s.facts[g.ID] = &Facts{Loading: flag("loading")}
	if flag("others have yet to come") {
		s.facts[g.ID].Absent = 3
	}
	s.q.Submit(p)
	s.w.waiting = append(s.w.waiting, p)
}

// advance has both do what can be done, and compares.
func (s *pair) advance() {
	for {
		s.q.check()
		s.compare()
		first, ok := s.q.First()
		if want, some := s.w.first(); ok != some || first.Gang != want.Gang && first.Gang.Recipe != &leaves {
			s.t.Fatalf("the first part is %+v, want %+v", first, want)
		}
		f := Facts{}
		if ok && s.facts[first.Gang.ID] != nil {
			f = *s.facts[first.Gang.ID]
		}
		f.Defer = s.busy && !s.quiet
		a, b := s.q.Next(f), s.w.next(f)
		sameError := a.Err == b.Err || b.Err == errTwin && a.Err != nil
		if a.Kind != b.Kind || a.Own != b.Own || a.Wait != b.Wait || !sameError {
			s.t.Fatalf("the queue says %s, the twin %s", describe(a), describe(b))
		}
		s.t.Log(describe(a))
		switch a.Kind {
		case Idle, Waiting, Ready:
			return
		case Begin:
			s.begin(a)
		case Fail:
			s.refuse(a)
		}
	}
}

func (s *pair) begin(a Action) {
	p, x := a.Part, s.w.begun[a.Part]
	if len(a.Flight.Inputs) != len(x.reads) || len(a.Flight.Made) != len(x.makes) {
		s.t.Fatalf("gang %d reads %d arrays and makes %d, want %d and %d",
			p.Gang.ID, len(a.Flight.Inputs), len(a.Flight.Made), len(x.reads), len(x.makes))
	}
	for k, in := range a.Flight.Inputs {
		if got, want := in.Shard.Buffer.(numbered).number, x.reads[k].buffer; got != want || in.Donated != p.Gang.donates(k) {
			s.t.Fatalf("gang %d reads buffer %d as argument %d, donated: %t; want %d", p.Gang.ID, got, k, in.Donated, want)
		}
	}
	if p.Gang.Recipe.Kind == Run {
		for other, f := range s.flights {
			if f.Index == a.Flight.Index {
				s.t.Fatalf("gangs %d and %d have one index", other.Gang.ID, p.Gang.ID)
			}
		}
		s.flights[p] = a.Flight
		return
	}
	s.inputs[p], s.made[p] = slices.Clone(a.Flight.Inputs), slices.Clone(a.Flight.Made)
	s.settle(p, x)
}

func (s *pair) refuse(a Action) {
	p, w := a.Part, s.w
	s.q.Refuse(a, a.Err)
	if a.Flight != nil {
		for _, made := range w.gathers.makes {
			made.state, made.err = failed, a.Err
		}
		w.gathers = nil
		delete(w.begun, p)
		delete(s.flights, p)
		return
	}
	if p.Gang.makes(p.Index) {
		for _, made := range w.make(p.Gang) {
			made.state, made.err, made.bytes = failed, a.Err, 0
		}
	}
}

// compare looks at what can be seen of both.
func (s *pair) compare() {
	var closed []int
	for _, b := range s.q.Discarded() {
		closed = append(closed, b.(numbered).number)
	}
	s.open -= len(closed)
	slices.Sort(closed)
	if want := s.w.sweep(); !slices.Equal(closed, want) {
		s.t.Fatalf("buffers %v are to be closed, want %v", closed, want)
	}
	objects := 0
	for _, a := range s.w.all {
		if a.known {
			objects++
		}
	}
	used, leaving := s.w.used()
	if s.q.Objects() != objects || s.q.room.used != used || s.q.room.leaving != leaving {
		s.t.Fatalf("%d objects, %d bytes, %d leaving; want %d, %d and %d",
			s.q.Objects(), s.q.room.used, s.q.room.leaving, objects, used, leaving)
	}
}

func describe(a Action) string {
	var b strings.Builder
	b.WriteString([]string{"idle", "wait", "ready", "begin", "fail", "admit", "pass"}[a.Kind])
	if a.Part.Gang != nil {
		fmt.Fprintf(&b, " %d", a.Part.Gang.ID)
	}
	if a.Kind == Waiting {
		fmt.Fprintf(&b, " for %s", a.Wait.Text(a.Part))
	}
	if a.Err != nil {
		fmt.Fprintf(&b, ": %v, own: %t", a.Err, a.Own)
	}
	return b.String()
}
