package client

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// assembling connects to a controller, and compiles a program for two devices.
func assembling(t *testing.T) *near {
	n := connect(t)
	n.cluster.(*remote).keepDevices(1, []uint32{0, 1})
	return n
}

// reads submits a run of program 1 of which argument 1 is made of shards of two objects.
func (n *near) reads(objects ...uint64) {
	n.t.Helper()
	n.runReads(1, objects...)
}

func (n *near) runReads(program uint64, objects ...uint64) {
	n.t.Helper()
	inputs, m := []uint64{5, 0}, &wire.Mixed{Argument: 1}
	for _, o := range objects {
		m.Pieces = append(m.Pieces, &wire.Piece{Object: o, Rows: 1})
	}
	statustest.OK(n.t, n.cluster.Run(&RunSpec{Program: program, FirstOutput: 100, Inputs: inputs,
		Mixed: []*wire.Mixed{m}, Only: -1}))
	if !slices.Equal(inputs, []uint64{5, 0}) {
		n.t.Errorf("the caller's inputs became %v", inputs)
	}
}

// heard writes what the controller got: runs, what they read, and what is assembled and freed.
func (n *near) heard() (all []string) {
	n.far.mu.Lock()
	defer n.far.mu.Unlock()
	for _, m := range n.far.sent {
		all = append(all, m.words()...)
	}
	return all
}

func (m message) words() []string {
	switch m.kind {
	case wire.KindRun:
		r := new(wire.Run)
		_ = r.Parse(m.payload)
		return []string{fmt.Sprintf("run of %v, %d mixed", r.Inputs, len(r.Mixed))}
	case wire.KindAssemble:
		a := new(wire.Assemble)
		_ = proto.Unmarshal(m.payload, a)
		return []string{fmt.Sprintf("assemble %d for program %d of %d pieces", a.Object, a.Program, len(a.Pieces))}
	case wire.KindFree:
		f := new(wire.Free)
		_ = proto.Unmarshal(m.payload, f)
		return []string{fmt.Sprintf("free %v", f.Objects)}
	}
	return nil
}

// An argument of so many objects that a run's message would become too long is assembled for the first run.
func TestArgumentsOfManyPiecesAreAssembledAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := assembling(t)
		o := n.cluster.Objects(1) + 1
		objects := make([]uint64, maxPieces+1)
		for i := range objects {
			objects[i] = uint64(1000 + i)
		}
		n.reads(objects...)
		n.reads(objects[1:]...)
		synctest.Wait()
		want := []string{fmt.Sprintf("assemble %d for program 1 of %d pieces", o, len(objects)),
			fmt.Sprintf("run of [5 %d], 0 mixed", o), "run of [5 0], 1 mixed"}
		statustest.EqualSlices(t, n.heard(), want, "the controller got")
	})
}

// An argument of several objects that is read again is assembled once, and freed with the first of its members.
func TestArgumentsThatAreReadAgainAreAssembled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := assembling(t)
		first := n.cluster.Objects(1)
		for range 3 {
			n.reads(11, 12)
		}
		n.reads(12, 11)
		n.cluster.Free([]uint64{12, 13})
		time.Sleep(2 * freeAfter)
		n.reads(11, 14)
		synctest.Wait()
		o := first + 1
		want := []string{"run of [5 0], 1 mixed", fmt.Sprintf("assemble %d for program 1 of 2 pieces", o),
			fmt.Sprintf("run of [5 %d], 0 mixed", o), fmt.Sprintf("run of [5 %d], 0 mixed", o), "run of [5 0], 1 mixed",
			fmt.Sprintf("free [12 13 %d]", o), "run of [5 0], 1 mixed"}
		statustest.EqualSlices(t, n.heard(), want, "the controller got")
		a := &n.cluster.(*remote).assemblies
		if len(a.by) != 1 || len(a.of) != 2 {
			t.Errorf("%d arguments and %d members are remembered, want the last one", len(a.by), len(a.of))
		}
	})
}
