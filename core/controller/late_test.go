package controller

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// apart returns actions with one for each receiver where each is sent something of its own.
func apart(actions []Action) []Action {
	if !slices.ContainsFunc(actions, func(a Action) bool { return a.Own != nil }) {
		return actions
	}
	var all []Action
	for _, a := range actions {
		if a.Own == nil {
			all = append(all, a)
			continue
		}
		for i := range a.To {
			one := a
			one.To, one.Payload, one.Own = a.To[i:i+1], slices.Concat(a.Payload, a.Own[i]), nil
			all = append(all, one)
		}
	}
	return all
}

// sent returns the bytes of a message that State sends.
func sent(a Action) []byte {
	if a.Late == nil {
		return a.Payload
	}
	return a.Late.Encode()
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
		payload := a.Late.Encode()
		got = new(wire.Compiled)
		if len(payload) != a.Late.Size || proto.Unmarshal(payload, got) != nil {
			t.Errorf("%d bytes, want %d", len(payload), a.Late.Size)
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

// A message with text that is not UTF-8 reaches who waits for it, short or long.
func TestTextThatIsNotUTF8IsSent(t *testing.T) {
	for _, size := range []int{1, lateSize} {
		b := newBed(t, Config{}, 1, 1)
		b.st.out = nil
		b.st.send([]uint64{b.client}, wire.KindCompiling, &wire.Compiling{Op: 1, Worker: strings.Repeat("\xff", size)})
		statustest.MustEqual(t, len(b.st.out), 1, "messages are sent")
		m := new(wire.Compiling)
		if err := proto.Unmarshal(sent(b.st.out[0]), m); err != nil || m.Worker != "?" {
			t.Errorf("%.20q arrives, %v", m.Worker, err)
		}
	}
}
