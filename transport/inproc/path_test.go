package inproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// connected returns both ends of a connection of a part to a hub of a network.
func connected(t *testing.T, n *Network, part string) (ours transport.Conn, theirs *transport.Incoming) {
	t.Helper()
	l, err := n.Listen("center of " + part)
	statustest.OK(t, err)
	t.Cleanup(func() { l.Close() })
	came := make(chan *transport.Incoming, 1)
	go func() {
		in, err := l.Accept()
		if err == nil {
			err = in.Welcome(&wire.Welcome{})
		}
		statustest.Check(t, err)
		came <- in
	}()
	ours, _, err = n.Dial(context.Background(), l.Address(), &wire.Hello{Name: part})
	statustest.OK(t, err)
	return ours, <-came
}

func send(t *testing.T, c transport.Conn, n int) {
	t.Helper()
	statustest.OK(t, c.Send(wire.KindRun, []byte{byte(n)}))
}

func receive(t *testing.T, c transport.Conn) int {
	t.Helper()
	_, payload, err := c.Recv()
	statustest.OK(t, err)
	return int(payload[0])
}

// Messages take their time, stay in order on a connection, and overtake each
// other on different ones.
func TestDelayedMessagesStayInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := NewNetwork(transport.Credentials{})
		delays := map[string]time.Duration{"slow": 5 * time.Millisecond, "fast": time.Millisecond}
		n.Conditions = &Conditions{Delay: func(from, to string) time.Duration { return delays[from] }}
		slow, atSlow := connected(t, n, "slow")
		fast, atFast := connected(t, n, "fast")
		begun := time.Now()
		send(t, slow, 1)
		delays["slow"] = 0
		send(t, slow, 2) // not before 1
		send(t, fast, 3)
		for _, want := range []struct {
			c     transport.Conn
			n     int
			after time.Duration
		}{{atFast, 3, time.Millisecond}, {atSlow, 1, 5 * time.Millisecond}, {atSlow, 2, 5 * time.Millisecond}} {
			if got := receive(t, want.c); got != want.n || time.Since(begun) != want.after {
				t.Errorf("got message %d after %v, want %d after %v", got, time.Since(begun), want.n, want.after)
			}
		}
		// The end comes behind what was sent.
		delays["slow"] = time.Second
		send(t, slow, 4)
		slow.Close()
		statustest.Equal(t, receive(t, atSlow), 4, "got message")
		statustest.Fails(t, "behind the last message", statustest.Of2(atSlow.Recv()), status.Unavailable)
		fast.Close()
	})
}

// What is cut off is heard again when it heals in time, and is lost when not; what
// breaks is lost at once.
func TestCutPathHealsOrIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := NewNetwork(transport.Credentials{})
		n.Conditions = &Conditions{Delay: func(string, string) time.Duration { return time.Millisecond },
			Silence: time.Second}
		a, atA := connected(t, n, "a")
		b, atB := connected(t, n, "b")
		n.Cut("a")
		send(t, a, 1)
		send(t, atA, 2)
		send(t, b, 3)
		statustest.Equal(t, receive(t, atB), 3, "beside a cut: got")
		time.Sleep(time.Second / 2)
		if a.Buffered() || atA.Buffered() {
			t.Error("a message came over a connection that is cut")
		}
		n.Heal("a")
		if x, y := receive(t, atA), receive(t, a); x != 1 || y != 2 {
			t.Errorf("after a cut: got %d and %d, want 1 and 2", x, y)
		}
		n.Cut("a")
		begun := time.Now()
		for _, c := range []transport.Conn{a, atA} {
			_, _, err := c.Recv()
			statustest.Fails(t, "a cut that does not heal", err, status.Unavailable,
				"a and center of a have not heard of each other for 1s")
			if got := c.Send(wire.KindRun, nil); got != err {
				t.Errorf("sending returns %v, receiving %v", got, err)
			}
		}
		statustest.Equal(t, time.Since(begun), time.Second, "time until it was noticed")
		send(t, b, 4)
		n.Break("b")
		statustest.Fails(t, "a connection that broke", statustest.Of2(atB.Recv()), status.Unavailable, "broke")
	})
}

