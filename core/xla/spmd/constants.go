package spmd

import (
	"fmt"

	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// A long constant of a program costs more than its bytes: compiling, serializing and loading the program each copy it
// several times. So those of the entry computation become parameters behind the program's own. XLA's passes have done
// all that they do with constants by now, and only code is made of the module: code that reads such a parameter as it
// would read the constant.

// longConstant is how many bytes a constant has at least that becomes a parameter. A shorter one costs less than one
// more parameter of each run.
const longConstant = 256 << 10

// constantsMost bounds the bytes of all of them, which are sent as one part of at most 2 GiB (transport/content). In a
// program, small whole numbers take less than in memory.
const constantsMost = 1<<31 - 1<<20

// More field numbers of xla.ProgramShapeProto.
const programNames = 3

// liftConstants makes parameters of the entry computation's constants of at least so many bytes. of is the shape of the
// program, without them. It returns the values of the constants and their shapes, xla.ShapeProtos. What it does not
// know stays as it is.
func (m *module) liftConstants(of program, long int64) (values []hlo.Literal, shapes [][]byte) {
	entry := m.byID[m.entry]
	next := int64(0)
	for _, in := range entry.instructions {
		if in.opcode != "parameter" {
			continue
		}
		if next++; tupleShapes(in.shape) != nil {
			return nil, nil // all arguments as one tuple: another way of calling
		}
	}
	if next != int64(len(of.parameters)) || m.called(m.entry) {
		return nil, nil
	}
	results, left := entry.results(), int64(constantsMost)
	var names [][]byte
	for _, in := range entry.instructions {
		if in.opcode != "constant" || int64(len(in.raw)) < long/8 || results[in.id] || in.drop || in.spec != "" ||
			len(in.control) > 0 {
			continue
		}
		var literal []byte
		for f := range protowalk.Fields(in.raw) { // read before: no error
			if f.Number == instructionLiteral {
				literal = f.Bytes
			}
		}
		l, err := hlo.ReadLiteral(literal, in.shape)
		if n := l.Shape.HostBytes(); err != nil || n < long || n > left {
			continue
		}
		left -= l.Shape.HostBytes()
		in.lifted, in.parameter = true, next+int64(len(values))
		values, shapes, names = append(values, l), append(shapes, in.shape), append(names, fmt.Appendf(nil, "constant.%d",
			len(values)))
	}
	if len(values) > 0 {
		m.rest = widened(m.rest, moduleProgramShape, shapes, names)
		entry.rest = widened(entry.rest, computationProgram, shapes, names)
	}
	return values, shapes
}

// called reports whether an instruction calls a computation.
func (m *module) called(id int64) bool {
	for _, c := range m.computations {
		for _, in := range c.instructions {
			for _, called := range in.called {
				if called == id {
					return true
				}
			}
		}
	}
	return false
}

// results returns the instructions whose memory may be that of a result.
func (c *computation) results() map[int64]bool {
	return reach(c.root, func(id int64) []int64 {
		switch in := c.byID[id]; in.opcode {
		case "tuple", "bitcast", "get-tuple-element", "opt-barrier", "optimization-barrier", "add-dependency":
			return in.operands
		}
		return nil
	})
}

// widened returns fields of a message with further parameters in the xla.ProgramShapeProtos of this number.
func widened(fields []byte, number protowalk.Number, shapes, names [][]byte) (out []byte) {
	for f := range protowalk.Fields(fields) { // read before: no error
		if f.Number != number {
			out = append(out, f.Raw...)
			continue
		}
		shape, named := append([]byte(nil), f.Bytes...), false
		for p, err := range protowalk.Fields(f.Bytes) {
			named = named || err == nil && p.Number == programNames
		}
		for i := range shapes {
			shape = protowalk.AppendBytes(shape, programParameters, shapes[i])
			if named {
				shape = protowalk.AppendBytes(shape, programNames, names[i])
			}
		}
		out = protowalk.AppendBytes(out, number, shape)
	}
	return out
}
