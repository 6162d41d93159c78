package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
	"github.com/openpathways/pathways/transport/transporttest"
)

// snap breaks the connections to a peer, or a stream of each, as seen from one end.
func (x *Exchange) snap(peer uint64, streams bool) {
	p, err := x.find(peer, false)
	if err != nil {
		return
	}
	var conns []*stream.Conn
	p.mu.Lock()
	for l := range p.links {
		switch c := l.carrier; {
		case c == nil:
		case !streams:
			conns = append(conns, c.conn)
		case len(c.stripes) > 0:
			c.stripes[rand.N(len(c.stripes))].Close()
		}
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.Drop()
	}
}

// Connections break all the time, at either end: every block arrives, once, and
// its sender hears so.
func TestBlocksOutliveConnections(t *testing.T) {
	for kind, blocks := range map[string]int{"unix": 160, "tcp": 160, "tls": 40} { // TLS takes long to connect again
		t.Run(kind, func(t *testing.T) {
			w := worldTold(t, kind, 2, none, slog.DiscardHandler)
			for _, x := range w.Exchanges {
				defer x.Close()
			}
			sizes := []int{0, 10, 3000, eagerSize, 40_000, 300_000, 2 << 20}
			var under sync.WaitGroup
			came := make(chan struct{}, 4*blocks)
			room := make(chan struct{}, 2*40) // blocks under way
			for from := range uint64(2) {
				to := 1 - from
				sender, receiver := w.Exchanges[from], w.Exchanges[to]
				under.Go(func() {
					for id := range uint64(blocks) {
						for range 2 {
							room <- struct{}{}
						}
						size := sizes[id%uint64(len(sizes))]
						data := make([]byte, size)
						fill(data, id+from)
						under.Add(1)
						var into []byte
						if id%3 == 0 {
							into = make([]byte, size)
						}
						expect := func() {
							receiver.Expect(from+1, key(id, from), int64(size), into, func(b transport.Block, err error) {
								defer under.Done()
								came <- struct{}{}
								if err != nil {
									t.Errorf("block %d of %d bytes: %v", id, size, err)
								} else {
									if !bytes.Equal(b.Data, data) {
										t.Errorf("other bytes came as block %d of %d bytes", id, size)
									}
									b.Release()
								}
								<-room
							})
						}
						if id%2 == 0 {
							expect()
						}
						done := func(err error) {
							defer under.Done()
							statustest.Checkf(t, err, "block %d of %d bytes was not taken", id, size)
							<-room
						}
						switch {
						case size <= eagerSize && id%4 == 1:
							sender.PushBytes(to+1, key(id, from), data, nil)
							<-room
						case id%5 < 2:
							under.Add(1)
							sender.Push(to+1, key(id, from), int64(size), func(dst []byte, written func(error)) {
								go func() {
									copy(dst, data)
									written(nil)
								}()
							}, done)
						default:
							under.Add(1)
							sender.PushBytes(to+1, key(id, from), data, done)
						}
						if id%2 == 1 {
							expect()
						}
					}
				})
			}
			ended := make(chan struct{})
			go func() {
				under.Wait()
				close(ended)
			}()
			breaks := 0
			for {
				for range rand.N(20) { // what is under way meanwhile is what matters
					select {
					case <-ended:
						if breaks < blocks/11 {
							t.Errorf("only %d breaks", breaks)
						}
						return
					case <-came:
					}
				}
				breaks++
				w.Exchanges[rand.N(2)].(*Exchange).snap(uint64(1+rand.N(2)), rand.N(4) == 0)
			}
		})
	}
}

