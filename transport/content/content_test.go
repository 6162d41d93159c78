package content_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/content"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair makes processes 1 and 2. Afterwards no memory is in use.
func pair(t *testing.T) (one, two *inproc.Exchange) {
	t.Helper()
	pool := shm.NewPool(shm.Config{})
	hub := inproc.NewHub(pool)
	var all []*inproc.Exchange
	for number := range uint64(2) {
		x := statustest.Value(hub.Join(number+1, "")).OK(t)
		all = append(all, x)
	}
	t.Cleanup(func() {
		for _, x := range all {
			x.Close()
		}
		pool.Trim()
		statustest.Equal(t, pool.Stats().Mapped, 0, "bytes of blocks that stay")
		statustest.Equal(t, content.Used(), 0, "bytes of transfers stay")
	})
	return all[0], all[1]
}

// ends are what became of a transfer on both sides.
type ends struct {
	sent, received chan error
	parts          []*content.Memory
}

func (e *ends) receive(x transport.Exchange, from uint64, limit int64) (giveUp func(error)) {
	e.sent, e.received = make(chan error, 1), make(chan error, 1)
	return content.Receive(x, from, 7, limit, func(parts []*content.Memory, err error) {
		e.parts = parts
		e.received <- err
	})
}

func TestSendAndReceive(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // two chunks
	for name, parts := range map[string][][]byte{
		"nothing":                         {},
		"one byte":                        {{1}},
		"two parts":                       {big[:100], big[:3]},
		"a chunk":                         {big[:8<<20]},
		"and a byte":                      {big[:8<<20+1], nil, {5}},
		"more than are under way at once": {big, big, big[:5<<20], big},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := pair(t)
			var e ends
			e.receive(two, 1, 1<<30)
			content.Send(one, 2, 7, parts, func(err error) { e.sent <- err })
			statustest.OK(t, <-e.received)
			statustest.Check(t, <-e.sent)
			for i, m := range e.parts {
				var want []byte
				if i < len(parts) {
					want = parts[i]
				}
				if !bytes.Equal(m.Data, want) {
					t.Errorf("part %d has %d bytes, want %d that are equal", i, len(m.Data), len(want))
				}
				m.Release()
			}
		})
	}
}

// Both sides hear why a transfer fails, also in its middle, and keep no memory.
func TestTransferThatFails(t *testing.T) {
	long := make([]byte, 80<<20)
	why := status.New(status.Cancelled, "it is not wanted any more")
	gone := status.New(status.Unavailable, "process 1 was lost")
	for name, c := range map[string]struct {
		limit int64
		begin func(one, two *inproc.Exchange, e *ends, giveUp func(error))
		code  status.Code
		text  string
	}{
		"the sender refuses": {1 << 30, func(one, _ *inproc.Exchange, e *ends, _ func(error)) {
			content.Refuse(one, 2, 7, why)
			e.sent <- why
		}, status.Cancelled, "not wanted"},
		"it is longer than allowed": {1 << 20, func(one, _ *inproc.Exchange, e *ends, _ func(error)) {
			content.Send(one, 2, 7, [][]byte{long}, func(err error) { e.sent <- err })
		}, status.InvalidArgument, "more than 1048576 bytes"},
		"the receiver gives up": {1 << 30, func(one, _ *inproc.Exchange, e *ends, giveUp func(error)) {
			giveUp(why)
			content.Send(one, 2, 7, [][]byte{long}, func(err error) { e.sent <- err })
		}, status.Cancelled, "not wanted"},
		"the sender is lost": {1 << 30, func(one, two *inproc.Exchange, e *ends, _ func(error)) {
			two.Peers(nil, []uint64{1}, gone)
			content.Send(one, 2, 7, [][]byte{long}, func(err error) { e.sent <- err })
		}, status.Unavailable, "was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := pair(t)
			var e ends
			giveUp := e.receive(two, 1, c.limit)
			c.begin(one, two, &e, giveUp)
			statustest.Fails(t, "the receiver", <-e.received, c.code, c.text)
			if err := <-e.sent; err == nil {
				t.Error("the sender heard of no error")
			}
		})
	}
}

