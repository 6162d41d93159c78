package link

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/transporttest"
)

const (
	lease = 10 * time.Second
	term  = 7
)

var credentials = transport.Credentials{Token: "open sesame", Versions: map[string]string{"jax": "0.6"}}

// world has a controller's end of links, over a network that tests break.
type world struct {
	t        *testing.T
	network  *inproc.Network
	acceptor *Acceptor
	let      chan transport.Conn // links that have begun
	running  sync.WaitGroup
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, c Config, test func(*world)) {
	bubble.Test(t, func(t *testing.T) {
		w := &world{t: t, network: inproc.NewNetwork(credentials), let: make(chan transport.Conn, 1)}
		w.network.Conditions = &inproc.Conditions{Delay: func(string, string) time.Duration { return time.Millisecond }}
		c.Term = term
		w.acceptor = NewAcceptor(c)
		l := statustest.Value(w.network.Listen("controller")).OK(t)
		w.running.Go(func() { w.accept(l) })
		test(w)
		l.Close()
		w.running.Wait()
	})
}

func (w *world) accept(l transport.Listener) {
	for in, err := l.Accept(); err == nil; in, err = l.Accept() {
		resumes, refuse := w.acceptor.Take(in)
		switch {
		case refuse != nil:
			refuse()
		case !resumes:
			statustest.Check(w.t, in.Welcome(&wire.Welcome{HeartbeatMs: 1000}))
			w.let <- in.Conn
		}
	}
}

// dial begins a link, and returns both its ends.
func (w *world) dial() (near, far transport.Conn, welcome *wire.Welcome) {
	near, welcome, err := Dial(context.Background(), w.network, "inproc:controller",
		&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "client"})
	statustest.OK(w.t, err)
	far = <-w.let
	time.Sleep(10 * time.Millisecond) // the other end knows that its welcome arrived
	return near, far, welcome
}

// sender sends numbers until it has sent n, in all the ways there are.
func send(c transport.Conn, n int, pause func()) error {
	b := c.(transport.Batcher)
	for i := range n {
		var err error
		switch payload := fmt.Appendf(nil, "%d", i); i % 5 {
		case 0:
			err = b.Later(wire.KindRun, payload)
		case 1, 2:
			err = b.Join(wire.KindRun, payload, true)
		case 3:
			err = b.Join(wire.KindRun, payload, false)
		default:
			err = c.Send(wire.KindRun, payload)
		}
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		pause()
	}
	b.Flush(true)
	return nil
}

// receive takes numbers until it has n, in their order.
func receive(c transport.Conn, n int) error {
	return transporttest.Frames(c, n, func(i int, payload []byte) error {
		if want := fmt.Sprint(i); string(payload) != want {
			return fmt.Errorf("got frame %q, want %q", payload, want)
		}
		return nil
	})
}

// end closes both ends, and waits until the readers know.
func end(ends ...transport.Conn) {
	for _, c := range ends {
		c.Close()
	}
}

// A Conn whose peer is away keeps so much, and then has senders wait.
func TestSendWaitsWhereThePeerAcknowledgesNothing(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		received := make(chan error, 2)
		go func() { received <- drain(near) }()
		go func() { received <- drain(far) }()
		synctest.Wait() // both have heard of the other
		w.network.Cut("client")
		w.network.Break("client")
		var sent atomic.Int64
		go func() {
			for near.Send(wire.KindRun, make([]byte, 1<<10)) == nil {
				sent.Add(1)
			}
		}()
		bounded := func(when string, atLeast int64) {
			synctest.Wait()
			if kept, n := near.(*Conn).Pending(), sent.Load(); kept > keepBytes+2<<10 || n < atLeast {
				t.Errorf("%d bytes of %d frames are kept %s; want at most %d and one frame more, of %d or more", kept, n, when,
					keepBytes, atLeast)
			}
		}
		time.Sleep(lease / 2)
		bounded("while it is away", keepBytes/(1<<10+wire.Header))
		if n := sent.Load(); n > 1000 {
			t.Errorf("%d frames were sent while it is away", n)
		}
		w.network.Heal("client")
		time.Sleep(lease)
		bounded("after it has come back", 2000)
		end(near, far)
		for range 2 {
			<-received
		}
	})
}

// A goroutine that receives may send meanwhile, however much is not acknowledged: it alone reads acknowledgments.
func TestSendOfTheReceivingGoroutineDoesNotWaitForItself(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		received := make(chan error, 1)
		go func() { received <- drain(far) }()
		for range 4 * keepBytes >> 10 {
			statustest.OK(t, near.Send(wire.KindRun, make([]byte, 1<<10)))
		}
		end(near, far)
		<-received
	})
}

