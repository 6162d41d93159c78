package controller

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// compiled is a program's text and the result of compiling it, once, for all sessions and places of one kind.
type compiled struct {
	key           string
	format        string
	text          *wire.Content // size and hash of code
	code, options []byte        // no code: the clients that wait have it, see artifact.go
	handlers      []*wire.Handler
	source        waiter     // whose client sends the text
	number        uint64     // of what it was compiled to: Loadable.artifact
	artifact      *artifact  // nil if all of it is in loadable
	by            *worker    // that compiles it, also again
	asked         []*program // whose clients were asked for the text since it was last compiled, see again.go
	op            uint64     // in State.compiles
	begun         int64      // then
	unwanted      bool       // by was told that no session waits for it
	waiting       []waiter
	ready         bool
	at            int               // then: in State.made
	info          *wire.ProgramInfo // without devices
	loadable      *wire.Loadable
	madeFor       []*wire.Place // the devices that it was compiled for
	outputs       []int64       // bytes of a shard
	collective    bool
	users         int // programs of sessions
	runs          uint64
	spent         uint64 // device time of all runs, in nanoseconds
	usual         int64  // device time of a run on each device, in nanoseconds, averaged; 0 is not known
	bytes         int64
	// Of one whose code takes device memory, see code.go.
	residents map[uint64]*resident
	loadedOn  tally // programs of sessions, by the slot of a worker that was told to load them
}

// waiter is a session that waits for a program.
type waiter struct {
	s        *session
	op       uint64
	program  uint64
	place    *place
	portable bool
	told     bool // that the compilation is slow
}

// program is a compiled program of a session on its devices.
type program struct {
	id       uint64
	op       uint64 // of the client's Compile, by which it is asked for the text
	after    uint64 // the operation before all that may run it
	of       *compiled
	place    *place
	portable bool
	loaded   set     // slots of workers that were told to load it
	loading  set     // of them, those that have yet to say that they have
	counted  []int64 // of its outputs' shards, the bytes that take device memory
	takes    int64   // their sum
	// The line of the user's code that called it first, if that is known.
	firstCall []byte
	taught    string // the key by which State.taught has it, if it is there
	// Graphs that run it keep it when it is forgotten.
	graphs         int
	forgotten      bool
	links[program] // in the list of its session's
}

// How far back the average of a program's device time reaches, roughly: twice the time for which a device is given work
// ahead, and at least eight runs. The end of a short run is known only to some tenths of a millisecond: if several end
// at about the same time, one of them seems to have taken the time of all. An average of few runs would follow such
// errors, and so would the number of the program's runs that get their places before others'.
const (
	recentTime = 2 * schedule.DefaultWindow
	recentRuns = 8
)

// took adds the device time of a run, on each device, to the program's average.
func (c *compiled) took(time int64) {
	if c.usual == 0 {
		c.usual = time
	} else {
		c.usual += (time - c.usual) / max(recentRuns, recentTime/c.usual)
	}
}

// Bounds of what messages about programs contain: the options, and everything that is sent to workers or comes from
// one.
const (
	maxOptions  = 1 << 20
	maxLoadable = wire.MaxFrame - 16<<20 // beside the places
)

// begin starts to compile a program, on a worker of the first session that waits for it.
func (st *State) begin(c *compiled) {
	for len(c.waiting) > 0 {
		w := c.waiting[0]
		err := st.alive(w.place)
		if err == nil {
			c.madeFor = w.place.locate()
			for i := range c.waiting {
				c.waiting[i].told = false
			}
			st.compile++
			st.startCompile(c, st.compile, w, st.workers[w.place.slot], w.place)
			return
		}
		c.waiting = c.waiting[1:]
		st.notCompiled(w, err)
	}
	delete(st.compiled, c.key)
}

// startCompile tells a worker to compile a program, with the text of a waiter's client.
func (st *State) startCompile(c *compiled, op uint64, w waiter, by *worker, at *place) {
	c.by, c.op, c.begun, c.unwanted = by, op, st.now, false
	st.compiles[op] = c
	m := &wire.Compile{Op: op, Format: c.format, Code: c.code, Options: c.options, Handlers: c.handlers,
		Inline: wire.ContentSize, Key: c.key}
	if by.process.Epoch != 0 { // its devices' names
		st.introduceTo(by, at.locate())
	}
	if len(c.code) == 0 && c.text.Size > 0 {
		m.Text = st.sendText(c, w)
	}
	st.sendWith(by.to[:], wire.KindCompile, m, at.places())
}

// slowCompile is how long a compilation may take before the clients that wait for it are told.
const slowCompile = 2e9 // nanoseconds

