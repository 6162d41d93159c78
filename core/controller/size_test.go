//go:build !race && !invariants

package controller

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// ends returns how operations have ended that the client is told of.
func (b *bed) ends(actions []Action) map[uint64]error {
	b.t.Helper()
	ended := map[uint64]error{}
	for _, a := range append(actions, b.step(Event{Kind: Flush})...) {
		if len(a.Payload) > wire.MaxFrame {
			b.t.Errorf("a message of kind %d has %d bytes", a.Wire, len(a.Payload))
		}
		if a.Kind == Send && a.Wire == wire.KindCompleted {
			m := new(wire.Completed)
			statustest.OK(b.t, proto.Unmarshal(a.Payload, m))
			for _, op := range m.Ok {
				ended[op] = nil
			}
			for _, f := range m.Failed {
				ended[f.Number] = f.Status.Err()
			}
		}
	}
	return ended
}

// An operation whose message just fits into a frame is dispatched, or fails with a sentence where it would not fit into
// the message to its workers. A run has a bound of its own. What reads its arrays fails with the same.
func TestOperationThatFillsAFrame(t *testing.T) {
	scalar := &wire.Array{Dtype: uint32(shape.F32)}
	for name, c := range map[string]struct {
		kind wire.Kind
		fits int
		m    func(pad []byte) proto.Message
	}{
		"run": {wire.KindRun, maxRun - 1000, func(pad []byte) proto.Message {
			return &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}, Trace: pad}
		}},
		"put": {wire.KindPut, 63 << 20, func(pad []byte) proto.Message {
			return &wire.Put{Op: 2, Object: 2, Devices: []uint32{0},
				Array: &wire.Array{Dtype: scalar.Dtype, Memory: string(pad)}}
		}},
		"transfer": {wire.KindTransfer, 63 << 20, func(pad []byte) proto.Message {
			return &wire.Transfer{Op: 2, Object: 2, Array: &wire.Array{Dtype: scalar.Dtype, Memory: string(pad)},
				Moves: []*wire.Move{{Source: 1}}}
		}},
	} {
		for _, size := range []int{c.fits, c.fits + 1<<20 - 1000} {
			b := newBed(t, Config{}, 1, 1)
			b.program(1)
			dispatched := 0
			var kept []Action
			for _, a := range b.say(b.client, c.kind, c.m(make([]byte, size))) {
				if a.Kind == Send && a.Wire == wire.KindDispatch {
					dispatched++
				}
				kept = append(kept, a)
			}
			if size == c.fits {
				statustest.Equal(t, dispatched, 1, "how often %s of %d bytes was dispatched", name, size)
				continue
			}
			err, ended := b.ends(kept)[2]
			if !ended || status.CodeOf(err) != status.InvalidArgument || !strings.Contains(err.Error(), "bytes, of at most") {
				t.Errorf("%s of %d bytes ended: %v, with %v", name, size, ended, err)
			}
			b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 3, Object: 2})
			if again := b.ends(nil)[3]; again == nil || again.Error() != err.Error() {
				t.Errorf("%s: what reads its array ended with %v", name, again)
			}
			statustest.Check(t, b.st.Check())
		}
	}
}

// A transfer that just fits into a message goes to its workers as the client sent it where the indices of the moves
// would make it too long.
func TestTransferWithoutRoomForIndices(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	m := &wire.Transfer{Op: 2, Object: 2, Array: &wire.Array{Dtype: uint32(shape.F32)},
		Moves: []*wire.Move{{Source: 1, From: 0, To: 1}, {Source: 1, From: 1, To: 0}}}
	for _, room := range []int{5, 3} { // an index takes two bytes
		const lengths = 8 // bytes that say how long the array's message and its text are
		m.Array.Memory = ""
		m.Array.Memory = strings.Repeat("x", wire.MaxMessage-proto.Size(m)-lengths-room)
		for proto.Size(m) < wire.MaxMessage-room {
			m.Array.Memory += "x"
		}
		sent := 0
		for _, a := range b.say(b.client, wire.KindTransfer, m) {
			if a.Kind != Send || a.Wire != wire.KindDispatch {
				continue
			}
			d, got := new(wire.Dispatch), new(wire.Transfer)
			statustest.OK(t, errors.Join(d.Parse(a.Payload), proto.Unmarshal(d.Operation, got)))
			for i, move := range got.Moves {
				if indexed := move.Index == uint32(i+1); indexed != (room > 4) || move.Index > 0 != indexed {
					t.Errorf("with %d bytes of room move %d has index %d", room, i, move.Index)
				}
			}
			sent += len(a.To)
		}
		statustest.Equal(t, sent, 2, "how often with %d bytes of room the transfer is sent", room)
		m.Op, m.Object = m.Op+1, m.Object+1
	}
}

// Errors of any number and length reach the client.
func TestManyLongErrors(t *testing.T) {
	b := newBed(t, Config{Limits: Limits{Credit: 8192}}, 1, 1)
	b.program(1)
	const n = 5000
	long := &wire.Status{Code: uint32(status.Internal), Message: strings.Repeat("x", 16<<10)}
	all := new(wire.Completed)
	for op := uint64(2); op < n+2; op++ {
		b.say(b.client, wire.KindPut,
			&wire.Put{Op: op, Object: op, Array: &wire.Array{Dtype: uint32(shape.F32)}, Devices: []uint32{0}})
		all.Failed = append(all.Failed, &wire.Failure{Number: op, Status: long})
	}
	for len(all.Failed) > 0 {
		k := min(len(all.Failed), wire.MaxFailures)
		b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Failed: all.Failed[:k]})
		all.Failed = all.Failed[k:]
	}
	if ended := b.ends(nil); len(ended) != n {
		t.Errorf("the client heard of %d ends, want %d", len(ended), n)
	}
}

// Numbers of objects take up to ten bytes; those that are freed at once go in several messages.
func TestManyFrees(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	var all []uint64
	for i := range uint64(3 << 20) {
		all = append(all, 1<<60+i)
	}
	b.st.letGo(b.st.sessions[1], all, setOf(0))
	freed := 0
	for _, a := range b.st.out {
		if a.Wire != wire.KindDispatch {
			continue
		}
		if len(a.Payload) > wire.MaxFrame/4 {
			t.Errorf("a message has %d bytes", len(a.Payload))
		}
		freed++
	}
	statustest.Equal(t, freed, 3, "messages that free 3 Mi objects")
}

// What was compiled is refused, with a sentence, where no message holds it.
func TestCompiledProgramThatFillsAFrame(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.say(b.client, wire.KindCompile,
		&wire.Compile{Op: 1, Program: 1, Format: "sim", Code: []byte("p"), Options: sim.CompileOptions([]int{0})})
	for _, a := range b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: 1, Info: &wire.ProgramInfo{Name: "p"},
		Loadable: &wire.Loadable{Serialized: make([]byte, 63<<20)}}) {
		if a.Kind != Send || a.Wire != wire.KindCompiled {
			continue
		}
		m := new(wire.Compiled)
		statustest.OK(t, proto.Unmarshal(a.Payload, m))
		err := m.Status.Err()
		statustest.Fails(t, "the client", err, status.ResourceExhausted, "worker w0")
		return
	}
	t.Error("the client got no answer")
}
