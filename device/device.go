// Package device is the contract between an executor and what makes devices of
// one kind available to it: a driver.
//
// Two drivers exist. device/pjrt drives any PJRT plugin; device/sim simulates
// devices with their own clock. Both pass device/devicetest, which is this
// contract as a test suite.
//
// # Guarantees
//
// Every method may be called from any goroutine. Nothing here waits for a
// device: work that takes time returns at once with buffers and events that
// become ready or fail later, with one exception that a driver documents (a
// PJRT plugin may run a cheap computation before Execute returns). Computations
// given to one device start in the order in which Execute was called for it.
//
// # Ownership
//
// Whoever gets a Driver, Executable or Buffer closes it, once; a second Close
// does nothing. A Driver closes last. Closing a Buffer that work still reads is
// allowed: its memory goes when that work is done. An error return means that
// there is nothing to close.
//
// # Errors
//
// Errors carry codes of core/status. One that is about an argument of Execute
// says which: "argument 1", counted from 0. Whatever a driver cannot know before
// a computation runs fails the computation's events and outputs, and all that is
// made from them, with the same code and text.
package device

import (
	"context"

	"github.com/openpathways/pathways/core/shape"
)

// Kind is a sort of device that this machine may have, before any client of it
// is made.
type Kind interface {
	// Join makes a driver that is member Node of Nodes in one epoch of an
	// island. The zero Membership is a driver by itself.
	Join(ctx context.Context, m Membership) (Driver, error)
}

// Membership places a driver in an island whose plugin has its own
// interconnect. It is fixed for an epoch; a change of members is a new epoch.
type Membership struct {
	Epoch       uint64
	Node, Nodes int
	Store       KeyValues // rendezvous; nil where Nodes <= 1
}

// KeyValues is the rendezvous store of an epoch.
type KeyValues interface {
	Put(ctx context.Context, key string, value []byte) error
	Get(ctx context.Context, key string) ([]byte, error) // waits until the key is there or ctx ends
}

// Driver is a client of one kind of device.
type Driver interface {
	Platform() string        // "cpu", "cuda", "tpu", "sim"
	PlatformVersion() string // says whether devices are simulated
	Devices() []Device       // addressable ones, in local order; fixed for life
	// Compile compiles a program. Options is a serialized xla.CompileOptionsProto;
	// nil means one replica, one partition. It honours ctx where the driver can.
	Compile(ctx context.Context, p Program, options []byte) (Executable, error)
	// Load makes an executable from the bytes Serialize gave, from a driver of the
	// same kind and version.
	Load(ctx context.Context, serialized []byte) (Executable, error)
	// FromHost makes a buffer of dense row-major bytes at Data.
	FromHost(h Host) (Buffer, error)
	// MemoryStats reports what the device knows of its memory.
	MemoryStats(device int) (MemoryStats, error)
	// Close waits for work in flight, then frees what the driver holds.
	Close() error
}

// Device is one accelerator of a driver.
type Device struct {
	ID       int    // as the platform numbers it
	Local    int    // index in Driver.Devices
	Kind     string // such as "cpu" or "NVIDIA H200"
	Memories []Memory
	Default  int // index into Memories
}

// Memory is a memory space of a device, such as "device" or "pinned_host".
type Memory struct {
	ID   int
	Kind string
	// How the platform writes it for people and in messages for developers; "" where
	// it does not.
	Text, Debug string
}

// Program is source for Compile. Formats are "mlir" (StableHLO, text or
// bytecode), "hlo" (HloModuleProto), and for simulated devices "sim".
type Program struct {
	Format string
	Code   []byte
}

// HostSemantics says how long a driver may read the host bytes of FromHost.
type HostSemantics int

const (
	// DuringCall: the bytes may change as soon as FromHost returns.
	DuringCall HostSemantics = iota
	// UntilDone: the bytes stay as they are until Host.Done is called.
	UntilDone
	// ZeroCopy: the bytes stay until Done, and the buffer may alias them for
	// its whole life; they must not change.
	ZeroCopy
	// MutableZeroCopy: as ZeroCopy, and a computation that is given the buffer
	// may write into it (donation).
	MutableZeroCopy
)

