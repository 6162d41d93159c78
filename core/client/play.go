package client

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/program"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// defined is what a session needs to know of a graph to play it.
type defined struct {
	inputs, made, nodes int
}

// Define implements Cluster.
func (r *remote) Define(g *program.Graph) (uint64, error) {
	if err := g.Check(); err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.graph++
	id := r.graph
	r.graphs[id] = defined{inputs: g.Inputs, made: g.Made(), nodes: len(g.Nodes)}
	r.mu.Unlock()
	if err := r.sendMessage(wire.KindGraph, wire.GraphOf(id, g)); err != nil {
		r.forgetGraph(id)
		return 0, err
	}
	return id, nil
}

// ForgetGraph implements Cluster.
func (r *remote) ForgetGraph(graph uint64) {
	r.forgetGraph(graph)
	_ = r.sendMessage(wire.KindForget, &wire.Forget{Graphs: []uint64{graph}}) // it went with the session otherwise
}

func (r *remote) forgetGraph(graph uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.graphs, graph)
}

// Play implements Cluster.
func (r *remote) Play(s *PlaySpec) error {
	r.order.Lock()
	defer r.order.Unlock()
	op, nodes, err := r.beginPlay(s)
	if err != nil {
		return err
	}
	r.takeFrees()
	r.buf = appendPlay(r.buf[:0], op, nodes, s)
	if err := r.post(wire.KindPlay, false); status.CodeOf(err) == status.InvalidArgument {
		return r.takeBackPlay(op, nodes, err)
	}
	return nil // a connection that is no more is for the reader to find
}

// beginPlay gives a play's operations their numbers, when the session has credit.
// A play may go beyond it. The caller holds order.
func (r *remote) beginPlay(s *PlaySpec) (op uint64, nodes int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.credited(); err != nil {
		return 0, 0, err
	}
	g, ok := r.graphs[s.Graph]
	switch {
	case !ok:
		return 0, 0, status.New(status.InvalidArgument, "graph %d is not known to this session; was it forgotten?", s.Graph)
	case len(s.Inputs) != g.inputs:
		return 0, 0, status.New(status.InvalidArgument, "graph %d takes %d arrays, got %d", s.Graph, g.inputs, len(s.Inputs))
	case g.made > 0 && (s.First == 0 || s.First+uint64(g.made) < s.First):
		return 0, 0, status.New(status.InvalidArgument, "graph %d makes %d arrays, which are numbered from 1 on; got %d as the first", s.Graph, g.made, s.First)
	}
	op = r.op + 1
	r.op += uint64(g.nodes)
	r.underWay += g.nodes
	for i := range g.nodes {
		p := pending{token: s.Token + uint64(i)}
		if i < len(s.Calls) && s.Calls[i] != nil {
			p.calls = &calling{call: s.Calls[i]}
		}
		r.pending[op+uint64(i)] = p
	}
	return op, g.nodes, nil
}

// takeBackPlay undoes beginPlay of a play that was not sent.
func (r *remote) takeBackPlay(op uint64, nodes int, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost != nil {
		return nil // the session's end has told of it
	}
	for i := range nodes {
		r.take(op + uint64(i))
	}
	r.op -= uint64(nodes)
	r.room.Broadcast()
	r.leave()
	return err
}

// appendPlay writes a wire.Play.
func appendPlay(b []byte, op uint64, nodes int, s *PlaySpec) []byte {
	b = appendInt(b, 1, op)
	b = appendInt(b, 2, s.Graph)
	b = appendInt(b, 3, uint64(nodes))
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), s.First)
	return appendPacked(b, 5, s.Inputs)
}
