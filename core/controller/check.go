package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/series"
	"github.com/openpathways/pathways/core/wire"
)

// Check looks for contradictions: sessions and workers that have gone and are still named, counts that differ from what
// they count. It is for tests, and checks everything.
func (st *State) Check() error {
	a := audit{
		st: st, views: map[int]int{}, users: map[*compiled]int{},
		underWay: map[*session]int{}, untold: map[*session]int{},
	}
	a.gangs()
	a.kept()
	for _, g := range st.held {
		if g.s.waiting != g {
			a.say("session %d has a gang held that it does not wait for", g.s.id)
		}
	}
	for id, s := range st.sessions {
		if s.id != id {
			a.say("session %d is listed as session %d", s.id, id)
		}
		a.session(s)
		a.use(s)
	}
	for _, s := range st.leftovers {
		a.leftover(s)
	}
	for _, c := range st.answering {
		a.users[c]++
	}
	for _, l := range st.losing {
		a.views[l.w.slot]++
	}
	for name, t := range st.tenants {
		n := 0
		for _, s := range st.sessions {
			if s.tenant == t {
				n++
			}
		}
		if t.terms.Name != name || len(t.sessions) != n || t.removed && n == 0 {
			a.say("tenant %s is called %s and has %d sessions, %d by its list", name, t.terms.Name, n, len(t.sessions))
		}
		if !slices.IsSortedFunc(t.sessions, func(a, b *session) int { return cmp.Compare(a.id, b.id) }) {
			a.say("the sessions of tenant %s are not in their order", name)
		}
	}
	for _, id := range st.layout.Holders() {
		if st.sessions[id] == nil {
			a.say("session %d has slices and is gone", id)
		}
	}
	if st.open.count > 0 {
		a.say("%d nodes of a play were not told to their workers", st.open.count)
	}
	a.workers()
	a.compiles()
	a.artifacts()
	a.taught()
	a.islands()
	a.code()
	return errors.Join(a.wrong...)
}

// audit counts what a State's own counts count. Gangs come first and sessions second: later steps compare with what
// they have counted.
type audit struct {
	st       *State
	wrong    []error
	underWay map[*session]int  // gangs
	untold   map[*session]int  // of them, those that the client may still wait for
	views    map[int]int       // sessions that have devices of a slot
	users    map[*compiled]int // programs of sessions
	// unkept counts those that are gone and stay on disk, and forgotten is their bytes.
	unkept    int
	forgotten int64
}

func (a *audit) say(format string, args ...any) {
	a.wrong = append(a.wrong, fmt.Errorf(format, args...))
}

func (a *audit) gangs() {
	busy := make([]uint32, len(a.st.workers))
	for n, g := range a.st.gangs.All() {
		a.underWay[g.s]++
		if g.err == nil { // otherwise the client knows
			a.untold[g.s]++
		}
		left := 0
		g.waits.each(func(slot int) {
			left++
			busy[slot]++
			if w := a.st.workers[slot]; w == nil || w.gone != nil && !a.st.isLosing(w) {
				a.say("gang %d waits for the worker of slot %d, which is gone", n, slot)
			}
		})
		if a.st.sessions[g.s.id] != g.s || g.number != n || left != g.left || left == 0 {
			a.say("gang %d of session %d has number %d and waits for %d workers, %d by its count", n, g.s.id, g.number, left,
				g.left)
		}
	}
	if !slices.Equal(busy, a.st.busy) {
		a.say("workers have yet to report %v gangs, %v by their counts", busy, a.st.busy)
	}
}

// kept counts what gangs keep of workers that their sessions no longer use.
func (a *audit) kept() {
	gangs := map[*kept]int{}
	count := func(g *gang) {
		if g == nil {
			return
		}
		for _, k := range g.keeps {
			gangs[k]++
		}
	}
	for _, all := range []*series.Of[gang]{&a.st.gangs, &a.st.leaving} {
		for _, g := range all.All() {
			count(g)
		}
	}
	for _, s := range a.st.sessions {
		for e := s.line.first; e != nil; e = e.behind {
			count(e.g)
		}
		count(s.waiting)
	}
	for k, n := range gangs {
		if k.gangs != n {
			a.say("%d gangs keep workers that have gone, %d by their count", n, k.gangs)
		}
		for _, w := range k.workers {
			a.views[w.slot]++
		}
	}
}

