// Package device defines the contract between an executor and a driver, which makes
// devices of one kind available to it.
//
// There are two drivers. device/pjrt drives any PJRT plugin; device/sim simulates
// devices with their own clock. Both pass device/devicetest, a test suite for this
// contract.
//
// # What it guarantees
//
// Every method may be called from any goroutine. No method waits for a device: work
// that takes time returns at once, with buffers and events that become ready or fail
// later. There is one exception, which a driver documents: a PJRT plugin may run a cheap
// computation before Execute returns. Computations on one device start in the order in
// which Execute was called for it.
//
// # Ownership
//
// The caller that receives a Driver, Executable or Buffer must close it; a second Close
// does nothing. A Driver is closed last. Closing a Buffer that work still reads is
// allowed: its memory is freed when that work is done. If a call returns an error, there
// is nothing to close.
//
// # Errors
//
// Errors have codes of core/status. An error about an argument of Execute names it:
// "argument 1", counted from 0. A failure that a driver cannot know before a computation
// runs fails the computation's events and outputs, and everything made from them, with
// the same code and text.
package device

import (
	"context"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Kind is a kind of device that this machine may have, before any client of it
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
	Store       KeyValues // rendezvous; nil if Nodes <= 1
}

// KeyValues is the rendezvous store of an epoch.
type KeyValues interface {
	Put(ctx context.Context, key string, value []byte) error
	Get(ctx context.Context, key string) ([]byte, error) // blocks until the key has a value or ctx ends
}

// Driver is a client of one kind of device.
type Driver interface {
	Platform() string        // "cpu", "cuda", "tpu", "sim"
	PlatformVersion() string // says whether devices are simulated
	Devices() []Device       // addressable ones, in local order; fixed for life
	// Compile compiles a program. options is a serialized xla.CompileOptionsProto; nil
	// means one replica and one partition. It honors ctx if the driver can.
	Compile(ctx context.Context, p Program, options []byte) (Executable, error)
	// Load makes an executable from bytes that Serialize returned, of a driver of the
	// same kind and version.
	Load(ctx context.Context, serialized []byte) (Executable, error)
	// FromHost makes a buffer of dense row-major bytes at Data.
	FromHost(h Host) (Buffer, error)
	// MemoryStats returns the device's statistics of its memory.
	MemoryStats(device int) (MemoryStats, error)
	// Close waits for work in flight and then frees everything that the driver owns.
	Close() error
}

// Device is one accelerator of a driver.
type Device struct {
	ID       int    // as the platform numbers it
	Kind     string // such as "cpu" or "NVIDIA H200"
	Memories []Memory
	Default  int // index into Memories
	// Attributes are the platform's attributes of the device, such as "compute_capability" (string) and "core_count"
	// (int64); nil if there are none.
	Attributes map[string]any
}

// Memory is a memory space of a device, such as "device" or "pinned_host".
type Memory struct {
	ID   int
	Kind string
	// The platform's names for it, for people and for developers; "" if it has none.
	Text, Debug string
}

// Program is source for Compile. Formats are "mlir" (StableHLO, text or
// bytecode), "hlo" (HloModuleProto), and for simulated devices "sim".
type Program struct {
	Format string
	Code   []byte
	// Partitioned means that Partition made the program, which may have been edited since: what it says of its parameters
	// is true of the executable, too.
	Partitioned bool
}

// HostSemantics says how long a driver may read the host bytes of FromHost.
type HostSemantics int

const (
	// DuringCall means that the bytes may change as soon as FromHost returns.
	DuringCall HostSemantics = iota
	// UntilDone means that the bytes do not change until Host.Done is called.
	UntilDone
	// ZeroCopy means that the bytes stay valid until Done and do not change; the buffer
	// may alias them for its whole life.
	ZeroCopy
	// MutableZeroCopy is like ZeroCopy, but a computation to which the buffer is donated
	// may write to the bytes.
	MutableZeroCopy
)

// Host is a host array to be copied to a device.
type Host struct {
	Shape     shape.Shape
	Data      []byte // Shape.HostBytes: dense, row-major; C memory or pinned unless DuringCall
	Device    int    // local index
	Memory    string // memory kind; "" means the device's default
	Semantics HostSemantics
	Done      func() // called once, when the driver no longer uses Data; may be nil
	// Apart means that the buffer is not part of MemoryStats: the owner of Data counts its bytes.
	Apart bool
}

// Buffer is one shard in the memory of one device.
type Buffer interface {
	Shape() shape.Shape
	Device() int // local index
	Memory() string
	// Ready returns an event that fires when the contents exist, or with an error if
	// they never will.
	Ready() Event
	// ToHost copies dense row-major bytes into dst, which has Shape.HostBytes, is C
	// memory or pinned, and must stay valid until the event fires.
	ToHost(dst []byte) (Event, error)
	// CopyTo copies to another device or memory of the same driver.
	CopyTo(device int, memory string) (Buffer, error)
	// Deleted reports whether the contents were donated, or the buffer was closed.
	Deleted() bool
	// Close frees the contents, at once or when the work that reads them is done. Later use is an error, a second Close
	// does nothing.
	Close()
}

