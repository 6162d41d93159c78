package devicequeue

import (
	"errors"
	"slices"
)

// twin is the queue written as its rules are told. It keeps all that ever was, counts by
// looking at everything, and never uses anything again.
type twin struct {
	config  Config
	waiting []Part             // in the order of Submit
	begun   map[Part]*twinPart // that have not ended
	all     []*twinArray
	lost    map[[2]uint64]error // by session and object
	// sessions that had a part since they last ended
	sessions map[uint32]bool
	copies   int
	gathers  *twinPart
	told     Part // that was admitted
}

type twinPart struct {
	part   Part
	reads  []*twinArray
	makes  []*twinArray
	pinned bool // has yet to read
}

type twinArray struct {
	session uint32
	object  uint64
	bytes   int64
	state   state
	err     error
	known   bool // can be named
	buffer  int  // 0: none; -1: it was closed
	writing bool // of a put
}

var errTwin = errors.New("some error of the queue's own")

func (w *twin) find(session uint32, object uint64) *twinArray {
	for _, a := range w.all {
		if a.known && a.session == session && a.object == object {
			return a
		}
	}
	return nil
}

func (w *twin) isPinned(a *twinArray) bool {
	for _, p := range w.begun {
		if p.pinned && slices.Contains(p.reads, a) {
			return true
		}
	}
	return false
}

// keeps reports whether an array's buffer stays open.
func (w *twin) keeps(a *twinArray) bool {
	return a.buffer > 0 && (a.known && a.state == ready || w.isPinned(a))
}

// counts reports whether an array's bytes count: while it may have contents, and while
// something under way reads or writes them.
func (w *twin) counts(a *twinArray) bool {
	if a.bytes == 0 || w.config.MemoryLimit == 0 {
		return false
	}
	if a.writing || a.state == pending || w.keeps(a) {
		return true
	}
	for _, p := range w.begun {
		if p.part.Gang.Recipe.Kind != Run {
			continue
		}
		for k, in := range p.reads {
			if in == a && !p.part.Gang.donates(k) {
				return true
			}
		}
		if slices.Contains(p.makes, a) {
			return true
		}
	}
	return false
}

// isBeingDonated reports whether a part that has begun, and was not launched, donates an array.
func (w *twin) isBeingDonated(a *twinArray) bool {
	for _, p := range w.begun {
		for k, in := range p.reads {
			if p.pinned && in == a && p.part.Gang.donates(k) {
				return true
			}
		}
	}
	return false
}

func (w *twin) used() (used, leaving int64) {
	for _, a := range w.all {
		if w.counts(a) {
			used += a.bytes
			if !a.known || a.state == failed || w.isBeingDonated(a) {
				leaving += a.bytes
			}
		}
	}
	return used, leaving
}

func (w *twin) flying() (n, waited, alone int) {
	for _, p := range w.begun {
		if r := p.part.Gang.Recipe; r.Kind == Run {
			n++
			if !r.Calls {
				waited++
			}
			if r.Alone && !r.Calls {
				alone++
			}
		}
	}
	return n, waited, alone
}

func (w *twin) first() (Part, bool) {
	if w.gathers != nil {
		return w.gathers.part, true
	}
	if len(w.waiting) > 0 {
		return w.waiting[0], true
	}
	return Part{}, false
}

