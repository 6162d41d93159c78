package collective

import (
	"math/rand/v2"
	"slices"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// places spreads ranks over processes.
func places(t *rapid.T, ranks, processes int) []Place {
	out, next := make([]Place, ranks), map[uint64]int{}
	for r := range out {
		p := uint64(rapid.IntRange(1, processes).Draw(t, "process"))
		out[r] = Place{p, next[p]}
		next[p]++
	}
	return out
}

// blocked spreads ranks evenly, in order.
func blocked(ranks, processes int) []Place {
	out := make([]Place, ranks)
	each := (ranks + processes - 1) / processes
	for r := range out {
		out[r] = Place{uint64(r/each + 1), r % each}
	}
	return out
}

// moved are the types of arrays that only move: those of kernels, and others, of which some share a byte.
var moved = append(slices.Clone(dtypes), shape.F8E5M2, shape.F8E4M3FN, shape.F8E4M3B11FNUZ, shape.F8E5M2FNUZ,
	shape.F8E4M3FNUZ, shape.F8E4M3, shape.F8E3M4, shape.F8E8M0FNU, shape.S1, shape.U1, shape.S2, shape.U2, shape.S4,
	shape.U4, shape.F4E2M1FN)

// few ranks may have large arrays.
const few = 9

// drawRanks draws ranks, mostly few, and over how many processes they are spread.
func drawRanks(t *rapid.T) (ranks, processes int) {
	switch rapid.IntRange(0, 7).Draw(t, "many") {
	case 0:
		return 64, rapid.IntRange(1, 16).Draw(t, "processes")
	case 1:
		return rapid.IntRange(few, 64).Draw(t, "ranks"), rapid.IntRange(1, 16).Draw(t, "processes")
	}
	return rapid.IntRange(1, few).Draw(t, "ranks"), rapid.IntRange(1, 5).Draw(t, "processes")
}

// drawSpec draws a collective and how large its arrays are.
func drawSpec(t *rapid.T, ranks int) *spmd.Spec {
	d := &drawing{T: t, ranks: ranks, Spec: &spmd.Spec{Op: rapid.SampledFrom([]spmd.Op{
		spmd.AllReduce, spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll, spmd.CollectivePermute,
		spmd.CollectiveBroadcast, spmd.RaggedAllToAll, spmd.PartitionID, spmd.ReplicaID}).Draw(t, "op"), Parts: 1}}
	d.groups()
	d.large = ranks <= few && rapid.IntRange(0, 7).Draw(t, "large") == 0
	switch d.Op {
	case spmd.AllReduce:
		d.reduce()
	case spmd.ReduceScatter:
		d.reduce()
		d.scatter()
	case spmd.AllGather:
		d.gather()
	case spmd.AllToAll:
		d.allToAll()
	case spmd.CollectivePermute:
		d.pairs()
		d.keeps(d.shape(moved))
	case spmd.CollectiveBroadcast:
		d.Groups = d.Groups[:rapid.IntRange(0, len(d.Groups)).Draw(t, "groups")]
		d.keeps(d.shape(moved))
	case spmd.RaggedAllToAll:
		d.raggedAllToAll()
	default:
		d.Parts = rapid.SampledFrom(d.divisors).Draw(t, "parts")
		d.Replicas = ranks / d.Parts
		d.Results = []shape.Shape{{DType: shape.U32}}
	}
	return d.Spec
}

// drawChain draws an AllReduce that is a chain between hosts: drawSpec hardly ever has a group of ranks in order,
// several of each process, with arrays that are cut into enough chunks.
func drawChain(t *rapid.T) (processes int, ranks []Place, s *spmd.Spec) {
	processes = rapid.IntRange(2, 4).Draw(t, "processes of the chain")
	ranks = blocked(processes*rapid.IntRange(4, 6).Draw(t, "ranks each"), processes)
	d := &drawing{T: t, Spec: &spmd.Spec{Op: spmd.AllReduce, Groups: [][]int{nil}}}
	for r := range ranks {
		d.Groups[0] = append(d.Groups[0], r)
	}
	d.reduce()
	for i := range d.Operands {
		d.Operands[i].Dims = []int64{rapid.Int64Range(1024, 2048).Draw(t, "elements")}
		d.Results[i] = d.Operands[i]
	}
	return processes, ranks, d.Spec
}

// drawExchanges draws a large reduction between hosts whose ranks are in no order, so that no chain goes along them:
// drawSpec hardly ever has one that is cut into lanes.
func drawExchanges(t *rapid.T) (processes int, ranks []Place, s *spmd.Spec) {
	processes = rapid.IntRange(2, 4).Draw(t, "processes that exchange")
	n := processes * rapid.IntRange(1, 3).Draw(t, "ranks each")
	ranks = shuffled(t, n, processes)
	d := &drawing{T: t, ranks: n, n: n, Spec: &spmd.Spec{Groups: [][]int{nil}}}
	for r := range ranks {
		d.Groups[0] = append(d.Groups[0], r)
	}
	d.Op = rapid.SampledFrom([]spmd.Op{spmd.AllReduce, spmd.ReduceScatter}).Draw(t, "op")
	d.reduce()
	for i := range d.Operands {
		d.Results[i].Dims = []int64{rapid.Int64Range(1024, 4096).Draw(t, "elements")}
		if d.Operands[i] = d.Results[i]; d.Op == spmd.ReduceScatter {
			d.Operands[i] = d.times(d.Results[i])
		}
	}
	return processes, ranks, d.Spec
}

// shuffled draws an order of so many ranks of each process.
func shuffled(t *rapid.T, n, processes int) []Place {
	ranks := rapid.Permutation(blocked(n, processes)).Draw(t, "ranks")
	next := map[uint64]int{}
	for i := range ranks {
		ranks[i].Local = next[ranks[i].Process]
		next[ranks[i].Process]++
	}
	return ranks
}

// drawing is a Spec that is being drawn.
type drawing struct {
	*rapid.T
	*spmd.Spec
	ranks    int
	order    []int // of the ranks, in which groups have them
	divisors []int // of the number of ranks
	n        int   // ranks of a group
	large    bool  // its arrays
}

// groups draws which ranks work together.
func (d *drawing) groups() {
	all := make([]int, d.ranks)
	for r := range all {
		all[r] = r
		if d.ranks%(r+1) == 0 {
			d.divisors = append(d.divisors, r+1)
		}
	}
	d.order = rapid.Permutation(all).Draw(d.T, "order")
	d.n = rapid.SampledFrom(d.divisors).Draw(d.T, "group size")
	switch d.Op {
	case spmd.PartitionID, spmd.ReplicaID:
		d.Site = -1
	case spmd.CollectivePermute:
	case spmd.AllReduce, spmd.CollectiveBroadcast: // groups may differ in size
		for rest := d.order; len(rest) > 0; {
			n := min(d.n, len(rest))
			if rapid.Bool().Draw(d.T, "another size") {
				n = rapid.IntRange(1, len(rest)).Draw(d.T, "size")
			}
			d.Groups, rest = append(d.Groups, slices.Clone(rest[:n])), rest[n:]
		}
	default:
		for g := range slices.Chunk(d.order, d.n) {
			d.Groups = append(d.Groups, slices.Clone(g))
		}
	}
}

// pairs draws which ranks a permute brings where.
func (d *drawing) pairs() {
	targets := rapid.Permutation(d.order).Draw(d.T, "targets")
	for i := range rapid.IntRange(0, d.ranks).Draw(d.T, "pairs") {
		d.Pairs = append(d.Pairs, [2]int{d.order[i], targets[i]})
	}
}

// shape draws the shape of an array of one of the types.
func (d *drawing) shape(of []shape.DType) shape.Shape {
	x := shape.Shape{DType: rapid.SampledFrom(of).Draw(d.T, "dtype")}
	dims := 3
	if d.ranks > few {
		dims = 2
	}
	for range rapid.IntRange(0, dims).Draw(d.T, "dims") {
		x.Dims = append(x.Dims, rapid.Int64Range(0, 5).Draw(d.T, "dim"))
	}
	if d.large {
		x.Dims = append(x.Dims, rapid.Int64Range(9000, 20000).Draw(d.T, "dim"))
		if len(x.Dims) > 2 {
			x.Dims = x.Dims[len(x.Dims)-2:]
		}
	}
	return x
}

// takes adds an operand and its result.
func (d *drawing) takes(operand, result shape.Shape) {
	d.Operands, d.Results = append(d.Operands, operand), append(d.Results, result)
}

// keeps adds an operand whose result has its shape.
func (d *drawing) keeps(x shape.Shape) { d.takes(x, x) }

// times returns a shape that is n times as long along Dim.
func (d *drawing) times(x shape.Shape) shape.Shape {
	x.Dims = slices.Clone(x.Dims)
	x.Dims[d.Dim] *= int64(d.n)
	return x
}

// reaches gives a shape the dimension along which a collective works.
func (d *drawing) reaches(x shape.Shape) shape.Shape {
	x.Dims = slices.Clone(x.Dims)
	for len(x.Dims) <= d.Dim {
		x.Dims = append(x.Dims, 2)
	}
	return x
}

// wholeBytes makes a shape, which has dimensions, one of whole bytes: the parts that ranks have of an array are.
func wholeBytes(x shape.Shape) shape.Shape {
	if bits := int64(x.DType.Bits()); bits < 8 {
		x.Dims = slices.Clone(x.Dims)
		x.Dims[len(x.Dims)-1] *= 8 / bits
	}
	return x
}

func (d *drawing) reduce() {
	var of []shape.DType
	d.Reduction = rapid.SampledFrom(reductions).Draw(d.T, "reduction")
	for _, x := range dtypes {
		if _, err := kernelOf(x, d.Reduction); err == nil {
			of = append(of, x)
		}
	}
	for range rapid.IntRange(1, 3).Draw(d.T, "operands") {
		d.keeps(d.shape(of))
	}
	d.DType = d.Operands[0].DType
}

// scatter makes of what was drawn for an AllReduce what a ReduceScatter takes, along one dimension for all.
func (d *drawing) scatter() {
	d.Dim = rapid.IntRange(0, 2).Draw(d.T, "along")
	for i, x := range d.Results {
		d.Results[i] = d.reaches(x)
		d.Operands[i] = d.times(d.Results[i])
	}
}

func (d *drawing) gather() {
	d.Dim = rapid.IntRange(0, 1).Draw(d.T, "along")
	for range rapid.IntRange(1, 2).Draw(d.T, "operands") {
		x := wholeBytes(d.reaches(d.shape(moved)))
		d.takes(x, d.times(x))
	}
}

func (d *drawing) allToAll() {
	x := d.shape(moved)
	if d.n > 1 && rapid.Bool().Draw(d.T, "tuple") {
		for range d.n {
			d.keeps(x)
		}
		return
	}
	if len(x.Dims) == 0 {
		x.Dims = []int64{3}
	}
	d.Dim = rapid.IntRange(0, len(x.Dims)-1).Draw(d.T, "along")
	d.keeps(d.times(wholeBytes(x)))
}

func (d *drawing) raggedAllToAll() {
	updates := rapid.Int64Range(1, 2).Draw(d.T, "updates")
	list := shape.Shape{DType: rapid.SampledFrom([]shape.DType{shape.S32, shape.S64}).Draw(d.T, "offsets"),
		Dims: []int64{int64(d.n) * updates}}
	in := shape.Shape{DType: shape.F32, Dims: []int64{10, 3}}
	out := shape.Shape{DType: shape.F32, Dims: []int64{int64(d.n) * updates * 2, 3}}
	d.Operands, d.Results = []shape.Shape{in, out, list, list, list, list}, []shape.Shape{out}
}

// bring makes the operands of all ranks.
func bring(s *spmd.Spec, ranks int, rng *rand.Rand) [][][]byte {
	out := make([][][]byte, ranks)
	for r := range out {
		for _, x := range s.Operands {
			b := aligned(x.Bytes())
			for i := range b {
				b[i] = byte(rng.Uint32())
				if x.DType == shape.Pred {
					b[i] &= 1
				}
			}
			out[r] = append(out[r], b)
		}
	}
	if s.Op != spmd.RaggedAllToAll {
		return out
	}
	for _, g := range s.Groups {
		k := int(s.Operands[2].Dims[0]) / len(g)
		for place, r := range g {
			for i := range k * len(g) {
				// To every member, a place of its own for this one: two rows an update.
				put(s, out[r], 2, i, int64(rng.IntN(9)))
				put(s, out[r], 3, i, int64(rng.IntN(2)))
				put(s, out[r], 4, i, int64(place*k*2+i%k*2))
			}
		}
	}
	return out
}

func put(s *spmd.Spec, ops [][]byte, operand, i int, v int64) {
	if s.Operands[operand].DType == shape.S64 {
		elements[int64](ops[operand])[i] = v
		return
	}
	elements[int32](ops[operand])[i] = int32(v)
}

// directly are the collectives whose large arrays are read where they lie.
var directly = []spmd.Op{spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll, spmd.CollectivePermute,
	spmd.CollectiveBroadcast, spmd.RaggedAllToAll}

// drawDirect draws a large collective among processes that share a board.
func drawDirect(t *rapid.T) (int, []Place, *spmd.Spec) {
	processes, each := rapid.IntRange(2, 4).Draw(t, "processes of direct"), rapid.IntRange(1, 2).Draw(t, "ranks each")
	columns := rapid.Int64Range(200, 900)
	if rapid.IntRange(0, 15).Draw(t, "many") == 0 {
		processes, each = rapid.IntRange(5, 16).Draw(t, "many processes"), 4
		columns = rapid.Int64Range(20, 90)
	}
	n := processes * each
	ranks := shuffled(t, n, processes)
	d := &drawing{T: t, ranks: n, n: n, Spec: &spmd.Spec{Groups: [][]int{nil}}}
	for r := range ranks {
		d.Groups[0] = append(d.Groups[0], r)
	}
	d.Op = rapid.SampledFrom(directly).Draw(t, "op")
	x := shape.Shape{DType: shape.F32, Dims: []int64{rapid.Int64Range(1, 3).Draw(t, "rows"),
		columns.Draw(t, "columns")}}
	d.Reduction, d.DType, d.Dim = spmd.Sum, shape.F32, rapid.IntRange(0, 1).Draw(t, "along")
	switch d.Op {
	case spmd.AllReduce:
		for range rapid.IntRange(1, 2).Draw(t, "operands") {
			d.keeps(x)
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2, 3, 140}).Draw(t, "short operands") { // too many for a letter in a ring
			d.keeps(shape.Shape{DType: shape.F32, Dims: []int64{rapid.Int64Range(0, 40).Draw(t, "elements")}})
		}
	case spmd.AllGather:
		d.takes(x, d.times(x))
	case spmd.ReduceScatter:
		d.takes(d.times(x), x)
	case spmd.AllToAll:
		d.keeps(d.times(x))
	case spmd.CollectivePermute:
		d.order, d.Groups = d.Groups[0], nil
		d.pairs()
		d.keeps(x)
	case spmd.CollectiveBroadcast:
		d.keeps(x)
	case spmd.RaggedAllToAll:
		d.raggedAllToAll()
	}
	return processes, ranks, d.Spec
}