// slow is an exchange whose chunks come when they are let.
type slow struct {
	transport.Exchange
	mu    sync.Mutex
	sizes []int64
	let   []func()
	come  chan struct{}
}

func (s *slow) Expect(peer uint64, key transport.Key, size int64, into []byte, arrived func(transport.Block, error)) {
	if key.Part == 0 {
		s.Exchange.Expect(peer, key, size, into, arrived)
		return
	}
	s.mu.Lock()
	s.sizes = append(s.sizes, size)
	s.let = append(s.let, func() { arrived(transport.Block{}, nil) })
	s.mu.Unlock()
	s.come <- struct{}{}
}

// No more than a few chunks are on their way at once, however long the thing is.
func TestReceiverTakesFewChunksAtATime(t *testing.T) {
	one, two := pair(t)
	s := &slow{Exchange: two, come: make(chan struct{}, 100)}
	var e ends
	e.receive(s, 1, 1<<30)
	content.Send(one, 2, 7, [][]byte{make([]byte, 50<<20)}, func(error) {})
	for range 4 {
		<-s.come
	}
	for i := range 7 {
		s.mu.Lock()
		statustest.Equal(t, len(s.let), min(4+i, 7), "chunks expected in all after %d have come", i)
		next := s.let[i]
		s.mu.Unlock()
		next()
	}
	statustest.Check(t, <-e.received)
	for _, m := range e.parts {
		m.Release()
	}
	one.Fail(transport.Contents(), 7, status.New(status.Cancelled, "the test has ended"))
}

// FuzzReceive has a process send any header and any chunks. The receiver takes no more than its limit and what the
// header says, or says why not, and keeps no memory.
func FuzzReceive(f *testing.F) {
	header := func(sizes ...uint64) (all []byte) {
		for i := range content.MaxParts {
			n := uint64(0)
			if i < len(sizes) {
				n = sizes[i]
			}
			all = binary.LittleEndian.AppendUint64(all, n)
		}
		return all
	}
	f.Add(header(3, 2), []byte("abcde"), uint8(3))
	f.Add(header(), []byte{}, uint8(0))
	f.Add(header(3), []byte("abcde"), uint8(5))
	f.Add(header(1<<63), []byte{}, uint8(0))
	f.Add(header(content.MaxSize, content.MaxSize), []byte{}, uint8(0))
	f.Add(header(3)[:9], []byte("abc"), uint8(3))
	const limit = 1 << 20
	f.Fuzz(func(t *testing.T, header, chunks []byte, cut uint8) {
		used := content.Used()
		pool := shm.NewPool(shm.Config{})
		hub := inproc.NewHub(pool)
		one, two := statustest.Value(hub.Join(1, "")).OK(t), statustest.Value(hub.Join(2, "")).OK(t)
		var e ends
		e.receive(two, 1, limit)
		push := func(part uint64, data []byte) {
			one.PushBytes(2, transport.Key{Space: transport.Contents(), ID: 7, Part: part}, data, func(error) {})
		}
		push(0, header)
		at := min(int(cut), len(chunks))
		push(1, chunks[:at])
		push(2, chunks[at:])
		two.Peers(nil, []uint64{1}, status.New(status.Unavailable, "process 1 was lost")) // what has not come will not
		if err := <-e.received; err == nil {
			var sizes, got []byte
			for _, part := range e.parts {
				sizes = binary.LittleEndian.AppendUint64(sizes, uint64(len(part.Data)))
				got = append(got, part.Data...)
				part.Release()
			}
			if !bytes.Equal(sizes, header) || len(got) > limit || !bytes.HasPrefix(chunks, got) {
				t.Errorf("header %x and chunks %q, cut at %d, become %x with %q", header, chunks, at, sizes, got)
			}
		} else if code := status.CodeOf(err); code != status.InvalidArgument && code != status.Unavailable ||
			err.Error() == "" {
			t.Errorf("the error: %v: %v", code, err)
		}
		one.Close()
		two.Close()
		pool.Trim()
		statustest.Equal(t, pool.Stats().Mapped, 0, "bytes of blocks that stay")
		statustest.Equal(t, content.Used(), used, "bytes of transfers that stay")
	})
}
