//go:build !race && !invariants

package controller

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
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
			m := wiretest.Decode[wire.Completed](b.t, a.Payload)
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

// A transfer that just fits into a client's message is sent to its workers with what these need to know of its moves,
// or fails with a sentence, as what reads its array does, where that is too much for a frame.
func TestTransferThatGrowsBeyondAFrame(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	op := uint64(1)
	for _, c := range []struct {
		moves int
		fits  bool
	}{{2, true}, {2000, false}} { // there are 4 KiB of room
		op++
		m := &wire.Transfer{Op: op, Object: op, Array: &wire.Array{Dtype: uint32(shape.F32)}}
		for i := range c.moves {
			m.Moves = append(m.Moves, &wire.Move{Source: 1, From: uint32(i % 2), To: uint32(1 - i%2)})
		}
		const lengths = 8 // bytes that say how long the array's message and its text are
		m.Array.Memory = strings.Repeat("x", wire.MaxMessage-proto.Size(m)-lengths)
		sent := 0
		actions := b.say(b.client, wire.KindTransfer, m)
		for _, a := range actions {
			if a.Kind == Send && a.Wire == wire.KindDispatch {
				sent += len(a.To)
			}
		}
		err := b.ends(actions)[op]
		if c.fits {
			statustest.Equal(t, sent, 2, "to how many workers a transfer of %d moves is sent", c.moves)
			statustest.Check(t, err)
			continue
		}
		statustest.Fails(t, "a long transfer", err, status.InvalidArgument, "move fewer shards at a time")
		op++
		b.say(b.client, wire.KindFetch, &wire.Fetch{Op: op, Object: op - 1})
		statustest.Fails(t, "what reads its array", b.ends(nil)[op], status.InvalidArgument, "move fewer shards at a time")
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

// What workers are told of many things goes in several messages, each of which a frame holds by far.
func TestWorkersAreToldOfManyThings(t *testing.T) {
	for _, mib := range []int{0, 63, 64, 65, 200} {
		size := mib << 20
		b := newBed(t, Config{}, 1, 1)
		free := make([]uint64, size/10)
		for i := range free {
			free[i] = 1<<63 + uint64(i) // ten bytes
		}
		b.st.letGo(b.st.sessions[1], free, setOf(0))
		b.hears(wire.KindDispatch, size)

		const workers = 40 // of long addresses
		b = newBed(t, Config{}, 0, 1)
		for i := range uint64(workers) {
			b.step(Event{Kind: Join, Conn: 100 + i, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: fmt.Sprint(i),
				Worker: &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{}},
					Addresses: []string{strings.Repeat("a", size/workers)}}}})
		}
		var all set
		for slot := range workers {
			all.add(slot)
		}
		b.st.introduce(all)
		b.hears(wire.KindPeers, size)
	}
}

// hears checks that messages to the first worker have so many bytes, each far fewer than a frame.
func (b *bed) hears(kind wire.Kind, bytes int) {
	b.t.Helper()
	all := 0
	for _, a := range b.st.out {
		if a.Wire != kind || a.To[0] != b.st.workers[0].to[0] {
			continue
		}
		n := len(sent(a))
		if n > wire.MaxFrame/4 {
			b.t.Errorf("a message of kind %d has %d bytes", kind, n)
		}
		all += n
	}
	if all < bytes/100*99 || all > bytes+bytes/10+1<<20 {
		b.t.Errorf("messages of kind %d have %d bytes, want those of %d", kind, all, bytes)
	}
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
		m := wiretest.Decode[wire.Compiled](t, a.Payload)
		err := m.Status.Err()
		statustest.Fails(t, "the client", err, status.ResourceExhausted, "worker w0")
		return
	}
	t.Error("the client got no answer")
}
