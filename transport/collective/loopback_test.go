package collective

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// hub joins exchanges in one process. It is strict: a key that is used twice, a
// block of a wrong size and one that is released twice fail the test.
type hub struct {
	t      testing.TB
	nodes  map[uint64]*node
	blocks atomic.Int64 // that have not been released
	pushes atomic.Int64 // on their way
	sent   atomic.Int64 // blocks in all
	kept   atomic.Int64 // of those, in memory of the exchange

	comes func(to uint64, key transport.Key) // called before a block does, which waits until it returns; nil: nothing is
}

func newHub(t testing.TB, processes int) *hub {
	h := &hub{t: t, nodes: map[uint64]*node{}}
	for i := range processes {
		self := uint64(i + 1)
		h.nodes[self] = &node{hub: h, self: self, slots: map[slotKey]*slot{}, failed: map[[2]uint64]error{},
			gone: map[uint64]error{}}
	}
	return h
}

type slotKey struct {
	peer uint64
	key  transport.Key
}

type slot struct {
	data []byte // what came, before it was expected
	came bool
	size int64
	into []byte
	call func(transport.Block, error)
}

// node is one process's exchange.
type node struct {
	hub  *hub
	self uint64

	mu     sync.Mutex
	slots  map[slotKey]*slot
	failed map[[2]uint64]error
	gone   map[uint64]error
}

func (n *node) Self() uint64 { return n.self }

func (n *node) Lends(uint64, int64) bool { return false }
func (n *node) Close() error             { return nil }

func (n *node) block(data []byte) transport.Block {
	n.hub.blocks.Add(1)
	n.hub.kept.Add(1)
	var once atomic.Bool
	return transport.Block{Data: data, Release: func() {
		if once.Swap(true) {
			n.hub.t.Error("a block is released twice")
		}
		for i := range data { // who still reads it will see
			data[i] = 0xee
		}
		n.hub.blocks.Add(-1)
	}}
}

func (n *node) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	if done == nil {
		own := aligned(int64(len(data)))
		copy(own, data)
		n.hub.pushes.Add(1)
		go func() {
			n.hub.nodes[peer].receive(slotKey{n.self, key}, own)
			n.hub.pushes.Add(-1)
		}()
		return
	}
	n.Push(peer, key, int64(len(data)), func(dst []byte, written func(error)) {
		copy(dst, data)
		written(nil)
	}, done)
}

func (n *node) Post(peer uint64, key transport.Key, data []byte) bool {
	n.PushBytes(peer, key, data, nil)
	return true
}

func (n *node) Push(peer uint64, key transport.Key, size int64, fill func(dst []byte, written func(error)),
	done func(error)) {
	n.mu.Lock()
	err := n.failed[[2]uint64{key.Space, key.ID}]
	if err == nil {
		err = n.gone[peer]
	}
	n.mu.Unlock()
	n.hub.pushes.Add(1)
	go func() {
		defer n.hub.pushes.Add(-1)
		if err != nil {
			done(err)
			return
		}
		own := aligned(size)
		fill(own, func(err error) {
			if err == nil {
				n.hub.nodes[peer].receive(slotKey{n.self, key}, own)
			}
			done(err)
		})
	}()
}

func (n *node) receive(k slotKey, data []byte) {
	if n.hub.comes != nil {
		n.hub.comes(n.self, k.key)
	}
	n.hub.sent.Add(1)
	n.mu.Lock()
	if n.failed[[2]uint64{k.key.Space, k.key.ID}] != nil {
		n.mu.Unlock()
		return
	}
	s := n.slots[k]
	if s == nil {
		n.slots[k] = &slot{data: data, came: true}
		n.mu.Unlock()
		return
	}
	if s.came {
		n.hub.t.Errorf("process %d has two blocks of process %d under key %+v", n.self, k.peer, k.key)
	}
	delete(n.slots, k)
	n.mu.Unlock()
	n.deliver(s, data)
}

func (n *node) deliver(s *slot, data []byte) {
	if int64(len(data)) != s.size {
		n.hub.t.Errorf("a block has %d bytes, expected are %d", len(data), s.size)
	}
	if s.into != nil {
		copy(s.into, data)
		s.call(transport.Block{}, nil)
		return
	}
	s.call(n.block(data), nil)
}

func (n *node) Expect(peer uint64, key transport.Key, size int64, into []byte, arrived func(transport.Block, error)) {
	k := slotKey{peer, key}
	s := &slot{size: size, into: into, call: arrived}
	n.mu.Lock()
	err := n.failed[[2]uint64{key.Space, key.ID}]
	if err == nil {
		err = n.gone[peer]
	}
	if err != nil {
		n.mu.Unlock()
		arrived(transport.Block{}, err)
		return
	}
	old := n.slots[k]
	if old == nil {
		n.slots[k] = s
		n.mu.Unlock()
		return
	}
	delete(n.slots, k)
	n.mu.Unlock()
	if !old.came {
		n.hub.t.Errorf("process %d expects key %+v twice", n.self, key)
	}
	n.deliver(s, old.data)
}

func (n *node) Fail(space, id uint64, err error) {
	n.end(func(k slotKey) bool { return k.key.Space == space && k.key.ID == id }, err, func() {
		n.failed[[2]uint64{space, id}] = err
	})
}

// end ends what is expected and drops what came.
func (n *node) end(which func(slotKey) bool, err error, mark func()) {
	n.mu.Lock()
	mark()
	var calls []func(transport.Block, error)
	for k, s := range n.slots {
		if which(k) {
			delete(n.slots, k)
			if !s.came {
				calls = append(calls, s.call)
			}
		}
	}
	n.mu.Unlock()
	for _, c := range calls {
		c(transport.Block{}, err)
	}
}

func (n *node) Peers(_ []*wire.Process, gone []uint64, why error) {
	err := status.New(status.Unavailable, "process has gone: %w", why)
	n.end(func(k slotKey) bool { return slices.Contains(gone, k.peer) }, err, func() {
		for _, g := range gone {
			n.gone[g] = err
		}
	})
}

// clean says what is left.
func (h *hub) clean() {
	h.t.Helper()
	for h.pushes.Load() > 0 { // the callback that ends a call is within a push
		spin(1)
	}
	statustest.Equal(h.t, h.blocks.Load(), 0, "blocks that are not released")
	for _, n := range h.nodes {
		n.mu.Lock()
		for k, s := range n.slots {
			h.t.Errorf("process %d still holds %+v, came: %v", n.self, k, s.came)
		}
		n.mu.Unlock()
	}
}
