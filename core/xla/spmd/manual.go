package spmd

import (
	"fmt"
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// More field numbers of messages in XLA's xla/service/hlo.proto and xla/xla_data.proto.
const (
	moduleEntryName = 2
	modulePrefetch  = 10
	moduleProfile   = 13

	computationName    = 1
	computationProgram = 4

	instructionSharding = 40

	shapeType  = 2
	shapeTuple = 4
	typeTuple  = 13
)

// Names of the custom calls that enter and leave a manual program.
const (
	fullToShard = "SPMDFullToShardShape"
	shardToFull = "SPMDShardToFullShape"
)

// Whole is a partitioned program with the shapes of the program before partitioning.
type Whole struct {
	Module     []byte   // HloModuleProto
	Parameters [][]byte // serialized xla.ShapeProtos, with layouts
	Result     []byte
}

// Manual returns a partitioned program that any XLA accepts as it is and does not partition further: its parameters and
// results have the shapes and shardings of the whole program, and its body is entirely manual. It keeps the program's
// name, its aliases and its donated parameters.
//
// before and after are the program before and after the pass that partitions it, each an HloModuleProto or a message
// that has one as its first field, like XLA's dumps (HloProto). Shardings and groups of collectives are written in
// their oldest form, and instructions are renumbered, since the XLA that reads the result may be older than the one
// that wrote these.
//
// Errors: UNIMPLEMENTED if the program has tuples as parameters, or an unknown sharding.
func Manual(before, after []byte) (*Whole, error) {
	p, err := manual(before, after)
	return p, status.Wrap(err, "partitioned program")
}

func manual(before, after []byte) (*Whole, error) {
	whole, err := readModule(before)
	if err != nil {
		return nil, err
	}
	m, err := readModule(after)
	if err != nil {
		return nil, err
	}
	w := wrapper{module: m}
	if w.whole, err = readProgram(whole.shape); err != nil {
		return nil, err
	}
	if w.whole.result == nil {
		return nil, status.New(status.InvalidArgument, "a program without the shape of its result")
	}
	if err := w.readShardings(after); err != nil {
		return nil, err
	}
	body := m.byID[m.entry]
	local := make([][]byte, len(w.whole.parameters))
	for _, in := range body.instructions {
		if in.opcode != "parameter" {
			continue
		}
		if in.parameter < 0 || in.parameter >= int64(len(local)) || local[in.parameter] != nil {
			return nil, status.New(status.InvalidArgument, "%s is parameter %d of %d", in.name, in.parameter, len(local))
		}
		if local[in.parameter] = in.shape; leaves(in.shape) != 1 {
			return nil, status.New(status.Unimplemented, "%s is a tuple, want an array", in.name)
		}
	}
	if i := slices.IndexFunc(local, func(s []byte) bool { return s == nil }); i >= 0 || len(w.parameters) != len(local) {
		return nil, status.New(status.InvalidArgument, "%d parameters, shardings of %d: one is missing", len(local),
			len(w.parameters))
	}
	if root := body.byID[body.root]; len(tupleShapes(root.shape)) != len(tupleShapes(w.whole.result)) {
		return nil, status.New(status.InvalidArgument, "%s has %d parts, and the whole result %d", root.name,
			len(tupleShapes(root.shape)), len(tupleShapes(w.whole.result)))
	}
	out, err := w.write(body, local)
	return &Whole{Module: out, Parameters: w.whole.parameters, Result: w.whole.result}, err
}

// program is the content of an xla.ProgramShapeProto.
type program struct {
	raw        []byte
	parameters [][]byte // ShapeProtos
	result     []byte
}

// readProgram reads a program's shape; the result is nil if it has none.
func readProgram(b []byte) (p program, err error) {
	p.raw = b
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return p, err
		}
		switch f.Number {
		case programParameters:
			p.parameters = append(p.parameters, f.Bytes)
		case programResult:
			p.result = f.Bytes
		}
	}
	return p, nil
}

// wrapper writes a program around a partitioned module.
type wrapper struct {
	*module
	whole      program
	parameters [][]byte // OpShardings
	result     []byte
	outputs    [][]byte // those of a tuple's elements, else the result's alone
	last       int64    // the last number of an instruction
}