// forwarded are an exchange, number 1, and one, number 2, that it reaches by a
// forwarder.
func forwarded(t *testing.T, patience time.Duration) (one, two *Exchange, f *transporttest.Forwarder) {
	t.Helper()
	o := options()
	start := func(number uint64, name string) (*Exchange, string) {
		l := statustest.Value(stream.Listen("tcp:127.0.0.1:0", o, nil)).OK(t)
		x := statustest.Value(New(Config{Self: number, Hello: &wire.Hello{Cluster: "test", Name: name}, Options: o,
			Listeners: []transport.Listener{l}, DialTime: patience})).OK(t)
		t.Cleanup(func() { x.Close() })
		return x, l.Address()
	}
	one, _ = start(1, "one")
	two, at := start(2, "two")
	f = transporttest.Forward(t, strings.TrimPrefix(at, "tcp:"))
	one.Peers([]*wire.Process{{Number: 2, Name: "two", Addresses: []string{f.Address}}}, nil, nil)
	two.Peers([]*wire.Process{{Number: 1, Name: "one"}}, nil, nil) // it waits to be dialed
	return one, two, f
}

// passes sends a block.
func exchanged(from, to *Exchange, id uint64, size int) error {
	data := make([]byte, size)
	fill(data, id)
	sent, arrived := make(chan error, 1), make(chan error, 1)
	to.Expect(from.Self(), key(id, from.Self()), int64(size), nil, func(b transport.Block, err error) {
		if err == nil {
			if !bytes.Equal(b.Data, data) {
				err = fmt.Errorf("other bytes came")
			}
			b.Release()
		}
		arrived <- err
	})
	from.PushBytes(to.Self(), key(id, from.Self()), data, func(err error) { sent <- err })
	err := <-sent
	if other := <-arrived; err == nil {
		err = other
	}
	return err
}

// A pair is cut apart for longer than what is under way waits: that fails at both
// ends, with an error that names both, and so does what comes meanwhile. When the
// network has healed, all goes on, also what was pushed quietly and is expected late.
func TestPairApartHeals(t *testing.T) {
	for _, before := range []bool{true, false} { // there is a link
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			one, two, f := forwarded(t, 200*time.Millisecond)
			ids := uint64(0)
			if before {
				for _, size := range []int{10, 200_000} {
					ids++
					statustest.OK(t, exchanged(one, two, ids, size))
				}
			}
			f.Cut()
			check := func(err error) {
				t.Helper()
				statustest.Fails(t, "the error", err, status.Unavailable, "process 1 (one)", "process 2 (two)")
			}
			for range 3 {
				for _, size := range []int{10, 200_000} {
					ids++
					ends := make(chan error, 2)
					if before { // otherwise it has not heard that there is to be a link
						two.Expect(1, key(ids, 1), int64(size), nil, func(_ transport.Block, err error) { ends <- err })
					} else {
						ends <- status.New(status.Unavailable, "process 1 (one), process 2 (two)")
					}
					one.PushBytes(2, key(ids, 1), make([]byte, size), func(err error) { ends <- err })
					check(<-ends)
					check(<-ends)
				}
			}
			one.PushBytes(2, key(1000, 1), make([]byte, 10), nil) // only its receiver hears what becomes of it
			for name, x := range map[string]*Exchange{"two": one, "one": two} {
				if !before && x == two {
					continue
				}
				apart := x.Apart()
				if len(apart) != 1 || apart[0].Peer != 3-x.Self() || apart[0].Why == nil ||
					time.Since(apart[0].Since) > time.Minute {
					t.Errorf("who is cut off from %s says %v", name, apart)
				}
				if n := x.Connected(); n != 0 {
					t.Errorf("who is cut off from %s says that it has connections to %d peers", name, n)
				}
				breaks := x.Breaks()
				if before != (len(breaks) == 1) || before && (breaks[0].Peer != 3-x.Self() || breaks[0].Count == 0 ||
					breaks[0].Lasted != 0 || breaks[0].Why == nil) {
					t.Errorf("who is cut off from %s says of its breaks %v; there was a link: %v", name, breaks, before)
				}
			}
			f.Heal()
			statustest.Soon(t, func() string { return fmt.Sprint(one.Apart(), two.Apart()) }, "[] []",
				"who is apart, with the network healed")
			for _, size := range []int{10, 200_000} {
				ids++
				statustest.Check(t, exchanged(one, two, ids, size))
				statustest.Check(t, exchanged(two, one, ids, size))
			}
			if one.Connected() != 1 || two.Connected() != 1 {
				t.Errorf("the network has healed, and connections to %d and %d peers are there; expected 1", one.Connected(),
					two.Connected())
			}
			if breaks := one.Breaks(); before && (len(breaks) != 1 || breaks[0].Lasted < 200*time.Millisecond) {
				t.Errorf("the network has healed, and the breaks are %v; they lasted for longer than the patience", breaks)
			}
			late := make(chan error, 1)
			two.Expect(1, key(1000, 1), 10, nil, func(_ transport.Block, err error) { late <- err })
			check(<-late)
		})
	}
}