func (a *audit) session(s *session) {
	if s.conn != 0 && (a.st.conns.Get(s.conn) == nil || a.st.conns.Get(s.conn).s != s) {
		a.say("session %d has connection %d, which is not its own", s.id, s.conn)
	}
	if s.out != a.underWay[s] {
		a.say("session %d has %d gangs under way, %d by its count", s.id, a.underWay[s], s.out)
	}
	putting := 0
	for g := s.putters.first; g != nil; g = g.behind {
		putting++
	}
	if s.putting != putting {
		a.say("session %d has %d puts under way, %d by its count", s.id, putting, s.putting)
	}
	if s.head > 0 && s.head == len(s.queue) {
		a.say("session %d keeps %d operations that were performed in an empty queue", s.id, s.head)
	}
	if queue := len(s.queue) - s.head; (queue > 0 || s.play != nil) && a.st.may(s) && !s.ready {
		a.say("session %d has %d operations queued, or a play, and does not go on", s.id, queue)
	}
	if s.waiting != nil && (s.waiting.held == nil || !slices.Contains(a.st.held, s.waiting)) {
		a.say("session %d waits for a gang that is not held", s.id)
	}
	missing := 0
	s.workers.each(func(slot int) {
		if w := a.st.workers[slot]; w == nil || w.gone != nil {
			missing++
		}
	})
	if missing != s.missing {
		a.say("session %d misses %d workers, %d by its count", s.id, missing, s.missing)
	}
	a.line(s)
	if told := len(s.ok) + len(s.failed); s.underWay < told+a.untold[s] {
		a.say("session %d has %d operations under way of which %d were dispatched and %d have ended", s.id, s.underWay,
			a.untold[s], told)
	}
	a.names(s)
	a.graphs(s)
	a.memory(s)
	a.assembled(s)
	for _, p := range s.programs {
		a.users[p.of]++
	}
	a.outlasts(s)
	for program, c := range s.compiling {
		if !slices.Contains(a.st.answering, c) && (a.st.compiled[c.key] != c || c.ready) {
			a.say("session %d waits for program %d, which no worker compiles", s.id, program)
		}
	}
}

// outlasts counts what a session keeps until the last of its programs has gone: its workers' slots, and programs on
// disk.
func (a *audit) outlasts(s *session) {
	all := slices.Clone(s.workers)
	all.union(s.newest().workers)
	all.each(func(slot int) { a.views[slot]++ })
	for _, e := range s.unkept {
		u := e.Value.(*unkept)
		a.users[u.of]++
		a.unkept++
		a.forgotten += u.of.bytes
	}
}

// leftover counts what is left of a session that has ended.
func (a *audit) leftover(s *session) {
	a.outlasts(s)
	for p := range s.allPrograms.each {
		a.users[p.of]++
	}
	if a.st.sessions[s.id] == s {
		a.say("session %d is there, and its programs go", s.id)
	}
}

// line counts again what the entries of a session's line wait for.
func (a *audit) line(s *session) {
	waits := map[*entry]int{}
	length := 0
	for e := s.line.first; e != nil; e = e.behind {
		for _, next := range e.then {
			waits[next]++
		}
		length++
		switch g := e.g; {
		case e.waits != waits[e]: // those before it have been looked at
			a.say("session %d has an entry in its line that waits for %d others, %d by its count", s.id, waits[e], e.waits)
		case e.waits == 0 && (g == nil || g.island.held[g.ticket] != g):
			a.say("session %d has an entry in its line whose turn it is, and that does not go on", s.id)
		case g != nil && (g.entry != e || g.s != s || g.number != 0):
			a.say("session %d has operation %d in its line, which has another place", s.id, g.op)
		}
	}
	if length != s.line.length {
		a.say("session %d has %d entries in its line, %d by its count", s.id, length, s.line.length)
	}
}