// readShardings reads the shardings of the whole program, as the partitioner recorded them.
func (w *wrapper) readShardings(code []byte) error {
	inner, _, err := unwrap(code)
	if err != nil {
		return err
	}
	for f := range protowalk.Fields(inner) { // read before: no error
		switch f.Number {
		case moduleShardings:
			var s []byte
			if s, err = plainSharding(f.Bytes); err == nil {
				w.parameters = append(w.parameters, s)
			}
		case moduleOutputSharding:
			w.result, err = plainSharding(f.Bytes)
		}
		if err != nil {
			return err
		}
	}
	if w.result == nil {
		return status.New(status.InvalidArgument, "a module without its result's sharding, so that it was not partitioned")
	}
	w.outputs = [][]byte{w.result}
	parts := tupleShapes(w.whole.result)
	if parts == nil {
		return nil
	}
	if len(parts) == 0 {
		w.outputs = nil // the sharding of an empty tuple has one part
		return nil
	}
	if w.outputs = tupleShardings(w.result); w.outputs == nil {
		w.outputs = slices.Repeat([][]byte{w.result}, len(parts))
		w.result = tupleSharding(w.outputs)
	}
	if len(w.outputs) != len(parts) {
		return status.New(status.InvalidArgument, "%d results, shardings of %d", len(parts), len(w.outputs))
	}
	return nil
}

// write returns the module: the computations as they are, and a new entry that calls the old one. local holds the
// shapes of the old entry's parameters.
func (w *wrapper) write(body *computation, local [][]byte) ([]byte, error) {
	manual := w.controlled()
	ids := map[int64]int64{}
	var out []byte
	for f := range protowalk.Fields(w.rest) {
		switch f.Number {
		case moduleEntryName, moduleEntry, moduleProgramShape, modulePrefetch, moduleProfile:
		default:
			out = append(out, f.Raw...)
		}
	}
	for _, c := range w.computations { // callees come before their callers
		ids[c.id] = int64(len(ids) + 1)
		b, err := w.renumber(c, ids, manual[c.id])
		if err != nil {
			return nil, err
		}
		out = protowalk.AppendBytes(out, moduleComputations, b)
	}
	entry := int64(len(ids) + 1)
	const name = "main.whole"
	out = protowalk.AppendBytes(out, moduleEntryName, name)
	out = protowalk.AppendInt(out, moduleEntry, entry)
	out = protowalk.AppendBytes(out, moduleProgramShape, w.whole.raw)
	return protowalk.AppendBytes(out, moduleComputations,
		w.entry(name, entry, ids[body.id], local, body.byID[body.root].shape)), nil
}

// controlled returns the computations that run as parts of the entry: not those that combine elements, nor those of
// fusions.
func (w *wrapper) controlled() map[int64]bool {
	return reach(w.module.entry, func(id int64) (called []int64) {
		for _, in := range w.byID[id].instructions {
			switch in.opcode {
			case "call", "while", "conditional", "async-start":
				called = append(called, in.called...)
			}
		}
		return called
	})
}

// renumber writes a computation with new numbers; ids holds those of computations. If it is manual, so is each of its
// instructions.
func (w *wrapper) renumber(c *computation, ids map[int64]int64, manual bool) ([]byte, error) {
	var out []byte
	for f := range protowalk.Fields(c.rest) {
		if f.Number != computationID && f.Number != computationRoot {
			out = append(out, f.Raw...)
		}
	}
	numbers := make(map[int64]int64, len(c.instructions))
	renumbered := func(list []int64, of map[int64]int64) []int64 {
		renumbered := make([]int64, len(list))
		for i, id := range list {
			renumbered[i] = of[id]
		}
		return renumbered
	}
	for _, in := range c.instructions {
		w.last++
		numbers[in.id] = w.last
		b, groups, err := w.plain(in)
		if err != nil {
			return nil, status.Wrap(err, "%s", in.name)
		}
		b = append(b, groups...)
		b = protowalk.AppendInt(b, instructionID, w.last)
		b = appendInts(b, instructionOperands, renumbered(in.operands, numbers))
		b = appendInts(b, instructionControl, renumbered(in.control, numbers))
		for _, id := range in.called {
			if ids[id] == 0 {
				return nil, status.New(status.InvalidArgument, "%s calls a computation %d that is not defined before it", in.name,
					id)
			}
		}
		b = appendInts(b, instructionCalled, renumbered(in.called, ids))
		if manual {
			b = protowalk.AppendBytes(b, instructionSharding, manualSharding(in.shape))
		}
		out = protowalk.AppendBytes(out, computationInstructions, b)
	}
	out = protowalk.AppendInt(out, computationID, ids[c.id])
	return protowalk.AppendInt(out, computationRoot, numbers[c.root]), nil
}