// While Send waits for the line, since no goroutine reads acknowledgments, nothing else waits for Send.
func TestSendThatWaitsForTheLineHoldsNothingUp(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		statustest.OK(t, far.Send(wire.KindRun, []byte("from far")))
		var sent atomic.Int64
		go func() {
			for near.Send(wire.KindRun, make([]byte, 1<<10)) == nil {
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n < keepBytes>>11 || n > 2*keepBytes>>10 {
			t.Errorf("%d frames were sent before Send waited, want about %d", n, keepBytes>>10)
		}
		near.(transport.Batcher).Flush(true)
		kind, payload, err := near.Recv()
		if kind != wire.KindRun || string(payload) != "from far" || err != nil {
			t.Errorf("got %v %q, %v", kind, payload, err)
		}
		end(near, far)
	})
}

// If no goroutine receives, a Conn ends at both sides before it keeps more than its bound.
func TestMemoryIsBoundedWhereNothingIsReceived(t *testing.T) {
	defer KeepMost(2 << 20)()
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		ended := make(chan error, 1)
		go func() { ended <- drain(far) }()
		var err error
		for n := 0; err == nil; n += 1 << 10 {
			if n > 3<<20 {
				t.Fatal("3 MiB are kept, and may not be")
			}
			err = near.Send(wire.KindRun, make([]byte, 1<<10))
		}
		statustest.Fails(t, "the sender", err, status.Unavailable, "not acknowledged")
		statustest.Fails(t, "the receiver", <-ended, status.Unavailable)
		end(near, far)
	})
}

// What is told of a break may wait for a lock that a caller of Send holds, however much is not acknowledged.
func TestSendDoesNotWaitForWhoIsToldOfABreak(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		c := near.(*Conn)
		var lock sync.Mutex
		told := make(chan error, 2)
		c.Watch(func(why error) {
			lock.Lock()
			defer lock.Unlock()
			told <- why
		})
		ended := make(chan error, 2)
		go func() { ended <- drain(near) }()
		go func() { ended <- drain(far) }()
		synctest.Wait() // both have heard of the other
		lock.Lock()
		w.network.Break("client")
		for range 2 * keepBytes >> 10 {
			statustest.OK(t, near.Send(wire.KindRun, make([]byte, 1<<10)))
		}
		lock.Unlock()
		if why := <-told; why == nil {
			t.Error("a break is told without a reason")
		}
		if why := <-told; why != nil {
			t.Errorf("that it is mended is told as %v", why)
		}
		end(near, far)
		<-ended
		<-ended
	})
}

// A peer may have given a connection up that this side still has: its next one says why that ended.
func TestPeerThatConnectsAnewIsNotSaidToBeClosedHere(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, welcome := w.dial()
		told := make(chan error, 9)
		far.(transport.Watched).Watch(func(why error) { told <- why })
		ended := make(chan error, 2)
		go func() { ended <- drain(near) }()
		go func() { ended <- drain(far) }()
		time.Sleep(time.Second) // both have heard of the other
		anew, _, err := w.network.Dial(context.Background(), "inproc:controller", &wire.Hello{Role: wire.Role_ROLE_CLIENT,
			Resume: &wire.Resume{Link: welcome.Link.Id, Secret: welcome.Link.Secret, Term: term, Attempt: 1}})
		statustest.OK(t, err)
		statustest.Fails(t, "the reason", <-told, status.Unavailable, transport.Anew)
		anew.Close()
		end(near, far)
		<-ended
		<-ended
	})
}

// What the line does not accept is refused, and the link goes on.
func TestFrameThatCannotBeSentLeavesTheLink(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		for _, kind := range []wire.Kind{0, wire.KindReceived, wire.KindBurst} {
			statustest.Fails(t, fmt.Sprintf("a message of kind %d", kind), near.Send(kind, nil), status.InvalidArgument)
		}
		statustest.Fails(t, "a message that is too long", near.Send(wire.KindRun, make([]byte, wire.MaxFrame+1)),
			status.InvalidArgument)
		statustest.Check(t, near.Send(wire.KindHeartbeat, nil)) // is not numbered
		statustest.Check(t, near.Send(wire.KindRun, []byte("on")))
		if kind, payload, err := far.Recv(); kind != wire.KindRun || string(payload) != "on" || err != nil {
			t.Errorf("got %v %q, %v", kind, payload, err)
		}
		statustest.Equal(t, far.(offering).received.Count(), near.(*Conn).sent.Count(), "frames were received")
		end(near, far)
	})
}

