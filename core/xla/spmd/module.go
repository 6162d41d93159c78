package spmd

import (
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers of messages in XLA's xla/service/hlo.proto.
const (
	withConfigModule = 1
	withConfigConfig = 2

	assignmentReplicas     = 1 // of DeviceAssignmentProto, in xla_data.proto
	assignmentComputations = 2

	configLayout     = 1
	configReplicas   = 4
	configPartitions = 5

	moduleComputations     = 3
	moduleProgramShape     = 4
	moduleEntry            = 6
	moduleSchedule         = 7
	moduleOutputSharding   = 12
	moduleShardings        = 14
	moduleDeviceAssignment = 15
	moduleAutoSPMD         = 16

	programParameters = 1
	programResult     = 2

	computationInstructions = 2
	computationID           = 5
	computationRoot         = 6

	instructionName               = 1
	instructionOpcode             = 2
	instructionShape              = 3
	instructionLiteral            = 8
	instructionParameter          = 9
	instructionTupleIndex         = 13
	instructionDimensions         = 14
	instructionSlices             = 17
	instructionSliceSizes         = 20
	instructionChannel            = 26
	instructionTarget             = 28
	instructionID                 = 35
	instructionOperands           = 36
	instructionControl            = 37
	instructionCalled             = 38
	instructionBackendConfig      = 43
	instructionAllReduceID        = 45
	instructionReplicaGroups      = 49
	instructionPairs              = 52
	instructionConstrainLayout    = 56
	instructionOperandShapes      = 57
	instructionSideEffect         = 65
	instructionGlobalIDs          = 71
	instructionSchedule           = 76
	instructionAPIVersion         = 77
	instructionThread             = 79
	instructionDeviceList         = 87
	instructionIota               = 92
	instructionMesh               = 93
	instructionBackendConfigAsAny = 99
)

// Field numbers of HloInstructionProto.SliceDimensions.
const (
	sliceStart  = 1
	sliceLimit  = 2
	sliceStride = 3
)

// module is a parsed program: its computations, and all other fields unparsed.
type module struct {
	rest         []byte // fields that stay
	shape        []byte // ProgramShapeProto with layouts
	entry        int64
	computations []*computation
	byID         map[int64]*computation

	replicas, partitions int // 0 if not specified
}

// computation is a list of instructions, operands before their users.
type computation struct {
	rest         []byte // fields that stay
	id, root     int64
	instructions []*instruction
	byID         map[int64]*instruction

	waits   bool // whether it contains a collective, or calls a computation that does
	wrapper bool // whether its collective is written at the instruction that awaits it
}

type instruction struct {
	raw               []byte
	name, opcode      string
	shape             []byte // ShapeProto
	id                int64
	operands, control []int64
	called            []int64
	parameter         int64

	spec string       // the spec of the call that replaces the instruction; "" if it stays
	from *instruction // the instruction whose operands the call has
	what *instruction // the instruction that describes the collective
	drop bool
	// lifted means that the instruction, a constant, becomes the parameter of this number.
	lifted bool

	parts int   // of an all-to-all that was of so many parts of an array and is now of the array; else 0
	along int64 // the dimension along which it was cut
}

// readModule reads a HloModuleProtoWithConfig or a HloModuleProto.
func readModule(code []byte) (*module, error) {
	m := &module{byID: map[int64]*computation{}}
	inner, config, err := unwrap(code)
	if err != nil {
		return nil, err
	}
	for f, err := range protowalk.Fields(config) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case configLayout:
			m.shape = f.Bytes
		case configReplicas:
			m.replicas = int(int64(f.Value))
		case configPartitions:
			m.partitions = int(int64(f.Value))
		}
	}
	if err := m.read(inner); err != nil {
		return nil, err
	}
	m.replicas, m.partitions = max(m.replicas, 1), max(m.partitions, 1)
	if m.replicas > maxRanks || m.partitions > maxRanks || m.replicas*m.partitions > maxRanks {
		return nil, status.New(status.InvalidArgument, "a program of %d replicas and %d partitions, want at most %d devices",
			m.replicas, m.partitions, maxRanks)
	}
	return m, nil
}