// tellSlow tells sessions that have waited long for a program which worker is compiling it.
func (st *State) tellSlow() {
	for _, op := range slices.Sorted(maps.Keys(st.compiles)) {
		c := st.compiles[op]
		since := st.now - c.begun
		if since < slowCompile {
			continue
		}
		for i := range c.waiting {
			if w := &c.waiting[i]; !w.told && w.s.conn != 0 {
				w.told = true
				st.send(w.s.to(), wire.KindCompiling, &wire.Compiling{Op: w.op, Worker: c.by.name, SinceMs: since / 1e6})
			}
		}
	}
}

// leave removes waiters of a program. If none are left, its worker need not
// begin to compile; a compilation that has begun cannot stop, and its result is kept. A program that is ready is only
// compiled again for workers that wait for its artifact.
func (st *State) leave(c *compiled, who func(waiter) bool) {
	c.waiting = slices.DeleteFunc(c.waiting, who)
	if len(c.waiting) == 0 && c.by != nil && !c.ready && !c.unwanted {
		c.unwanted = true
		st.send(c.by.to[:], wire.KindForget, &wire.Forget{Compiles: []uint64{c.op}})
	}
}

func (st *State) notCompiled(w waiter, err error) {
	delete(w.s.compiling, w.program)
	st.send(w.s.to(), wire.KindCompiled, &wire.Compiled{Op: w.op, Program: w.program, Status: wire.Of(err)})
}

// locate returns the devices of a place. They do not change.
func (p *place) locate() []*wire.Place {
	if p.devicesAt == nil {
		all := make([]wire.Place, len(p.rows))
		p.devicesAt = make([]*wire.Place, len(p.rows))
		for i, d := range p.rows {
			at := p.in.view.Device(int(d))
			all[i].Worker, all[i].Local = at.Worker, uint32(at.Local)
			p.devicesAt[i] = &all[i]
		}
	}
	return p.devicesAt
}

// places returns the devices of a place, row by row, as Compile.places. They do not change.
func (p *place) places() []byte {
	if p.placesAt == nil {
		p.placesAt = encoded(&wire.Compile{Places: p.locate()})
	}
	return p.placesAt
}

// named returns the devices of a place, row by row, as Compiled.info.devices. They do not change.
func (p *place) named() []byte {
	if p.namedAt == nil {
		p.namedAt = encoded(&wire.Compiled{Info: &wire.ProgramInfo{Devices: p.rows}})
	}
	return p.namedAt
}

// spans returns the devices of a place, row by row, as Load.places. They do not change.
func (p *place) spans() []byte {
	if p.spansAt == nil {
		m := new(wire.Load)
		for _, at := range p.locate() {
			if n := len(m.Places) - 1; n >= 0 && m.Places[n].Worker == at.Worker &&
				m.Places[n].Local+m.Places[n].Count == at.Local {
				m.Places[n].Count++
			} else {
				m.Places = append(m.Places, &wire.Span{Worker: at.Worker, Local: at.Local, Count: 1})
			}
		}
		p.spansAt = encoded(m)
		sum := sha256.Sum256(p.spansAt)
		p.spansSum = string(sum[:])
	}
	return p.spansAt
}

// spansKey returns a hash of spans.
func (p *place) spansKey() string {
	p.spans()
	return p.spansSum
}

// together returns a hash of which rows of a place are together, and where in their worker.
func (p *place) together() []byte {
	if p.order == nil {
		order := map[int]int{} // of workers, by slot
		where := make([]byte, 0, 8*len(p.rows))
		for _, d := range p.rows {
			slot := p.in.slot(d)
			at, found := order[slot]
			if !found {
				at = len(order)
				order[slot] = at
			}
			where = binary.LittleEndian.AppendUint32(where, uint32(at))
			where = binary.LittleEndian.AppendUint32(where, uint32(p.in.view.Device(int(d)).Local))
		}
		h := sha256.Sum256(where)
		p.order = h[:]
	}
	return p.order
}

// describe finds what locate, places, named, spans and together return: all that grows with a program's devices. It
// reads only what does not change, so it may run beside Step.
func (p *place) describe() {
	p.places()
	p.named()
	p.spans()
	p.together()
}

func samePlace(a, b *wire.Place) bool { return a.Worker == b.Worker && a.Local == b.Local }