// drain receives until the Conn ends, for the reason that is returned.
func drain(c transport.Conn) error {
	for {
		if _, _, err := c.Recv(); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // a frame
	}
}

func TestLinkEndsAtBothSidesWhenTheLeaseIsOver(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		statustest.OK(t, near.Send(wire.KindRun, nil))
		statustest.OK(t, statustest.Of2(far.Recv()))
		begun := time.Now()
		w.network.Cut("client")
		w.network.Break("client")
		ended := make(chan error, 2)
		for _, c := range []transport.Conn{near, far} {
			go func() { ended <- drain(c) }()
		}
		for range 2 {
			err := <-ended
			statustest.Fails(t, "the error", err, status.Unavailable, "10s")
			// An attempt that is under way has until transport.HelloTime.
			if took := time.Since(begun); took < lease || took > lease+transport.HelloTime {
				t.Errorf("it ended after %v, with a lease of %v", took, lease)
			}
		}
		if n := len(w.acceptor.links); n > 0 {
			t.Errorf("%d links are kept", n)
		}
	})
}

// If the process at the other end has died, its link ends without waiting for the lease.
func TestLinkEndsWhenItsProcessHasDied(t *testing.T) {
	why := status.New(status.Unavailable, "it was killed")
	died := func(ctx context.Context, h *wire.Hello) error {
		select {
		case <-time.After(time.Second):
			return why
		case <-ctx.Done():
			return nil
		}
	}
	inWorld(t, Config{Lease: lease, Died: died}, func(w *world) {
		near, far, _ := w.dial()
		begun, dead := time.Now(), make(chan struct{})
		go func() {
			defer close(dead)
			if err := drain(far); err != why || time.Since(begun) > 2*time.Second {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		}()
		near.(*Conn).line.Close()
		<-dead
		end(near)
	})
}

// After a goodbye nothing is resumed.
func TestGoodbyeEndsALink(t *testing.T) {
	inWorld(t, Config{Lease: lease}, func(w *world) {
		near, far, _ := w.dial()
		statustest.OK(t, near.Send(wire.KindGoodbye, []byte("bye")))
		near.Close()
		if kind, payload, err := far.Recv(); kind != wire.KindGoodbye || string(payload) != "bye" || err != nil {
			t.Fatalf("got %v %q, %v", kind, payload, err)
		}
		begun := time.Now()
		if _, _, err := far.Recv(); err == nil || time.Since(begun) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

// collect receives at both ends: it returns the texts that come, and each end's end.
func collect(ends ...transport.Conn) (got chan string, ended chan error) {
	got, ended = make(chan string, 10), make(chan error, len(ends))
	for _, c := range ends {
		go func() {
			for {
				_, payload, err := c.Recv()
				if err != nil {
					ended <- err
					return
				}
				got <- string(payload)
			}
		}()
	}
	return got, ended
}

// A dialer that may not resume a link is told why, and the link goes on.
func TestOnlyItsOwnerResumesALink(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(h *wire.Hello)
		code   status.Code
		says   string
	}{
		{"no such link", func(h *wire.Hello) { h.Resume.Link = 99 }, status.NotFound, "link 99 has ended"},
		{"another's secret", func(h *wire.Hello) { h.Resume.Secret = make([]byte, secretSize) }, status.PermissionDenied,
			"the secret that was shown is not its"},
		{"no secret", func(h *wire.Hello) { h.Resume.Secret = nil }, status.PermissionDenied, "the secret"},
		{"another's token", func(h *wire.Hello) { h.Token = "mellon" }, status.Unauthenticated, "the token is not"},
		{"a tenant's token", func(h *wire.Hello) { h.Token = transport.Tenant.Token(credentials.Token) },
			status.PermissionDenied, "other credentials"},
		{"another version", func(h *wire.Hello) { h.Versions = map[string]string{"jax": "0.5"} },
			status.FailedPrecondition, "jax differs"},
		{"another role", func(h *wire.Hello) { h.Role = wire.Role_ROLE_WORKER }, status.PermissionDenied,
			"other credentials"},
		{"an earlier term", func(h *wire.Hello) { h.Resume.Term = term - 1 }, status.FailedPrecondition, "has started since"},
		{"a later term", func(h *wire.Hello) { h.Resume.Term = term + 1 }, status.FailedPrecondition, "has taken over"},
		{"a replayed hello", func(h *wire.Hello) { h.Resume.Attempt = 1 }, status.Aborted, "attempt 1 to resume link 1"},
		{"frames that were not sent", func(h *wire.Hello) { h.Resume.Received = 99 }, status.InvalidArgument,
			"received 99 messages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Config{Lease: lease}, func(w *world) {
				near, far, welcome := w.dial()
				got, ended := collect(near, far)
				time.Sleep(time.Second)
				w.network.Break("client") // attempt 1
				time.Sleep(time.Second)
				hello := &wire.Hello{Role: wire.Role_ROLE_CLIENT, Resume: &wire.Resume{Link: welcome.Link.Id,
					Secret: welcome.Link.Secret, Term: welcome.Link.Term, Attempt: 2}}
				c.change(hello)
				_, _, err := w.network.Dial(context.Background(), "inproc:controller", hello)
				statustest.Fails(t, "the error", err, c.code, c.says)
				time.Sleep(2 * time.Second)
				for _, c := range []transport.Conn{near, far} {
					statustest.Check(t, c.Send(wire.KindRun, []byte("on")))
				}
				for range 2 {
					statustest.Equal(t, <-got, "on", "got")
				}
				end(near, far)
				<-ended
				<-ended
			})
		})
	}
}