// Viewer is a Buffer that the host may be able to read in place.
type Viewer interface {
	// View returns the contents, dense and row-major, once Ready has fired without an
	// error; nil if the host cannot access them or they have another layout. The bytes
	// are valid until the buffer is closed or donated, and must not be written.
	View() []byte
}

// Keeper is a Driver that keeps memory of closed buffers for its next ones.
type Keeper interface {
	Kept() int64 // bytes, of all drivers in this process
}

// Lender is a Driver whose large buffers lie, all or some of them, in memory that other processes of the host may map.
type Lender interface {
	// Lent returns the file of this memory, which stays open as long as the process lives, and the memory itself; -1 if
	// there is none. Buffers come and go in it, so that it must only be looked at where a buffer is known to be.
	Lent() (file int, memory []byte)
}

// Pinner is a Driver whose devices read and write host memory themselves once it has been shown to them. From and to
// other memory, the driver has to copy.
type Pinner interface {
	// Pin tells the devices of memory, which stays where it is until unpin is called.
	//
	// Errors: UNIMPLEMENTED if it makes no difference to this driver, or the system's.
	Pin(data []byte) (unpin func(), err error)
}

// Ordered is a Buffer that knows the layout of its elements.
type Ordered interface {
	// Order returns the dimensions from the minor one to the major one, in the device's
	// memory: 2, 1, 0 for a row-major array of rank 3.
	Order() ([]int64, error)
}

// Sliced is a Buffer that can be read in pieces.
type Sliced interface {
	// Dense reports whether Slice works: the device has the contents as dense row-major bytes, and the driver can read a
	// part of them.
	Dense() bool
	// Slice is ToHost of the len(dst) bytes that begin at an offset.
	Slice(dst []byte, offset int64) (Event, error)
}

// Receiver is a Driver that makes buffers whose contents come in pieces.
type Receiver interface {
	// Receive makes a buffer for dense row-major bytes that follow. It takes the device's memory at once.
	//
	// Errors: UNIMPLEMENTED if the device wants other bytes, or the driver cannot write a part of them.
	Receive(s shape.Shape, device int, memory string) (Incoming, error)
}

// Incoming is the contents of a buffer that come in pieces, in any order, and each byte once.
type Incoming interface {
	// Buffer returns the buffer, always the same. The caller of Receive closes it.
	Buffer() Buffer
	// Write writes bytes at an offset. They stay as they are until the event fires. The buffer is ready once all of its
	// bytes are written.
	Write(data []byte, offset int64) (Event, error)
	// Close ends the writing. If bytes are missing, the buffer has failed. A second Close does nothing.
	Close()
}

// CheckPiece is for drivers: it refuses a piece that is not within an array.
//
// Errors: INVALID_ARGUMENT.
func CheckPiece(s shape.Shape, data []byte, offset int64) error {
	if all := s.HostBytes(); offset < 0 || offset > all || int64(len(data)) > all-offset {
		return status.New(status.InvalidArgument, "a piece of %d bytes at %d of an array of %s, which has %d", len(data),
			offset, s, all)
	}
	return nil
}

// Executable is a compiled, loaded computation.
type Executable interface {
	Name() string
	Fingerprint() string
	Devices() []int // local indices, one per shard, in the order of Execute's rows
	Outputs() []Output
	// Parameters returns the shapes of one shard's arguments, and which of them a run
	// consumes. known is false if the driver does not know.
	Parameters() (shapes []shape.Shape, donated []int, known bool)
	// Optimized returns the optimized program, a serialized HloModuleProtoWithConfig, or
	// UNIMPLEMENTED if the driver has none. The values of long constants may be left out.
	Optimized() ([]byte, error)
	Cost() (Cost, error)
	Serialize() (Bytes, error)
	// Execute runs the computation once on all its devices, with one row of inputs per
	// device. It returns one row of outputs and one event per device; the event fires
	// when the device has finished.
	Execute(r Run) (*Results, error)
	Close()
}

// Output describes one result of an executable: the shard's shape and memory.
type Output struct {
	Shape  shape.Shape
	Memory string
}

// Cost holds the compiler's figures for one device's part of a computation.
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
	// Only, if not negative, is the local device on which to run a one-device executable,
	// no matter which device it was compiled for.
	Only int
}

// Results holds the results of one execution.
type Results struct {
	Outputs [][]Buffer // by device, then result
	Done    []Event    // by device
}

// Event fires once, with nil or an error.
type Event interface {
	// Ready reports whether the event has fired.
	Ready() bool
	// Wait blocks until the event fires or ctx ends, and returns its error or ctx's.
	Wait(ctx context.Context) error
	// Then calls f once, with the event's error, when the event has fired, or at once if
	// it already has. f must not block.
	Then(f func(error))
}

// MemoryStats is the state of a device's memory in bytes; -1 if unknown.
type MemoryStats struct {
	InUse, Limit int64
}