// compiledBy handles the result of a worker's compilation.
func (st *State) compiledBy(c *compiled, m *wire.Compiled) {
	by, name := c.by, c.by.name
	c.by = nil
	if c.ready {
		st.compiledAgain(c, by, m)
		return
	}
	err := m.Status.Err()
	if status.CodeOf(err) == status.Cancelled && c.unwanted && len(c.waiting) > 0 {
		st.begin(c) // another session wants it meanwhile
		return
	}
	if err != nil && m.NoText {
		st.noText(c, err)
		return
	}
	if err == nil {
		if err = c.fill(m, c.op); err != nil {
			err = status.New(status.CodeOf(err), "worker %s: %w", name, err)
		} else if m.Loadable.Kept {
			st.keepArtifact(c, by)
		}
	}
	if err != nil {
		if m.Loadable.GetKept() {
			st.send(by.to[:], wire.KindForget, &wire.Forget{Artifacts: []uint64{c.op}})
		}
		delete(st.compiled, c.key)
		for _, w := range c.waiting {
			st.notCompiled(w, err)
		}
		return
	}
	st.noteCompiled(c, by, m)
	st.share(c)
}

// noteCompiled records how a worker obtained a program.
func (st *State) noteCompiled(c *compiled, by *worker, m *wire.Compiled) {
	text := fmt.Sprintf("%s compiled %s in %d ms", by.name, c.info.Name, (st.now-c.begun)/1e6)
	if m.Cached {
		text = fmt.Sprintf("%s has %s in its cache", by.name, c.info.Name)
	}
	st.note(by.about(wire.EventCompiled), text, nil)
}

// fill stores a worker's description of the program, under a new number.
func (c *compiled) fill(m *wire.Compiled, number uint64) error {
	if m.Info == nil || m.Loadable == nil {
		return status.New(status.Internal, "the compiled program came without a description")
	}
	m.Info.CleanName()
	if proto.Size(m.Info) > maxLoadable {
		m.Info.Optimized = nil // a client that asks for it is told that there is none
	}
	if n := proto.Size(m) - len(m.Info.Optimized); n > maxLoadable {
		return status.New(status.ResourceExhausted, "the compiled program has %d bytes, and a message to those that load it "+
			"at most %d", n, maxLoadable)
	}
	var outputs []int64
	for _, o := range m.Info.Outputs {
		n, err := bytesOf(o)
		if err != nil {
			return err
		}
		outputs = append(outputs, n)
	}
	c.info, c.loadable, c.outputs, c.number = m.Info, m.Loadable, outputs, number
	c.info.Devices, c.loadable.Artifact = nil, number
	c.collective = m.Info.Collective || m.Loadable.Collective
	c.bytes = int64(len(c.code)+len(c.options)+proto.Size(m)) + max(m.Loadable.Bytes, 0)
	return nil
}

// enlist adds a program to those that were compiled.
func (st *State) enlist(c *compiled) {
	c.at = len(st.made)
	st.made = append(st.made, c)
	st.kept += c.bytes
	if c.artifact != nil {
		st.keptAway += c.artifact.bytes
	}
}

// unmake removes a program from those that were compiled. Sessions that use it keep it.
func (st *State) unmake(c *compiled) {
	delete(st.compiled, c.key)
	last := len(st.made) - 1
	st.made[c.at], st.made[last].at = st.made[last], c.at
	st.made[last] = nil
	st.made = st.made[:last]
	st.kept -= c.bytes
	if c.artifact != nil {
		st.keptAway -= c.artifact.bytes
	}
}

// describe returns a program's description for its client, without its devices: see place.named.
func (p *program) describe() *wire.ProgramInfo {
	i := p.of.info
	return &wire.ProgramInfo{Name: i.Name, Fingerprint: i.Fingerprint, Replicas: i.Replicas, Partitions: i.Partitions,
		Outputs: i.Outputs, Parameters: i.Parameters, Donated: i.Donated, Optimized: i.Optimized, Cost: i.Cost,
		Collective: i.Collective}
}

// newProgram makes a program one of a session's.
func (st *State) newProgram(c *compiled, w waiter) *program {
	p := &program{id: w.program, op: w.op, after: w.s.last, of: c, place: w.place, portable: w.portable}
	for i, bytes := range c.outputs {
		if !st.isCounted(p.place, c.info.Outputs[i].GetMemory()) {
			bytes = 0
		}
		p.counted, p.takes = append(p.counted, bytes), p.takes+bytes
	}
	w.s.programs[w.program] = p
	w.s.allPrograms.add(p)
	return p
}

