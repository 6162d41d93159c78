package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// tokens are used once.
var tokens atomic.Uint64

// hostile is a process that says hello and then does what it likes.
type hostile struct {
	t     testing.TB
	conn  *stream.Conn
	token [tokenSize]byte
}

// intrude links a hostile process of a number to an exchange.
func intrude(t testing.TB, address string, number uint64) *hostile {
	t.Helper()
	h := &hostile{t: t}
	binary.LittleEndian.PutUint64(h.token[:], tokens.Add(1))
	h.conn = h.dial(address, number, kindLink)
	return h
}

func (h *hostile) dial(address string, number uint64, kind wire.Kind) *stream.Conn {
	h.t.Helper()
	hello := &wire.Hello{Role: wire.Role_ROLE_PEER, Process: number, Host: "here", Cluster: "test"}
	conn, _, err := stream.Dial(context.Background(), address, hello, options())
	statustest.OK(h.t, err)
	h.t.Cleanup(func() {
		conn.Close()
		conn.DropFiles()
	})
	conn.TakeFiles()
	statustest.OK(h.t, conn.Send(kind, h.token[:]))
	if back, _, err := conn.Recv(); err != nil || back != kind {
		h.t.Fatal(back, err)
	}
	return conn
}

// raw is the socket, of which this process keeps nothing else.
func raw(t testing.TB, conn *stream.Conn) net.Conn {
	t.Helper()
	socket, _, err := conn.Detach(0, nil)
	statustest.OK(t, err)
	t.Cleanup(func() { socket.Close() })
	return socket
}

func (h *hostile) send(kind wire.Kind, payload []byte) {
	h.t.Helper()
	statustest.OK(h.t, h.conn.Send(kind, payload))
}

// until reads what the exchange says up to a message of a kind.
func (h *hostile) until(kind wire.Kind) []byte {
	h.t.Helper()
	for {
		k, payload, err := h.conn.Recv()
		statustest.OKf(h.t, err, "waiting for a message of kind %d", kind)
		if k == kind {
			return bytes.Clone(payload)
		}
	}
}

// neighbors are an exchange, number 1, and a good one, number 2.
func neighbors(t testing.TB, kind string) (x, neighbor *Exchange, address string) {
	t.Helper()
	dir := t.TempDir()
	x, address, err := listen(kind, dir, 1, patience)
	statustest.OK(t, err)
	t.Cleanup(func() { x.Close() })
	neighbor, other, err := listen(kind, dir, 2, patience)
	statustest.OK(t, err)
	t.Cleanup(func() { neighbor.Close() })
	both := []*wire.Process{{Number: 1, Name: "one", Host: "here", Addresses: []string{address}},
		{Number: 2, Name: "two", Host: "here", Addresses: []string{other}}}
	x.Peers(both, nil, nil)
	neighbor.Peers(both, nil, nil)
	return x, neighbor, address
}

var ids atomic.Uint64

// well says that the neighbors still exchange blocks.
func well(t testing.TB, x, neighbor *Exchange) {
	t.Helper()
	for _, size := range []int{8, 100_000} {
		id := 1<<40 + ids.Add(1)
		data := make([]byte, size)
		fill(data, id)
		done, arrived := make(chan error, 1), make(chan error, 1)
		neighbor.PushBytes(1, key(id, 0), data, func(err error) { done <- err })
		x.Expect(2, key(id, 0), int64(size), nil, func(b transport.Block, err error) {
			if err == nil {
				if !bytes.Equal(b.Data, data) {
					err = fmt.Errorf("other bytes came")
				}
				b.Release()
			}
			arrived <- err
		})
		statustest.Checkf(t, <-arrived, "a neighbor's block")
		statustest.Checkf(t, <-done, "a neighbor's block")
	}
}

// memory is a file as processes share.
func memory(t testing.TB, size int64, sealed bool) *os.File {
	t.Helper()
	fd := statustest.Value(unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)).OK(t)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	statustest.OK(t, f.Truncate(size))
	if sealed {
		statustest.OK(t, statustest.Of(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)))
	}
	return f
}

// Connections that say nothing keep no peer out: a link that is made beside them works at once.
func TestLinksBesideIdleConnections(t *testing.T) {
	const many, soon = 2000, time.Second
	for _, kind := range []string{"unix", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			x, neighbor, address := neighbors(t, kind)
			network, at, _ := strings.Cut(address, ":")
			for range many {
				socket := statustest.Value(net.Dial(network, at)).OK(t)
				defer socket.Close()
			}
			begin := time.Now()
			h := intrude(t, address, 99)
			if took := time.Since(begin); took > soon {
				t.Errorf("a link was made after %v, at most %v are allowed", took, soon)
			}
			h.conn.Close()
			well(t, x, neighbor)
		})
	}
}