func appendInts(to []byte, n protowalk.Number, values []int64) []byte {
	if len(values) == 0 {
		return to
	}
	return protowalk.AppendInts(to, n, values...)
}

// plain returns an instruction without its numbers and its sharding, and separately the groups of a collective.
func (w *wrapper) plain(in *instruction) (rest, groups []byte, err error) {
	var written []protowalk.Field
	for f := range protowalk.Fields(in.raw) { // read before: no error
		switch f.Number {
		case instructionID, instructionOperands, instructionControl, instructionCalled, instructionSharding:
		case instructionReplicaGroups, instructionDeviceList, instructionIota, instructionMesh:
			written = append(written, f)
		default:
			rest = append(rest, f.Raw...)
		}
	}
	lists, err := w.readGroups(written)
	if err != nil {
		return nil, nil, err
	}
	for _, ids := range lists {
		groups = protowalk.AppendBytes(groups, instructionReplicaGroups, protowalk.AppendInts(nil, groupIDs, ids...))
	}
	return rest, groups, nil
}

// entry writes the computation that has the whole program's parameters and results and calls the manual one.
func (w *wrapper) entry(name string, id, body int64, local [][]byte, result []byte) []byte {
	out := protowalk.AppendBytes(nil, computationName, name)
	add := func(opcode, name string, shape, sharding, more []byte, operands ...int64) int64 {
		w.last++
		b := protowalk.AppendBytes(nil, instructionName, name)
		b = protowalk.AppendBytes(b, instructionOpcode, opcode)
		b = protowalk.AppendBytes(b, instructionShape, shape)
		b = protowalk.AppendInt(b, instructionID, w.last)
		b = appendInts(b, instructionOperands, operands)
		b = protowalk.AppendBytes(b, instructionSharding, sharding)
		out = protowalk.AppendBytes(out, computationInstructions, append(b, more...))
		return w.last
	}
	target := func(name string) []byte {
		const original = 1 // a call of the first version of custom calls
		return protowalk.AppendInt(protowalk.AppendBytes(nil, instructionTarget, name), instructionAPIVersion, original)
	}

	parts := make([]int64, len(local))
	for i, shape := range local {
		parameter := add("parameter", fmt.Sprintf("whole.%d", i), w.whole.parameters[i], w.parameters[i],
			protowalk.AppendInt(nil, instructionParameter, int64(i)))
		parts[i] = add("custom-call", fmt.Sprintf("shard.%d", i), shape, manualSharding(shape), target(fullToShard),
			parameter)
	}
	root := add("call", "manual", result, manualSharding(result), protowalk.AppendInts(nil, instructionCalled, body),
		parts...)
	if wholes := tupleShapes(w.whole.result); wholes == nil {
		root = add("custom-call", "result", w.whole.result, w.result, target(shardToFull), root)
	} else {
		results := make([]int64, len(wholes))
		shapes := tupleShapes(result)
		for i, shape := range wholes {
			part := add("get-tuple-element", fmt.Sprintf("part.%d", i), shapes[i], manualSharding(shapes[i]),
				protowalk.AppendInt(nil, instructionTupleIndex, int64(i)), root)
			results[i] = add("custom-call", fmt.Sprintf("result.%d", i), shape, w.outputs[i], target(shardToFull), part)
		}
		root = add("tuple", "results", w.whole.result, w.result, nil, results...)
	}
	out = protowalk.AppendBytes(out, computationProgram, w.whole.raw)
	out = protowalk.AppendInt(out, computationID, id)
	return protowalk.AppendInt(out, computationRoot, root)
}