// next answers as Next does; of errors of the queue's own it says errTwin.
func (w *twin) next(f Facts) Action {
	p, ok := w.first()
	if !ok {
		return Action{Kind: Idle}
	}
	g, r := p.Gang, p.Gang.Recipe
	wait := func(x Wait) Action { return Action{Kind: Waiting, Part: p, Wait: x} }
	fail := func(err error, own bool) Action {
		w.waiting, w.told = w.waiting[1:], Part{}
		return Action{Kind: Fail, Part: p, Err: err, Own: own}
	}
	if w.gathers != nil {
		if f.Failed != nil && !f.Launched {
			return Action{Kind: Fail, Part: p, Err: f.Failed}
		}
		return wait(Wait{For: OtherDevices})
	}
	if r.Kind == Leave {
		w.waiting = w.waiting[1:]
		w.drop(g.Session)
		return Action{Kind: Passed, Part: p}
	}
	if r.Kind == Free {
		w.waiting, w.sessions[g.Session] = w.waiting[1:], true
		for _, a := range w.all {
			if a.session == g.Session && slices.Contains(g.Objects, a.object) {
				a.known = false
			}
		}
		return Action{Kind: Passed, Part: p}
	}
	if f.Failed != nil {
		return fail(f.Failed, false)
	}
	if f.Loading {
		return wait(Wait{For: Loading})
	}
	w.sessions[g.Session] = true
	in := &twinPart{part: p, pinned: true}
	more := int64(0)
	for k, object := range g.reads(p.Index) {
		a := w.find(g.Session, object)
		switch {
		case a == nil:
			return fail(errTwin, false)
		case a.state == pending:
			return wait(Wait{For: Bytes, Argument: int32(k), N: object})
		case a.state == failed:
			return fail(a.err, false)
		case g.donates(k) && w.isPinned(a):
			return wait(Wait{For: Readers, Argument: int32(k), N: object})
		case g.donates(k) && w.config.MemoryLimit > 0:
			more -= a.bytes
		}
		in.reads = append(in.reads, a)
	}
	flying, waited, alone := w.flying()
	if r.Kind == Run && flying >= w.config.Window {
		return wait(Wait{For: Window, N: uint64(flying)})
	}
	if r.Kind == Run && (r.Alone && waited+w.copies > 0 || r.Pooled && alone > 0) {
		return wait(Wait{For: Before})
	}
	if limit := w.config.MemoryLimit; limit > 0 && g.makes(p.Index) && r.Bytes > 0 && w.told != p {
		more += r.Bytes
		if used, leaving := w.used(); used-leaving+more > limit {
			return fail(errTwin, true)
		}
	}
	if r.Announced && g.makes(p.Index) && w.told != p {
		w.told = p
		return Action{Kind: Admit, Part: p}
	}
	if f.Absent > 0 {
		return wait(Wait{For: Elsewhere, N: uint64(f.Absent - 1)})
	}
	if f.Defer {
		return Action{Kind: Ready, Part: p}
	}
	w.waiting, w.told = w.waiting[1:], Part{}
	if g.makes(p.Index) {
		in.makes = w.make(g)
	}
	w.begun[p] = in
	if r.Together {
		w.gathers = in
	}
	return Action{Kind: Begin, Part: p}
}

// make makes what a gang makes, pending.
func (w *twin) make(g *Gang) (made []*twinArray) {
	if g.Recipe.Makes > 0 {
		w.sessions[g.Session] = true
	}
	for k := range g.Recipe.Makes {
		a := &twinArray{session: g.Session, object: g.First + uint64(k), known: true}
		if k < len(g.Recipe.Sizes) {
			a.bytes = g.Recipe.Sizes[k]
		}
		w.all, made = append(w.all, a), append(made, a)
	}
	return made
}

func (w *twin) fault(session uint32, object uint64, err error) {
	if a := w.find(session, object); a != nil {
		a.state, a.err = failed, err
	} else if w.sessions[session] {
		w.lost[[2]uint64{uint64(session), object}] = err
	}
}

// sweep closes what is to be closed, and returns it sorted.
func (w *twin) sweep() (closed []int) {
	for _, a := range w.all {
		if a.buffer > 0 && !w.keeps(a) {
			closed = append(closed, a.buffer)
			a.buffer = -1
		}
	}
	slices.Sort(closed)
	return closed
}

func (w *twin) drop(session uint32) {
	delete(w.sessions, session)
	for _, a := range w.all {
		if a.session == session {
			a.known = false
		}
	}
	for key := range w.lost {
		if key[0] == uint64(session) {
			delete(w.lost, key)
		}
	}
}