// names counts again what a session's queue does with its arrays.
func (a *audit) names(s *session) {
	n := s.names
	if n == nil {
		return
	}
	if n.uncounted < 0 || n.uncounted > len(s.queue)-s.head {
		a.say("session %d has %d operations queued of which %d are not counted", s.id, len(s.queue)-s.head, n.uncounted)
		return
	}
	again := map[uint64]int32{}
	use := func(id uint64) { again[id]++ }
	uses(n.current, use)
	passers := 0
	for _, q := range s.queue[s.head : len(s.queue)-n.uncounted] {
		uses(q.message, use)
		if q.kind == wire.KindFetch || q.kind == wire.KindPut {
			passers++
		}
	}
	for id, u := range n.of {
		if u.uses != again[id] {
			a.say("session %d has %d operations queued that use array %d, %d by its count", s.id, again[id], id, u.uses)
		}
		delete(again, id)
	}
	if len(again) > 0 || passers != len(n.passers) {
		a.say("session %d does not count uses of %v; of fetches and puts it has %d queued, %d by its count", s.id, again,
			passers, len(n.passers))
	}
}

// assembled checks what a session's objects are assembled from.
func (a *audit) assembled(s *session) {
	for id, o := range s.objects {
		for at, in := range o.in {
			of := s.objects[in.of]
			if of == nil || of.of == nil || of.of.members[in.index] != id || of.of.at[in.index] != at {
				a.say("array %d of session %d is said to be in array %d", id, s.id, in.of)
			}
		}
		if o.of == nil || o.err != nil {
			continue
		}
		for _, member := range o.of.members {
			isIn := func(in membership) bool { return in.of == id }
			if m := s.objects[member]; m == nil || m.err != nil || m.donated || !slices.ContainsFunc(m.in, isIn) {
				a.say("array %d of session %d is assembled of array %d, which is not there", id, s.id, member)
			}
		}
	}
}

// use checks the devices that a session occupies: those of its arrays, and of its operations that were performed.
func (a *audit) use(s *session) {
	var want set
	add := func(p *place) {
		for _, d := range p.numbers {
			want.add(d)
		}
	}
	for _, o := range s.objects {
		if o.charge != 0 {
			for _, d := range o.place.rows {
				if !o.freed.has(int(d)) {
					want.add(o.place.in.number(d))
				}
			}
		}
	}
	for _, g := range a.st.gangs.All() {
		if g.s == s {
			add(g.place)
		}
	}
	if s.waiting != nil {
		add(s.waiting.place)
	}
	for e := s.line.first; e != nil; e = e.behind {
		if e.g != nil {
			add(e.g.place)
		}
	}
	a.st.findUse()
	if got := set(s.use.devices); !got.covers(want) || !want.covers(got) {
		a.say("session %d occupies %b, and by its arrays and gangs %b", s.id, got, want)
	}
}

// lost returns those of a place's devices whose workers have gone.
func (p *place) lost(st *State) (rows []uint32) {
	for _, d := range p.rows {
		if w := st.workers[p.in.slot(d)]; w == nil || w.gone != nil && !st.isLosing(w) {
			rows = append(rows, d)
		}
	}
	return rows
}

// memory checks the ledger's entries for a session's arrays: all whose bytes are on devices, or will be.
func (a *audit) memory(s *session) {
	for id, o := range s.objects {
		g := s.waiting
		waits := g != nil && g.held != nil && id >= g.first && id < g.first+uint64(g.makes)
		if lost := o.place.lost(a.st); !o.absent && len(lost) > 0 {
			a.say("array %d of session %d is on devices %v, whose workers have gone", id, s.id, lost)
		}
		isThere := o.err == nil && !o.donated && !waits && !o.freed.covers(o.place.has)
		if isThere && o.of == nil && o.charge == 0 {
			a.say("array %d of session %d is not in the ledger", id, s.id)
		} else if o.charge != 0 && waits {
			a.say("array %d of session %d is in the ledger before it has its memory", id, s.id)
		}
	}
	listed := 0
	for _, all := range []*gangs{&s.readers, &s.putters} {
		for g := all.first; g != nil; g = g.behind {
			if a.st.gangs.Get(g.number) != g || g.behind != nil && g.behind.turn <= g.turn || s.listOf(g) != all {
				a.say("session %d lists gang %d as under way, or in the wrong order", s.id, g.number)
			}
			listed++
		}
	}
	if listed != s.out {
		a.say("session %d lists %d gangs under way, of %d", s.id, listed, s.out)
	}
}

