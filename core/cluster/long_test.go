//go:build !race && !invariants

package cluster_test

import (
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Programs that are longer than a frame, and than what is under way to a worker at one time.
func TestProgramThatNoFrameHolds(t *testing.T) {
	programsOf(t, 65<<20, 200<<20)
}

// What a client asks for in a message that no frame holds fails with a sentence, or goes in several messages; the
// session goes on.
func TestCallsThatNoFrameHolds(t *testing.T) {
	l, _ := countedCluster(t, 1, nil)
	s := connect(t, l, "a")
	r := statustest.Value(s.Compile(t.Context(), padded(100, 0))).OK(t)
	in := s.vector([]int{0}, ramp)
	const size = 65 << 20
	text := strings.Repeat("x", size)
	run := func() *client.RunSpec {
		return &client.RunSpec{Program: r.ID, FirstOutput: s.Objects(1), Inputs: []uint64{in}, Only: -1, Token: s.Tokens(1)}
	}
	many := make([]uint64, size/5)
	for i := range many {
		many[i] = 1<<34 + uint64(i)
	}
	scalar := shape.Shape{DType: shape.F32}
	for name, call := range map[string]func() error{
		"compile with long options": func() error {
			spec := padded(100, 0)
			spec.Options = append(spec.Options, text...)
			_, err := s.Compile(t.Context(), spec)
			return err
		},
		"compile with long handlers": func() error {
			spec := padded(100, 0)
			spec.Handlers = []*wire.Handler{{Target: text}}
			_, err := s.Compile(t.Context(), spec)
			return err
		},
		"run with a long line": func() error {
			spec := run()
			spec.Trace = []byte(text)
			return s.Run(spec)
		},
		"run with many inputs": func() error {
			spec := run()
			spec.Inputs = many
			return s.Run(spec)
		},
		"put into a memory with a long name": func() error {
			return s.Put(&client.PutSpec{Object: s.Objects(1), Shape: scalar, Memory: text, Devices: []uint32{0},
				Token: s.Tokens(1), Fill: func(_ uint32, _ []byte, written func(error)) { written(nil) }})
		},
		"transfer of many moves": func() error {
			return s.Transfer(&wire.Transfer{Object: s.Objects(1), Array: &wire.Array{Dtype: uint32(shape.F32), Memory: text},
				Moves: []*wire.Move{{Source: in}}}, s.Tokens(1))
		},
		"graph with a long line": func() error {
			g := draw(1)
			g.run(r, 1)
			g.Nodes[0].Run.Trace = []byte(text)
			_, err := s.Define(&g.Graph)
			return err
		},
		"slice of a long kind": func() error {
			_, err := s.Ask(placement.Want{Devices: 1, Kind: text}, grant.Terms{})
			return err
		},
	} {
		err := call()
		if err == nil || status.CodeOf(err) != status.InvalidArgument && status.CodeOf(err) != status.ResourceExhausted ||
			!strings.Contains(err.Error(), "at most") {
			t.Errorf("%s: %.200v, want INVALID_ARGUMENT or RESOURCE_EXHAUSTED and the bound", name, err)
		}
	}
	s.Free(many) // none of them is there
	s.adds(r, 0)
}
