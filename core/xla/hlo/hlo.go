// Package hlo reads XLA's compiled programs: serialized HLO modules, as a PJRT
// plugin gives them of an executable.
//
// It says what plugins of the C API do not say themselves: the shapes of a
// program's arguments and how arrays lie (ReadSignature), and what a run of it costs (ReadCost). A
// module is read by hand, field by field; fields that are of no interest here are
// passed over.
//
// It is pure: values only, no state, and results do not alias the program.
// Whatever the bytes are, reading them ends, with an error of INVALID_ARGUMENT
// where they are no such program. Any package may import it.
package hlo

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers of messages in XLA's xla/service/hlo.proto.
const (
	withConfigModule = 1

	moduleComputations = 3
	moduleProgramShape = 4
	moduleEntry        = 6
	moduleAlias        = 8

	aliasEntries   = 1
	entryParameter = 2
	entryTuple     = 3
)

// module gives the HloModuleProto in a program of format "hlo" or
// "hlo_with_config".
func module(format string, code []byte) (m []byte, err error) {
	switch format {
	case "hlo":
		return code, nil
	case "hlo_with_config":
		for f, err := range protowalk.Fields(code) {
			if err != nil {
				return nil, err
			}
			if f.Number == withConfigModule {
				m = f.Bytes
			}
		}
		if m == nil {
			return nil, status.New(status.InvalidArgument, "a configuration without a module")
		}
		return m, nil
	}
	return nil, status.New(status.InvalidArgument, "a program of format %q, want hlo or hlo_with_config", format)
}

// Signature is what a program says of its parameters.
type Signature struct {
	Params  []shape.Shape // of one shard
	Donated []int         // parameters whose memory a result takes, in order
	// Orders of the dimensions of parameters and results as they lie in memory, the
	// minor one first; nil for row-major arrays and for what is no array.
	ParamOrders, ResultOrders [][]int64
}

// ReadSignature reads the parameters of a program of format "hlo" or
// "hlo_with_config". It fails where they are not plain arrays of known shapes.
func ReadSignature(format string, code []byte) (Signature, error) {
	var s Signature
	code, err := module(format, code)
	if err != nil {
		return s, err
	}
	known := false
	for f, err := range protowalk.Fields(code) {
		switch f.Number {
		case moduleProgramShape:
			known = true
			err = s.readProgram(f.Bytes)
		case moduleAlias:
			err = s.readAliases(f.Bytes)
		}
		if err != nil {
			return Signature{}, err
		}
	}
	if !known {
		return Signature{}, status.New(status.InvalidArgument, "a module without the shape of its program")
	}
	slices.Sort(s.Donated)
	s.Donated = slices.Compact(s.Donated)
	return s, nil
}

func (s *Signature) readProgram(b []byte) error {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		if f.Number == programResult {
			s.readResults(f.Bytes)
		}
		if f.Number != programParameters {
			continue
		}
		p, err := readShape(f.Bytes)
		if err != nil {
			return err
		}
		if p.Tuple != nil || p.opaque || p.Dynamic {
			// All arguments as one tuple is a calling convention of its own.
			return status.New(status.InvalidArgument, "parameter %d is not an array of a fixed shape", len(s.Params))
		}
		s.Params = append(s.Params, p.Shape)
		s.ParamOrders = append(s.ParamOrders, p.order())
	}
	return nil
}

// readResults reads how results lie; nothing of results that cannot be read.
func (s *Signature) readResults(b []byte) {
	result, err := readShape(b)
	if err != nil {
		return
	}
	results := []Shape{result}
	if result.Tuple != nil {
		results = result.Tuple
	}
	for _, r := range results {
		s.ResultOrders = append(s.ResultOrders, r.order())
	}
}

func (s *Signature) readAliases(b []byte) error {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		if f.Number != aliasEntries {
			continue
		}
		parameter := 0
		for e, err := range protowalk.Fields(f.Bytes) {
			if err != nil {
				return err
			}
			switch e.Number {
			case entryParameter:
				parameter = int(e.Value)
			case entryTuple:
				return status.New(status.InvalidArgument, "an alias of a part of parameter %d, which is no tuple", parameter)
			}
		}
		s.Donated = append(s.Donated, parameter)
	}
	return nil
}