// unwrap returns the HloModuleProto in a HloModuleProtoWithConfig or a HloProto, and the configuration of the former.
// It returns a HloModuleProto unchanged.
func unwrap(code []byte) (inner, config []byte, err error) {
	for f, err := range protowalk.Fields(code) {
		if err != nil {
			return nil, nil, err
		}
		switch f.Number {
		case withConfigModule:
			inner = f.Bytes
		case withConfigConfig:
			config = f.Bytes
		case moduleComputations:
			return code, nil, nil
		}
	}
	return inner, config, nil
}

func (m *module) read(b []byte) error {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		switch f.Number {
		case moduleComputations:
			c, err := readComputation(f.Bytes)
			if err != nil {
				return err
			}
			if m.byID[c.id] != nil {
				return status.New(status.InvalidArgument, "two computations have the number %d", c.id)
			}
			m.byID[c.id] = c
			m.computations = append(m.computations, c)
			continue
		case moduleDeviceAssignment:
			if m.replicas == 0 && m.partitions == 0 {
				if m.replicas, m.partitions, err = readAssignmentSize(f.Bytes); err != nil {
					return err
				}
			}
			continue
		case moduleSchedule, moduleOutputSharding, moduleShardings, moduleAutoSPMD:
			// Of all devices, or of instructions as they were.
			continue
		case moduleProgramShape:
			if m.shape == nil {
				m.shape = f.Bytes
			}
		case moduleEntry:
			m.entry = int64(f.Value)
		}
		m.rest = append(m.rest, f.Raw...)
	}
	if m.byID[m.entry] == nil {
		return status.New(status.InvalidArgument, "a module without its entry computation")
	}
	for _, c := range m.computations {
		for _, in := range c.instructions {
			for _, id := range in.called {
				if m.byID[id] == nil {
					return status.New(status.InvalidArgument, "%s calls a computation %d that does not exist", in.name, id)
				}
			}
		}
	}
	return nil
}

func readComputation(b []byte) (*computation, error) {
	c := &computation{byID: map[int64]*instruction{}}
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case computationInstructions:
			in, err := readInstruction(f.Bytes)
			if err != nil {
				return nil, err
			}
			for _, ids := range [...][]int64{in.operands, in.control} {
				for _, id := range ids {
					if c.byID[id] == nil {
						return nil, status.New(status.InvalidArgument, "%s needs an instruction %d that is not defined before it",
							in.name, id)
					}
				}
			}
			if c.byID[in.id] != nil {
				return nil, status.New(status.InvalidArgument, "two instructions have the number %d", in.id)
			}
			c.byID[in.id] = in
			c.instructions = append(c.instructions, in)
			continue
		case computationID:
			c.id = int64(f.Value)
		case computationRoot:
			c.root = int64(f.Value)
		}
		c.rest = append(c.rest, f.Raw...)
	}
	if c.byID[c.root] == nil {
		return nil, status.New(status.InvalidArgument, "computation %d has no root", c.id)
	}
	return c, nil
}

func readInstruction(b []byte) (*instruction, error) {
	in := &instruction{raw: b}
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case instructionName:
			in.name = strings.ToValidUTF8(string(f.Bytes), "?")
		case instructionOpcode:
			in.opcode = strings.ToValidUTF8(string(f.Bytes), "?")
		case instructionShape:
			in.shape = f.Bytes
		case instructionParameter:
			in.parameter = int64(f.Value)
		case instructionID:
			in.id = int64(f.Value)
		case instructionOperands:
			in.operands, err = f.AppendInts(in.operands)
		case instructionControl:
			in.control, err = f.AppendInts(in.control)
		case instructionCalled:
			in.called, err = f.AppendInts(in.called)
		}
		if err != nil {
			return nil, err
		}
	}
	return in, nil
}

// reach returns what can be reached from start, itself included. next returns what follows directly.
func reach(start int64, next func(id int64) []int64) map[int64]bool {
	found := map[int64]bool{start: true}
	for todo := []int64{start}; len(todo) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, n := range next(id) {
			if !found[n] {
				found[n] = true
				todo = append(todo, n)
			}
		}
	}
	return found
}

