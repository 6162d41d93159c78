package controller

import (
	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// play is a play of a graph, until all its nodes have been performed. Nodes are operations like others, performed one
// after the other; each one starts as soon as it may.
type play struct {
	s         *session
	g         *graph
	message   *wire.Play
	op, first uint64 // of node 0; of the objects that nodes make
	inputs    []uint64
	next      int  // node
	out       int  // nodes that were performed and have no place yet, and frees behind nodes that wait
	skipped   bool // a node was not dispatched, and what it would have freed is there
	heard     bool // its client has heard the end of nodes before the start, and these may not have been dispatched
	past      set  // nodes that were performed before the controller started again
	cancelled cancelled
}

// played records that a node of a play was dispatched, or was not.
func (st *State) played(g *gang) {
	if p := g.play; p != nil {
		g.play = nil
		st.settled(p)
	}
}

// settled counts down what is left to do for a play after its nodes were performed.
func (st *State) settled(p *play) {
	p.out--
	st.tidy(p)
}

// cancelled is why operations will never be.
type cancelled map[uint64]error

func (c cancelled) with(op uint64, err error) cancelled {
	if c == nil {
		c = cancelled{}
	}
	c[op] = err
	return c
}

// stretch is nodes of a play, consecutive in the graph and by their gang numbers, that are sent as one message.
type stretch struct {
	play        *play
	gang        uint64 // of node from
	from, count int
	workers     set
}

// object returns the session's number for one of the graph's objects.
func (p *play) object(local uint64) uint64 { return graphs.Number(local, p.inputs, p.first) }

func (st *State) play(s *session, m *wire.Play, q *queued) {
	if q.resumed != nil {
		s.play = q.resumed
		s.play.skipped = s.play.skipped || s.play.heard
		st.proceed(s)
		return
	}
	p, err := st.newPlay(s, m)
	if err != nil {
		for i := range uint64(m.Nodes) {
			st.end(s, m.Op+i, err)
		}
		return
	}
	p.cancelled = q.cancelled
	s.play = p
	st.proceed(s)
}

// newPlay makes a play.
//
// Errors: why its graph cannot be played with these inputs.
func (st *State) newPlay(s *session, m *wire.Play) (p *play, err error) {
	g := s.graphs[m.Graph]
	switch {
	case g == nil:
		err = st.unknown(s, m.Graph)
	case g.err != nil:
		err = g.err
	case len(m.Inputs) != g.inputs || int(m.Nodes) != len(g.nodes):
		err = invalid("graph %d has %d inputs and %d nodes; its play has %d and %d", m.Graph, g.inputs, len(g.nodes),
			len(m.Inputs), m.Nodes)
	case g.made > 0 && (m.First == 0 || m.First+uint64(g.made) < m.First):
		err = invalid("arrays are numbered from 1, got %d", m.First)
	}
	return &play{s: s, g: g, message: m, op: m.Op, first: m.First, inputs: m.Inputs}, err
}

// proceed performs nodes of the session's play, as many as may be performed now.
func (st *State) proceed(s *session) {
	for s.play != nil && st.may(s) {
		if st.isTired() {
			st.wake(s)
			return
		}
		p := s.play
		if p.next > 0 {
			st.freeBehindInTurn(p, p.next-1)
		}
		if p.next == len(p.g.nodes) {
			s.play = nil
			st.tidy(p)
			return
		}
		p.next++
		if p.past.has(p.next - 1) {
			continue
		}
		st.tire(len(p.g.all.conns), 0)
		st.performNode(s, p, p.next-1)
	}
}

// freeBehind releases the arrays that no later node uses. Workers do the same by themselves.
func (st *State) freeBehind(p *play, node int) {
	s := p.s
	for _, object := range p.g.nodes[node].frees {
		if object > uint64(p.g.inputs) {
			if !p.skipped { // otherwise one whose own last node with it was not dispatched keeps it until tidy
				st.remove(s, p.object(object))
			}
		} else if o := s.objects[p.object(object)]; o != nil {
			o.donated = true // what is left of it the client frees
			s.damage(o, errMemberDonated)
		}
	}
}

// tidy releases arrays that workers keep because they did not get all nodes of a play, once all nodes have been
// performed.
func (st *State) tidy(p *play) {
	if !p.skipped || p.s.play == p || p.out > 0 || st.sessions[p.s.id] != p.s {
		return
	}
	var all []uint64
	for _, object := range p.g.intermediate {
		st.remove(p.s, p.object(object))
		all = append(all, p.object(object))
	}
	st.letGo(p.s, all, p.g.all.workers)
}

func (st *State) performNode(s *session, p *play, i int) {
	st.awaits, st.performed = st.awaits[:0], nil
	n := &p.g.nodes[i]
	op := p.op + uint64(i)
	err := p.cancelled[op]
	if err == nil && st.known == nil {
		err = st.nodeReadable(p, i)
	}
	first := uint64(0)
	if len(n.sizes) > 0 {
		first = p.object(n.first)
	}
	if e := st.create(s, first, n.sizes, n.counted, n.at, err); e != nil {
		err = status.Wrap(e, "node %d, %s", i, calledAt(n.name, n.line, false))
	}
	if err != nil {
		p.skipped = true
		st.end(s, op, err)
		return
	}
	g := st.newGang(s, op)
	g.play, g.node, g.title, g.line, g.first, g.inner = p, i, n.name, n.line, first, n.inner
	p.out++
	if n.program != nil {
		g.ofProgram(n.program, n.at)
	} else {
		g.place, g.makes, g.bytes = n.at, 1, n.counted[0]
		g.to, g.conns = n.over.workers, n.over.conns
	}
	st.admit(g)
}

// nodeReadable returns why a node cannot be performed.
func (st *State) nodeReadable(p *play, i int) error {
	n := &p.g.nodes[i]
	return lossFirst(locate(st.alive(n.over), n.name, n.line, false), func() error { return st.nodeReads(p, i) })
}

// nodeReads returns why an array that a node reads is missing.
func (st *State) nodeReads(p *play, i int) error {
	s, n := p.s, &p.g.nodes[i]
	for k := range n.reads {
		r := &n.reads[k]
		id := p.object(r.object)
		if err := s.has(id, r.argument, r.on, r.at); err != nil {
			if s.objects[id] != nil && s.objects[id].err != nil {
				return err // it has the name of the node that failed
			}
			return status.Wrap(err, "node %d, %s", i, calledAt(n.name, n.line, false))
		}
		o := s.objects[id]
		if err := o.asMember(id); err != nil {
			return err
		}
		if o.put != 0 {
			st.awaitPut(o)
		}
	}
	return nil
}

// donate records the arrays that a starting node consumes.
func (p *play) donate(node int) {
	for _, object := range p.g.nodes[node].donates {
		if o := p.s.objects[p.object(object)]; o != nil && p.g.nodes[node].at.has.covers(o.place.has) {
			o.donated = true
			p.s.damage(o, errMemberDonated)
		}
	}
}

// include adds a node to those that are sent as one message.
func (st *State) include(g *gang, workers set, conns []uint64) {
	o := &st.open
	if o.count > 0 && (o.play != g.play || o.from+o.count != g.node || o.gang+uint64(o.count) != st.gang+1) {
		st.shut()
	}
	st.enter(g, workers, conns)
	if o.count == 0 {
		o.play, o.gang, o.from, o.workers = g.play, g.number, g.node, o.workers[:0]
	}
	o.count++
	if !o.workers.covers(workers) {
		o.workers.union(workers)
	}
}

// played returns the message that sends nodes, of which the first has this gang number.
func (p *play) played(gang uint64, from, count int) *wire.Played {
	return &wire.Played{Gang: gang, Session: p.s.id, Graph: p.g.id, Op: p.op, From: uint32(from), Count: uint32(count),
		First: p.first, Inputs: p.inputs, Client: p.s.process.Number}
}

// shut sends the nodes that include has collected.
func (st *State) shut() {
	o := &st.open
	if o.count == 0 {
		return
	}
	p := o.play
	from := len(st.buffer)
	m := p.played(o.gang, o.from, o.count)
	st.buffer = m.Append(st.buffer)
	o.play, o.count = nil, 0
	to := p.g.all.conns
	if !o.workers.covers(p.g.all.workers) {
		to = st.connsOf(o.workers)
	}
	st.deliver(to, wire.KindPlayed, st.buffer[from:])
}
