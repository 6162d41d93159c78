package sharded

import (
	"context"
	"slices"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/compileoptions"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// CompileSpec is a program to be compiled.
type CompileSpec struct {
	Code []byte // StableHLO as MLIR, text or bytecode
	// Devices are those of its shards, replica by replica; nil: device 0.
	Devices []int
	// Partitions is how many of the devices each replica has: the program says by
	// mhlo.sharding how arrays lie on them. 0: 1.
	Partitions int
	// Outputs says how results lie, as Layout.Tiles, for reading whole arrays; nil
	// where it does not matter. On one device it is known.
	Outputs [][]int64
}

// Program is a compiled program.
type Program struct {
	session *Session
	remote  *client.Remote
	devices []int
	outputs [][]int64
}

// Compile compiles a program and loads it. It waits.
//
// Errors: INVALID_ARGUMENT, with the compiler's words, for a bad program; CANCELLED
// where ctx ends first.
func (s *Session) Compile(ctx context.Context, c CompileSpec) (*Program, error) {
	devices, err := Layout{Devices: c.Devices}.check(nil, s.Devices())
	if err != nil {
		return nil, err
	}
	n := len(devices.Devices)
	partitions := max(c.Partitions, 1)
	if n%partitions != 0 {
		return nil, status.New(status.InvalidArgument, "a program of %d partitions on %d devices: expected as many devices for each replica", partitions, n)
	}
	r, err := s.cluster.Compile(ctx, client.CompileSpec{Format: "mlir", Code: c.Code, Options: compileoptions.New(n/partitions, partitions, devices.Devices, false)})
	if err != nil {
		return nil, err
	}
	p := &Program{session: s, remote: r, devices: devices.Devices}
	if c.Outputs != nil && len(c.Outputs) != len(r.Info.Outputs) {
		p.Forget()
		return nil, status.New(status.InvalidArgument, "%d results are described, and the program has %d", len(c.Outputs), len(r.Info.Outputs))
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

// Forget lets go of the program; runs submitted before go on.
func (p *Program) Forget() { p.session.cluster.Forget(p.remote.ID) }

// Run runs the program and gives its results, which are pending. It does not wait.
// Arguments stay as they are, whatever the program says of donating them; they may
// be freed at once.
//
// Errors: INVALID_ARGUMENT for other arguments than the program takes,
// FAILED_PRECONDITION for one that was freed, and those of a session that is lost.
func (p *Program) Run(arguments ...*Array) ([]*Array, error) {
	s, info := p.session, p.remote.Info
	if len(arguments) != len(info.Parameters) {
		return nil, status.New(status.InvalidArgument, "the program %s takes %d arguments, got %d", info.Name, len(info.Parameters), len(arguments))
	}
	spec := &client.RunSpec{Program: p.remote.ID, NotDonated: info.Donated, Only: -1}
	for i, a := range arguments {
		if err := a.usable(s); err != nil {
			return nil, status.Wrap(err, "argument %d of %s", i, info.Name)
		}
		have, want := shape.Shape{DType: a.dtype, Dims: a.shard}, info.Parameters[i]
		if !slices.Equal(a.layout.Devices, p.devices) {
			return nil, status.New(status.InvalidArgument, "argument %d of %s lies on the devices %v, and the program runs on %v: put it there", i, info.Name, a.layout.Devices, p.devices)
		}
		if takes := (shape.Shape{DType: shape.DType(want.Dtype), Dims: want.Dims}); takes.DType != have.DType || !slices.Equal(takes.Dims, have.Dims) {
			return nil, status.New(status.InvalidArgument, "argument %d of %s has shards of %v, and the program takes %v", i, info.Name, have, takes)
		}
		spec.Inputs = append(spec.Inputs, a.object)
	}
	n := len(info.Outputs)
	if n > 0 {
		spec.FirstOutput = s.cluster.Objects(n)
	}
	var made *future
	spec.Token, made = s.begin(nil)
	if err := s.cluster.Run(spec); err != nil {
		s.undo(spec.Token)
		return nil, err
	}
	results := make([]*Array, n)
	for i, o := range info.Outputs {
		results[i] = &Array{session: s, object: spec.FirstOutput + uint64(i), dtype: shape.DType(o.Dtype), shard: slices.Clone(o.Dims),
			layout: Layout{p.devices, p.outputs[i]}, tiled: p.outputs[i] != nil, made: made}
	}
	return results, nil
}
