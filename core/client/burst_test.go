package client

import (
	"context"
	"net"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// pipe dials one connection over a socket whose reader has yet to begin.
type pipe struct {
	far  *stream.Conn
	near *stream.Conn
}

func (p *pipe) Dial(context.Context, string, *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	a, b := net.Pipe()
	p.near, p.far = stream.New(a, "far", stream.Config{}, true), stream.New(b, "near", stream.Config{}, true)
	return p.near, &wire.Welcome{
		Session: 3, Process: 9, Credit: 1024, Devices: []*wire.Device{{Worker: 1}}}, nil
}

// Calls that queue up behind one that is being written leave as one message, with
// the frees between them, unless that is switched off.
func TestQueuedCallsLeaveAsOneMessage(t *testing.T) {
	const calls = 20
	for _, c := range []struct {
		name     string
		alone    bool
		messages int // behind the first
	}{
		{"together", false, 1},
		{"one by one", true, calls + calls/4},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := new(pipe)
			cluster, err := Connect(context.Background(), Config{Dialer: p, Hello: &wire.Hello{Alone: c.alone},
				Exchange: func(*wire.Welcome) (transport.Exchange, error) { return new(noExchange), nil }})
			statustest.OK(t, err)
			run := func(i int) {
				statustest.OK(t, cluster.Run(&RunSpec{Token: uint64(i), Program: 1, FirstOutput: uint64(i), Only: -1}))
			}
			run(1)
			for p.near.Pending() > 0 { // the writer has it, and the other side does not read
				runtime.Gosched()
			}
			for i := range calls {
				if i%4 == 0 {
					cluster.Free([]uint64{uint64(1000 + i)})
				}
				run(2 + i)
			}
			op, frees := uint64(0), 0
			take := func(kind wire.Kind, payload []byte) {
				switch kind {
				case wire.KindRun:
					m := new(wire.Run)
					if err := proto.Unmarshal(payload, m); err != nil || m.Op != op+1 {
						t.Fatalf("operation %d, %v came behind operation %d", m.Op, err, op)
					}
					op = m.Op
				case wire.KindFree:
					frees++
				default:
					t.Fatalf("a message of kind %d came", kind)
				}
			}
			messages := 0
			for ; op < calls+1; messages++ {
				kind, payload, err := p.far.Recv()
				statustest.OK(t, err)
				if kind != wire.KindBurst {
					take(kind, payload)
					continue
				}
				for len(payload) > 0 {
					kind, part, rest, err := wire.NextFrame(payload)
					statustest.OK(t, err)
					take(kind, part)
					payload = rest
				}
			}
			if messages != 1+c.messages || frees != calls/4 {
				t.Errorf("%d calls and %d frees left as %d messages; want %d frees and %d messages", calls+1, frees, messages,
					calls/4, 1+c.messages)
			}
			go func() { // for the goodbye
				for {
					if _, _, err := p.far.Recv(); err != nil {
						return
					}
				}
			}()
			cluster.Close()
			p.far.Close()
		})
	}
}