// write returns the HloModuleProto of the computations that are reachable from the entry.
func (m *module) write() []byte {
	reached := reach(m.entry, func(id int64) (called []int64) {
		for _, in := range m.byID[id].instructions {
			if !in.drop && in.spec == "" {
				called = append(called, in.called...)
			}
		}
		return called
	})
	var out protowalk.Message
	out.Raw(m.rest)
	for _, c := range m.computations {
		if reached[c.id] {
			out.Message(moduleComputations, c.write())
		}
	}
	return out.Join()
}

func (c *computation) write() *protowalk.Message {
	out := new(protowalk.Message)
	out.Raw(c.rest)
	for _, in := range c.instructions {
		if !in.drop {
			out.Message(computationInstructions, c.writeInstruction(in))
		}
	}
	return out
}

func (c *computation) writeInstruction(in *instruction) *protowalk.Message {
	out := new(protowalk.Message)
	for f := range protowalk.Fields(in.raw) { // read before: no error
		switch f.Number {
		case instructionControl:
			continue
		case instructionLiteral:
			if in.lifted {
				continue
			}
		case instructionOpcode, instructionOperands, instructionDimensions, instructionSliceSizes, instructionChannel,
			instructionTarget, instructionCalled, instructionBackendConfig, instructionAllReduceID, instructionReplicaGroups,
			instructionPairs, instructionConstrainLayout, instructionOperandShapes, instructionSideEffect,
			instructionGlobalIDs, instructionSchedule, instructionAPIVersion, instructionThread, instructionDeviceList,
			instructionIota, instructionMesh, instructionBackendConfigAsAny:
			if in.spec != "" || in.lifted && f.Number == instructionOpcode {
				continue
			}
		}
		out.Raw(f.Raw)
	}
	if in.lifted {
		out.Raw(protowalk.AppendBytes(nil, instructionOpcode, "parameter"))
		out.Raw(protowalk.AppendInt(nil, instructionParameter, in.parameter))
	}
	if len(in.control) > 0 {
		out.Raw(protowalk.AppendInts(nil, instructionControl, in.control...))
	}
	if in.spec != "" {
		out.Raw(c.call(in))
	}
	return out
}

// call returns the fields of the call that replaces a collective.
func (c *computation) call(in *instruction) (out []byte) {
	const typedFFI = 4
	out = protowalk.AppendBytes(out, instructionOpcode, "custom-call")
	out = protowalk.AppendBytes(out, instructionTarget, Target)
	out = protowalk.AppendInt(out, instructionAPIVersion, typedFFI)
	out = protowalk.AppendBytes(out, instructionBackendConfig, "{"+Attribute+` = "`+in.spec+`"}`)
	// The spec describes bytes, so the layouts must stay.
	out = protowalk.AppendInt(out, instructionConstrainLayout, 1)
	for _, id := range in.from.operands {
		out = protowalk.AppendBytes(out, instructionOperandShapes, c.byID[id].shape)
	}
	if len(in.from.operands) > 0 {
		out = protowalk.AppendInts(out, instructionOperands, in.from.operands...)
		out = protowalk.AppendInt(out, instructionSideEffect, 1)
	}
	return out
}

// arrays returns the shapes of an instruction's value, those of a tuple one by one.
func (in *instruction) arrays() ([]hlo.Shape, error) {
	s, err := hlo.ReadShape(in.shape)
	if err != nil {
		return nil, err
	}
	if s.Tuple != nil {
		return s.Tuple, nil
	}
	return []hlo.Shape{s}, nil
}

// readAssignmentSize reads how many replicas and partitions a serialized
// xla.DeviceAssignmentProto is for.
func readAssignmentSize(assignment []byte) (replicas, partitions int, err error) {
	var rows, columns int64
	err = protowalk.Read(assignment, protowalk.Ints{assignmentReplicas: &rows, assignmentComputations: &columns}, nil)
	return int(int32(rows)), int(int32(columns)), err
}
