// Package transporttest is what every transport.Conn and every
// transport.Exchange passes. Only tests import it.
package transporttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

const kind = wire.KindRun

// pattern is n bytes that say where they are. They are not shared yet, and looking
// at each of them would take the race detector most of a test's time.
//
//go:norace
func pattern(n int, seed uint64) []byte {
	b := make([]byte, (n+7)&^7)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := 0; i < n; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	return b[:n:n]
}

func paint(b []byte, seed uint64) { copy(b, pattern(len(b), seed)) }

// Conn checks a kind of connection. Pair returns both ends of a new one, which can
// carry messages of up to largest bytes.
func Conn(t *testing.T, largest int, pair func(t *testing.T) (a, b transport.Conn)) {
	s := connSuite{largest, pair}
	t.Run("messages of all sizes arrive as they were sent", s.sizes)
	t.Run("messages of one sender arrive in order", s.order)
	t.Run("payload is the sender's again after Send", s.payloadIsTheSendersAgain)
	t.Run("both ends send at once", s.bothWaysAtOnce)
	t.Run("a message at hand is received without waiting", s.buffered)
	t.Run("what was sent arrives after close", s.arrivesAfterClose)
	t.Run("send ends with the connection", s.sendEndsWithTheConnection)
	t.Run("recv ends with close", s.recvEndsWithClose)
	t.Run("kind 0 is refused", s.noKind)
	t.Run("each end names the other", s.peer)
}

type connSuite struct {
	largest int
	pair    func(t *testing.T) (a, b transport.Conn)
}

// open returns both ends of a new connection, which the test's end closes.
func (s connSuite) open(t *testing.T) (a, b transport.Conn) {
	t.Helper()
	a, b = s.pair(t)
	t.Cleanup(func() {
		statustest.Check(t, a.Close())
		statustest.Check(t, b.Close())
	})
	return a, b
}

