package client

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// defined is what a session needs to know about a graph to play it.
type defined struct {
	inputs, made, nodes int
	sections            []section
}

// section is a run of a graph's nodes that the controller knows as a graph of its own.
// Objects are numbered as in the whole graph.
type section struct {
	graph       uint64
	first, made int // numbers of nodes of earlier sections, and of objects that these make
	nodes       int
	inputs      []uint64
	crossed     []uint64 // objects of earlier sections that no later section reads
	message     []byte   // that defined it, where the session outlives its controller
}

// playing is a section of a play in flight, where the session outlives its controller.
type playing struct {
	message []byte // its frame; the caller holds order
	of      section
}

// Define implements Cluster.
func (r *remote) Define(g *graph.Graph) (uint64, error) {
	sections, err := g.Split(r.section)
	if err == nil && len(sections) == 0 {
		err = g.Check()
	}
	for i := range sections {
		if err == nil {
			err = sections[i].Graph.Check()
		}
	}
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	id := r.graph + 1
	r.graph += uint64(len(sections))
	r.mu.Unlock()
	d := defined{inputs: g.Inputs, made: g.Made(), nodes: len(g.Nodes)}
	defining := make([]*wire.Graph, len(sections)) // beside the lock: it takes long for many moves
	for i := range sections {
		p := &sections[i]
		one := section{graph: id + uint64(i), first: p.First, made: p.Made, nodes: len(p.Graph.Nodes), inputs: p.Inputs}
		for _, given := range p.Graph.Given {
			if object := p.Inputs[given-1]; object > uint64(g.Inputs) {
				one.crossed = append(one.crossed, object)
			}
		}
		defining[i] = wire.GraphOf(one.graph, p.Graph)
		if r.kept.on {
			one.message, _ = proto.Marshal(defining[i]) // sendMessage finds the error
		}
		d.sections = append(d.sections, one)
	}
	r.mu.Lock()
	r.graphs[id] = d
	r.mu.Unlock()
	for i := range sections {
		if err := r.sendMessage(wire.KindGraph, defining[i]); err != nil {
			r.ForgetGraph(id)
			return 0, err
		}
	}
	return id, nil
}

// ForgetGraph implements Cluster.
func (r *remote) ForgetGraph(graph uint64) {
	r.mu.Lock()
	sections := r.graphs[graph].sections
	delete(r.graphs, graph)
	r.mu.Unlock()
	m := new(wire.Forget)
	for i := range sections {
		m.Graphs = append(m.Graphs, sections[i].graph)
	}
	_ = r.sendMessage(wire.KindForget, m) // if it fails, the session has ended and the graph with it
}

// Play implements Cluster.
func (r *remote) Play(s *PlaySpec) error {
	unsent, err := r.play(s)
	r.tell(unsent)
	return err
}

// play sends the sections of a graph. If one of them cannot be sent after others were, it
// returns the ends of the nodes that were not sent.
func (r *remote) play(s *PlaySpec) (unsent []Ended, err error) {
	begun := r.recorder.Clock()
	r.order.Lock()
	defer r.order.Unlock()
	first := r.op + 1
	defer func() { r.called(begun, "play", first, 0) }()
	g, err := r.playable(s)
	if err != nil {
		return nil, err
	}
	for i := range g.sections {
		p := &g.sections[i]
		if err = r.playSection(s, p); err == nil {
			if len(p.crossed) > 0 {
				r.Free(s.objects(p.crossed))
			}
			continue
		}
		if i == 0 {
			return nil, err
		}
		for k := p.first; k < g.nodes; k++ {
			unsent = append(unsent, Ended{Token: s.Token + uint64(k), Err: err})
		}
		for _, later := range g.sections[i:] {
			crossed := slices.DeleteFunc(slices.Clone(later.crossed), func(object uint64) bool {
				return object > uint64(g.inputs+p.made)
			})
			r.Free(s.objects(crossed))
		}
		return unsent, nil
	}
	return nil, nil
}

// playable returns the graph of a play, or an error if the play does not fit it.
func (r *remote) playable(s *PlaySpec) (defined, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, ok := r.graphs[s.Graph]
	switch {
	case r.lost != nil:
		return g, r.lost
	case !ok:
		return g, status.New(status.InvalidArgument, "graph %d is not known to this session; was it forgotten?", s.Graph)
	case len(s.Inputs) != g.inputs:
		return g, status.New(status.InvalidArgument, "graph %d takes %s, got %d", s.Graph, status.Count(g.inputs, "array"),
			len(s.Inputs))
	case g.made > 0 && (s.First == 0 || s.First+uint64(g.made) < s.First):
		return g, status.New(status.InvalidArgument,
			"graph %d makes %d arrays, which need numbers of 1 or above; got %d as the first", s.Graph, g.made, s.First)
	}
	return g, nil
}

// objects translates numbers of a graph's objects to the session's.
func (s *PlaySpec) objects(numbers []uint64) []uint64 {
	out := make([]uint64, len(numbers))
	for i, n := range numbers {
		out[i] = graph.Number(n, s.Inputs, s.First)
	}
	return out
}

// playSection sends a section of a play. The caller holds order.
func (r *remote) playSection(s *PlaySpec, p *section) error {
	sent := new(playing)
	op, err := r.beginPlay(s, p, sent)
	if err != nil {
		return err
	}
	r.takeFrees()
	play := wire.Play{Op: op, Graph: p.graph, Nodes: uint32(p.nodes), First: s.First + uint64(p.made),
		Inputs: s.objects(p.inputs)}
	r.buf = play.Append(r.buf[:0])
	if r.kept.on {
		sent.message, sent.of = wire.AppendFrame(nil, wire.KindPlay, r.buf), *p
	}
	if err := r.post(wire.KindPlay, false); status.CodeOf(err) == status.InvalidArgument {
		return r.takeBackPlay(op, p.nodes, err)
	}
	return nil // if the connection has ended, the reader handles that
}

// beginPlay numbers a section's operations, once the session has any credit; a section may
// overdraw it. The caller holds order.
func (r *remote) beginPlay(s *PlaySpec, p *section, sent *playing) (op uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.credited(s.Stop); err != nil {
		return 0, err
	}
	op = r.op + 1
	r.op += uint64(p.nodes)
	r.underWay += p.nodes
	for i := range p.nodes {
		node := p.first + i
		one := pending{token: s.Token + uint64(node), play: sent}
		if node < len(s.Calls) && s.Calls[node] != nil {
			one.calls = &calling{call: s.Calls[node]}
		}
		r.pending[op+uint64(i)] = one
	}
	return op, nil
}

// takeBackPlay undoes beginPlay of a play that was not sent.
func (r *remote) takeBackPlay(op uint64, nodes int, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != nil {
		return nil // the end of the session has reported its end
	}
	for i := range nodes {
		r.take(op + uint64(i))
	}
	r.op -= uint64(nodes)
	r.room.Broadcast()
	r.leave()
	return err
}
