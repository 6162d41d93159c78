package controller

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// sent returns the bytes of a message that State sends.
func sent(a Action) []byte {
	if a.Late == nil {
		return a.Payload
	}
	payload, _ := a.Late.Encode()
	return payload
}

// A long answer is not encoded while State takes a step, which keeps all sessions waiting, but when it leaves.
func TestLongMessagesAreEncodedLate(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.program(1)
	b.say(b.client, wire.KindCompile, compile(func(*wire.Compile) {}))
	optimized := bytes.Repeat([]byte("text "), lateSize)
	var got *wire.Compiled
	for _, a := range b.say(b.workers[0], wire.KindCompiled, compiledTo(func(m *wire.Compiled) {
		m.Info.Optimized = optimized
	})) {
		if a.Kind != Send || a.Wire != wire.KindCompiled {
			continue
		}
		if a.Late == nil || len(a.Payload) > 0 {
			t.Fatalf("a step encoded %d bytes", len(a.Payload))
		}
		payload, err := a.Late.Encode()
		got = new(wire.Compiled)
		if err != nil || len(payload) != a.Late.Size || proto.Unmarshal(payload, got) != nil {
			t.Errorf("%d bytes, %v, want %d", len(payload), err, a.Late.Size)
		}
	}
	if !bytes.Equal(got.GetInfo().GetOptimized(), optimized) {
		t.Errorf("the client gets %d bytes, want %d", len(got.GetInfo().GetOptimized()), len(optimized))
	}
}

func compile(change func(*wire.Compile)) proto.Message {
	m := &wire.Compile{Op: 2, Program: 2, Format: "sim", Code: []byte("q"), Options: sim.CompileOptions([]int{0})}
	change(m)
	return m
}

func compiledTo(change func(*wire.Compiled)) proto.Message {
	m := &wire.Compiled{Op: 2, Info: &wire.ProgramInfo{Name: "p"}, Loadable: &wire.Loadable{Serialized: []byte("x")}}
	change(m)
	return m
}