// Host is a host array to be brought to a device.
type Host struct {
	Shape     shape.Shape
	Data      []byte // Shape.HostBytes: dense, row-major; C memory or pinned unless DuringCall
	Device    int    // local index
	Memory    string // memory kind; "" is the device's default
	Semantics HostSemantics
	Done      func() // called once, when the driver has let go of Data; may be nil
}

// Buffer is one shard in the memory of one device.
type Buffer interface {
	Shape() shape.Shape
	Device() int // local index
	Memory() string
	Bytes() int64 // on the device
	// Ready fires when the contents are there, or with the error that is there
	// instead.
	Ready() Event
	// ToHost copies dense row-major bytes into dst, which has Shape.HostBytes, is C
	// memory or pinned, and stays until the event fires.
	ToHost(dst []byte) (Event, error)
	// CopyTo copies to another device or memory of the same driver.
	CopyTo(device int, memory string) (Buffer, error)
	// Deleted reports whether the contents were donated or deleted.
	Deleted() bool
	// Delete frees the contents at once or when the work that reads them is
	// done; later use is an error.
	Delete()
	Close()
}

// Viewer is a Buffer that the host may be able to read where it is.
type Viewer interface {
	// View gives the contents, dense and row-major, once Ready has fired without an
	// error; nil where the host cannot reach them, or they lie in another way. The
	// bytes are valid until the buffer is closed, deleted or donated, and are not to
	// be written.
	View() []byte
}

// Ordered is a Buffer that knows how its elements lie.
type Ordered interface {
	// Order returns the dimensions as they lie in the device's memory, the minor one
	// first: 2, 1, 0 for a row-major array of rank 3.
	Order() ([]int64, error)
}

// Executable is a compiled, loaded computation.
type Executable interface {
	Name() string
	Fingerprint() string
	Devices() []int // local indices, one a shard, in the order of Execute's rows
	Outputs() []Output
	// Parameters gives the shapes of one shard's arguments, and which of them a run
	// consumes; known is false where the driver does not tell.
	Parameters() (shapes []shape.Shape, donated []int, known bool)
	// Optimized gives the program as the compiler left it, a serialized
	// HloModuleProtoWithConfig; UNIMPLEMENTED where the driver has none.
	Optimized() ([]byte, error)
	Cost() Cost
	Serialize() ([]byte, error)
	// Execute runs the computation once on all its devices: one row of inputs a
	// device. It returns one row of outputs a device and one event a device that
	// fires when the device has finished.
	Execute(r Run) (*Results, error)
	Close()
}

// Output describes one result of an executable: the shard's shape and memory.
type Output struct {
	Shape  shape.Shape
	Memory string
}

// Cost is what the compiler knows of a computation before it runs, a device.
type Cost struct {
	ArgumentBytes, OutputBytes, AliasBytes, TempBytes, CodeBytes int64
}

// Run is one execution.
type Run struct {
	LaunchID int32      // the gang's sequence number: the same on every member
	Inputs   [][]Buffer // by device, then argument
	// NotDonated lists arguments that keep their contents although the program
	// would consume them.
	NotDonated []int
	// Only, when it is not negative, runs a one-device executable on that local
	// device whatever it was compiled for.
	Only int
}

// Results are what one execution made.
type Results struct {
	Outputs [][]Buffer // by device, then result
	Done    []Event    // by device
}

// Event fires once, with nil or an error.
type Event interface {
	// Ready reports whether the event has fired.
	Ready() bool
	// Wait blocks until the event fires or ctx ends, and gives its error or ctx's.
	Wait(ctx context.Context) error
	// Then calls f once, with the event's error, when the event has fired; at
	// once if it has. f must not block.
	Then(f func(error))
}

// MemoryStats is the state of a device's memory in bytes; -1 where not known.
type MemoryStats struct {
	InUse, Peak, Limit int64
}
