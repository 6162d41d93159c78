// Package spmd turns a program that XLA has partitioned for many devices into
// one that each device runs by itself, with its collectives made explicit: each
// becomes a call of this system's collective handler, described by a Spec.
//
// It is pure: bytes in, bytes out. It knows the few fields of HloModuleProto that
// it changes and keeps all others as they are.
package spmd

import "github.com/openpathways/pathways/core/shape"

// Op is what a collective does with its operands.
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

// Reduction folds two elements of one type.
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
type Spec struct {
	Op        Op
	Site      int         // numbers the collectives of a program, from 0; all forms of one call in a loop have one number
	Groups    [][]int     // ranks that take part together, in group order; every rank is in at most one group
	Pairs     [][2]int    // of CollectivePermute: source and target ranks
	Reduction Reduction   // of AllReduce and ReduceScatter
	DType     shape.DType // of the reduction
	Dim       int         // of AllGather, ReduceScatter and AllToAll: the dimension that is gathered or split
	Operands  []shape.Shape
	Results   []shape.Shape
	Replicas  int // of PartitionID and ReplicaID: how rows are numbered
	Parts     int
}

// Target is the custom call target of a Spec's handler; the call has one string
// attribute, Attribute, which ParseSpec reads.
const (
	Target    = "pathways_collective"
	Attribute = "spec"
)

// GroupOf gives the group a rank is in, and its place there; nil where it is in
// none.
func (s *Spec) GroupOf(rank int) (group []int, place int) {
	for _, g := range s.Groups {
		for i, r := range g {
			if r == rank {
				return g, i
			}
		}
	}
	return nil, -1
}

// Program is a partitioned program as each device runs it.
type Program struct {
	Module      []byte // HloModuleProto for one replica and one partition
	Collectives []Spec // by Site; none where the shards never wait for each other
}

// Names for what a user reads in errors.
func (o Op) String() string {
	names := [...]string{"", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
		"collective-broadcast", "ragged-all-to-all", "partition-id", "replica-id"}
	if int(o) < len(names) && o > 0 {
		return names[o]
	}
	return "collective"
}
