package sim

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
)

// Separate is a driver whose devices have no interconnect with those of other drivers, as CPU devices have none: where
// a program spans several, each device runs its part, whose collectives the client carries.
type Separate struct{ *Driver }

var _ device.Partitioner = Separate{}

// OpenSeparate makes such a driver.
func OpenSeparate(o Options) (Separate, error) {
	d, err := Open(o)
	return Separate{d}, err
}

// Call is a collective of a Partition's program, which the client carries.
type Call struct {
	Spec   string `json:"spec"` // see spmd.ParseSpec
	Arg    int    `json:"arg"`
	Result int    `json:"result"` // that it brings; -1 if the devices only wait for each other
}

// Partition implements device.Partitioner. Each all-reduce becomes a call, and so does the wait of devices for each
// other where nothing is reduced.
func (s Separate) Partition(ctx context.Context, p device.Program, options []byte, devices int) (*device.Part, error) {
	whole, err := s.read(ctx, "partition", p)
	if err != nil {
		return nil, err
	}
	if whole.Devices > 0 && whole.Devices != devices {
		return nil, status.New(status.InvalidArgument, "program %q is for %d devices; it cannot be partitioned for %d",
			whole.Name, whole.Devices, devices)
	}
	one := whole.Program
	one.Devices, one.Gang, one.Calls = 0, false, whole.calls(devices)
	code, err := json.Marshal(one)
	if err != nil {
		return nil, status.New(status.InvalidArgument, "program %q: %w", whole.Name, err)
	}
	return &device.Part{Program: device.Program{Format: Format, Code: code, Partitioned: true},
		Options: compileoptions.New(1, 1, nil, true), Collective: len(one.Calls) > 0}, nil
}

// calls returns the collectives of the program on so many devices.
func (p *parsed) calls(devices int) (calls []Call) {
	if !p.gang {
		return nil
	}
	reduce := func(x shape.Shape, arg, result int) {
		group := make([]int, devices)
		for i := range group {
			group[i] = i
		}
		spec := spmd.Spec{Op: spmd.AllReduce, Site: len(calls), Groups: [][]int{group}, Reduction: spmd.Sum, DType: x.DType,
			Operands: []shape.Shape{x}, Results: []shape.Shape{x}}
		calls = append(calls, Call{Spec: spec.String(), Arg: arg, Result: result})
	}
	for k, r := range p.Results {
		if r.Op == "all-reduce" {
			reduce(p.results[k].Shape, r.Args[0], k)
		}
	}
	if len(calls) == 0 {
		reduce(shape.Shape{DType: shape.S32}, -1, -1)
	}
	return calls
}

// checkCalls checks the collectives that a part says it calls.
func (p *parsed) checkCalls() error {
	for i, c := range p.Calls {
		spec, err := spmd.ParseSpec(c.Spec)
		if err != nil {
			return status.Wrap(err, "call %d", i)
		}
		fits := len(spec.Operands) == 1 && len(spec.Results) == 1
		if c.Arg >= 0 && fits {
			fits = c.Arg < len(p.params) && spec.Operands[0].String() == p.params[c.Arg].String()
		}
		if c.Result >= 0 && fits {
			fits = c.Result < len(p.results) && spec.Results[0].String() == p.results[c.Result].Shape.String()
		}
		if !fits || c.Arg < -1 || c.Result < -1 {
			return status.New(status.InvalidArgument, "call %d, %s, does not fit parameter %d and result %d", i, c.Spec, c.Arg,
				c.Result)
		}
		p.specs = append(p.specs, spec)
	}
	return nil
}

// ServeCollectives implements device.Partitioner.
func (s Separate) ServeCollectives(handle func(*device.CollectiveCall)) error {
	s.is.mu.Lock()
	defer s.is.mu.Unlock()
	if s.handle != nil {
		return status.New(status.FailedPrecondition, "the collectives of these simulated devices are served already")
	}
	s.handle = handle
	return nil
}

// meet makes the calls of a shard that has taken its time, and has it end when they have ended. The device is occupied
// until then. The island's lock is held.
func (s *shard) meet() {
	if s.over {
		return
	}
	p, d := s.gang.prog, s.on.drv
	if d.handle == nil {
		s.called(nil, status.New(status.FailedPrecondition, "program %q has collectives, and the driver has no handler for "+
			"them", p.Name))
		return
	}
	// Copies, since a shard that ends meanwhile lets go of its arrays.
	operands := make([][]byte, len(p.Calls))
	for i, c := range p.Calls {
		operands[i] = make([]byte, p.specs[i].Operands[0].HostBytes())
		if c.Arg >= 0 {
			copy(operands[i], s.in[c.Arg].data)
		}
	}
	go func() { // the handler may take the time of its collectives
		results, err := s.call(operands)
		d.is.mu.Lock()
		s.called(results, err)
		d.is.unlock()
	}()
}

// call makes the calls, one after the other.
func (s *shard) call(operands [][]byte) (results [][]byte, err error) {
	p := s.gang.prog
	for i, c := range p.Calls {
		result, done := make([]byte, p.specs[i].Results[0].HostBytes()), make(chan error, 1)
		s.on.drv.handle(&device.CollectiveCall{Launch: s.gang.id, Local: s.on.local, Spec: c.Spec,
			Operands: operands[i : i+1], Results: [][]byte{result}, Done: func(err error) { done <- err }})
		if err := <-done; err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}

// called ends a shard whose calls have ended. The island's lock is held.
func (s *shard) called(results [][]byte, err error) {
	if s.over {
		return
	}
	s.err, s.brought = err, results
	s.finish = &finish{gang: s.gang, shards: []*shard{s}}
	s.finish.entry = s.on.drv.is.after(0, s.finish.compute, s.finish.commit)
}

// brings returns what the calls of a shard have brought for a result; nil if that is none of theirs.
func (s *shard) brings(result int) []byte {
	i := slices.IndexFunc(s.gang.prog.Calls, func(c Call) bool { return c.Result == result })
	if i < 0 {
		return nil
	}
	return s.brought[i]
}
