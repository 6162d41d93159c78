package controller

import (
	"maps"
	"slices"

	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A graph is defined in three steps, so that other sessions do not wait for a large one:
//
//	survey  looks up what its nodes name, in a Step
//	draw    checks it, and makes its places and its parts for workers: all work that grows with shards. It reads only
//	        what does not change, so Server calls it without its lock
//	define  adds it to the session, with what was drawn, in another Step
//
// Between the first and the last step, the session's own messages wait behind this one.

// graph is a session's graph, with what its plays need. Objects have their numbers in the graph.
type graph struct {
	id           uint64
	err          error       // why it cannot be played
	message      *wire.Graph // as the client sent it, for workers that take the place of others
	inputs, made int
	nodes        []node
	all          *place     // of all nodes
	programs     []*program // that it keeps
	intermediate []uint64
}

// node is a node of a graph.
type node struct {
	name    string
	line    []byte   // of the user's code that it comes from
	program *program // nil of a transfer
	at      *place   // of what it makes
	over    *place   // of all that take part
	first   uint64
	sizes   []int64 // of shards of what it makes
	counted []int64 // of these, the bytes that take device memory
	reads   []read
	donates []uint64
	frees   []uint64 // nothing reads them after it
	inner   bool     // it makes intermediate objects, and nothing else
}

// read is a node's use of an object.
type read struct {
	object   uint64
	argument int
	on       set    // virtual devices
	at       *place // where on is all of a place
}

// sketch is a graph that is being defined.
type sketch struct {
	s        *session
	in       *binding
	m        *wire.Graph
	programs map[uint64]*program // that it names and the session has
	named    map[uint64]int      // the first node that names each of them
	g        graph
	places   map[string]*place // of its nodes
	names    []*wire.ProgramName
	fresh    []string // keys of those that it has made itself
	loads    []int    // nodes that run: the first of each program and place
	pairs    [][2]int // slots of workers between which bytes move
	parts    parts
}

// surveyGraph begins a sketch. It returns nil for a graph that define does not keep, or fails by itself.
func (st *State) surveyGraph(s *session, m *wire.Graph, size int) *sketch {
	if !st.keepsGraph(s, m) || st.refusesGraph(s, m, size) != nil {
		return nil
	}
	d := &sketch{s: s, in: s.binding, m: m, programs: map[uint64]*program{}, named: map[uint64]int{},
		places: map[string]*place{}}
	for i, n := range m.Nodes {
		if r := n.GetRun(); r != nil && d.programs[r.Program] == nil {
			if p := s.programs[r.Program]; p != nil {
				d.programs[r.Program], d.named[r.Program] = p, i
			}
		}
	}
	return d
}

func (st *State) keepsGraph(s *session, m *wire.Graph) bool {
	return m.Graph != 0 && s.graphs[m.Graph] == nil && len(s.graphs) < st.limits.Graphs // see unknown
}

// refusesGraph returns why a graph of so many bytes is refused; nil if it is not.
func (st *State) refusesGraph(s *session, m *wire.Graph, size int) error {
	if size > wire.MaxMessage {
		return status.New(status.InvalidArgument,
			"the graph is a message of %d bytes, of at most %d; capture fewer operations at a time", size, wire.MaxMessage)
	}
	if s.nodes+len(m.Nodes) > st.limits.Nodes {
		return status.New(status.ResourceExhausted,
			"the session's graphs have %d nodes, and with this one's %d more than %d; forget some", s.nodes, len(m.Nodes),
			st.limits.Nodes)
	}
	return nil
}

// define keeps a graph. Plays of an invalid one fail.
func (st *State) define(s *session, m *wire.Graph, ev *Event) {
	d, payload := ev.sketch, ev.Payload
	if !st.keepsGraph(s, m) {
		return
	}
	g := &graph{id: m.Graph}
	if g.err = st.refusesGraph(s, m, len(payload)); g.err == nil {
		if d == nil || d.in != s.binding {
			if d = st.surveyGraph(s, m, len(payload)); d != nil {
				d.draw()
			}
		}
		g = &d.g
		if g.err == nil {
			g.err = st.adopt(s, d)
		}
	}
	s.graphs[m.Graph] = g
	if g.err != nil {
		g.nodes = nil
		return
	}
	s.nodes += len(g.nodes)
	for _, p := range g.programs {
		p.graphs++
	}
	st.announce(s, d, payload, ev.kept)
}

// announce sends a graph to its workers. Payload is the client's message.
func (st *State) announce(s *session, d *sketch, payload []byte, kept bool) {
	g := &d.g
	for _, i := range d.loads {
		st.load(s, g.nodes[i].program, g.nodes[i].at)
	}
	st.tell(s, g.all.workers)
	st.sendGraph(s, d, payload, kept)
}

// adopt adds the graph that draw has made to those of a session.
func (st *State) adopt(s *session, d *sketch) error {
	for id, p := range d.programs {
		if s.programs[id] != p {
			return unknownProgram(d.named[id], id)
		}
	}
	return st.adoptPlaces(s, d)
}

// adoptPlaces adds the places that were made for a graph to the session's.
func (st *State) adoptPlaces(s *session, d *sketch) error {
	had := map[*place]*place{} // places that the session has already, by those that were made
	for _, key := range d.fresh {
		p := d.places[key]
		old := s.places[key]
		if len(p.rows) == 1 {
			old = s.alone(p.rows[0])
		}
		if old != nil {
			had[p] = old
		} else if err := st.keepPlace(s, p, key); err != nil {
			return err
		}
	}
	keep := func(p **place) {
		if old := had[*p]; old != nil {
			*p = old
		}
	}
	g := &d.g
	keep(&g.all)
	for i := range g.nodes {
		n := &g.nodes[i]
		if len(had) > 0 {
			keep(&n.at)
			keep(&n.over)
			for k := range n.reads {
				keep(&n.reads[k].at)
			}
		}
		if t := d.m.Nodes[i].Transfer; t != nil && st.isCounted(n.at, t.Array.GetMemory()) {
			n.counted = n.sizes
		}
	}
	return nil
}

// unknown is the error of plays of a graph that define did not keep.
func (st *State) unknown(s *session, id uint64) error {
	if len(s.graphs) >= st.limits.Graphs {
		return status.New(status.ResourceExhausted,
			"graph %d is not known: the session has %d graphs, which is its limit; forget some", id, len(s.graphs))
	}
	return invalid("graph %d is not known to this session; was it forgotten?", id)
}

func unknownProgram(node int, program uint64) error {
	return invalid("node %d: program %d is not known to this session; was its executable deleted?", node, program)
}

// draw does all work that can run in parallel with Step.
func (d *sketch) draw() {
	d.g.id, d.g.message = d.m.Graph, d.m
	if d.g.err = d.resolve(); d.g.err == nil {
		d.divide()
	}
}

// resolve checks a graph, and finds the places of its nodes.
func (d *sketch) resolve() error {
	m, g := d.m, &d.g
	if len(m.Names) > 0 {
		return invalid("the graph has names of programs, which are not a client's to say")
	}
	for i, n := range m.Nodes {
		if slices.ContainsFunc(n.GetTransfer().GetMoves(), isTold) {
			return invalid("node %d: a move has an index or a peer, which are not a client's to say", i)
		}
	}
	pg, err := m.Program()
	if err != nil {
		return err
	}
	pg.Programs = map[uint64]*graphs.Program{}
	for i := range pg.Nodes {
		if r := pg.Nodes[i].Run; r != nil && pg.Programs[r.Program] == nil {
			p := d.programs[r.Program]
			if p == nil {
				return unknownProgram(i, r.Program)
			}
			pg.Programs[r.Program] = &graphs.Program{
				Name: p.of.info.Name, Parameters: len(p.of.info.Parameters), Outputs: p.of.outputs,
				Donated: p.of.info.Donated, Devices: p.place.rows}
		}
	}
	if err := pg.Check(); err != nil {
		return err
	}
	g.inputs, g.made, g.intermediate, g.nodes = pg.Inputs, pg.Made(), pg.Intermediates(), make([]node, len(pg.Nodes))
	d.know()
	steps := pg.Lower(func(int) bool { return true })
	next, names := uint64(pg.Inputs)+1, pg.Names()
	d.names = movedPrograms(pg)
	var everywhere set
	for i := range pg.Nodes {
		if makes := m.Nodes[i].Makes; int(makes) != pg.Makes(i) {
			return invalid("node %d, %s: it makes %d arrays, the graph says %d", i, pg.Name(i), pg.Makes(i), makes)
		}
		n := &g.nodes[i]
		n.name, n.line, n.first, n.frees = names[i], pg.Nodes[i].Trace(), next, steps[i].Frees
		n.inner = pg.Makes(i) > 0
		for range pg.Makes(i) {
			_, let := slices.BinarySearch(g.intermediate, next)
			n.inner = n.inner && let
			next++
		}
		pg.Donates(i, func(object uint64) { n.donates = append(n.donates, object) })
		if r := pg.Nodes[i].Run; r != nil {
			err = d.resolveRun(n, r)
		} else {
			err = d.resolveTransfer(n, pg.Nodes[i].Transfer)
		}
		if err != nil {
			return status.Wrap(err, "node %d, %s", i, n.name)
		}
		everywhere.union(n.over.has)
	}
	d.listLoads()
	g.all, err = d.placeOf(everywhere)
	return err
}

// know takes the places of the graph's programs for those of its nodes.
func (d *sketch) know() {
	seen := map[*place]bool{}
	for _, p := range d.programs {
		if !seen[p.place] {
			seen[p.place] = true
			d.places[string(appendRows(nil, p.place.rows))] = p.place
		}
	}
}

// listLoads lists the graph's programs, and the first node for each of their places.
func (d *sketch) listLoads() {
	type load struct {
		p  *program
		at *place
	}
	seen, programs := map[load]bool{}, map[*program]bool{}
	for i := range d.g.nodes {
		n := &d.g.nodes[i]
		if n.program == nil {
			continue
		}
		if !programs[n.program] {
			programs[n.program] = true
			d.g.programs = append(d.g.programs, n.program)
		}
		if one := (load{n.program, n.at}); !seen[one] {
			seen[one] = true
			d.loads = append(d.loads, i)
		}
	}
}

// place returns the place of virtual devices: the graph's, or a new one.
func (d *sketch) place(rows []uint32) (*place, error) {
	key := string(appendRows(nil, rows))
	if p := d.places[key]; p != nil {
		return p, nil
	}
	p, err := d.in.newPlace(d.s, rows)
	if err != nil {
		return nil, err
	}
	d.places[key] = p
	d.fresh = append(d.fresh, key)
	return p, nil
}

// placeOf returns the place of a set of virtual devices.
func (d *sketch) placeOf(devices set) (*place, error) {
	var rows []uint32
	devices.each(func(d int) { rows = append(rows, uint32(d)) })
	return d.place(rows)
}

func (d *sketch) resolveRun(n *node, r *graphs.Run) (err error) {
	p := d.programs[r.Program]
	n.at = p.place
	if r.Only >= 0 {
		if err := p.runsOn(uint32(r.Only)); err != nil {
			return err
		}
		if n.at, err = d.place([]uint32{uint32(r.Only)}); err != nil {
			return err
		}
	}
	n.program, n.over, n.sizes, n.counted = p, n.at, p.of.outputs, p.counted
	for i, object := range r.Inputs {
		if object != 0 {
			n.reads = append(n.reads, read{object: object, argument: i, on: n.at.has, at: n.at})
		}
	}
	for _, mixed := range r.Mixed {
		row := 0
		for _, piece := range mixed.Pieces {
			var here set
			for _, d := range n.at.rows[row : row+int(piece.Rows)] {
				here.add(int(d))
			}
			n.reads = append(n.reads, read{object: piece.Object, argument: int(mixed.Argument), on: here})
			row += int(piece.Rows)
		}
	}
	return nil
}

func (d *sketch) resolveTransfer(n *node, t *graphs.Transfer) (err error) {
	var to []uint32
	var made, over set
	from := map[uint64]*set{}
	var last *set // of the source of the move before
	for i := range t.Moves {
		move := &t.Moves[i]
		if int(move.To) >= d.in.len() || int(move.From) >= d.in.len() {
			return invalid("move %d names a device that is not in this session, which has devices 0 to %d", i,
				d.in.len()-1)
		}
		if !made.has(int(move.To)) {
			made.add(int(move.To))
			to = append(to, move.To)
		}
		if last == nil || i == 0 || t.Moves[i-1].Source != move.Source {
			if last = from[move.Source]; last == nil {
				last = new(set)
				from[move.Source] = last
			}
		}
		last.add(int(move.From))
		over.add(int(move.From))
		over.add(int(move.To))
	}
	if n.at, err = d.place(to); err != nil {
		return err
	}
	if n.over, err = d.placeOf(over); err != nil {
		return err
	}
	n.sizes, n.counted = []int64{t.Shape.Bytes()}, []int64{0}
	for i, source := range slices.Sorted(maps.Keys(from)) {
		n.reads = append(n.reads, read{object: source, argument: i, on: *from[source]})
	}
	return nil
}

// forgetGraphs releases a session's graphs, and programs that they kept.
func (st *State) forgetGraphs(s *session, ids []uint64) {
	var unknown []uint64
	for _, id := range ids {
		g := s.graphs[id]
		if g == nil {
			unknown = append(unknown, id)
			continue
		}
		delete(s.graphs, id)
		s.nodes -= len(g.nodes)
		var programs []uint64
		var workers set
		for _, p := range g.programs {
			if p.graphs--; p.forgotten && p.graphs == 0 {
				programs = append(programs, p.id)
				workers.union(p.loaded)
				st.letProgram(p)
			}
		}
		if g.err == nil {
			workers.union(g.all.workers)
			st.send(st.connsOf(workers), wire.KindForget, &wire.Forget{Session: s.id, Programs: programs, Graphs: []uint64{id}})
		}
	}
	// A controller that has started again does not know graphs that were forgotten before, but workers may still have
	// them, if the message that told them was lost.
	if to := st.connsOf(s.told); s.restored && len(unknown) > 0 && len(to) > 0 {
		st.send(to, wire.KindForget, &wire.Forget{Session: s.id, Graphs: unknown})
	}
}
