package worker_test

import (
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

type hub struct {
	mu  sync.Mutex
	all map[uint64]*ex
}
type wait struct {
	from    uint64
	size    int64
	into    []byte
	arrived func(transport.Block, error)
}
type pk struct {
	from uint64
	key  transport.Key
}
type ex struct {
	h     *hub
	self  uint64
	waits map[pk]wait
	came  map[pk][]byte
}

func newHub() *hub { return &hub{all: map[uint64]*ex{}} }
func (h *hub) join(n uint64) *ex {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &ex{h, n, map[pk]wait{}, map[pk][]byte{}}
	h.all[n] = e
	return e
}
func (e *ex) Self() uint64                           { return e.self }
func (e *ex) Close() error                           { return nil }
func (e *ex) Peers([]*wire.Process, []uint64, error) {}
func (e *ex) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	e.Push(peer, key, int64(len(data)), func(dst []byte, w func(error)) { copy(dst, data); w(nil) }, func(err error) {
		if done != nil {
			done(err)
		}
	})
}
func (e *ex) Push(peer uint64, key transport.Key, size int64, fill func([]byte, func(error)), done func(error)) {
	buf := make([]byte, size)
	go fill(buf, func(err error) {
		e.h.mu.Lock()
		to := e.h.all[peer]
		k := pk{e.self, key}
		w, ok := to.waits[k]
		delete(to.waits, k)
		if !ok {
			to.came[k] = buf
		}
		e.h.mu.Unlock()
		if ok {
			w.give(buf, err)
		}
		done(err)
	})
}
func (w wait) give(buf []byte, err error) {
	if err == nil && int64(len(buf)) != w.size {
		err = status.New(status.InvalidArgument, "size")
	}
	if err != nil {
		w.arrived(transport.Block{}, err)
		return
	}
	if w.into != nil {
		copy(w.into, buf)
		buf = w.into
	}
	w.arrived(transport.Block{Data: buf, Release: func() {}}, nil)
}
func (e *ex) Expect(peer uint64, key transport.Key, size int64, into []byte, arrived func(transport.Block, error)) {
	k := pk{peer, key}
	w := wait{peer, size, into, arrived}
	e.h.mu.Lock()
	b, ok := e.came[k]
	if !ok {
		e.waits[k] = w
	}
	delete(e.came, k)
	e.h.mu.Unlock()
	if ok {
		w.give(b, nil)
	}
}
func (e *ex) Fail(space, id uint64, err error) {
	e.h.mu.Lock()
	var all []wait
	for k, w := range e.waits {
		if k.key.Space == space && k.key.ID == id {
			all = append(all, w)
			delete(e.waits, k)
		}
	}
	e.h.mu.Unlock()
	for _, w := range all {
		w.arrived(transport.Block{}, err)
	}
}
