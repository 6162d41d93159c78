// Package graph describes dataflow graphs: computations and transfers on
// sharded arrays, one node each, whatever the number of shards.
//
// A Graph is defined once and played many times, each time on other arrays. Its
// objects are numbered within it: 1 to Inputs are what a play is given, and then
// come the objects that the nodes make, in order.
//
// # Guarantees
//
// A Graph that Check has found good names only objects that were made before,
// none after it was donated, and only what its programs have. Everything that its
// nodes make but its Outputs is let go of at its last use: see Lower. What is larger
// than the bounds can be cut into several: see Split.
//
// The package is pure: no goroutine, lock, clock or randomness. It does not change
// a Graph, so any number of goroutines may read one. Anything may import it.
package graph

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Bounds of a graph.
const (
	MaxNodes   = 4096    // nodes
	MaxObjects = 1 << 16 // inputs, and objects that nodes make
	MaxMoves   = 1 << 18 // moves of all transfers
)

// Graph is a dataflow graph. Nodes stand in the order of their submission: each
// reads what was made before it.
type Graph struct {
	Inputs  int
	Nodes   []Node
	Outputs []uint64 // made by nodes, and the caller's to free after a play
	// Given are inputs that nobody uses after a play: devices let go of them behind
	// their own last node that reads them. The caller frees them after the play all the
	// same, for devices that have no such node.
	Given []uint64
	// Programs are those that Runs name.
	Programs map[uint64]*Program
}

// Program is what a graph needs to know of a compiled program.
type Program struct {
	Name       string
	Parameters int      // 0 where not known
	Outputs    []int64  // bytes of a shard of each
	Donated    []uint32 // parameters that it consumes
	Devices    []uint32 // virtual, row by row
}

// Node is a Run or a Transfer: one of the two is set.
type Node struct {
	Run      *Run
	Transfer *Transfer
}

// Run is one computation on all its devices.
type Run struct {
	Program    uint64
	Inputs     []uint64 // an object an argument; 0 where Mixed says more
	Mixed      []Mixed
	NotDonated []uint32
	Only       int    // the one virtual device to run a portable program on, or -1
	Trace      []byte // what a user reads where it fails: the line that called it
}

// Mixed is an argument whose rows come from several objects.
type Mixed struct {
	Argument uint32
	Pieces   []Piece
}

// Piece is so many rows of an object, from where the piece before ended.
type Piece struct {
	Object uint64
	Rows   uint32
}

// Transfer makes one object out of boxes of others.
type Transfer struct {
	Shape  shape.Shape // of a shard of the result
	Memory string      // "" is the devices' default
	Moves  []Move
	Trace  []byte
}

// Move brings a box of one shard into one shard. Without Size it is the whole
// shard.
type Move struct {
	Source          uint64
	From, To        uint32 // virtual devices
	Start, Size, At []int64
	Shard           shape.Shape // of the source, where Size is given
}

func invalid(format string, args ...any) error {
	return status.New(status.InvalidArgument, format, args...)
}

// Makes is how many objects a node makes.
func (g *Graph) Makes(node int) int {
	if r := g.Nodes[node].Run; r != nil {
		if p := g.Programs[r.Program]; p != nil {
			return len(p.Outputs)
		}
		return 0
	}
	return 1
}

// Made is how many objects all nodes make: numbers Inputs+1 to Inputs+Made.
func (g *Graph) Made() int {
	n := 0
	for i := range g.Nodes {
		n += g.Makes(i)
	}
	return n
}

// Reads calls f for each object that a node reads, as often as it does.
func (n *Node) Reads(f func(object uint64)) {
	if t := n.Transfer; t != nil {
		for i := range t.Moves {
			f(t.Moves[i].Source)
		}
		return
	}
	for _, id := range n.Run.Inputs {
		if id != 0 {
			f(id)
		}
	}
	for _, m := range n.Run.Mixed {
		for _, p := range m.Pieces {
			f(p.Object)
		}
	}
}

func (n *Node) moves() int {
	if n.Transfer == nil {
		return 0
	}
	return len(n.Transfer.Moves)
}

// Donates calls f for each object of which a node consumes the shards on its
// devices. What it takes by Mixed is known to workers only.
func (g *Graph) Donates(node int, f func(object uint64)) {
	r := g.Nodes[node].Run
	if r == nil {
		return
	}
	p := g.Programs[r.Program]
	if p == nil {
		return
	}
	for _, argument := range p.Donated {
		if int(argument) < len(r.Inputs) && r.Inputs[argument] != 0 && !slices.Contains(r.NotDonated, argument) {
			f(r.Inputs[argument])
		}
	}
}

// Check says whether the graph makes sense by itself. Which shards its inputs have
// is known when it is played.
//
// Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED where it is too large; they name the
// node.
func (g *Graph) Check() error {
	if n := len(g.Nodes); n == 0 || n > MaxNodes {
		return status.New(status.ResourceExhausted, "the graph has %d nodes; expected 1 to %d. Split it into several", n, MaxNodes)
	}
	if g.Inputs < 0 || g.Inputs > MaxObjects {
		return status.New(status.ResourceExhausted, "the graph has %d inputs; expected at most %d", g.Inputs, MaxObjects)
	}
	if g.Inputs+g.Made() > MaxObjects {
		return status.New(status.ResourceExhausted, "the graph has more than %d arrays", MaxObjects)
	}
	moves := 0
	for i := range g.Nodes {
		moves += g.Nodes[i].moves()
	}
	if moves > MaxMoves {
		return status.New(status.ResourceExhausted, "the graph's transfers have more than %d moves of shards", MaxMoves)
	}
	return g.sense()
}