func (s connSuite) sizes(t *testing.T) {
	a, b := s.open(t)
	const first = 100 // of the kinds, none of which connections use themselves
	for _, ends := range [][2]transport.Conn{{a, b}, {b, a}} {
		var sizes []int
		for n := 1; n <= s.largest; n *= 8 {
			sizes = append(sizes, n-1, n, n+1)
		}
		sizes = append(sizes, 65530, 65531, 65532, 65536, s.largest, 3)
		sent := make(chan error, 1)
		go func() {
			for i, n := range sizes {
				if err := ends[0].Send(wire.Kind(first+i), pattern(min(n, s.largest), uint64(i))); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i, n := range sizes {
			k, payload, err := ends[1].Recv()
			if err != nil || k != wire.Kind(first+i) || !bytes.Equal(payload, pattern(min(n, s.largest), uint64(i))) {
				t.Fatalf("message %d of %d bytes: kind %d, %d bytes, %v", i, n, k, len(payload), err)
			}
		}
		statustest.OK(t, <-sent)
	}
}

func (s connSuite) order(t *testing.T) {
	a, b := s.open(t)
	const senders, each = 4, 5000
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			payload := make([]byte, 16+s)
			for i := range each {
				binary.LittleEndian.PutUint64(payload, uint64(s))
				binary.LittleEndian.PutUint64(payload[8:], uint64(i))
				if err := a.Send(kind, payload); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var next [senders]uint64
	for range senders * each {
		_, payload, err := b.Recv()
		statustest.OK(t, err)
		s, i := binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])
		if len(payload) != 16+int(s) || i != next[s] {
			t.Fatalf("sender %d: message %d of %d bytes came, expected number %d", s, i, len(payload), next[s])
		}
		next[s]++
	}
	all.Wait()
}

func (s connSuite) payloadIsTheSendersAgain(t *testing.T) {
	a, b := s.open(t)
	payload := make([]byte, 100)
	for i := range 1000 {
		paint(payload, uint64(i))
		statustest.OK(t, a.Send(kind, payload))
	}
	for i := range 1000 {
		if _, got, err := b.Recv(); err != nil || !bytes.Equal(got, pattern(100, uint64(i))) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

func (s connSuite) bothWaysAtOnce(t *testing.T) {
	a, b := s.open(t)
	var all sync.WaitGroup
	for _, c := range []transport.Conn{a, b} {
		all.Go(func() {
			for i := range 3000 {
				if err := c.Send(kind, pattern(i, uint64(i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for i := range 3000 {
				if _, payload, err := c.Recv(); err != nil || len(payload) != i {
					t.Errorf("message %d: %d bytes, %v", i, len(payload), err)
					return
				}
			}
		})
	}
	all.Wait()
}

func (s connSuite) buffered(t *testing.T) {
	a, b := s.open(t)
	if b.Buffered() {
		t.Error("nothing was sent, and a message is at hand")
	}
	const n = 64
	for range n {
		statustest.OK(t, a.Send(kind, []byte{1, 2, 3}))
	}
	// A message that is buffered is received without waiting; those that are not
	// come as well.
	for i := range n {
		statustest.OKf(t, statustest.Of2(b.Recv()), "message %d", i)
	}
	if b.Buffered() {
		t.Error("all was received, and a message is at hand")
	}
}

func (s connSuite) arrivesAfterClose(t *testing.T) {
	a, b := s.open(t)
	const n = 100 // fit the buffer of a socket, even if each is written by itself: nothing is read before Close returns
	for i := range n {
		statustest.OK(t, a.Send(kind, binary.LittleEndian.AppendUint64(nil, uint64(i))))
	}
	a.Close()
	for i := range n {
		if _, payload, err := b.Recv(); err != nil || binary.LittleEndian.Uint64(payload) != uint64(i) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	_, _, first := b.Recv()
	statustest.Fails(t, "after the end", first, status.Unavailable)
	if _, _, again := b.Recv(); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("the error was %q and then %q", first, again)
	}
	if !b.Buffered() {
		t.Log("an error at hand need not be buffered")
	}
}

func (s connSuite) sendEndsWithTheConnection(t *testing.T) {
	for _, mine := range []bool{true, false} {
		a, b := s.open(t)
		failed := make(chan error)
		begun := make(chan struct{}, 1)
		go func() {
			payload := make([]byte, min(s.largest, 1<<20))
			for {
				if err := a.Send(kind, payload); err != nil {
					failed <- err
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		}()
		<-begun
		select { // nothing reads: it waits without end, or sends without bound
		case err := <-failed:
			t.Fatal(err)
		default:
		}
		if mine {
			go a.Close()
		} else {
			b.Close()
		}
		if err := <-failed; status.CodeOf(err) != status.Cancelled && status.CodeOf(err) != status.Unavailable {
			t.Errorf("own close %v: %v (%v)", mine, err, status.CodeOf(err))
		}
	}
}

func (s connSuite) recvEndsWithClose(t *testing.T) {
	a, _ := s.open(t)
	failed := make(chan error)
	go func() {
		_, _, err := a.Recv()
		failed <- err
	}()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { a.Close() })
	}
	if err := <-failed; err == nil {
		t.Error("a message came from a closed connection")
	}
	all.Wait()
	if err := a.Send(kind, nil); err == nil {
		t.Error("a closed connection takes messages")
	}
}

func (s connSuite) noKind(t *testing.T) {
	a, b := s.open(t)
	statustest.Fails(t, "kind 0", a.Send(0, nil), status.InvalidArgument)
	statustest.Check(t, a.Send(kind, nil))
	if k, _, err := b.Recv(); err != nil || k != kind {
		t.Errorf("after a refused message: kind %d, %v", k, err)
	}
}

func (s connSuite) peer(t *testing.T) {
	a, b := s.open(t)
	if a.Peer() == "" || b.Peer() == "" {
		t.Errorf("peers are %q and %q", a.Peer(), b.Peer())
	}
}

// ConnBench measures a kind of connection: a message there and back, and many one
// way.
func ConnBench(b *testing.B, pair func(b *testing.B) (x, y transport.Conn)) {
	b.Run("pingpong", func(b *testing.B) {
		x, y := pair(b)
		defer x.Close()
		defer y.Close()
		go func() {
			for {
				k, payload, err := y.Recv()
				if err != nil || y.Send(k, payload) != nil {
					return
				}
			}
		}()
		payload := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			statustest.OK(b, x.Send(kind, payload))
			statustest.OK(b, statustest.Of2(x.Recv()))
		}
	})
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprintf("burst%d", size), func(b *testing.B) {
			x, y := pair(b)
			defer x.Close()
			defer y.Close()
			payload := make([]byte, size)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			b.ResetTimer()
			go func() {
				for range b.N {
					if x.Send(kind, payload) != nil {
						return
					}
				}
			}()
			for range b.N {
				statustest.OK(b, statustest.Of2(y.Recv()))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
		})
	}
}

// Frames receives n frames, by themselves or in bursts, and calls each with their numbers and payloads until one is
// wrong.
func Frames(c transport.Conn, n int, each func(i int, payload []byte) error) error {
	for i := 0; i < n; {
		kind, payload, err := c.Recv()
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		burst := payload
		if kind != wire.KindBurst {
			burst = wire.AppendFrame(nil, kind, payload)
		}
		for ; len(burst) > 0; i++ {
			if _, payload, burst, err = wire.NextFrame(burst); err != nil {
				return err
			}
			if err := each(i, payload); err != nil {
				return err
			}
		}
	}
	return nil
}
