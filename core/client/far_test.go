package client

import (
	"context"
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// far is a connection to a controller that lets everybody in and then says what a
// test tells it to.
type far struct {
	mu      sync.Mutex
	welcome *wire.Welcome
	sent    []message  // what came, where keep is set
	came    *sync.Cond // more was sent
	keep    bool
	full    chan struct{} // Send waits until it is closed, where it is not nil
	say     chan message
	closed  chan struct{}
	once    sync.Once
}

type message struct {
	kind    wire.Kind
	payload []byte
}

func newFar() *far {
	f := &far{say: make(chan message, 100), closed: make(chan struct{}),
		welcome: &wire.Welcome{
			Session: 3, Process: 9, Credit: 1024, Devices: []*wire.Device{{Worker: 1}, {Number: 1, Worker: 2}}}}
	f.came = sync.NewCond(&f.mu)
	return f
}

// all returns the messages of a kind that were sent. The caller holds mu.
func (f *far) all(kind wire.Kind) (all [][]byte) {
	for _, m := range f.sent {
		if m.kind == kind {
			all = append(all, m.payload)
		}
	}
	return all
}

func (f *far) Dial(context.Context, string, *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return f, f.welcome, nil
}

func (f *far) Send(kind wire.Kind, payload []byte) error {
	select {
	case <-f.closed:
		return status.New(status.Cancelled, "closed")
	default:
	}
	if f.full != nil {
		<-f.full
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keep {
		f.sent = append(f.sent, message{kind, append([]byte(nil), payload...)})
		f.came.Broadcast()
	}
	return nil
}

func (f *far) Recv() (wire.Kind, []byte, error) {
	select {
	case m := <-f.say:
		return m.kind, m.payload, nil
	case <-f.closed:
		return 0, nil, status.New(status.Unavailable, "the controller has gone")
	}
}

func (f *far) Buffered() bool { return len(f.say) > 0 }
func (f *far) Peer() string   { return "far" }
func (f *far) Close() error   { f.once.Do(func() { close(f.closed) }); return nil }

// noExchange takes pushes and expectations and keeps them until told to end them.
type noExchange struct {
	mu     sync.Mutex
	ends   map[transport.Key][]func(error)
	closed bool
	stay   bool // Fail ends nothing
	lends  bool
	shelf  []byte // what Lay returns memory of; nil: nothing can be laid
	laid   int    // blocks that were, and were not released
}

func (e *noExchange) Lay(_ []uint64, size int64) (b transport.Block, offset int64, ok bool) {
	if e.shelf == nil {
		return b, 0, false
	}
	e.laid++
	return transport.Block{Data: e.shelf[8 : 8+size], Release: func() { e.laid-- }}, 8, true
}

func (e *noExchange) add(k transport.Key, f func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ends == nil {
		e.ends = map[transport.Key][]func(error){}
	}
	e.ends[k] = append(e.ends[k], f)
}

func (e *noExchange) end(which func(transport.Key) bool, err error) {
	var ends []func(error)
	e.mu.Lock()
	for k, f := range e.ends {
		if which(k) {
			ends = append(ends, f...)
			delete(e.ends, k)
		}
	}
	e.mu.Unlock()
	for _, f := range ends {
		f(err)
	}
}

func (e *noExchange) Push(_ uint64, k transport.Key, _ int64, _ func([]byte, func(error)), done func(error)) {
	e.add(k, done)
}
func (e *noExchange) PushBytes(_ uint64, k transport.Key, _ []byte, done func(error)) { e.add(k, done) }
func (e *noExchange) Post(uint64, transport.Key, []byte) bool                         { return false }
func (e *noExchange) Expect(_ uint64, k transport.Key, _ int64, _ []byte, arrived func(transport.Block, error)) {
	e.add(k, func(err error) { arrived(transport.Block{}, err) })
}
func (e *noExchange) Fail(space, id uint64, err error) {
	if e.stay {
		return
	}
	e.end(func(k transport.Key) bool { return k.Space == space && k.ID == id }, err)
}
func (e *noExchange) Lends(uint64, int64) bool               { return e.lends }
func (e *noExchange) Peers([]*wire.Process, []uint64, error) {}
func (e *noExchange) Self() uint64                           { return 9 }
func (e *noExchange) Close() error {
	e.closed = true
	e.end(func(transport.Key) bool { return true }, status.New(status.Unavailable, "closed"))
	return nil
}