// Only clients and workers get a link.
func TestWhoGetsALink(t *testing.T) {
	for _, c := range []struct {
		role   wire.Role
		linked bool
	}{{wire.Role_ROLE_CLIENT, true}, {wire.Role_ROLE_WORKER, true}, {wire.Role_ROLE_ADMIN, false}} {
		a := NewAcceptor(Config{Lease: lease, Term: term})
		conn, other := inproc.Pair("a", "b")
		in := &transport.Incoming{Conn: conn, Hello: &wire.Hello{Role: c.role}}
		if resumes, refuse := a.Take(in); resumes || refuse != nil {
			t.Errorf("%v: it resumes: %v", c.role, resumes)
		}
		if _, linked := in.Conn.(transport.Watched); linked != c.linked {
			t.Errorf("%v is a link: %v, want %v", c.role, linked, c.linked)
		}
		in.Conn.Close()
		other.Close()
		if n := len(a.links); n > 0 {
			t.Errorf("%d links are kept", n)
		}
	}
}

// Without a lease a connection ends when it breaks.
func TestConnectionWithoutALeaseEndsWhenItBreaks(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		near, far, welcome := w.dial()
		if _, is := near.(*Conn); is || welcome.Link != nil {
			t.Errorf("a connection is a link, and its lease is 0: %v", welcome.Link)
		}
		w.network.Break("client")
		for _, c := range []transport.Conn{near, far} {
			statustest.Fails(t, "the error", drain(c), status.Unavailable)
		}
	})
}

// BenchmarkFrame is what a link adds to a frame: it is numbered, kept, acknowledged and forgotten. In turns, a batch
// goes over a connection as it is and a batch over a link. Nothing wakes for a single frame.
func BenchmarkFrame(b *testing.B) {
	const batch = 64
	for _, size := range []int{20, 200, 2000} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			plain, end := inproc.Pair("a", "b")
			nearLine, farLine := inproc.Pair("a", "b")
			near, far := newConn(nearLine, &dialer{}), newConn(farLine, &dialer{})
			payload := make([]byte, size)
			pass := func(from, to transport.Conn) time.Duration {
				begun := time.Now()
				for range batch {
					statustest.OK(b, from.Send(wire.KindRun, payload))
				}
				for range batch {
					statustest.OK(b, statustest.Of2(to.Recv()))
				}
				return time.Since(begun)
			}
			var off, on time.Duration
			most := 0
			b.ReportAllocs()
			for b.Loop() {
				off += pass(plain, end) + pass(end, plain)
				on += pass(near, far)
				most = max(most, near.Pending())
				on += pass(far, near)
			}
			frames := float64(b.N * 2 * batch)
			b.ReportMetric(float64(off.Nanoseconds())/frames, "off-ns/frame")
			b.ReportMetric(float64(on.Nanoseconds())/frames, "on-ns/frame")
			b.ReportMetric(float64(most), "kept-bytes")
			b.ReportMetric(0, "ns/op")
			for _, c := range []transport.Conn{plain, end, near, far} {
				c.Close()
			}
		})
	}
}