// code counts again which gangs and programs use code, and compares that with the ledger.
func (a *audit) code() {
	runs, loaded := map[*resident]int{}, map[*compiled]*tally{}
	for _, gangs := range []*series.Of[gang]{&a.st.gangs, &a.st.leaving} {
		for _, g := range gangs.All() {
			runs[g.code]++
		}
	}
	for _, s := range a.st.sessions {
		for e := s.line.first; e != nil; e = e.behind {
			if e.g != nil {
				runs[e.g.code]++
			}
		}
	}
	delete(runs, nil)
	all := map[*program]bool{}
	for _, s := range a.st.sessions {
		for p := range s.allPrograms.each {
			all[p] = true
		}
	}
	for _, s := range a.st.leftovers {
		for p := range s.allPrograms.each {
			all[p] = true
		}
	}
	for p := range all {
		if loaded[p.of] == nil {
			loaded[p.of] = new(tally)
		}
		if p.of.codeBytes() > 0 {
			p.loaded.each(loaded[p.of].add)
		}
	}
	for r := range runs {
		if loaded[r.of] == nil {
			loaded[r.of] = new(tally)
		}
	}
	at := map[int]int64{}
	for c, on := range loaded {
		for slot := range max(len(*on), len(c.loadedOn)) {
			if n, counted := on.at(slot), c.loadedOn.at(slot); n != counted {
				a.say("%d programs %s are loaded on the worker of slot %d, %d by their count", n, c.info.Name, slot, counted)
			}
		}
		for _, r := range c.residents {
			for _, d := range r.at {
				at[d] += c.codeBytes()
			}
			if r.runs != runs[r] {
				a.say("code of %s on devices %v has %d runs, %d by its count", c.info.Name, r.at, runs[r], r.runs)
			}
		}
	}
	for d := range a.st.numbered {
		if n, m := a.st.ledger.On(programs, d), a.st.codeOn(d); n != at[d] || m != n {
			a.say("the ledger has %d bytes of code on device %d, the count %d, there are %d", n, d, m, at[d])
		}
	}
}

// graphs checks a session's graphs, and counts the programs that only they still use.
func (a *audit) graphs(s *session) {
	nodes, inGraphs := 0, map[*program]int{}
	for _, g := range s.graphs {
		nodes += len(g.nodes)
		for _, p := range g.programs {
			inGraphs[p]++
		}
	}
	for p, n := range inGraphs {
		if p.graphs != n {
			a.say("program %d of session %d is of %d graphs, %d by its count", p.id, s.id, n, p.graphs)
		}
		if p.forgotten {
			a.users[p.of]++
		}
	}
	if nodes != s.nodes {
		a.say("session %d has %d nodes of graphs, %d by its count", s.id, nodes, s.nodes)
	}
}

func (a *audit) workers() {
	present := 0
	for slot, w := range a.st.workers {
		switch {
		case w == nil:
			if a.views[slot] > 0 {
				a.say("%d sessions have devices of slot %d, which is free", a.views[slot], slot)
			}
			continue
		case w.gone == nil:
			present++
			if c := a.st.conns.Get(w.to[0]); c == nil || c.w != w {
				a.say("worker %s has connection %d, which is not its own", w.name, w.to[0])
			}
		case w.views == 0:
			a.say("worker %s is gone, no session knows it, and it keeps slot %d", w.name, slot)
		}
		for _, r := range w.remains {
			if w.gone != nil || len(r.gangs) == 0 {
				a.say("what remains of a session on worker %s waits for gangs %v, and nothing takes it away", w.name, r.gangs)
			}
		}
		users := 0
		for _, s := range a.st.sessions {
			if s.told.has(slot) {
				users++
			}
		}
		if users != w.users {
			a.say("worker %s is used by %d sessions, %d by its count", w.name, users, w.users)
		}
		if w.slot != slot || w.views != a.views[slot] {
			a.say("worker %s of slot %d is known to %d sessions, %d by its count", w.name, slot, a.views[slot], w.views)
		}
	}
	if present != len(a.st.present) {
		a.say("%d workers are there, %d by the list", present, len(a.st.present))
	}
}

