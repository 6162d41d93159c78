// Package client implements a session on a controller: it submits programs, runs, plays
// and transfers of whole arrays, and reports how each ended.
//
// # What it guarantees
//
// Submission blocks only for credit. Operations reach the controller in the order of
// their submission. Each ends exactly once: with its result, its error, or the error
// that ended the session. Everything that a session made is freed with it.
//
// # Concurrency
//
// Every method may be called from any goroutine. Notify is called on one at a time.
package client

import (
	"context"
	"time"

	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Cluster is a session on a controller, in this process or another. Its objects are
// whole arrays, with a shard on each of their devices.
//
// A method that submits does not wait for the controller, except for credit: if as many
// operations are in flight as the controller allows, it blocks until some have ended.
// Notify reports when the objects that an operation makes are ready or have failed.
type Cluster interface {
	// Devices returns the session's devices. Their number and kinds never change; the worker of one that was lost
	// does when another worker takes its place.
	Devices() []*wire.Device
	// Platforms returns those of the devices, the first one's first; wire.Device.Platform is an index of it.
	Platforms() []*wire.Platform
	// WorkerName returns the name of the worker with this process number, or the number as text if it is not known; ""
	// if the session began before there was one.
	WorkerName(process uint64) string
	// Hosts returns the machine of each worker, by its process number: equal texts are one machine.
	Hosts() map[uint64]string
	// Losses returns, for each device, the last object that may have had a shard there when
	// its worker was lost, or when another one took its place; 0 if neither has happened.
	// Shards of later objects are where the device is now. Moment is called after a change.
	Losses() []uint64
	// Compile compiles a program and blocks until that is done. If ctx ends, it returns
	// at once; the compilation continues, because it cannot be interrupted, and its
	// result is kept for the next request for the same program. Code must not change from
	// then on: it is not copied, whatever its size, and a long one is kept until Forget,
	// since workers may be lost with what they have compiled it to.
	Compile(ctx context.Context, c CompileSpec) (*Remote, error)
	// Forget removes a program; runs submitted before continue.
	Forget(program uint64)
	// Objects reserves n consecutive numbers for objects and returns the first.
	Objects(n int) uint64
	// Run submits a run. Notify receives its Token. Run does not keep r.
	Run(r *RunSpec) error
	// Put makes an object with a shard of the same shape on each of its devices. It
	// calls Fill once per device, with the memory for the shard's dense bytes; Fill
	// calls written when it has written them. Fill may be called before Put returns, and
	// from other goroutines.
	//
	// A put of one device with Gather may become a further shard of the object of the
	// puts before it. Put then sets p.Object, p.Token and p.Gather to those of the first
	// of them, also if it returns an error.
	Put(p *PutSpec) error
	// SendPuts sends puts that wait for further rows. It never blocks.
	SendPuts()
	// Transfer makes an object out of regions of other objects' shards.
	Transfer(t *wire.Transfer, token uint64) error
	grant.Slices
	Profiler
	// Fetch copies a shard's dense bytes into dst, which is C or pinned memory and must
	// stay valid until done is called.
	Fetch(object uint64, device uint32, dst []byte, done func(error)) error
	// Receive copies a shard's dense bytes, size of them, into a block of the exchange's
	// memory and passes it to arrived. The block stays valid until it is released, even
	// after the session has ended.
	Receive(object uint64, device uint32, size int64, arrived func(transport.Block, error)) error
	// Lends reports whether a block of size bytes that Receive returns from a device may
	// be kept for long: the worker writes it straight into this process's memory, and
	// there is enough of that. Otherwise use Fetch.
	Lends(device uint32, size int64) bool
	// CanLend returns nil if a device can read data of this process in place, see
	// PutSpec.Lend, and otherwise the reason: FAILED_PRECONDITION, or UNAVAILABLE.
	CanLend(device uint32, data []byte) error
	// Define defines a graph, which can then be played any number of times, and returns
	// its number in the session. It does not wait: if the controller refuses the graph,
	// its plays fail. The programs of its Runs stay loaded until the graph is forgotten.
	// Define does not keep g.
	//
	// Errors: those of graph.Graph.Check, except that a graph may have any number of
	// nodes; the session's error if it is lost.
	Define(g *graph.Graph) (uint64, error)
	// Play submits all nodes of a graph at once. Each node is an operation, whose end
	// Notify reports. Play sends one message per graph.MaxNodes nodes. It does not keep p.
	//
	// Errors: INVALID_ARGUMENT if the graph is not known or has other inputs; the error of
	// Stop. If Play returns an error, it has submitted nothing; if an error occurs after
	// some nodes were submitted, the other nodes end with it.
	Play(p *PlaySpec) error
	// ForgetGraph removes a graph; plays submitted before continue.
	ForgetGraph(graph uint64)
	// Free frees objects once all operations that were submitted before have finished
	// with them. It never blocks.
	Free(objects []uint64)
	// FreeRow is Free of one shard of an object that stays. It is not sent if Free of the
	// object follows soon.
	FreeRow(object uint64, device uint32)
	// Lost returns nil while the session is alive, and then the reason why it ended.
	Lost() error
	Close() error
}

// Remote is a compiled program of a Cluster.
type Remote struct {
	ID   uint64
	Info *wire.ProgramInfo
}

// CompileSpec describes a program to be compiled.
type CompileSpec struct {
	Format        string
	Code, Options []byte
	Handlers      []*wire.Handler // of custom calls that it may have
	First         uint32          // of a portable program: a device of the platform that it is for
	// Slow is called if the compilation takes more than a moment, with the worker that
	// compiles and the time since it began. It must not block. It may be nil.
	Slow func(worker string, since time.Duration)
}

// RunSpec is one execution of a Remote.
type RunSpec struct {
	Program     uint64
	FirstOutput uint64 // of Objects
	Inputs      []uint64
	Mixed       []*wire.Mixed
	NotDonated  []uint32
	Only        int // virtual device of a portable run, or -1
	Trace       []byte
	// Call runs a function of this client for the program. It must not block, and may be
	// called from any goroutine. The run does not end before its calls have, even if it
	// has failed. If Call is nil, such calls fail.
	Call  func(*HostCall)
	Token uint64
}

// PlaySpec is one play of a graph.
type PlaySpec struct {
	Graph  uint64
	Inputs []uint64 // objects: as many as the graph's Inputs
	// First is the first of Made consecutive numbers that Objects returned: the graph's
	// object Inputs+k is First+k-1. Objects that the graph does not keep are freed by
	// themselves and must not be used.
	First uint64
	Token uint64 // node i ends with Token+i
	// Calls holds, by node, the functions of this client that nodes call, see
	// RunSpec.Call. Missing and nil entries mean that the node calls none.
	Calls []func(*HostCall)
	// Stop is called when the play has to wait for credit, and while it waits. If it
	// returns an error, Play sends nothing more. Nil means that Play keeps waiting.
	Stop func() error
}

// Program returns what a graph needs to know about the program.
func (r *Remote) Program() *graph.Program {
	p := &graph.Program{Name: r.Info.Name, Parameters: len(r.Info.Parameters), Donated: r.Info.Donated,
		Devices: r.Info.Devices}
	for _, o := range r.Info.Outputs {
		p.Outputs = append(p.Outputs, max(0, shape.Shape{DType: shape.DType(o.GetDtype()), Dims: o.GetDims()}.Bytes()))
	}
	return p
}

// HostCall is one device's call of a function of the client that runs its
// program.
type HostCall struct {
	Index              uint64 // which of the functions that came with the run
	Arguments, Results []HostValue
	Done               func(error) // must be called once
}

// HostValue is an array on the host, valid until Done: dense and row-major, with
// elements narrower than a byte packed.
type HostValue struct {
	Type uint32 // XLA_FFI_DataType; a token has no bytes
	Dims []int64
	Data []byte
}

// PutSpec describes host data to be copied to devices.
type PutSpec struct {
	Object  uint64
	Shape   shape.Shape
	Memory  string // "" means the devices' default
	Devices []uint32
	Fill    func(device uint32, dst []byte, written func(error))
	// Lend, which replaces Fill, returns each device's shard in memory of this process,
	// for which CanLend must return nil. The memory must not change until Returned is
	// called for the device, once: when its worker has released the memory or is gone, or
	// the session has ended. Returned must not block; it is not called if Put returns an
	// error.
	Lend     func(device uint32) []byte
	Returned func(device uint32)
	// Gather lets puts to one device each, of one shape, which are submitted one after another, become one operation that
	// makes one object. It may be nil. If Put returns an error, nothing is called of it.
	Gather Gathering
	Token  uint64
}

// Ended is an operation that has ended, for Notify.
type Ended struct {
	Token uint64
	Err   error // nil if the objects that it makes are ready
}

// Notify is called with operations that have ended: in batches, one call at a time, and
// once per operation. The loss of a session ends all operations in flight. Notify must
// not block. An operation may end before the call that submitted it has returned.
type Notify func([]Ended)
