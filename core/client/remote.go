// Package client is a session on a controller: it submits programs, runs, plays and
// transfers of whole arrays, and learns how each ended.
//
// # Guarantees
//
// Submission blocks for nothing but credit. Operations reach the controller in the
// order of their submission. Each ends once: with its result, its error, or that of
// the session's end. What a session made ends with it.
//
// # Concurrency
//
// Every method may be called from any goroutine. Notify is called on one at a time.
package client

import (
	"context"
	"time"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Cluster is a session on a controller, in this process or another. It speaks in
// whole objects: arrays with a shard on each of their devices.
//
// Nothing that submits waits for the other side, but for credit: where as many
// operations as the controller allows are under way, it waits until some have
// ended. What a submission makes becomes ready, or fails, when Notify says so.
type Cluster interface {
	Devices() []*wire.Device
	Platform() *wire.Platform
	// WorkerName returns the name of the worker that has this process number; the
	// number where it is not known.
	WorkerName(process uint64) string
	// Compile waits for the program to be compiled. The end of ctx ends the wait at
	// once; what a compiler is at goes on, since none can be stopped midway, and is
	// kept for whoever asks for the same next.
	Compile(ctx context.Context, c CompileSpec) (*Remote, error)
	// Forget lets go of a program; runs submitted before go on.
	Forget(program uint64)
	// Objects gives n numbers for objects, the first of n in a row.
	Objects(n int) uint64
	// Run submits a run. Token comes back in Notify. RunSpec is read before Run
	// returns.
	Run(r *RunSpec) error
	// Put makes an object with the same kind of shard on each of devices. Fill is
	// called, for each device, with the memory to write the shard's dense bytes
	// to, and calls written when it has; it may be called before Put returns, and
	// from other goroutines.
	Put(p *PutSpec) error
	// Transfer makes an object out of boxes of other objects' shards.
	Transfer(t *wire.Transfer, token uint64) error
	Slices
	Profiler
	// Fetch brings a shard's dense bytes into dst, C or pinned memory that stays
	// until done is called.
	Fetch(object uint64, device uint32, dst []byte, done func(error)) error
	// Receive brings a shard's dense bytes, of which there are size, in a block of
	// the exchange's memory, which arrived is given. It is whoever's until it is
	// released, also after the session has ended.
	Receive(object uint64, device uint32, size int64, arrived func(transport.Block, error)) error
	// Lends says whether so many bytes of a device that Receive gives may be kept for
	// long: its worker writes them straight into this process's memory, and there is
	// enough of it. Fetch is for others.
	Lends(device uint32, size int64) bool
	// CanLend is nil where a device can read bytes of this process where they are, see
	// PutSpec.Lend, then why it cannot: FAILED_PRECONDITION, or UNAVAILABLE.
	CanLend(device uint32, data []byte) error
	// Define makes a graph known, to be played as often as is wanted, and gives its
	// name in the session. It does not wait: what the controller finds wrong with
	// the graph fails its plays. The programs of its Runs stay loaded until it is
	// forgotten. G is read before Define returns.
	//
	// Errors: those of graph.Graph.Check, but that a graph may have any number of
	// nodes, and of a session that is lost.
	Define(g *graph.Graph) (uint64, error)
	// Play submits all nodes of a graph at once, as so many operations: each ends as
	// Notify says. It is one message for every graph.MaxNodes of them. PlaySpec is
	// read before Play returns.
	//
	// Errors: INVALID_ARGUMENT where the graph is not known or has other inputs; that
	// of Stop. Nothing was submitted then: once some of the nodes were, the others end
	// with the error.
	Play(p *PlaySpec) error
	// ForgetGraph lets go of a graph; plays submitted before go on.
	ForgetGraph(graph uint64)
	// Free lets go of objects, when the operations submitted before are through
	// with them. It never waits.
	Free(objects []uint64)
	// Lost is nil as long as the session lives, then why it does not.
	Lost() error
	Close() error
}

// Remote is a compiled program of a Cluster.
type Remote struct {
	ID   uint64
	Info *wire.ProgramInfo
}

// CompileSpec is a program to be compiled.
type CompileSpec struct {
	Format        string
	Code, Options []byte
	Handlers      []*wire.Handler // of custom calls that it may have
	// Slow is told which worker compiles, where that takes more than a moment, and
	// for how long it has been at it. It must not wait. It may be nil.
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
	// Call runs a function of this client for the program. It must not wait, and
	// may be called from any goroutine. While a call has not ended, the run has not
	// either, even where it has failed. nil: such a call fails.
	Call  func(*HostCall)
	Token uint64
}

// PlaySpec is one play of a graph.
type PlaySpec struct {
	Graph  uint64
	Inputs []uint64 // objects: as many as the graph's Inputs
	// First is the first of Made objects in a row, of Objects: the graph's object
	// Inputs+k is First+k-1. Those that the graph does not keep go by themselves,
	// and must not be used.
	First uint64
	Token uint64 // node i ends with Token+i
	// Calls are the functions of this client that nodes call, as RunSpec.Call, by
	// node; nil or short where there are none.
	Calls []func(*HostCall)
	// Stop is asked when the play has to wait for credit, and while it waits. With an
	// error what was not sent by then never will be. Nil: it waits.
	Stop func() error
}

// Program is what a graph is to know of a compiled program.
func (r *Remote) Program() *graph.Program {
	p := &graph.Program{Name: r.Info.Name, Parameters: len(r.Info.Parameters), Donated: r.Info.Donated, Devices: r.Info.Devices}
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
	Done               func(error) // once
}

// HostValue is an array on the host, until Done: dense and row-major, elements
// narrower than a byte packed.
type HostValue struct {
	Type uint32 // XLA_FFI_DataType; a token has no bytes
	Dims []int64
	Data []byte
}

// PutSpec is host data to be brought to devices.
type PutSpec struct {
	Object  uint64
	Shape   shape.Shape
	Memory  string // "" is the devices' default
	Devices []uint32
	Fill    func(device uint32, dst []byte, written func(error))
	// Lend is, instead of Fill, where each device's shard lies in memory of this process,
	// which stays as it is until Returned is called for the device, once: when its
	// worker has let go of it, is no more, or the session has ended. Each is such that
	// CanLend is nil. Returned must not wait; where Put fails it is not called.
	Lend     func(device uint32) []byte
	Returned func(device uint32)
	Token    uint64
}

// Ended is one operation that has ended, as Notify is told.
type Ended struct {
	Token uint64
	Err   error // nil: what it makes is ready
}

// Notify is told of operations that have ended, in batches, one call at a time,
// once for each; a session that is lost ends all that are under way. It must not
// wait. An operation may end before the call that submitted it has returned.
type Notify func([]Ended)
