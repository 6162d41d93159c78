package bulk

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

const available = "/proc/sys/net/ipv4/tcp_available_congestion_control"

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

// congestion sets another congestion control than BBR on the stripes to a peer, and returns a function that reads which
// one each has.
func (x *Exchange) congestion(t *testing.T, peer uint64) func() (now []string) {
	t.Helper()
	p := statustest.Value(x.find(peer, false)).OK(t)
	var stripes []line
	p.mu.Lock()
	for _, socket := range p.out.carrier.stripes {
		stripes = append(stripes, x.line(socket))
	}
	p.mu.Unlock()
	for _, l := range stripes {
		statustest.OK(t, l.conn.Control(func(fd uintptr) {
			statustest.OK(t, unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"))
		}))
	}
	return func() (now []string) {
		for _, l := range stripes {
			statustest.OK(t, l.conn.Control(func(fd uintptr) {
				name := statustest.Value(unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)).OK(t)
				now = append(now, strings.TrimRight(name, "\x00"))
			}))
		}
		return now
	}
}

// A line on which bytes wait takes one stripe, which changes to BBR where they wait long.
func TestFullLineHasOneStripe(t *testing.T) {
	for _, kind := range []string{"tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			w := world(t, kind, 2, none)
			sender, receiver := w.Exchanges[0].(*Exchange), w.Exchanges[1]
			defer sender.Close()
			defer receiver.Close()
			var trip atomic.Int64
			trip.Store(int64(4 * time.Millisecond))
			sender.trips = func(int) (_, shortest time.Duration) { return time.Duration(trip.Load()), time.Millisecond }
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
			for sent, full := sender.sentBy(t, 2); !full || len(sent) < streams; sent, full = sender.sentBy(t, 2) {
				send()
			}
			congestion := sender.congestion(t, 2)
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
			want := []string{"reno", "reno", "reno", "reno"}
			statustest.EqualSlices(t, congestion(), want, "where bytes wait for 3 ms, stripes use")
			if os.Geteuid() != 0 || !strings.Contains(string(statustest.Value(os.ReadFile(available)).OK(t)), calm) {
				t.Skip("this user or system has no ", calm)
			}
			trip.Store(int64(10 * time.Millisecond))
			send()
			want[0] = calm
			statustest.EqualSlices(t, congestion(), want, "where bytes wait for 9 ms, stripes use")
		})
	}
}