// If a link's connection breaks behind a message, that one can be received, and what was sent behind it is lost.
func TestLinkBreaksBehindAMessage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := NewNetwork(transport.Credentials{})
		n.Conditions = &Conditions{Delay: func(string, string) time.Duration { return time.Millisecond },
			Breaks: func(from, to string) bool { return from == "a" }}
		a, atA := connected(t, n, "a") // its Hello is not of a link yet
		send(t, a, 1)
		statustest.Equal(t, receive(t, atA), 1, "before it is a link: got")
		statustest.OK(t, a.Send(wire.KindReceived, []byte{2}))
		send(t, a, 3)
		statustest.Equal(t, receive(t, atA), 2, "got")
		for _, c := range []transport.Conn{a, atA} {
			statustest.Fails(t, "a connection that broke", statustest.Of2(c.Recv()), status.Unavailable, "broke")
		}
	})
}

// A connection with conditions is a connection.
func TestNetworkWithDelay(t *testing.T) {
	n := NewNetwork(transport.Credentials{})
	n.Conditions = &Conditions{Delay: func(string, string) time.Duration { return rand.N(200 * time.Microsecond) }}
	names := 0
	transporttest.Conn(t, 1<<20, func(t *testing.T) (a, b transport.Conn) {
		names++
		l := statustest.Value(n.Listen(fmt.Sprintf("part%d", names))).OK(t)
		t.Cleanup(func() { l.Close() })
		return transporttest.Greeted(t, l, n)
	})
}

// Messages that wait for each other leave together, as by one write: those that join are one message, all arrive at one
// moment, and a break behind the first takes the others with it. Closing sends what waits.
func TestHeldMessagesTravelTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := NewNetwork(transport.Credentials{})
		delay, breaks := time.Millisecond, false
		n.Conditions = &Conditions{Delay: func(string, string) time.Duration { return delay },
			Breaks: func(string, string) bool { return breaks }}
		conn, atA := connected(t, n, "a")
		a := conn.(*Conn)
		statustest.OK(t, a.Send(wire.KindReceived, []byte{1}))
		statustest.Equal(t, receive(t, atA), 1, "got")
		statustest.OK(t, a.Later(wire.KindFree, []byte{2}))
		statustest.OK(t, a.Join(wire.KindRun, []byte{3}, true))
		statustest.OK(t, a.PostJoin(wire.KindRun, []byte{4}, true))
		time.Sleep(time.Second)
		statustest.Equal(t, atA.Buffered(), false, "what waits has arrived")
		begun := time.Now()
		a.Flush(true)
		delay = 2 * time.Millisecond // of what is sent from now on
		statustest.Equal(t, receive(t, atA), 2, "got")
		kind, payload, err := atA.Recv()
		want := wire.AppendFrame(wire.AppendFrame(nil, wire.KindRun, []byte{3}), wire.KindRun, []byte{4})
		if err != nil || kind != wire.KindBurst || !slices.Equal(payload, want) {
			t.Errorf("got a message of kind %d with %v, %v; want a burst of %v", kind, payload, err, want)
		}
		statustest.Equal(t, time.Since(begun), time.Millisecond, "when both had come")
		statustest.OK(t, a.PostLater(wire.KindFree, []byte{5}))
		statustest.OK(t, a.Join(wire.KindRun, []byte{6}, false))
		breaks = true
		statustest.Equal(t, receive(t, atA), 5, "got")
		statustest.Fails(t, "behind the message after which it broke", statustest.Of2(atA.Recv()), status.Unavailable,
			"broke")
		breaks = false
		b, atB := connected(t, n, "b")
		statustest.OK(t, b.(*Conn).Later(wire.KindFree, []byte{7}))
		b.Close()
		statustest.Equal(t, receive(t, atB), 7, "got after Close")
	})
}