// The connection breaks after the peer has taken the link and before this side hears
// so: the peer's end of it is used all the same.
func TestLinkWhoseAnswerIsLost(t *testing.T) {
	one, two, f := forwarded(t, 20*time.Second)
	f.Limit(1) // nothing whole comes back
	arrived := make(chan error, 1)
	two.Expect(1, key(1, 1), 10, nil, func(b transport.Block, err error) {
		if err == nil {
			b.Release()
		}
		arrived <- err
	})
	one.PushBytes(2, key(1, 1), make([]byte, 10), nil)
	statustest.Soon(t, func() bool { return f.Made() >= 2 }, true, "two connections were made")
	for limit := int64(8); limit < 200; limit += 16 { // until somewhere inside the answer
		f.Limit(limit)
		made := f.Made()
		statustest.Soon(t, func() bool { return f.Made() >= made+2 || len(arrived) > 0 }, true,
			"two more were, or the block arrived")
	}
	sent := make(chan error, 1)
	two.PushBytes(1, key(2, 2), make([]byte, 10), func(err error) { sent <- err })
	f.Limit(0)
	f.Break()
	statustest.Check(t, <-arrived)
	one.Expect(2, key(2, 2), 10, nil, func(b transport.Block, err error) {
		if err == nil {
			b.Release()
		}
	})
	statustest.Check(t, <-sent)
	two.mu.Lock()
	links := len(two.links)
	two.mu.Unlock()
	statustest.Equal(t, links, 1, "links are kept")
}

// resumes dials as process 3 to go on with a link, and returns the answer.
func resumes(t testing.TB, address string, token [tokenSize]byte, attempt, received uint64) (wire.Kind, []byte) {
	t.Helper()
	hello := &wire.Hello{Role: wire.Role_ROLE_PEER, Process: 3, Host: "here", Cluster: "test"}
	conn, _, err := stream.Dial(context.Background(), address, hello, options())
	statustest.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	statustest.OK(t, conn.Send(kindResume, resumeFrame(token, attempt, received)))
	kind, payload, err := conn.Recv()
	statustest.OK(t, err)
	return kind, bytes.Clone(payload)
}

// records keeps what is logged.
type records struct {
	slog.Handler
	logged chan slog.Record
}

func (r records) Enabled(context.Context, slog.Level) bool { return true }
func (r records) Handle(_ context.Context, record slog.Record) error {
	r.logged <- record
	return nil
}

// offer sends a block of process 3 that the exchange keeps, under key(1, 0), and waits until it has come: one that is
// expected, sent behind it, has come then.
func offer(t *testing.T, x *Exchange, h *hostile) {
	t.Helper()
	came := make(chan error, 1)
	x.Expect(3, key(9, 9), 1, nil, func(b transport.Block, err error) {
		if err == nil {
			b.Release()
		}
		came <- err
	})
	h.send(kindQuiet, eagerFrame(nil, 1, key(1, 0), []byte("hello")))
	h.send(kindQuiet, eagerFrame(nil, 2, key(9, 9), []byte("!")))
	statustest.OK(t, <-came)
}