// load tells the workers of a place to load a program, unless they have been told.
func (st *State) load(s *session, p *program, at *place) {
	if p.loaded.covers(at.workers) {
		return
	}
	fresh := slices.Clone(at.workers)
	fresh.without(p.loaded)
	st.onlyHere(fresh) // a graph may be defined on workers that have gone
	to := st.connsOf(fresh)
	if len(to) == 0 {
		return
	}
	p.loading.union(fresh)
	st.tell(s, fresh)
	p.of.loads(p, fresh)
	loadable := p.of.loadable
	m := &wire.Load{Session: s.id, Program: p.id, Outputs: p.of.info.Outputs, Name: p.of.info.Name,
		Donated: p.of.info.Donated}
	var places []byte
	switch {
	case !p.of.exchanges(at):
		m.Devices = wire.DevicesOf(at.rows)
	default:
		if like := st.like(at, fresh); like != nil {
			m.LikeSession, m.LikeProgram = like.place.s.id, like.id
		} else {
			st.haveMet(at)
			places = at.spans()
			st.teaches(p, at)
		}
	}
	if loadable.Form == wire.Loadable_JOINED && !slices.EqualFunc(at.locate(), p.of.madeFor, samePlace) {
		// Its serialized form names devices of the epoch; others compile it.
		loadable = &wire.Loadable{Form: loadable.Form, Format: loadable.Format, Code: loadable.Code,
			Options: loadable.Options, Collective: loadable.Collective, CallsHost: loadable.CallsHost,
			Handlers: loadable.Handlers, Unbounded: loadable.Unbounded, Artifact: loadable.Artifact, Kept: loadable.Kept,
			Other: true}
	}
	m.Loadable = loadable
	p.loaded.union(fresh)
	st.sendWith(to, wire.KindLoad, m, places)
}

// The devices of a program whose workers exchange bytes are as many bytes as it has workers, for each of them. So they
// are sent with the first program on these devices, of any session. Later ones name that one, as long as its session
// has it. Its workers know each other.

// like returns a program by which workers know the devices of a place, nil if there is none for all of them.
func (st *State) like(at *place, workers set) *program {
	p := st.taught[at.spansKey()]
	if p == nil || !p.loaded.covers(workers) || st.sessions[p.place.s.id] != p.place.s {
		return nil // workers have dropped what a session had that has ended
	}
	return p
}

// teaches records that a program's workers know the devices of a place by it.
func (st *State) teaches(p *program, at *place) {
	st.unteach(p)
	p.taught = at.spansKey()
	st.taught[p.taught] = p
}

// unteach records that workers forget a program, or get it again on other devices.
func (st *State) unteach(p *program) {
	if st.taught[p.taught] == p {
		delete(st.taught, p.taught)
	}
}

// loadedBy records that a worker has loaded a program.
func (st *State) loadedBy(w *worker, m *wire.Loaded) {
	if s := st.sessions[m.Session]; s != nil && s.programs[m.Program] != nil {
		s.programs[m.Program].loading.remove(w.slot)
		st.stir()
	}
}

// isLoading reports whether a gang's program is not loaded yet on a worker that another session uses: if the gang were
// dispatched now, it would delay that session's gangs.
func (st *State) isLoading(g *gang) (is bool) {
	if g.program == nil {
		return false
	}
	st.load(g.s, g.program, g.place)
	if p := g.program; p.loading.meets(g.place.workers) {
		g.place.workers.each(func(slot int) { is = is || p.loading.has(slot) && st.workers[slot].users > 1 })
	}
	return is
}

// forgetPrograms releases a session's programs.
func (st *State) forgetPrograms(s *session, m *wire.Forget) {
	var workers set
	var ids []uint64
	for _, id := range m.Programs {
		p := s.programs[id]
		if p == nil {
			if c := s.compiling[id]; c != nil { // not wanted any more; others may be
				delete(s.compiling, id)
				st.leave(c, func(w waiter) bool { return w.s == s && w.program == id })
			}
			continue
		}
		delete(s.programs, id)
		p.loading = nil // graphs that have it do not hear of it any more
		if p.forgotten = true; p.graphs > 0 {
			continue
		}
		ids = append(ids, id)
		workers.union(p.loaded)
		st.letProgram(p)
	}
	if len(ids) > 0 {
		st.send(st.connsOf(workers), wire.KindForget, &wire.Forget{Session: s.id, Programs: ids})
	}
}

// let ends a program's use. A program that no session has is kept while
// there is room.
func (st *State) let(c *compiled) {
	if c.users--; c.users > 0 {
		return
	}
	if st.compiled[c.key] != c { // its workers were lost
		if st.discarded[c.key]--; st.discarded[c.key] == 0 {
			delete(st.discarded, c.key)
		}
		st.letCompiled(c)
		st.dropArtifact(c)
		return
	}
	st.idle = append(st.idle, c)
	for st.kept > st.limits.Store && len(st.idle) > 0 {
		old := st.idle[0]
		st.idle = st.idle[1:]
		st.unmake(old)
		st.letCompiled(old)
		st.dropArtifact(old)
	}
}