// sense is Check of a graph of any size.
func (g *Graph) sense() error {
	made := g.Inputs
	takers := map[uint64]int{} // nodes, by what they consume
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if (n.Run == nil) == (n.Transfer == nil) {
			return invalid("node %d: expected either a run or a transfer", i)
		}
		if n.Run != nil {
			if err := g.checkRun(i); err != nil {
				return err
			}
		} else {
			if err := n.Transfer.check(); err != nil {
				return status.Wrap(err, "node %d", i)
			}
		}
		var err error
		n.Reads(func(object uint64) {
			if taker, taken := takers[object]; err == nil && taken {
				err = invalid("node %d, %s: it reads array %d, which node %d, %s, has consumed by donation", i, g.Name(i), object, taker, g.Name(taker))
			} else if err == nil && (object == 0 || object > uint64(made)) {
				err = invalid("node %d, %s: it reads array %d; before it there are arrays 1 to %d", i, g.Name(i), object, made)
			}
		})
		if err != nil {
			return err
		}
		if n.Run == nil || n.Run.Only < 0 { // others may leave shards
			g.Donates(i, func(object uint64) { takers[object] = i })
		}
		made += g.Makes(i)
	}
	seen := map[uint64]bool{}
	for _, object := range g.Outputs {
		if object <= uint64(g.Inputs) || object > uint64(made) || seen[object] {
			return invalid("the graph keeps array %d; expected some of those that its nodes make, %d to %d, each once", object, g.Inputs+1, made)
		}
		if taker, taken := takers[object]; taken {
			return invalid("the graph keeps array %d, which node %d, %s, has consumed by donation", object, taker, g.Name(taker))
		}
		seen[object] = true
	}
	for _, object := range g.Given {
		if object == 0 || object > uint64(g.Inputs) {
			return invalid("the graph is given array %d for good; expected some of its inputs, 1 to %d", object, g.Inputs)
		}
	}
	return nil
}

func (g *Graph) checkRun(i int) error {
	r := g.Nodes[i].Run
	p := g.Programs[r.Program]
	if p == nil {
		return invalid("node %d: program %d is not known; was its executable deleted?", i, r.Program)
	}
	if p.Parameters > 0 && len(r.Inputs) != p.Parameters {
		return invalid("node %d, %s: it takes %s, got %d", i, p.Name, status.Count(p.Parameters, "argument"), len(r.Inputs))
	}
	rows := len(p.Devices)
	if r.Only >= 0 {
		if rows != 1 {
			return invalid("node %d, %s: it is for %d devices and cannot run on device %d alone", i, p.Name, rows, r.Only)
		}
	}
	missing := 0
	for _, id := range r.Inputs {
		if id == 0 {
			missing++
		}
	}
	seen := map[uint32]bool{}
	for _, m := range r.Mixed {
		if int(m.Argument) >= len(r.Inputs) || r.Inputs[m.Argument] != 0 || seen[m.Argument] {
			return invalid("node %d, %s: mixed argument %d is not one of the run's, or is there twice", i, p.Name, m.Argument)
		}
		seen[m.Argument] = true
		missing--
		n := 0
		for _, piece := range m.Pieces {
			if piece.Rows == 0 || int64(piece.Rows) > int64(rows-n) {
				n = -1
				break
			}
			n += int(piece.Rows)
		}
		if n != rows {
			return invalid("node %d, %s: the pieces of argument %d have other than %d rows, one a device", i, p.Name, m.Argument, rows)
		}
	}
	if missing != 0 {
		return invalid("node %d, %s: %d arguments name no array", i, p.Name, missing)
	}
	return nil
}

func (t *Transfer) check() error {
	if len(t.Moves) == 0 {
		return invalid("a transfer without moves")
	}
	if t.Shape.DType.Bits() == 0 || t.Shape.Bytes() < 0 || t.Shape.HostBytes() < 0 {
		return invalid("a transfer makes shards of %v; expected a known element type and dimensions that fit in memory", t.Shape)
	}
	for i := range t.Moves {
		m := &t.Moves[i]
		if len(m.Size) == 0 && len(m.Start) == 0 {
			continue
		}
		if m.Shard.DType != t.Shape.DType || !within(m.Start, m.Size, m.Shard.Dims) || !within(m.At, m.Size, t.Shape.Dims) {
			return invalid("move %d of %d: the box of %v at %v of %v does not become one of %v at %v", i, len(t.Moves), m.Size, m.Start, m.Shard, t.Shape, m.At)
		}
	}
	return nil
}

// within reports whether a box is inside of an array.
func within(at, size, dims []int64) bool {
	if len(at) != len(dims) || len(size) != len(dims) {
		return false
	}
	for i, d := range dims {
		if at[i] < 0 || size[i] < 0 || at[i] > d || size[i] > d-at[i] {
			return false
		}
	}
	return true
}

// Name is what people read of a node.
func (g *Graph) Name(node int) string {
	if r := g.Nodes[node].Run; r != nil {
		if p := g.Programs[r.Program]; p != nil && p.Name != "" {
			return p.Name
		}
		return "a computation"
	}
	return "a transfer"
}

// Trace is the user's line that a node stands for; it may be empty.
func (n *Node) Trace() []byte {
	if n.Run != nil {
		return n.Run.Trace
	}
	return n.Transfer.Trace
}
