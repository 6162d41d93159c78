package controller

import (
	"bytes"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// sent returns the bytes of a message that State sends.
func sent(a Action) []byte {
	if a.late == nil {
		return a.Payload
	}
	payload, _ := a.late.bytes()
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
		if a.late == nil || len(a.Payload) > 0 {
			t.Fatalf("a step encoded %d bytes", len(a.Payload))
		}
		payload, err := a.late.bytes()
		got = new(wire.Compiled)
		if err != nil || len(payload) != a.late.size || proto.Unmarshal(payload, got) != nil {
			t.Errorf("%d bytes, %v, want %d", len(payload), err, a.late.size)
		}
	}
	if !bytes.Equal(got.GetInfo().GetOptimized(), optimized) {
		t.Errorf("the client gets %d bytes, want %d", len(got.GetInfo().GetOptimized()), len(optimized))
	}
}

// What was put before and after a long message comes before and after it, and several peers may get the same one.
func TestLateMessagesKeepTheirPlace(t *testing.T) {
	m := &wire.Compiled{Info: &wire.ProgramInfo{Optimized: make([]byte, 2*lateSize)}}
	l := lateMessage(m, proto.Size(m))
	var running, readers sync.WaitGroup
	for range 3 {
		o, theirs := openOutbox(&running)
		o.put(wire.KindPeers, []byte("before"), nil)
		o.put(wire.KindCompiled, nil, l)
		o.put(wire.KindDrop, []byte("after"), nil)
		if o.later != nil {
			o.later.Flush(true)
		}
		readers.Go(func() {
			for _, want := range []struct {
				kind  wire.Kind
				bytes int
			}{{wire.KindPeers, 6}, {wire.KindCompiled, l.size}, {wire.KindDrop, 5}} {
				kind, payload, err := theirs.Recv()
				if err != nil || kind != want.kind || len(payload) != want.bytes {
					t.Errorf("kind %d with %d bytes, %v, want kind %d with %d", kind, len(payload), err, want.kind, want.bytes)
				}
			}
			theirs.Close()
			o.end()
		})
	}
	readers.Wait()
	running.Wait()
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
