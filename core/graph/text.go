package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// String formats the graph for people, one line per node: its kind and devices, what it reads, makes and frees, the
// bytes of all shards that it makes or moves, and the user's line.
func (g *Graph) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "graph of %d nodes, %s", len(g.Nodes), status.Count(g.Inputs, "input"))
	if len(g.Outputs) > 0 {
		fmt.Fprintf(&b, ", keeps %s", numbers(g.Outputs))
	}
	if len(g.Given) > 0 {
		fmt.Fprintf(&b, ", frees input %s", numbers(g.Given))
	}
	b.WriteByte('\n')
	steps := g.Lower(func(int) bool { return true })
	next := uint64(g.Inputs) + 1
	for i := range g.Nodes {
		n := &g.Nodes[i]
		var reads, makes []uint64
		n.Reads(func(object uint64) {
			if !slices.Contains(reads, object) {
				reads = append(reads, object)
			}
		})
		for range g.Makes(i) {
			makes, next = append(makes, next), next+1
		}
		fmt.Fprintf(&b, "%4d  %s on %s: (%s) -> (%s), %s", i, g.Name(i), g.where(i), numbers(reads), numbers(makes),
			shape.BytesText(g.Bytes(i)))
		if frees := steps[i].Frees; len(frees) > 0 {
			fmt.Fprintf(&b, ", frees %s", numbers(frees))
		}
		if trace := n.Trace(); len(trace) > 0 {
			fmt.Fprintf(&b, ", called at %s", trace)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Devices returns the virtual devices of a node: for a run, its devices row by row; for
// a transfer, those that it reads from and writes to, each once and ascending.
func (g *Graph) Devices(node int) (from, to []uint32) {
	n := &g.Nodes[node]
	if r := n.Run; r != nil {
		switch p := g.Programs[r.Program]; {
		case r.Only >= 0:
			to = []uint32{uint32(r.Only)}
		case p != nil:
			to = p.Devices
		}
		return to, to
	}
	for i := range n.Transfer.Moves {
		from, to = append(from, n.Transfer.Moves[i].From), append(to, n.Transfer.Moves[i].To)
	}
	slices.Sort(from)
	slices.Sort(to)
	return slices.Compact(from), slices.Compact(to)
}

// Bytes returns the number of bytes that a run makes on all devices together, or that a
// transfer moves.
func (g *Graph) Bytes(node int) (bytes int64) {
	n := &g.Nodes[node]
	if r := n.Run; r != nil {
		p := g.Programs[r.Program]
		if p == nil {
			return 0
		}
		for _, size := range p.Outputs {
			bytes += size
		}
		if r.Only >= 0 {
			return bytes
		}
		return bytes * int64(len(p.Devices))
	}
	for i := range n.Transfer.Moves {
		m := &n.Transfer.Moves[i]
		s := n.Transfer.Shape
		if len(m.Size) > 0 {
			s.Dims = m.Size
		}
		bytes += max(0, s.Bytes())
	}
	return bytes
}

func (g *Graph) where(node int) string {
	from, to := g.Devices(node)
	if g.Nodes[node].Run != nil {
		return devices(to)
	}
	return devices(from) + " to " + devices(to)
}

// devices formats a list of devices, with consecutive ones as 4-7.
func devices(list []uint32) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j] == list[j-1]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, list[i])
		if j-i > 1 {
			fmt.Fprintf(&b, "-%d", list[j-1])
		}
		i = j
	}
	return b.String()
}

func numbers(list []uint64) string {
	var b strings.Builder
	for i, n := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}
