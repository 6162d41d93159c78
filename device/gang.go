package device

import (
	"context"

	"github.com/openpathways/pathways/core/shape"
)

// Partitioner is a driver that can partition a program for devices that it does not
// all have, so that each device can run its part separately.
type Partitioner interface {
	// Partition compiles a program for the given number of devices, numbered 0 to
	// devices-1 in the options' assignment, and returns what each of them runs by itself.
	// It leaves nothing loaded.
	Partition(ctx context.Context, p Program, options []byte, devices int) (*Part, error)
	// ServeCollectives sets the function that handles calls of custom call target
	// spmd.Target by running programs. It is called once, before the first such program
	// is compiled. handle must not block: it may run on a thread that the devices need.
	ServeCollectives(handle func(*CollectiveCall)) error
}

// Part is a program as each of several devices runs it: for one device, with its collectives as calls of custom call
// target spmd.Target. The receiver releases Module.
type Part struct {
	Program    Program
	Options    []byte // to compile it with
	Collective bool   // whether it has collectives, in which the devices wait for each other
	// Constants are arrays that each run takes behind the program's own arguments, never donated. They are part of Module.
	Constants []Constant
	// Module is the program of all devices, partitioned and optimized, as Executable.Optimized returns one; empty if the
	// driver has no such form.
	Module Bytes
}

// Constant is an array that a program reads.
type Constant struct {
	Shape  shape.Shape
	CopyTo func(to []byte) // Shape.HostBytes of dense row-major bytes
}

// CollectiveCall is one device's arrival at a collective. Operands and results are
// device memory that the host can access; they are valid until Done.
type CollectiveCall struct {
	Launch   int32 // Run.LaunchID
	Local    int   // device
	Spec     string
	Operands [][]byte
	Results  [][]byte
	Done     func(error) // must be called once; continues the device's program on the calling goroutine
}

// HostCaller is a driver whose programs can call functions of the client that runs them
// (host callbacks).
type HostCaller interface {
	// ServeHostCalls sets the function that handles the calls. It is called once, before
	// the first such program is compiled. handle must not block: it may run on a thread
	// that the devices need.
	ServeHostCalls(handle func(*HostCall)) error
}

// HostCall is one device's call of a function.
type HostCall struct {
	Launch             int32  // Run.LaunchID
	Local              int    // device
	Index              uint64 // which of the functions that came with the run
	Arguments, Results []HostValue
	Done               func(error) // must be called once; continues the device's program on the calling goroutine
}

// HostValue is an array in memory that the host can access, valid until Done.
type HostValue struct {
	Type uint32 // XLA_FFI_DataType; a token has no bytes
	Dims []int64
	Data []byte // dense and row-major, elements narrower than a byte packed
}

// Aborter is a driver that can end work that waits for other members of its epoch.
type Aborter interface {
	// Abort ends the launch with this number with err, if it is in flight and spans
	// members. It must be called on each member; on a member that launches later, it must
	// be called again.
	Abort(launch int32, err error)
}
