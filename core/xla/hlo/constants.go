package hlo

import "github.com/openpathways/pathways/core/xla/protowalk"

const (
	instructionLiteral  = 8
	longConstant        = 64 << 10 // bytes of a serialized literal
	constantsWorthWhile = 256 << 10
)

// WithoutConstants returns an optimized program of format "hlo" or "hlo_with_config" as a serialized
// HloModuleProtoWithConfig, without the values of constants of more than 64 KiB. XLA reads such a program as one whose
// constants are not known: it prints them as it prints all large ones, "constant({...})", and all else is as it was. A
// program of less than 256 KiB, or one that cannot be read, keeps its constants.
func WithoutConstants(format string, program []byte) []byte {
	path := []protowalk.Number{withConfigModule, moduleComputations, computationInstructions}
	if format == "hlo" {
		path = path[1:]
	}
	out, ok := new(protowalk.Message), false
	if len(program) >= constantsWorthWhile {
		out, ok = strip(program, path)
	}
	if !ok && format != "hlo" {
		return program
	}
	if !ok {
		out = new(protowalk.Message)
		out.Raw(program)
	}
	if format == "hlo" {
		outer := new(protowalk.Message)
		outer.Message(withConfigModule, out)
		out = outer
	}
	return out.Join()
}

// strip writes a message without the long literals of the instructions below it: path are the fields that lead to them.
func strip(message []byte, path []protowalk.Number) (out *protowalk.Message, ok bool) {
	out = new(protowalk.Message)
	for f, err := range protowalk.Fields(message) {
		switch {
		case err != nil:
			return nil, false
		case len(path) == 0 && f.Number == instructionLiteral && len(f.Bytes) > longConstant:
		case len(path) > 0 && f.Number == path[0] && len(f.Bytes) > longConstant:
			inner, ok := strip(f.Bytes, path[1:])
			if !ok {
				return nil, false
			}
			out.Message(f.Number, inner)
		default:
			out.Raw(f.Raw)
		}
	}
	return out, true
}
