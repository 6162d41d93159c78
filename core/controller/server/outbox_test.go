package server

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

// openOutbox opens an outbox to a peer, and starts it. The caller ends it, and closes the peer's side.
func openOutbox(running *sync.WaitGroup) (*outbox, transport.Conn) {
	ours, theirs := inproc.Pair("controller", "peer")
	o := new(outbox)
	o.open(&transport.Incoming{Conn: ours}, running)
	o.start()
	return o, theirs
}

// send puts a message and lets it leave.
func send(o *outbox, kind wire.Kind, payload []byte) {
	if o.put(kind, payload) {
		o.leave(true)
	}
}

// lateFrame is a frame of a message that is encoded when it is sent.
func lateFrame(kind wire.Kind, m proto.Message) frame {
	return frame{message: &message{kind: kind, late: encodedOnce(controller.LateMessage(m, proto.Size(m)))}}
}

// A peer that does not read holds up no other, and not the end either.
func TestOutboxOfAPeerThatDoesNotRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		o, theirs := openOutbox(&running)
		payload := make([]byte, 1<<20)
		for range 4 {
			send(o, wire.KindDispatch, payload)
		}
		begun := time.Now()
		o.end()
		running.Wait()
		if took := time.Since(begun); took > endTime {
			t.Errorf("the end took %v, want at most %v", took, endTime)
		}
		// The reader receives all that was sent before, and then the end.
		n := 0
		for {
			if _, _, err := theirs.Recv(); err != nil {
				break
			}
			n++
		}
		if n == 0 || n == 4 {
			t.Errorf("a peer that read nothing until the end got %d frames of 4, want those that its connection held", n)
		}
		theirs.Close()
	})
}

// What the goroutine has sent takes room in the connection, too.
func TestOutboxDoesNotWaitBehindWhatWasEncodedLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		o, theirs := openOutbox(&running)
		send(o, wire.KindDispatch, make([]byte, 10))
		o.putBehind(lateFrame(wire.KindCompile, &wire.Compile{Code: make([]byte, 4<<20)}), nil)
		o.leave(true)
		synctest.Wait()
		send(o, wire.KindDispatch, make([]byte, 10)) // returns, though the peer does not read
		for range 3 {
			statustest.OK(t, statustest.Of2(theirs.Recv()))
		}
		o.end()
		running.Wait()
		theirs.Close()
	})
}

// The last resort: a message that no frame holds ends its connection, and the peer is told why.
func TestOutboxTellsOfAMessageThatIsTooLong(t *testing.T) {
	var running sync.WaitGroup
	o, theirs := openOutbox(&running)
	send(o, wire.KindReport, make([]byte, wire.MaxFrame+1))
	kind, payload, err := theirs.Recv()
	m := new(wire.Goodbye)
	if err != nil || kind != wire.KindGoodbye || proto.Unmarshal(payload, m) != nil ||
		!strings.Contains(m.Status.GetMessage(), "a message of kind Report would have 67108865 bytes") {
		t.Errorf("the peer got a message of kind %d, %v, %v", kind, m, err)
	}
	if _, _, err := theirs.Recv(); err == nil {
		t.Error("the connection goes on")
	}
	running.Wait()
	theirs.Close()
}

// What was put before and after a long message comes before and after it, and several peers may get the same one.
func TestLateMessagesKeepTheirPlace(t *testing.T) {
	m := &wire.Compiled{Info: &wire.ProgramInfo{Optimized: make([]byte, 1<<20)}}
	l := lateFrame(wire.KindCompiled, m)
	var running, readers sync.WaitGroup
	for range 3 {
		o, theirs := openOutbox(&running)
		o.put(wire.KindPeers, []byte("before"))
		o.putBehind(l, nil)
		o.put(wire.KindDrop, []byte("after"))
		o.leave(true)
		readers.Go(func() {
			for _, want := range []struct {
				kind  wire.Kind
				bytes int
			}{{wire.KindPeers, 6}, {wire.KindCompiled, l.late.Size}, {wire.KindDrop, 5}} {
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

// What was put before the end arrives before it, also where it leaves only afterwards, and then nothing waits any more.
func TestOutboxEndsOnceAllHasLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		o, theirs := openOutbox(&running)
		o.putBehind(frame{message: &message{kind: wire.KindDispatch, payload: []byte("one")}}, nil)
		o.put(wire.KindDispatch, []byte("two"))
		o.end()
		begun := time.Now()
		o.leave(true)
		running.Wait()
		statustest.Equal(t, time.Since(begun), 0, "the time until the connection is closed")
		for _, want := range []string{"one", "two"} {
			_, payload, err := theirs.Recv()
			statustest.OK(t, err)
			statustest.Equal(t, string(payload), want, "the message")
		}
		if _, _, err := theirs.Recv(); err == nil {
			t.Error("the connection goes on")
		}
		theirs.Close()
	})
}

// Messages that differ by their receivers arrive whole and in order, also beyond those that are copied under the lock.
func TestOwnPartsArriveHoweverManyThereAre(t *testing.T) {
	s := newSeat(t, false, false, 3, 1)
	head, own := []byte("head"), make([]byte, maxHanded/2)
	s.server.mu.Lock()
	s.server.handed = 0
	for i := range byte(2) {
		a := &controller.Action{Kind: controller.Send, Wire: wire.KindReport, Payload: head}
		for w := range s.workers {
			a.To = append(a.To, s.workers[w].link.number)
			a.Own = append(a.Own, append(own[:len(own):len(own)], i, byte(w)))
		}
		s.server.send(a)
	}
	copy(head, "none") // State uses the memory of its payloads again
	full := s.server.takeFull(nil)
	s.server.mu.Unlock()
	s.server.leave(full)
	for w, f := range s.workers {
		for i := range byte(2) {
			kind, payload, err := f.Recv()
			for err == nil && kind != wire.KindReport {
				kind, payload, err = f.Recv()
			}
			if want := slices.Concat([]byte("head"), own, []byte{i, byte(w)}); err != nil || !bytes.Equal(payload, want) {
				t.Fatalf("worker %d has %d bytes, %v, for message %d, want %d", w, len(payload), err, i, len(want))
			}
		}
	}
}
