package device

import "context"

// Partitioner is a driver that can partition a program for devices that are not
// all its own, so that each device can run its part by itself.
type Partitioner interface {
	// Partition compiles a program for so many devices, numbered 0 to devices-1 in
	// the options' assignment, as far as its partitioned and optimised module.
	// Nothing of it stays loaded.
	Partition(ctx context.Context, p Program, options []byte, devices int) (module []byte, err error) // HloModuleProtoWithConfig
	// ServeCollectives says who answers the calls of custom call target
	// spmd.Target that running programs make. It is called once, before the first
	// such program is compiled. Handle must not wait: it may be on a thread that
	// the devices need.
	ServeCollectives(handle func(*CollectiveCall)) error
}

// CollectiveCall is one device's arrival at a collective. Operands and results
// are device memory that the host can reach; they stay until Done.
type CollectiveCall struct {
	Launch   int32 // Run.LaunchID
	Local    int   // device
	Spec     string
	Operands [][]byte
	Results  [][]byte
	Done     func(error) // once; goes on with the device's program on the calling goroutine
}

// HostCaller is a driver whose programs can call functions of whoever runs them
// (host callbacks).
type HostCaller interface {
	// ServeHostCalls says who answers. It is called once, before the first such
	// program is compiled. Handle must not wait: it may be on a thread that the
	// devices need.
	ServeHostCalls(handle func(*HostCall)) error
}

// HostCall is one device's call of a function.
type HostCall struct {
	Launch             int32  // Run.LaunchID
	Local              int    // device
	Index              uint64 // which of the functions that came with the run
	Arguments, Results []HostValue
	Done               func(error) // once; goes on with the device's program on the calling goroutine
}

// HostValue is an array in memory that the host can reach, until Done.
type HostValue struct {
	Type uint32 // XLA_FFI_DataType; a token has no bytes
	Dims []int64
	Data []byte // dense and row-major, elements narrower than a byte packed
}

// Aborter is a driver that can end what waits for other members of its epoch.
type Aborter interface {
	// Abort ends the launch of this number with err, where it is under way and
	// spans members. Each member is told by itself; one that launches later is
	// told again.
	Abort(launch int32, err error)
}
