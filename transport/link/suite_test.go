package link_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/link"
	"github.com/openpathways/pathways/transport/stream"
	"github.com/openpathways/pathways/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialer dials links.
type dialer struct{ stream.Options }

func (d dialer) Dial(ctx context.Context, address string, hello *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return link.Dial(ctx, d.Options, address, hello)
}

// accepted is a listener whose connections are links. Those that resume one are not returned.
type accepted struct {
	*stream.Listener
	links *link.Acceptor
}

func (a accepted) Accept() (*transport.Incoming, error) {
	for {
		in, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		resumes, refuse := a.links.Take(in)
		if refuse != nil {
			refuse()
		}
		if !resumes {
			return in, nil
		}
	}
}

func listen(t *testing.T, address string, lease time.Duration) accepted {
	t.Helper()
	l := statustest.Value(stream.Listen(address, stream.Options{}, nil)).OK(t)
	t.Cleanup(func() { l.Close() })
	return accepted{l, link.NewAcceptor(link.Config{Lease: lease, Term: 1})}
}

// A link does what is asked of every connection.
func TestConn(t *testing.T) {
	t.Cleanup(link.KeepMost(32 << 20))
	transporttest.Conn(t, 3<<20, func(t *testing.T) (near, far transport.Conn) {
		l := listen(t, "unix:"+filepath.Join(t.TempDir(), "s"), 100*time.Millisecond)
		return transporttest.Greeted(t, l, dialer{})
	})
}

// Over sockets, where messages join and leave together, each arrives once and in order however often they break.
func TestEveryFrameArrivesOnceOverSocketsThatBreak(t *testing.T) {
	const frames, limit = 20_000, 64 << 10
	l := listen(t, "tcp:127.0.0.1:0", time.Minute)
	network := transporttest.Forward(t, strings.TrimPrefix(l.Address(), "tcp:"))
	network.Limit(limit) // each connection breaks after so many bytes
	through := forwarded{dialer{}, network.Address}
	near, far := transporttest.Greeted(t, l, through)
	go func() { _, _ = l.Accept() }() // it takes connections that resume, until the listener closes
	// A break ends a link of which the accepting side has heard nothing yet.
	statustest.OK(t, near.Send(wire.KindRun, nil))
	if _, _, err := far.Recv(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 4)
	for _, c := range []transport.Conn{near, far} {
		go func() { done <- sendAll(c.(both), frames) }()
		go func() {
			done <- receiveAll(c, frames)
			for { // so that acknowledgments are read, and lines replaced
				if _, _, err := c.Recv(); err != nil {
					done <- nil
					return
				}
			}
		}()
	}
	for range 4 {
		statustest.Check(t, <-done)
	}
	if n, least := network.Made(), frames*48/limit; n < least { // frames have 48 bytes in the mean
		t.Errorf("%d connections were made, want %d", n, least)
	}
	near.Close()
	far.Close()
	<-done
	<-done
}

// forwarded dials a forwarder in place of the listener it forwards to.
type forwarded struct {
	dialer
	address string
}

func (f forwarded) Dial(ctx context.Context, _ string, hello *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return f.dialer.Dial(ctx, f.address, hello)
}

type both interface {
	transport.Conn
	transport.Batcher
}

// sendAll sends numbers, in all the ways there are.
func sendAll(c both, n int) (err error) {
	for i := 0; i < n && err == nil; i++ {
		payload := binary.LittleEndian.AppendUint32(make([]byte, 0, 100), uint32(i))
		switch payload = payload[:4+i%90]; i % 7 {
		case 0:
			err = c.Later(wire.KindRun, payload)
		case 1, 2, 3:
			err = c.Join(wire.KindRun, payload, true)
		case 4:
			err = c.Join(wire.KindRun, payload, false)
		default:
			err = c.Send(wire.KindRun, payload)
		}
	}
	c.Flush(true)
	return err
}

// receiveAll receives these numbers in order.
func receiveAll(c transport.Conn, n int) error {
	return transporttest.Frames(c, n, func(i int, payload []byte) error {
		if binary.LittleEndian.Uint32(payload) != uint32(i) || len(payload) != 4+i%90 {
			return fmt.Errorf("got frame %d of %d bytes, want %d", binary.LittleEndian.Uint32(payload), len(payload), i)
		}
		return nil
	})
}
