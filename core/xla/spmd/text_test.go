package spmd

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// TestTextOfGroups checks that any groups and pairs come back from their text.
func TestTextOfGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 20, 19, 18, 100}).Draw(t, "ranks")
		size := rapid.SampledFrom([]int{1, 2, 4, 8, 16}).Draw(t, "size")
		s := &Spec{Op: AllReduce, Site: rapid.IntRange(0, 1000).Draw(t, "site"), Reduction: Sum, DType: shape.BF16}
		s.Operands = []shape.Shape{{DType: shape.BF16, Dims: []int64{3, 0}}, {DType: shape.BF16}}
		s.Results = s.Operands
		for i := 0; i < len(ranks); i += size {
			s.Groups = append(s.Groups, ranks[i:i+size])
		}
		back, err := ParseSpec(s.String())
		statustest.OKf(t, err, "%q", s)
		if !reflect.DeepEqual(s, back) {
			t.Fatalf("%q comes back as %+v", s, back)
		}
		targets := rapid.Permutation(ranks).Draw(t, "targets")
		p := &Spec{Op: CollectivePermute, Operands: s.Operands, Results: s.Results}
		for i, source := range ranks {
			p.Pairs = append(p.Pairs, [2]int{source, targets[i]})
		}
		if back, err = ParseSpec(p.String()); err != nil || !reflect.DeepEqual(p, back) {
			t.Fatalf("%q comes back as %+v: %v", p, back, err)
		}
	})
}

func TestTextOfManyRanksIsShort(t *testing.T) {
	s := &Spec{Op: AllGather, Operands: []shape.Shape{{DType: shape.F32, Dims: []int64{2}}},
		Results: []shape.Shape{{DType: shape.F32, Dims: []int64{4096}}}, Groups: [][]int{nil}}
	for r := range 2048 {
		s.Groups[0] = append(s.Groups[0], r)
	}
	if text := s.String(); len(text) > 100 {
		t.Errorf("%d bytes for one group of 2048 ranks: %s", len(text), text)
	}
	if strings.ContainsAny(s.String(), `"\`) {
		t.Errorf("the text needs escapes: %q", s)
	}
}

func TestBadTextIsRefused(t *testing.T) {
	const good = "all-reduce site=0 groups=0:2 reduction=sum type=f32 in=f32[2] out=f32[2]"
	statustest.OK(t, statustest.Of(ParseSpec(good)))
	for _, change := range [][2]string{{"all-reduce", "all-reduced"}, {"0:2", "0:0"}, {"0:2", "0:2:-1"}, {"0:2", "0:2/1"},
		{"0:2", "0:99999999"},
		{"0:2", "-1"}, {"sum", "mean"}, {"type=f32", "type=f99"}, {"in=f32[2]", "in=f32[2"}, {"in=f32[2]", "in=f32[3]"},
		{"in=f32[2]", "in=f32[-2]"},
		{"in=f32[2] ", ""}, {"site=0", "site=0 site=1"}, {"site=0", "site=-1"}, {"type=f32", "type=s32"},
		{"site=0", "color=1"}, {"site=0", "site"},
		{"groups=0:2 ", ""}, {"site=0", "pairs=0>1"}, {"site=0", "dim=1"}} {
		text := strings.Replace(good, change[0], change[1], 1)
		statustest.Fails(t, strconv.Quote(text), statustest.Of(ParseSpec(text)), status.InvalidArgument)
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, text := range []string{
		"all-reduce site=2 groups=0:4/4:4 reduction=sum type=f32 in=f32[2,3] out=f32[2,3]",
		"collective-permute site=0 pairs=0>1:3,3>0 in=f32[] out=f32[]",
		"all-to-all site=1 groups=0:2 dim=-1 in=u8[1]/u8[1] out=u8[1]/u8[1]",
		"partition-id site=-1 out=u32[] replicas=2 parts=4",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSpec(text)
		if err != nil {
			statustest.Fails(t, "the error", err, status.InvalidArgument)
			return
		}
		back, err := ParseSpec(s.String())
		if err != nil || !reflect.DeepEqual(s, back) {
			t.Errorf("%q comes back as %+v, %v", s, back, err)
		}
	})
}
