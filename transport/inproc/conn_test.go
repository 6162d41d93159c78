package inproc

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

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