func (a *audit) compiles() {
	for op, c := range a.st.compiles {
		if c.by == nil || c.by.gone != nil || a.st.compiled[c.key] != c && !c.ready {
			a.say("compilation %d has no worker at it", op)
		}
	}
	made, kept := 0, int64(0)
	for key, c := range a.st.compiled {
		if c.ready {
			made++
			kept += c.bytes
			if c.at >= len(a.st.made) || a.st.made[c.at] != c {
				a.say("program %s is not listed", key)
			}
		}
		if c.users != a.users[c] {
			a.say("program %s is of %d programs of sessions, %d by its count", key, a.users[c], c.users)
		}
		for _, w := range c.waiting {
			if a.st.sessions[w.s.id] != w.s {
				a.say("program %s is awaited by session %d, which is gone", key, w.s.id)
			}
		}
	}
	discarded := map[string]int{}
	for c := range a.users {
		if a.st.compiled[c.key] != c {
			discarded[c.key]++
		}
	}
	if !maps.Equal(discarded, a.st.discarded) {
		a.say("programs %v are discarded and used, %v by their counts", discarded, a.st.discarded)
	}
	if made != len(a.st.made) || kept != a.st.kept {
		a.say("%d programs of %d bytes are kept, %d of %d by their counts", made, kept, len(a.st.made), a.st.kept)
	}
	if u := &a.st.unkept; a.unkept != u.all.Len() || a.forgotten != u.bytes {
		a.say("%d programs of %d bytes are forgotten and stay, %d of %d by their count", a.unkept, a.forgotten, u.all.Len(),
			u.bytes)
	}
}

func (a *audit) taught() {
	for key, p := range a.st.taught {
		if p.taught != key || p.place.spansKey() != key || !slices.Contains(slices.Collect(p.place.s.allPrograms.each), p) {
			a.say("workers know devices by program %d of session %d, which has gone, or is on others", p.id, p.place.s.id)
		}
	}
}

func (a *audit) artifacts() {
	listed := 0
	for one := range a.st.away.each {
		if listed++; a.st.artifacts[one.of.number] != one.of {
			a.say("artifact %d is in the list of those that workers have, and is not known", one.of.number)
		}
	}
	if listed != len(a.st.artifacts) {
		a.say("%d artifacts are listed, of %d", listed, len(a.st.artifacts))
	}
	for number, c := range a.st.artifacts {
		if c.number != number || c.artifact == nil {
			a.say("artifact %d is listed as artifact %d", c.number, number)
			continue
		}
		known := a.st.compiled[c.key] == c
		if c.users == 0 && !known {
			a.say("artifact %d is kept, and no session uses it", number)
		}
		isHere := func(w *worker) bool { return w.gone == nil }
		// What is on its way comes, or is asked for again.
		waits := slices.ContainsFunc(c.artifact.wants, isHere) && c.by == nil
		if len(c.artifact.senders.holders) == 0 && (known || waits) && a.st.comeback == nil {
			a.say("artifact %d is nowhere, and can be asked for", number)
		}
		for _, w := range c.artifact.senders.holders {
			if w.gone != nil && !a.st.isLosing(w) {
				a.say("artifact %d is on worker %s, which is gone", number, w.name)
			}
		}
	}
}

func (a *audit) islands() {
	for _, is := range a.st.islands {
		for ticket, g := range is.held {
			if a.st.sessions[g.s.id] != g.s || g.entry == nil || g.entry.g != g {
				a.say("island %q holds run %d, for which no session waits", is.name, ticket)
			}
		}
	}
}
