package sharded

import (
	"context"
	"slices"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// CompileSpec describes a program to be compiled.
type CompileSpec struct {
	Code []byte // StableHLO as MLIR, text or bytecode
	// Devices are the devices of its shards, replica by replica; nil means device 0.
	Devices []int
	// Partitions is the number of devices of each replica; 0 means 1. The program's
	// mhlo.sharding attributes distribute the arrays over them.
	Partitions int
	// Outputs holds the Layout.Tiles of the results, so that whole arrays can be read; an
	// entry is nil if that is not needed. On one device they are known.
	Outputs [][]int64
}

// Program is a compiled program.
type Program struct {
	session *Session
	remote  *client.Remote
	devices []int
	outputs [][]int64
}

// Compile compiles a program, loads it, and blocks until that is done.
//
// Errors: INVALID_ARGUMENT, with the compiler's message, for a bad program; UNIMPLEMENTED for one that a Python process
// would have to prepare; CANCELLED if ctx ends first.
func (s *Session) Compile(ctx context.Context, c CompileSpec) (*Program, error) {
	devices, err := Layout{Devices: c.Devices}.check(nil, s.Devices())
	if err != nil {
		return nil, err
	}
	n := len(devices.Devices)
	partitions := max(c.Partitions, 1)
	if n%partitions != 0 {
		return nil, status.New(status.InvalidArgument,
			"a program of %d partitions on %d devices: the number of devices must be a multiple of the number of partitions",
			partitions, n)
	}
	r, err := s.cluster.Compile(ctx, client.CompileSpec{
		Format: "mlir", Code: c.Code, Options: compileoptions.New(n/partitions, partitions, devices.Devices, false)})
	if err != nil {
		if refused := spmd.Refused(err.Error()); refused != nil {
			return nil, refused
		}
		return nil, err
	}
	p := &Program{session: s, remote: r, devices: devices.Devices}
	if c.Outputs != nil && len(c.Outputs) != len(r.Info.Outputs) {
		p.Forget()
		return nil, status.New(status.InvalidArgument, "%d results are described, and the program has %d", len(c.Outputs),
			len(r.Info.Outputs))
	}
	for i, o := range r.Info.Outputs {
		var tiles []int64
		if c.Outputs != nil {
			tiles = slices.Clone(c.Outputs[i])
		}
		if tiles == nil && n == 1 {
			tiles = []int64{}
		}
		if tiles != nil {
			for len(tiles) < len(o.Dims) {
				tiles = append(tiles, 1)
			}
			whole := slices.Clone(o.Dims)
			for d := range min(len(whole), len(tiles)) {
				whole[d] *= tiles[d]
			}
			if _, err := (Layout{devices.Devices, tiles}).check(whole, s.Devices()); err != nil {
				p.Forget()
				return nil, status.Wrap(err, "result %d", i)
			}
		}
		p.outputs = append(p.outputs, tiles)
	}
	return p, nil
}

// Forget removes the program from the cluster; runs submitted before continue.
func (p *Program) Forget() { p.session.cluster.Forget(p.remote.ID) }

// Run submits a run of the program and returns its results, which are pending. It does
// not block. It consumes no argument, even if the program declares donations; the caller
// may free the arguments at once.
//
// Errors: INVALID_ARGUMENT for arguments that the program does not accept,
// FAILED_PRECONDITION for an array that was freed or donated, and the session's error if
// it is lost.
func (p *Program) Run(arguments ...*Array) ([]*Array, error) {
	return p.run(p.remote.Info.Donated, arguments)
}

// RunDonating does what Run does, and donates the arguments that the program declares to
// consume, such as those with tf.aliasing_output or jax.buffer_donor, except those whose
// numbers are in keep. Donated arrays count as freed, even if the run fails later; if
// RunDonating itself returns an error, they are unchanged.
//
// Errors: those of Run; INVALID_ARGUMENT if a donated array is also another argument.
func (p *Program) RunDonating(keep []int, arguments ...*Array) ([]*Array, error) {
	kept, err := p.kept(keep)
	if err != nil {
		return nil, err
	}
	return p.run(kept, arguments)
}

// kept returns the arguments that are not donated.
func (p *Program) kept(keep []int) ([]uint32, error) {
	var out []uint32
	for _, i := range keep {
		if i < 0 || i >= len(p.remote.Info.Parameters) {
			return nil, status.New(status.InvalidArgument, "keep names argument %d of %s, which takes %d, numbered from 0", i,
				p.remote.Info.Name, len(p.remote.Info.Parameters))
		}
		out = append(out, uint32(i))
	}
	return out, nil
}

// takes returns the form that an argument must have.
func (p *Program) takes(i int) *form {
	want := p.remote.Info.Parameters[i]
	return &form{dtype: shape.DType(want.Dtype), layout: Layout{Devices: p.devices}, shard: want.Dims}
}

// makes returns the form of a result.
func (p *Program) makes(i int) form {
	o := p.remote.Info.Outputs[i]
	return form{shape.DType(o.Dtype), Layout{p.devices, p.outputs[i]}, slices.Clone(o.Dims), p.outputs[i] != nil}
}

// check returns an error for a wrong number of arguments.
func (p *Program) check(arguments int) error {
	if info := p.remote.Info; arguments != len(info.Parameters) {
		return status.New(status.InvalidArgument, "the program %s takes %s, got %d", info.Name,
			status.Count(len(info.Parameters), "argument"), arguments)
	}
	return nil
}

func (p *Program) run(kept []uint32, arguments []*Array) ([]*Array, error) {
	s, info := p.session, p.remote.Info
	if err := p.check(len(arguments)); err != nil {
		return nil, err
	}
	spec := &client.RunSpec{Program: p.remote.ID, NotDonated: kept, Only: -1}
	for i, a := range arguments {
		err := a.usable(s)
		if err == nil {
			err = a.like(p.takes(i))
		}
		if err != nil {
			return nil, status.Wrap(err, "argument %d of %s", i, info.Name)
		}
		spec.Inputs = append(spec.Inputs, a.object)
	}
	consumed, err := p.consume(kept, arguments)
	if err != nil {
		return nil, err
	}
	n := len(info.Outputs)
	if n > 0 {
		spec.FirstOutput = s.cluster.Objects(n)
	}
	var made *future
	spec.Token, made = s.begin(nil)
	if err := s.cluster.Run(spec); err != nil {
		s.undo(spec.Token)
		for _, a := range consumed {
			a.state.Store(live)
		}
		return nil, err
	}
	for _, a := range consumed { // their entries remain; their memory is the program's
		s.cluster.Free([]uint64{a.object})
	}
	results := make([]*Array, n)
	for i := range results {
		results[i] = &Array{form: p.makes(i), session: s, object: spec.FirstOutput + uint64(i), made: made}
	}
	return results, nil
}

// consume marks the donated arguments, so that no other call can use them.
func (p *Program) consume(kept []uint32, arguments []*Array) (taken []*Array, err error) {
	for _, i := range p.remote.Info.Donated {
		if slices.Contains(kept, i) || int(i) >= len(arguments) {
			continue
		}
		a, times := arguments[i], 0
		for _, other := range arguments {
			if other == a {
				times++
			}
		}
		switch {
		case times > 1:
			err = status.New(status.InvalidArgument,
				"argument %d of %s is donated, and the same array is also another argument; name it in keep, or pass another array",
				i, p.remote.Info.Name)
		case !a.state.CompareAndSwap(live, donated):
			err = status.Wrap(a.usable(p.session), "argument %d of %s", i, p.remote.Info.Name)
		default:
			taken = append(taken, a)
			continue
		}
		for _, a := range taken {
			a.state.Store(live)
		}
		return nil, err
	}
	return taken, nil
}
