package controller

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// FuzzFrames has a client and a worker send whatever they like. Another session
// does not notice, and when both have gone nothing of them is left.
func FuzzFrames(f *testing.F) {
	add := func(kinds ...any) {
		var script []byte
		for i := 0; i < len(kinds); i += 2 {
			payload := statustest.Value(proto.Marshal(kinds[i+1].(proto.Message))).OK(f)
			script = append(append(script, byte(kinds[i].(wire.Kind)), byte(len(payload))), payload...)
		}
		f.Add(script)
	}
	scalar := &wire.Array{Dtype: 11}
	add(wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: []uint32{0, 1}}, wire.KindRun,
		&wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}},
		wire.KindFree, &wire.Free{Objects: []uint64{1, 2},
			Rows: []*wire.Rows{{Object: 3, Devices: []uint32{0, 9}}}}, wire.KindFetch, &wire.Fetch{Op: 3, Object: 1, Device: 1})
	add(wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}},
		wire.KindAssemble, &wire.Assemble{Object: 3, Program: 1,
			Pieces: []*wire.Piece{{Object: 2, Rows: 1}, {Object: 1, Rows: 1}}},
		wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 4, Inputs: []uint64{3}},
		wire.KindFree, &wire.Free{Objects: []uint64{2, 3}})
	add(wire.KindCompile, &wire.Compile{Op: 1, Program: 1, Options: sim.CompileOptions([]int{1, 0})}, wire.KindForget,
		&wire.Forget{Programs: []uint64{1}}, wire.KindGoodbye, &wire.Goodbye{})
	add(wire.KindCompiled|0x80, &wire.Compiled{
		Op: 2, Info: &wire.ProgramInfo{Outputs: []*wire.Array{scalar, {Dims: []int64{-1}}}}, Loadable: &wire.Loadable{}},
		wire.KindCompleted|0x80, &wire.Completed{Ok: []uint64{1, 1, 2}, Failed: []*wire.Failure{{Number: 3}}})
	add(wire.KindTransfer, &wire.Transfer{Op: 1, Object: 1, Array: scalar, Moves: []*wire.Move{{Source: 1, From: 1},
		{Source: 1, To: 1, Index: 7}}},
		wire.KindAbort, &wire.Abort{Gang: 1},
		wire.KindRun, &wire.Run{Op: 2, Program: 1, Mixed: []*wire.Mixed{{Pieces: []*wire.Piece{{}}}}, Only: 9}, wire.KindAsk,
		&wire.Ask{Stop: true})
	add(wire.KindSliceRequest, &wire.SliceRequest{Slice: 1, Devices: 2, Topology: []uint32{1, 2}}, wire.KindSliceRequest,
		&wire.SliceRequest{Slice: 1},
		wire.KindSliceRequest, &wire.SliceRequest{Slice: 2, Devices: 1 << 31, Island: "x", Kind: "y"}, wire.KindSliceRelease,
		&wire.SliceRelease{Slices: []uint64{1, 3}})
	add(wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: []uint32{0, 1}},
		wire.KindGraph, &wire.Graph{Graph: 1, Inputs: 1, Outputs: []uint64{3}, Nodes: []*wire.Node{
			{Transfer: &wire.Transfer{Array: scalar, Moves: []*wire.Move{{Source: 1, From: 0, To: 1}}}, Makes: 1},
			{Transfer: &wire.Transfer{Array: scalar, Moves: []*wire.Move{{Source: 2, From: 1, To: 0, Count: 1}}}, Makes: 1}}},
		wire.KindPlay, &wire.Play{Op: 2, Graph: 1, Nodes: 2, First: 2, Inputs: []uint64{1}}, wire.KindAbort,
		&wire.Abort{Gang: 3},
		wire.KindCompleted|0x80, &wire.Completed{Ok: []uint64{3, 4, 5}}, wire.KindForget,
		&wire.Forget{Graphs: []uint64{1, 1}})
	add(wire.KindGraph, &wire.Graph{Graph: 1, Nodes: []*wire.Node{{Run: &wire.Run{Program: 1}, Makes: 1}}}, wire.KindPlay,
		&wire.Play{Op: 1, Graph: 1, Nodes: 1, First: 1},
		wire.KindPlay, &wire.Play{Op: 2, Graph: 2, Nodes: 4096, First: 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		b := newBed(t, Config{Limits: Limits{Credit: 8, Window: 1}}, 2, 1)
		b.program(2) // of the session that is to notice nothing
		worker := b.workers[1]
		b.conns++
		rude := b.conns
		b.step(Event{Kind: Join, Conn: rude, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT}})
		for len(script) >= 2 {
			kind, n := wire.Kind(script[0]&0x7f), min(int(script[1]), len(script)-2)
			from, payload := rude, script[2:2+n]
			if script[0]&0x80 != 0 {
				from = worker
			}
			script = script[2+n:]
			m, err := Decode(kind, payload)
			if err != nil {
				b.step(Event{Kind: Lost, Conn: from, Err: err})
				continue
			}
			b.step(Event{Kind: Message, Conn: from, Wire: kind, Message: m, Payload: payload})
		}
		mine := b.st.sessions[1]
		if mine == nil || mine.programs[1] == nil || mine.objects[1] == nil || len(mine.programs) != 1 ||
			len(mine.objects) != 1 || mine.objects[1].err != nil {
			t.Fatalf("the other session is %+v", mine)
		}
		b.step(Event{Kind: Lost, Conn: rude})
		b.step(Event{Kind: Lost, Conn: worker})
		b.step(Event{Kind: Tick})
		statustest.OK(t, b.st.Check())
		if len(b.st.sessions) != 1 || b.st.gangs.Len() != 0 || len(b.st.islands[0].held) != 0 ||
			b.st.islands[0].sched.Running() != 0 {
			// Gangs may still wait for the worker that is there.
			for _, g := range b.st.gangs.All() {
				if g.s != mine {
					t.Fatalf("a gang of the session that has gone is left: %+v", g)
				}
			}
			statustest.MustEqual(t, len(b.st.sessions), 1, "sessions are left")
		}
		// The other session goes on where a worker is.
		b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}})
		gang := b.st.gang
		b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{gang}})
		for _, a := range b.step(Event{Kind: Flush}) {
			if a.Kind == Send && a.Wire == wire.KindCompleted && a.To[0] == b.client {
				m := new(wire.Completed)
				if err := proto.Unmarshal(a.Payload, m); err != nil || len(m.Ok) != 1 || m.Ok[0] != 2 {
					t.Fatalf("the other session's operation ended with %v, %v", m, err)
				}
				return
			}
		}
		t.Fatal("the other session's operation did not end")
	})
}
