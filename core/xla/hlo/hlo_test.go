package hlo

import (
	"reflect"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

func TestReadSignatureTellsHowArraysLie(t *testing.T) {
	array := func(order ...int64) []byte {
		s := protowalk.AppendInts(protowalk.AppendInt(nil, shapeElementType, 4), shapeDimensions, 2, 3, 4)
		return protowalk.AppendBytes(s, shapeLayout, protowalk.AppendInts(nil, layoutMinorToMajor, order...))
	}
	tuple := protowalk.AppendInt(nil, shapeElementType, typeTuple)
	for _, part := range [][]byte{array(0, 1, 2), array(2, 1, 0), protowalk.AppendInt(nil, shapeElementType, typeToken)} {
		tuple = protowalk.AppendBytes(tuple, shapeTuple, part)
	}
	unknown := protowalk.AppendInt(nil, shapeElementType, 99)
	for name, c := range map[string]struct {
		result []byte
		want   [][]int64
	}{
		"a tuple":       {tuple, [][]int64{{0, 1, 2}, nil, nil}},
		"an array":      {array(1, 0, 2), [][]int64{{1, 0, 2}}},
		"not readable":  {unknown, nil},
		"of other rank": {array(1, 0), [][]int64{nil}},
	} {
		program := protowalk.AppendBytes(nil, programParameters, array(0, 2, 1))
		program = protowalk.AppendBytes(program, programParameters, array(2, 1, 0))
		program = protowalk.AppendBytes(program, programResult, c.result)
		s, err := ReadSignature("hlo", protowalk.AppendBytes(nil, moduleProgramShape, program))
		if err != nil || !reflect.DeepEqual(s.ParamOrders, [][]int64{{0, 2, 1}, nil}) ||
			!reflect.DeepEqual(s.ResultOrders, c.want) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestReadSignatureTellsInWhichMemoriesResultsAre(t *testing.T) {
	tuple := protowalk.AppendInt(nil, shapeElementType, typeTuple)
	for _, memory := range []int64{0, 5, 6, 1} {
		layout := protowalk.AppendInt(nil, layoutMemory, memory)
		tuple = protowalk.AppendBytes(tuple, shapeTuple,
			protowalk.AppendBytes(protowalk.AppendInt(nil, shapeElementType, 4), shapeLayout, layout))
	}
	program := protowalk.AppendBytes(nil, moduleProgramShape, protowalk.AppendBytes(nil, programResult, tuple))
	s, err := ReadSignature("hlo", program)
	if want := []string{"", "pinned_host", "unpinned_host", ""}; err != nil || !slices.Equal(s.ResultMemories, want) {
		t.Errorf("got %q, %v, want %q", s.ResultMemories, err, want)
	}
}

func TestSignatureIsRead(t *testing.T) {
	// A module of one parameter s32[3], and an alias.
	const s32, unknown = 4, 99
	shapeOf := func(element int64, dims ...int64) []byte {
		return protowalk.AppendInts(protowalk.AppendInt(nil, shapeElementType, element), shapeDimensions, dims...)
	}
	module := func(parameter, alias []byte) []byte {
		m := protowalk.AppendBytes(nil, moduleProgramShape, protowalk.AppendBytes(nil, programParameters, parameter))
		return protowalk.AppendBytes(m, moduleAlias, protowalk.AppendBytes(nil, aliasEntries, alias))
	}
	first := protowalk.AppendInt(nil, entryParameter, 0)
	good := module(shapeOf(s32, 3), first)
	unpacked := protowalk.AppendInt(protowalk.AppendInt(nil, shapeElementType, s32), shapeDimensions, 3)
	for name, c := range map[string]struct {
		format string
		code   []byte
	}{
		"plain":       {"hlo", good},
		"with config": {"hlo_with_config", protowalk.AppendBytes(nil, withConfigModule, good)},
		"not packed":  {"hlo", module(unpacked, first)},
	} {
		s, err := ReadSignature(c.format, c.code)
		if err != nil || len(s.Params) != 1 || s.Params[0].String() != "s32[3]" || !slices.Equal(s.Donated, []int{0}) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	for name, c := range map[string]struct {
		format string
		code   []byte
	}{
		"another format":   {"mlir", good},
		"cut":              {"hlo", good[:len(good)-1]},
		"empty":            {"hlo", nil},
		"a tuple":          {"hlo", module(shapeOf(typeTuple), nil)},
		"an opaque value":  {"hlo", module(shapeOf(typeOpaque), nil)},
		"an unknown type":  {"hlo", module(shapeOf(unknown), nil)},
		"a dynamic shape":  {"hlo", module(protowalk.AppendInts(shapeOf(s32, 3), shapeDynamic, 1), nil)},
		"a negative size":  {"hlo", module(shapeOf(s32, -3), nil)},
		"a huge size":      {"hlo", module(shapeOf(s32, 1<<40, 1<<40), nil)},
		"part of a tuple":  {"hlo", module(shapeOf(s32), protowalk.AppendInts(first, entryTuple, 0))},
		"config only":      {"hlo_with_config", protowalk.AppendBytes(nil, 2, good)},
		"module not bytes": {"hlo_with_config", protowalk.AppendInt(nil, withConfigModule, 1)},
	} {
		statustest.Fails(t, name, statustest.Of(ReadSignature(c.format, c.code)), status.InvalidArgument)
	}
}

// Reading ends whatever the bytes are, and what is read are arrays.
func FuzzReadSignature(f *testing.F) {
	for _, c := range programs(f) {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		for _, format := range []string{"hlo", "hlo_with_config"} {
			s, err := ReadSignature(format, code)
			if err != nil && status.CodeOf(err) != status.InvalidArgument {
				t.Fatal(err)
			}
			for _, p := range s.Params {
				if p.Elements() < 0 {
					t.Errorf("got %v", p)
				}
			}
		}
	})
}
