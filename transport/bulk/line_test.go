package bulk

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

// sentBy returns how many bytes each stripe to a peer has sent, and whether its line is full.
func (x *Exchange) sentBy(t *testing.T, peer uint64) (sent []uint64, full bool) {
	t.Helper()
	p := statustest.Value(x.find(peer, false)).OK(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil || p.out.carrier == nil {
		return nil, false
	}
	c := p.out.carrier
	for _, socket := range c.stripes {
		statustest.OK(t, x.line(socket).conn.Control(func(fd uintptr) {
			info := statustest.Value(unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)).OK(t)
			sent = append(sent, info.Bytes_sent+uint64(info.Notsent_bytes))
		}))
	}
	return sent, c.full
}

func TestFullLineHasOneStripe(t *testing.T) {
	for _, kind := range []string{"tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			w := world(t, kind, 2, none)
			sender, receiver := w.Exchanges[0].(*Exchange), w.Exchanges[1]
			defer sender.Close()
			defer receiver.Close()
			sender.trips = func(int) (trip, shortest time.Duration) { return 4 * time.Millisecond, time.Millisecond }
			data, id := make([]byte, 4<<20), uint64(0)
			send := func() {
				id++
				came, taken := make(chan error, 1), make(chan error, 1)
				receiver.Expect(1, key(id, 0), int64(len(data)), nil, func(b transport.Block, err error) {
					if err == nil {
						b.Release()
					}
					came <- err
				})
				sender.PushBytes(2, key(id, 0), data, func(err error) { taken <- err })
				statustest.OK(t, <-came)
				statustest.OK(t, <-taken)
			}
			for full := false; !full; _, full = sender.sentBy(t, 2) {
				send()
			}
			before, _ := sender.sentBy(t, 2)
			for range 4 {
				send()
			}
			after, _ := sender.sentBy(t, 2)
			for i := range before {
				sent := after[i] - before[i]
				if i == 0 && sent < 4*uint64(len(data)) || i > 0 && sent > 0 {
					t.Errorf("stripe %d has sent %d bytes", i, sent)
				}
			}
		})
	}
}
