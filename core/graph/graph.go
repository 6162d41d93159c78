// Package graph describes dataflow graphs. Each computation on sharded arrays, and
// each transfer of one, is one node, however many shards the arrays have.
//
// A Graph is defined once and played many times, each time on other arrays. It
// numbers its objects: 1 to Inputs are the arrays that a play receives, followed by
// the objects that the nodes make, in order.
//
// # What it guarantees
//
// In a Graph that Check accepts, every node reads only objects that an earlier node
// made or that are inputs, reads none that an earlier node consumed by donation, and
// uses only arguments that its program has: Check walks the nodes in their order and
// keeps both sets. Every object that the nodes make, except the Outputs, is freed
// after its last use: see Lower. A graph above the bounds can be cut into several
// that do the same: see Split.
//
// The package is pure: it has no goroutine, lock, clock or randomness. It does not
// change a Graph, so any number of goroutines may read one.
package graph

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// The bounds of a graph. They keep one that a client defines within a few tens of
// megabytes on the controller and on each worker.
const (
	MaxNodes   = 4096    // nodes
	MaxObjects = 1 << 16 // inputs, and objects that nodes make
	MaxMoves   = 1 << 18 // moves of all transfers
)

// Graph is a dataflow graph. Nodes are in the order of their submission: each reads
// only objects that exist before it.
type Graph struct {
	Inputs  int
	Nodes   []Node
	Outputs []uint64 // objects made by nodes that the caller frees after a play
	// Given lists inputs that are not used after a play: each device frees them after
	// its own last node that reads them. The caller still frees them after the play, for
	// devices that have no such node.
	Given []uint64
	// Programs holds the programs that Runs name.
	Programs map[uint64]*Program
}

// Program is what a graph needs to know about a compiled program.
type Program struct {
	Name       string
	Parameters int      // 0 if unknown
	Outputs    []int64  // bytes of one shard of each output
	Donated    []uint32 // parameters that it consumes
	Devices    []uint32 // virtual, row by row
}

// Node is a Run or a Transfer: exactly one of the two is set.
type Node struct {
	Run      *Run
	Transfer *Transfer
}

// Run is one computation on all its devices.
type Run struct {
	Program    uint64
	Inputs     []uint64 // an object per argument; 0 for an argument in Mixed
	Mixed      []Mixed
	NotDonated []uint32 // arguments that this run does not consume, although the program can
	Only       int      // the one virtual device to run a portable program on, or -1
	Trace      []byte   // the user's line that called it, for errors
}

// Mixed is an argument whose rows come from several objects.
type Mixed struct {
	Argument uint32
	Pieces   []Piece
}

// Piece is Rows rows of an object; they follow those of the piece before.
type Piece struct {
	Object uint64
	Rows   uint32
}

// Transfer makes one object out of regions of others.
type Transfer struct {
	Shape  shape.Shape // of a shard of the result
	Memory string      // "" means the devices' default
	Moves  []Move
	Trace  []byte
}

// Move copies a region of one shard into one shard of the result. Without Size the
// region is the whole shard.
type Move struct {
	Source          uint64
	From, To        uint32 // virtual devices
	Start, Size, At []int64
	Shard           shape.Shape // of the source, if Size is set
}

func invalid(format string, args ...any) error {
	return status.New(status.InvalidArgument, format, args...)
}

// Makes returns the number of objects that a node makes.
func (g *Graph) Makes(node int) int {
	if r := g.Nodes[node].Run; r != nil {
		if p := g.Programs[r.Program]; p != nil {
			return len(p.Outputs)
		}
		return 0
	}
	return 1
}

// Number returns a session's number of a graph's object in one play: inputs are the session's numbers of the graph's
// inputs, and first is that of the first object which its nodes make.
func Number(object uint64, inputs []uint64, first uint64) uint64 {
	if n := uint64(len(inputs)); object > n {
		return first + object - n - 1
	}
	return inputs[object-1]
}

// Made returns the number of objects that all nodes make; they have the numbers
// Inputs+1 to Inputs+Made.
func (g *Graph) Made() int {
	n := 0
	for i := range g.Nodes {
		n += g.Makes(i)
	}
	return n
}

// Reads calls f for each object that a node reads, once per read.
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

// Donates calls f for each object whose shards a node consumes on its devices. Which
// shards it consumes of Mixed arguments, only workers know.
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

