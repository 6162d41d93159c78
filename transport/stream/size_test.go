package stream

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/transporttest"
)

// A message arrives, or its sender is told that it does not, and why; the connection goes on. So do those that are sent
// in other ways than by Send.
func TestMessageTooLongIsAnErrorOfItsSender(t *testing.T) {
	address, o := places(t)["unix"](t)
	a, b := transporttest.Greeted(t, listen(t, address, o), o)
	defer a.Close()
	defer b.Close()
	conn := a.(*Conn)
	ways := map[string]func(wire.Kind, []byte) error{"send": conn.Send, "post": conn.Post, "later": conn.Later,
		"join": func(kind wire.Kind, payload []byte) error { return conn.Join(kind, payload, false) }}
	long := make([]byte, 200<<20)
	for name, send := range ways {
		for _, size := range []int{65 << 20, 200 << 20} {
			for kind := wire.KindHello; kind < wire.KindBulk; kind++ {
				err := send(kind, long[:size])
				statustest.Fails(t, fmt.Sprintf("%s of %d bytes of kind %d", name, size, kind), err,
					status.InvalidArgument, "at most 67108864")
			}
		}
	}
	for _, size := range []int{0, 63 << 20, 64 << 20} {
		go func() { _ = conn.Send(wire.KindRun, long[:size]) }() // what fails is seen below
		if kind, payload, err := b.Recv(); err != nil || kind != wire.KindRun || len(payload) != size {
			t.Fatalf("%d bytes arrived as kind %d with %d, %v", size, kind, len(payload), err)
		}
	}
}

// A connection by which little comes at a time has a small buffer, since a controller has many of them.
func TestBufferGrowsWithWhatComesAtATime(t *testing.T) {
	address, o := places(t)["unix"](t)
	a, b := transporttest.Greeted(t, listen(t, address, o), o)
	defer a.Close()
	defer b.Close()
	buf := &b.(*Conn).reader.buf
	for _, c := range []struct{ message, want int }{
		{100, quietSize}, {quietSize / 2, quietSize}, {2 * quietSize, quietSize}, {1, readSize}, {readSize / 2, readSize},
		{1, readSize},
	} {
		statustest.OK(t, a.Send(wire.KindRun, make([]byte, c.message)))
		if _, payload, err := b.Recv(); err != nil || len(payload) != c.message {
			t.Fatalf("%d bytes arrived as %d, %v", c.message, len(payload), err)
		}
		statustest.Equal(t, len(*buf), c.want, "with a message of %d bytes the buffer", c.message)
	}
}
