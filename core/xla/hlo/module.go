package hlo

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers of messages in XLA's xla/service/hlo.proto and xla/xla_data.proto.
const (
	computationInstructions = 2
	computationID           = 5
	computationRoot         = 6

	instructionOpcode        = 2
	instructionShape         = 3
	instructionParameter     = 9
	instructionFusionKind    = 11
	instructionTupleIndex    = 13
	instructionDimensions    = 14
	instructionWindow        = 15
	instructionConvolution   = 16
	instructionDot           = 30
	instructionFFTLength     = 32
	instructionID            = 35
	instructionOperands      = 36
	instructionCalled        = 38
	instructionFeatureGroups = 50
	instructionBatchGroups   = 58

	windowDimensions = 1
	windowSize       = 1
	windowStride     = 2
	windowLow        = 3
	windowHigh       = 4
	windowDilation   = 5
	windowBase       = 6

	dotLeftContracting = 1

	convolutionKernelSpatial = 6
	convolutionInputBatch    = 7
	convolutionInputFeature  = 8
	convolutionOutputFeature = 10
	convolutionInputSpatial  = 11
	convolutionOutputSpatial = 12
)

// program is a module's computations by their ids.
type program struct {
	entry        int64
	computations map[int64]*computation
}

// computation is a graph of instructions, operands before their users.
type computation struct {
	id, rootID   int64
	instructions []*instruction
	root         *instruction
	parameters   map[int64]*instruction
}

// instruction holds the parts of an instruction that the analysis needs.
type instruction struct {
	opcode      string
	shape       Shape
	id          int64
	operandIDs  []int64
	operands    []*instruction
	users       []*instruction // each once
	called      []int64        // computations
	parameter   int64          // its number
	tupleIndex  int64
	fusionKind  string
	dimensions  []int64
	window      []windowDimension
	contracting []int64 // dimensions of a dot's left side
	convolution convolution
	fftLength   []int64
}

type windowDimension struct {
	size, stride, low, high, dilation, base int64
}

// convolution holds the roles of dimensions, and the number of groups.
type convolution struct {
	inputBatch, inputFeature, outputFeature    int64
	inputSpatial, kernelSpatial, outputSpatial []int64
	featureGroups, batchGroups                 int64
}

// readProgram reads a module's graph.
func readProgram(b []byte) (*program, error) {
	p := &program{computations: map[int64]*computation{}}
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case moduleEntry:
			p.entry = int64(f.Value)
		case moduleComputations:
			c, err := readComputation(f.Bytes)
			if err != nil {
				return nil, err
			}
			p.computations[c.id] = c
		}
	}
	return p, nil
}

func readComputation(b []byte) (*computation, error) {
	c := &computation{parameters: map[int64]*instruction{}}
	byID := map[int64]*instruction{}
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case computationID:
			c.id = int64(f.Value)
		case computationRoot:
			c.rootID = int64(f.Value)
		case computationInstructions:
			in, err := readInstruction(f.Bytes)
			if err != nil {
				return nil, err
			}
			for _, id := range in.operandIDs {
				operand := byID[id]
				if operand == nil {
					return nil, status.New(status.InvalidArgument, "an instruction %s has an operand %d that is not defined before it",
						in.opcode, id)
				}
				in.operands = append(in.operands, operand)
				// If this instruction is a user already, it is the last one.
				if n := len(operand.users); n == 0 || operand.users[n-1] != in {
					operand.users = append(operand.users, in)
				}
			}
			byID[in.id] = in
			c.instructions = append(c.instructions, in)
			if in.opcode == "parameter" {
				c.parameters[in.parameter] = in
			}
		}
	}
	if c.root = byID[c.rootID]; c.root == nil {
		return nil, status.New(status.InvalidArgument, "computation %d has no root", c.id)
	}
	return c, nil
}

func readInstruction(b []byte) (*instruction, error) {
	in := &instruction{convolution: convolution{featureGroups: 1, batchGroups: 1}}
	for f, err := range protowalk.Fields(b) {
		switch f.Number {
		case instructionOpcode:
			in.opcode = string(f.Bytes)
		case instructionShape:
			in.shape, err = readShape(f.Bytes)
		case instructionParameter:
			in.parameter = int64(f.Value)
		case instructionFusionKind:
			in.fusionKind = string(f.Bytes)
		case instructionTupleIndex:
			in.tupleIndex = int64(f.Value)
		case instructionDimensions:
			in.dimensions, err = f.AppendInts(in.dimensions)
		case instructionWindow:
			in.window, err = readWindow(f.Bytes)
		case instructionConvolution:
			err = in.convolution.read(f.Bytes)
		case instructionDot:
			err = protowalk.Read(f.Bytes, nil, protowalk.Lists{dotLeftContracting: &in.contracting})
		case instructionFFTLength:
			in.fftLength, err = f.AppendInts(in.fftLength)
		case instructionID:
			in.id = int64(f.Value)
		case instructionOperands:
			in.operandIDs, err = f.AppendInts(in.operandIDs)
		case instructionCalled:
			in.called, err = f.AppendInts(in.called)
		case instructionFeatureGroups:
			in.convolution.featureGroups = max(1, int64(f.Value))
		case instructionBatchGroups:
			in.convolution.batchGroups = max(1, int64(f.Value))
		}
		if err != nil {
			return nil, err
		}
	}
	return in, nil
}

func readWindow(b []byte) (window []windowDimension, err error) {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
		}
		if f.Number != windowDimensions {
			continue
		}
		var d windowDimension
		if err := protowalk.Read(f.Bytes, protowalk.Ints{windowSize: &d.size, windowStride: &d.stride, windowLow: &d.low,
			windowHigh: &d.high, windowDilation: &d.dilation, windowBase: &d.base}, nil); err != nil {
			return nil, err
		}
		window = append(window, d)
	}
	return window, nil
}

func (c *convolution) read(b []byte) error {
	return protowalk.Read(b, protowalk.Ints{
		convolutionInputBatch:    &c.inputBatch,
		convolutionInputFeature:  &c.inputFeature,
		convolutionOutputFeature: &c.outputFeature,
	}, protowalk.Lists{
		convolutionInputSpatial:  &c.inputSpatial,
		convolutionKernelSpatial: &c.kernelSpatial,
		convolutionOutputSpatial: &c.outputSpatial,
	})
}

// operand returns the shape of an operand; a shape without elements if there is no such operand.
func (in *instruction) operand(i int) Shape {
	if i < len(in.operands) {
		return in.operands[i].shape
	}
	return Shape{}
}

// operandIndices returns the positions at which another instruction is an operand.
func (in *instruction) operandIndices(of *instruction) (at []int) {
	for i, o := range in.operands {
		if o == of {
			at = append(at, i)
		}
	}
	return at
}

// bitcasts reports whether a transpose moves no bytes, because the layouts of its operand
// and its result agree.
func (in *instruction) bitcasts() bool {
	var order []int64
	for _, d := range in.shape.minorToMajor {
		if d < 0 || d >= int64(len(in.dimensions)) {
			return false
		}
		order = append(order, in.dimensions[d])
	}
	from := in.operand(0)
	return in.shape.layout && from.layout && slices.Equal(order, from.minorToMajor)
}
