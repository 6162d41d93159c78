package inproc

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConn(t *testing.T) {
	transporttest.Conn(t, 1<<20, func(*testing.T) (a, b transport.Conn) { return Pair("a", "b") })
}

func TestNetwork(t *testing.T) {
	n := NewNetwork(transport.Credentials{Token: "secret", Versions: map[string]string{"jax": "1"}})
	names := 0
	transporttest.Conn(t, 1<<20, func(t *testing.T) (a, b transport.Conn) {
		names++
		l := statustest.Value(n.Listen(fmt.Sprintf("part%d", names))).OK(t)
		t.Cleanup(func() { l.Close() })
		return transporttest.Greeted(t, l, n)
	})
	statustest.Fails(t, "a name that nothing listens at",
		statustest.Of2(n.Dial(context.Background(), "inproc:nobody", &wire.Hello{})), status.Unavailable)
	l := statustest.Value(n.Listen("x")).OK(t)
	defer l.Close()
	statustest.Fails(t, "a name twice", statustest.Of(n.Listen("x")), status.AlreadyExists)
	transporttest.Greetings(t, l, n, n.Credentials)
}

func BenchmarkConn(b *testing.B) {
	transporttest.ConnBench(b, func(*testing.B) (x, y transport.Conn) { return Pair("a", "b") })
}

// A dialer waits for its welcome for as long as the accepting side says that it has to, and hears what for, once.
func TestDialerWaitsAsLongAsItIsTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var heard []string
		n := NewNetwork(transport.Credentials{Waits: func(why string) { heard = append(heard, why) }})
		l := statustest.Value(n.Listen("controller")).OK(t)
		defer l.Close()
		go func() {
			in, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			for range 12 {
				statustest.Check(t, in.Wait("the others"))
				time.Sleep(transport.WaitAgain)
			}
			statustest.Check(t, in.Welcome(&wire.Welcome{Process: 7}))
		}()
		c, w, err := n.Dial(t.Context(), l.Address(), &wire.Hello{Role: wire.Role_ROLE_CLIENT})
		statustest.OK(t, err)
		if w.Process != 7 || !slices.Equal(heard, []string{"the others"}) {
			t.Errorf("process %d, which heard that it has to wait for %q", w.Process, heard)
		}
		c.Close()
	})
}

// Dialing a process that is stopped fails, and the error says so, and how long the dialer waited.
func TestProcessThatDoesNotAnswerSaysSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ours, theirs := Pair("client", "controller")
		defer theirs.Close()
		_, err := transport.Greet(t.Context(), ours, &wire.Hello{Role: wire.Role_ROLE_CLIENT}, transport.Credentials{})
		statustest.Fails(t, "greeting it", err, status.DeadlineExceeded, "controller said nothing for 10s: it is stopped")
	})
}