// Check returns an error if the graph is not consistent. It does not know which shards
// the inputs have: a play checks these.
//
// Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED if it is too large. Messages name the
// node.
func (g *Graph) Check() error {
	if n := len(g.Nodes); n == 0 || n > MaxNodes {
		return status.New(status.ResourceExhausted, "the graph has %d nodes; expected 1 to %d. Split it into several", n,
			MaxNodes)
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
	return g.checkNodes()
}

// checkNodes does what Check does, for a graph of any size.
func (g *Graph) checkNodes() error {
	made := g.Inputs
	takers := map[uint64]int{} // nodes, by the object that they consume
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
				err = invalid("node %d, %s: it reads array %d, which node %d, %s, has consumed by donation", i, g.Name(i), object,
					taker, g.Name(taker))
			} else if err == nil && (object == 0 || object > uint64(made)) {
				err = invalid("node %d, %s: it reads array %d; expected one of arrays 1 to %d, which exist before it", i, g.Name(i),
					object, made)
			}
		})
		if err != nil {
			return err
		}
		if n.Run == nil || n.Run.Only < 0 { // a run on one device leaves the shards of others
			g.Donates(i, func(object uint64) { takers[object] = i })
		}
		made += g.Makes(i)
	}
	seen := map[uint64]bool{}
	for _, object := range g.Outputs {
		if object <= uint64(g.Inputs) || object > uint64(made) || seen[object] {
			return invalid("the graph keeps array %d; expected arrays that its nodes make, %d to %d, each at most once", object,
				g.Inputs+1, made)
		}
		if taker, taken := takers[object]; taken {
			return invalid("the graph keeps array %d, which node %d, %s, has consumed by donation", object, taker, g.Name(taker))
		}
		seen[object] = true
	}
	for _, object := range g.Given {
		if object == 0 || object > uint64(g.Inputs) {
			return invalid("the graph is to free array %d; expected one of its inputs, 1 to %d", object, g.Inputs)
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
			return invalid("node %d, %s: it is compiled for %d devices and cannot run on device %d alone", i, p.Name, rows,
				r.Only)
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
			return invalid("node %d, %s: mixed argument %d is not an argument of the run, or is listed twice", i, p.Name,
				m.Argument)
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
			return invalid("node %d, %s: the pieces of argument %d do not add up to %d rows, one per device", i, p.Name,
				m.Argument, rows)
		}
	}
	if missing != 0 {
		return invalid("node %d, %s: %d arguments name no array", i, p.Name, missing)
	}
	return nil
}

func (t *Transfer) check() error {
	if len(t.Moves) == 0 {
		return invalid("a transfer has no moves; expected at least one")
	}
	if t.Shape.DType.Bits() == 0 || t.Shape.Bytes() < 0 || t.Shape.HostBytes() < 0 {
		return invalid("a transfer makes shards of %v; expected a known element type and dimensions that fit in memory",
			t.Shape)
	}
	for i := range t.Moves {
		m := &t.Moves[i]
		if len(m.Size) == 0 && len(m.Start) == 0 {
			continue
		}
		if m.Shard.DType != t.Shape.DType || !shape.Within(m.Start, m.Size, m.Shard.Dims) ||
			!shape.Within(m.At, m.Size, t.Shape.Dims) {
			return invalid("move %d of %d: the region of size %v at %v of %v does not fit into %v at %v", i, len(t.Moves),
				m.Size, m.Start, m.Shard, t.Shape, m.At)
		}
	}
	return nil
}

// Name returns a node's name for messages.
func (g *Graph) Name(node int) string {
	if r := g.Nodes[node].Run; r != nil {
		if p := g.Programs[r.Program]; p != nil && p.Name != "" {
			return p.Name
		}
		return "a computation"
	}
	return "a transfer"
}

// Names returns the names of all nodes for errors: Name's, and of a transfer also which run made what it moves.
func (g *Graph) Names() []string {
	names := make([]string, len(g.Nodes))
	for i, maker := range g.Makers() {
		names[i] = g.Name(i)
		if maker >= 0 && maker != i {
			names[i] += " of a result of " + g.Name(maker)
		}
	}
	return names
}

// Makers returns for each node the run that made what it makes: itself, or of a transfer the one that made what it
// moves, also by way of other transfers. It is -1 where that was an input once, or is not known, since a worker knows
// the moves of its own devices alone.
func (g *Graph) Makers() []int {
	makers := make([]int, len(g.Nodes))
	made := make([]int, 0, g.Made()) // the same by object, from Inputs+1 on
	for i := range g.Nodes {
		makers[i] = i
		if t := g.Nodes[i].Transfer; t != nil {
			makers[i] = -1
			if len(t.Moves) > 0 {
				if at := int64(t.Moves[0].Source) - int64(g.Inputs) - 1; at >= 0 && at < int64(len(made)) {
					makers[i] = made[at]
				}
			}
		}
		for range g.Makes(i) {
			made = append(made, makers[i])
		}
	}
	return makers
}

// Trace returns the user's line that a node comes from; it may be empty.
func (n *Node) Trace() []byte {
	if n.Run != nil {
		return n.Run.Trace
	}
	return n.Transfer.Trace
}
