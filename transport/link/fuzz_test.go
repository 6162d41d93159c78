package link

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// script sends frames over a connection, each of a kind, a length and so many bytes, until it breaks.
func script(c transport.Conn, frames []byte) {
	for len(frames) >= 2 {
		kind, n := wire.Kind(frames[0]), min(int(frames[1]), len(frames)-2)
		if c.Send(kind, frames[2:2+n]) != nil {
			return
		}
		frames = frames[2+n:]
	}
}

// addScripts adds what a peer may say of its counts, and what it may send.
func addScripts(f *testing.F, says ...proto.Message) {
	frame := func(kind wire.Kind, payload ...byte) []byte {
		return append([]byte{byte(kind), byte(len(payload))}, payload...)
	}
	count := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for _, m := range append(says, nil) {
		said := []byte{}
		if m != nil {
			said = statustest.Value(proto.Marshal(m)).OK(f)
		}
		for _, frames := range [][]byte{
			{}, frame(wire.KindReceived, count(3)...), frame(wire.KindReceived, count(1<<63)...), frame(wire.KindReceived, 1),
			append(frame(wire.KindReceived, count(2)...), frame(wire.KindReceived, count(1)...)...),
			frame(wire.KindBurst, wire.AppendFrame(nil, wire.KindRun, []byte("a"))...), frame(wire.KindBurst, 9, 9),
			frame(wire.KindGoodbye), frame(wire.KindRestarted), frame(wire.KindHeartbeat),
		} {
			f.Add(said, frames)
		}
	}
}

// known reports whether an error says what is wrong.
func known(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || status.CodeOf(err) == status.Unknown || err.Error() == "" {
		t.Errorf("%s ended with %v", what, err)
	}
}

// FuzzResume has the dialer of a link resume it with whatever counts and numbers, and send whatever it likes then. The
// link ends by the end of its lease, and another one goes on.
func FuzzResume(f *testing.F) {
	addScripts(f, &wire.Resume{Received: 3}, &wire.Resume{Received: 4}, &wire.Resume{Received: 1 << 63},
		&wire.Resume{Attempt: 1<<64 - 1}, &wire.Resume{Term: term - 1, Received: 2}, &wire.Resume{Link: 1})
	f.Fuzz(func(t *testing.T, says, frames []byte) {
		inWorld(t, Config{Lease: lease}, func(w *world) {
			near, far, _ := w.dial()
			rude, link, welcome := w.dial()
			resume := &wire.Resume{Link: welcome.Link.Id, Secret: welcome.Link.Secret, Term: welcome.Link.Term, Attempt: 1}
			if (proto.UnmarshalOptions{Merge: true}).Unmarshal(says, resume) != nil {
				resume.Reset()
			}
			ended := make(chan error, 1)
			go func() { ended <- drain(link) }()
			for range 3 {
				statustest.OK(t, link.Send(wire.KindRun, []byte("a")))
			}
			rude.(*Conn).last.Close()
			for range 2 { // once more, with a number that was used
				c, _, err := w.network.Dial(context.Background(), "inproc:controller",
					&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "client", Resume: proto.CloneOf(resume)})
				if err != nil {
					known(t, "a refused connection", err)
					continue
				}
				script(c, frames)
				time.Sleep(time.Second)
				c.Close()
			}
			select {
			case err := <-ended:
				known(t, "the link", err)
			case <-time.After(2 * lease):
				t.Error("the link outlives its lease")
			}
			rude.Close()
			link.Close()
			go func() { ended <- receive(near, 5) }()
			statustest.Check(t, send(far, 5, func() {}))
			statustest.Check(t, <-ended)
			end(near, far)
		})
	})
}

// FuzzResumed has the controller answer a dialer that resumes its link with whatever counts and terms, and send
// whatever it likes then. The dialer's end says what was wrong, or lasts until it is closed.
func FuzzResumed(f *testing.F) {
	addScripts(f, &wire.Resumed{Received: 3}, &wire.Resumed{Received: 4}, &wire.Resumed{Received: 1 << 63},
		&wire.Resumed{Term: term + 1}, &wire.Resumed{Term: term + 1, Received: 1}, &wire.Resumed{Term: 1})
	f.Fuzz(func(t *testing.T, says, frames []byte) {
		resumed := new(wire.Resumed)
		if proto.Unmarshal(says, resumed) != nil {
			resumed = nil
		}
		inWorld(t, Config{Lease: lease}, func(w *world) {
			l := statustest.Value(w.network.Listen("rude")).OK(t)
			w.running.Go(func() {
				for in, err := l.Accept(); err == nil; in, err = l.Accept() {
					answer := &wire.Welcome{HeartbeatMs: 1000}
					if in.Hello.Resume == nil {
						answer.Link = &wire.Link{Id: 1, Term: term, LeaseMs: lease.Milliseconds()}
					} else {
						answer.Resumed = resumed
					}
					if in.Welcome(answer) != nil {
						continue
					}
					w.running.Go(func() {
						time.Sleep(time.Second)
						if in.Hello.Resume != nil {
							script(in.Conn, frames)
							time.Sleep(time.Second)
						}
						in.Close()
					})
				}
			})
			near, _, err := Dial(context.Background(), w.network, "inproc:rude", &wire.Hello{Role: wire.Role_ROLE_CLIENT})
			statustest.OK(t, err)
			for range 3 {
				statustest.OK(t, near.Send(wire.KindRun, []byte("a")))
			}
			ended := make(chan error, 1)
			go func() { ended <- drain(near) }()
			select {
			case err = <-ended:
			case <-time.After(3 * lease):
				near.Close()
				if err = <-ended; status.CodeOf(err) != status.Cancelled {
					t.Errorf("it was closed, and ended with %v", err)
				}
			}
			known(t, "the link", err)
			near.Close()
			l.Close()
		})
	})
}
