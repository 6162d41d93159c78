// Package hlo reads XLA's compiled programs: serialized HLO modules, as a PJRT plugin
// returns them for an executable.
//
// It extracts what plugins do not report through the C API: the shapes of a program's
// arguments and the layouts of arrays (ReadSignature), and the cost of a run (ReadCost).
// It reads a module field by field, and skips fields that it does not need.
//
// The package is pure: values only, no state, and results do not alias the program. For
// any bytes, reading terminates, with INVALID_ARGUMENT if they are not such a program.
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

// module returns the HloModuleProto in a program of format "hlo" or
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
			return nil, status.New(status.InvalidArgument, "the program has a configuration and no module")
		}
		return m, nil
	}
	return nil, status.New(status.InvalidArgument, "a program of format %q, want hlo or hlo_with_config", format)
}

// Signature describes a program's parameters and results.
type Signature struct {
	Params  []shape.Shape // of one shard
	Donated []int         // parameters whose memory a result reuses, in order
	// Layouts of parameters and results: their dimensions, the minor one first; nil for
	// row-major arrays and for values that are not arrays.
	ParamOrders, ResultOrders [][]int64
	ResultMemories            []string // kinds of the memories of results; "" for the default one
}

// ReadSignature reads the parameters of a program of format "hlo" or
// "hlo_with_config". It fails if they are not plain arrays of known shapes.
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
		return Signature{}, status.New(status.InvalidArgument, "the module has no program shape")
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
			// Passing all arguments as one tuple is a different calling convention.
			return status.New(status.InvalidArgument, "parameter %d is not an array of a fixed shape", len(s.Params))
		}
		s.Params = append(s.Params, p.Shape)
		s.ParamOrders = append(s.ParamOrders, p.order())
	}
	return nil
}

// memoryKinds are the kinds of memories that layouts number.
var memoryKinds = map[uint64]string{5: "pinned_host", 6: "unpinned_host"}

// readResults reads the layouts of results, and skips results that it cannot read.
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
		s.ResultMemories = append(s.ResultMemories, memoryKinds[r.memory])
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
				return status.New(status.InvalidArgument, "there is an alias of a part of parameter %d, which is not a tuple",
					parameter)
			}
		}
		s.Donated = append(s.Donated, parameter)
	}
	return nil
}
