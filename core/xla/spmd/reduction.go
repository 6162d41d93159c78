package spmd

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/hlo"
)

// reductions maps opcodes that combine two elements to reductions.
var reductions = map[string]Reduction{"add": Sum, "multiply": Product, "minimum": Min, "maximum": Max, "and": And,
	"or": Or, "xor": Xor}

// reduction recognizes a computation of two elements of one type.
func (m *module) reduction(id int64, of shape.DType) (Reduction, error) {
	c := m.byID[id]
	if c == nil {
		return 0, status.New(status.InvalidArgument, "a reduction without its computation")
	}
	root := c.through(c.byID[c.root], of)
	r, known := reductions[root.opcode]
	var params [2]bool
	if known && len(root.operands) == 2 {
		for _, id := range root.operands {
			if p := c.through(c.byID[id], of); p.opcode == "parameter" && p.parameter >= 0 && p.parameter < 2 {
				params[p.parameter] = true
			}
		}
	}
	if params != [2]bool{true, true} {
		return 0, status.New(status.Unimplemented,
			"it reduces by %s of its arguments, want add, multiply, minimum, maximum, and, or or xor of the two alone",
			root.name)
	}
	// Booleans are the numbers 0 and 1, which saturate.
	if of == shape.Pred {
		switch r {
		case Sum, Max:
			r = Or
		case Product, Min:
			r = And
		}
	}
	return r, nil
}

// through looks through conversions of narrow floats to wider ones and back,
// which is how compilers do arithmetic that the machine lacks.
func (c *computation) through(in *instruction, of shape.DType) *instruction {
	for in.opcode == "convert" && len(in.operands) == 1 {
		from := c.byID[in.operands[0]]
		a, b := dtypeOf(in), dtypeOf(from)
		if narrow, wide := a, b; !(narrow == of && widens(narrow, wide)) && !(b == of && widens(b, a)) {
			break
		}
		in = from
	}
	return in
}

func dtypeOf(in *instruction) shape.DType {
	s, err := hlo.ReadShape(in.shape)
	if err != nil {
		return shape.Invalid
	}
	return s.DType
}

// widens reports whether every value of a narrow float is one of a wider one, and
// arithmetic there, rounded once, is arithmetic in the narrow type.
func widens(narrow, wide shape.DType) bool {
	switch narrow {
	case shape.F16, shape.BF16:
		return wide == shape.F32 || wide == shape.F64
	}
	return false
}
