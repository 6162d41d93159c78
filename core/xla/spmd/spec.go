// Package spmd turns a program that XLA has partitioned for many devices into
// one that each device runs by itself, with its collectives made explicit: each
// becomes a call of this system's collective handler, described by a Spec.
//
// Rewrite does that. ParseSpec reads what it wrote into the program.
//
// The package is pure: bytes in, bytes out, no state. It knows the few fields of
// HloModuleProto that it reads or changes, and keeps all others as they are. For any
// bytes, it returns a result or an error, and uses memory in proportion to their size.
package spmd

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/hlo"
)

// Op is the operation of a collective.
type Op uint8

// The collectives.
const (
	AllReduce Op = iota + 1
	AllGather
	ReduceScatter
	AllToAll
	CollectivePermute
	CollectiveBroadcast
	RaggedAllToAll
	PartitionID // the device's own partition, as u32
	ReplicaID   // the device's own replica, as u32
)

// Reduction is an operation that combines two elements of one type.
type Reduction uint8

// The reductions.
const (
	Sum Reduction = iota + 1
	Product
	Min
	Max
	And
	Or
	Xor
)

// Spec describes one collective of a program, the same on all devices. Ranks
// are rows of the program: replica*partitions + partition.
//
// Shapes and Dim describe the bytes: dimensions are in the order of memory, the one that
// varies slowest first, independent of their order in the program. So an operand is always
// dense and row-major.
//
// If there are several operands, each has its own result, and all are treated alike. An
// AllToAll without a dimension (Dim is -1) is the exception: operand i is sent to member i
// of the group, and result i comes from it. A CollectivePermute returns zeros on ranks
// without a source, a CollectiveBroadcast on ranks that are in no group; it sends the
// operand of the first member of a group. A RaggedAllToAll has six operands, as in XLA:
// input, output, input offsets, send sizes, output offsets, receive sizes.
type Spec struct {
	Op Op
	// number of the collective in its program, from 0; all forms of one call in a loop have the same number. -1 for
	// PartitionID and ReplicaID
	Site      int
	Groups    [][]int     // ranks that take part together, in group order; every rank is in at most one group
	Pairs     [][2]int    // of CollectivePermute: source and target ranks; each is at most once a source and once a target
	Reduction Reduction   // of AllReduce and ReduceScatter
	DType     shape.DType // of the reduction
	Dim       int         // of AllGather, ReduceScatter and AllToAll: the dimension that is gathered or split
	Operands  []shape.Shape
	Results   []shape.Shape
	Replicas  int // of PartitionID and ReplicaID: determines how rows are numbered
	Parts     int
}

// Target is the custom call target of a Spec's handler; the call has one string
// attribute, Attribute, which ParseSpec reads.
const (
	Target    = "pathways_collective"
	Attribute = "spec"
)

// Program is a partitioned program as each device runs it.
type Program struct {
	Module      []byte // HloModuleProto for one replica and one partition
	Collectives []Spec // by Site; empty if the shards never wait for each other
	// Constants are values that a run takes behind its parameters, in this order: long constants of the program, which the
	// module has as further parameters. They alias the program that was rewritten.
	Constants []hlo.Literal

	parameters [][]byte // ShapeProto of each, with its layout
	result     []byte
}

// OneDevice returns the compile options for the program, derived from those with which it
// was partitioned.
func (p *Program) OneDevice(options []byte) ([]byte, error) {
	return compileoptions.OneDevice(options, p.parameters, p.result)
}

// String returns the op's name in HLO.
func (o Op) String() string {
	if int(o) < len(opNames) && o > 0 {
		return opNames[o]
	}
	return "collective"
}

var opNames = [...]string{"", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
	"collective-broadcast", "ragged-all-to-all", "partition-id", "replica-id"}

// String returns a short name, such as "sum".
func (r Reduction) String() string {
	if int(r) < len(reductionNames) {
		return reductionNames[r]
	}
	return "reduction"
}

var reductionNames = [...]string{"none", "sum", "product", "min", "max", "and", "or", "xor"}