// What waits for a process that has gone is told why, in the words of the controller.
// The process may dial once more before it knows, which warns of nothing.
func TestPeerDialsAfterItHasGone(t *testing.T) {
	x, _, address := neighbors(t, "tcp")
	logged := make(chan slog.Record, 100)
	x.log = slog.New(records{slog.DiscardHandler, logged})
	x.Peers([]*wire.Process{{Number: 3, Name: "three"}}, nil, nil)
	h := intrude(t, address, 3)
	offer(t, x, h)
	why := status.New(status.Cancelled, "client three is gone: it said goodbye")
	x.Peers(nil, []uint64{3}, why)
	got := make(chan error, 1)
	x.Expect(3, key(2, 0), 5, nil, func(_ transport.Block, err error) { got <- err })
	statustest.Fails(t, "what waits for it", <-got, status.Unavailable, why.Error())
	if kind, _ := resumes(t, address, h.token, 2, 0); kind != kindGoodbye {
		t.Errorf("a message of kind %d, expected a refusal", kind)
	}
	for {
		record := <-logged
		if record.Level > slog.LevelDebug {
			t.Errorf("%v %s", record.Level, record.Message)
		}
		if record.Message == "a link was dropped" {
			break
		}
	}
}

// An error of any length keeps its beginning and its end, although letters of several bytes may be cut.
func TestLongErrorIsSent(t *testing.T) {
	for _, letters := range []int{0, 16 << 10, 1 << 20} {
		r := reader{b: withStatus(nil, status.New(status.Aborted, "it begins%sends", strings.Repeat("ß", letters)))}
		err := r.status()
		if status.CodeOf(err) != status.Aborted || !strings.HasPrefix(err.Error(), "it begins") ||
			!strings.HasSuffix(err.Error(), "ends") || r.bad {
			t.Errorf("%d letters became %.50v", letters, err)
		}
	}
}

// Connections for a link that come out of turn, or claim what cannot be, do no harm
// to others.
func TestResumeOutOfTurn(t *testing.T) {
	x, neighbor, address := neighbors(t, "tcp")
	x.Peers([]*wire.Process{{Number: 3, Name: "three"}}, nil, nil)
	h := intrude(t, address, 3)
	offer(t, x, h)
	again := func(token [tokenSize]byte, attempt, received uint64) (wire.Kind, []byte) {
		t.Helper()
		return resumes(t, address, token, attempt, received)
	}
	refusal := func(kind wire.Kind, payload []byte) status.Code {
		t.Helper()
		r := reader{b: payload}
		statustest.MustEqual(t, kind, kindGoodbye, "the kind of a message")
		return status.CodeOf(r.status())
	}
	if kind, payload := again(h.token, 2, 0); kind != kindResume ||
		binary.LittleEndian.Uint64(payload[tokenSize+8:]) != 2 {
		t.Fatalf("the second attempt: %d %v", kind, payload)
	}
	statustest.Equal(t, refusal(again(h.token, 1, 0)), status.Aborted, "the first attempt, late")
	statustest.Equal(t, refusal(again([tokenSize]byte{9}, 1, 0)), status.FailedPrecondition, "a link that is not there")
	got := make(chan error, 1)
	x.Expect(3, key(1, 0), 5, nil, func(b transport.Block, err error) {
		if err == nil {
			b.Release()
		}
		got <- err
	})
	statustest.Check(t, <-got)
	statustest.Equal(t, refusal(again(h.token, 3, 77)), status.InvalidArgument, "more than was sent")
	x.Expect(3, key(2, 0), 5, nil, func(b transport.Block, err error) { got <- err })
	statustest.Fails(t, "a process that claims what cannot be", <-got, status.Unavailable, "process 3 (three)")
	well(t, x, neighbor)
}
