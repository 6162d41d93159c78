// Package collective carries the collectives of gangs whose devices belong to
// several processes.
//
// Each device of a gang enters each collective of its program once a time it
// comes to it; the engine exchanges the bytes with the other members' processes
// and ends the calls. Nothing here blocks a caller.
//
// # Matching
//
// A call is its gang's, its site's, and the how-manyeth of its device there, so
// that loops and any order of arrival work. Calls meet in groups of ranks. The
// members of one process send one block together to each other process of the
// group.
//
// # Bits
//
// A reduction is the left fold in group order, whatever the number of processes:
// ((n + r0) + r1) + … in the element type, n being the neutral element, as XLA
// does inside one process. See kernelOf.
//
// # Liveness
//
// A call ends with its group's last member, with Abort of its gang, or with the
// loss of a process that has a rank of its gang. A failed exchange aborts its
// gang on this side.
//
// # Concurrency
//
// All methods may be called from any goroutine, from within Done too. Done runs
// on a goroutine of its own, except where Enter has the answer.
package collective

import (
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Place is where a rank runs.
type Place struct {
	Process uint64 // number of the worker
	Local   int    // device there
}

// Gang is one run of a program over devices of several processes. No device has
// two ranks.
type Gang struct {
	ID     uint64  // the island's number for it: the same in all processes
	Launch int32   // what the devices see as their run; low bits of ID
	Ranks  []Place // by row; shared and never changed, so that gangs of a program cost no copy
}

// Call is one device's arrival at a collective. Operands and results are memory
// that stays until Done is called; results overlap nothing. Arrays are dense and
// row-major, elements narrower than a byte packed (shape.Shape.Bytes).
type Call struct {
	Launch   int32
	Local    int        // device
	Spec     *spmd.Spec // the same for all calls of a site; never changed
	Operands [][]byte
	Results  [][]byte
	Way      *Way        // unless nil, set before Done is called without an error, if the rank meets others
	Done     func(error) // once, from any goroutine; runs the rest of the device's program, so it may take long
}
