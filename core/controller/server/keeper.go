package server

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	linking "github.com/openpathways/pathways/transport/link"
)

// keeper writes facts to disk, in their order, on its own goroutine, so neither State's lock nor a caller waits for the
// disk. All facts that come during a write are the next transaction. It keeps as many facts in memory as come during a
// write.
type keeper struct {
	store  *durable.Store
	takes  func() time.Duration // see Config.Disk
	failed func(error)          // told once in a row

	mu      sync.Mutex // guards the rest
	facts   []fact
	writing bool
	given   int        // facts that were ever put
	written int        // of them, those that are on disk, or could not be written
	went    *sync.Cond // signaled after each write
}

type fact struct {
	table, key string
	value      proto.Message
	then       func() // instead: called once all is on disk that was put before, or could not be written
}

func factOf(a *controller.Action) fact { return fact{table: a.Table, key: a.Key, value: a.Fact} }

func newKeeper(store *durable.Store, takes func() time.Duration, failed func(error)) *keeper {
	k := &keeper{store: store, takes: takes, failed: failed}
	k.went = sync.NewCond(&k.mu)
	return k
}

// put queues facts to be written, without waiting. On a nil keeper it does nothing.
func (k *keeper) put(facts ...fact) {
	if k == nil || len(facts) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.facts = append(k.facts, facts...)
	k.given += len(facts)
	if !k.writing {
		k.writing = true
		go k.write()
	}
}

// next returns what is to be written, or nil if there is nothing.
func (k *keeper) next() []fact {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.facts) > 0 && k.takes != nil {
		k.mu.Unlock()
		time.Sleep(k.takes())
		k.mu.Lock()
	}
	facts := k.facts
	k.facts, k.writing = nil, len(facts) > 0
	return facts
}

// write writes until there is nothing left.
func (k *keeper) write() {
	wrong := false
	for {
		facts := k.next()
		if facts == nil {
			return
		}
		entries := make([]durable.Entry, 0, len(facts))
		for _, f := range facts {
			if f.then != nil {
				continue
			}
			e := durable.Entry{Table: f.table, Key: f.key}
			if f.value != nil {
				e.Value, _ = proto.Marshal(f.value) // what was decoded encodes
			}
			entries = append(entries, e)
		}
		var err error
		if len(entries) > 0 {
			err = k.store.Write(entries)
		}
		if err != nil && !wrong {
			wrong = true
			k.failed(err)
		}
		for _, f := range facts {
			if f.then != nil {
				f.then()
			}
		}
		k.mu.Lock()
		k.written += len(facts)
		k.went.Broadcast()
		k.mu.Unlock()
	}
}

// wait blocks until all facts that were put before are written.
func (k *keeper) wait() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for until := k.given; k.written < until; {
		k.went.Wait()
	}
}

func linkKey(id uint64) string { return fmt.Sprintf("%020d", id) }

// keepLink keeps a connection that was let in, if it is a link. It is on disk when keepLink returns: once its process
// has the Welcome, it will wait for the controller's next start, which has to know it.
func (s *Server) keepLink(c *link, w *wire.Welcome) {
	if s.keeper == nil {
		return
	}
	saved, ok := linking.SavedOf(c.in.Conn)
	if !ok {
		return
	}
	c.kept = saved.ID
	s.keeper.put(fact{table: controller.TableLinks, key: linkKey(saved.ID), value: &wire.KeptLink{Id: saved.ID,
		Secret: saved.Secret, Hello: saved.Hello, Pass: uint32(saved.Holder.Pass), Tenant: saved.Holder.Tenant,
		HeartbeatMs: w.HeartbeatMs, Process: w.Process, Session: w.Session, Board: w.Board}})
	s.keeper.wait()
}

const (
	// maxHanded bounds the messages of a Step that connections are handed under the lock, which takes a quarter of a
	// millisecond for so many bytes. Those beyond it are put into outboxes as they are, and handed on without the lock.
	maxHanded = 512 << 10
	// handCost is what handing over a message costs beside its bytes: as much as copying so many.
	handCost = 512
)

// send puts a message into the outboxes of its receivers. Called with the lock.
func (s *Server) send(a *controller.Action) {
	var m *message   // for the receivers whose outboxes it is put into as it is
	var room []frame // for them
	for i, number := range a.To {
		c := s.conns.Get(number)
		if c == nil {
			continue
		}
		var own []byte
		if a.Own != nil {
			own = a.Own[i]
		}
		var waits bool
		if s.handed += handCost + len(a.Payload) + len(own); s.handed <= maxHanded && a.Late == nil {
			payload := a.Payload
			if own != nil {
				s.whole = append(append(s.whole[:0], payload...), own...)
				payload = s.whole
			}
			waits = c.outbox.put(a.Wire, payload)
		} else {
			if m == nil {
				m = &message{kind: a.Wire, payload: slices.Clone(a.Payload), late: encodedOnce(a.Late)} // State uses Payload again
				room = make([]frame, len(a.To)-i)
			}
			waits = c.outbox.putBehind(frame{m, own}, room[:0:1])
			room = room[1:]
		}
		if waits && !c.full {
			c.full = true
			s.full = append(s.full, c)
		}
	}
}

// sendKept sends a message once all facts kept before are on disk. Called with the lock.
func (s *Server) sendKept(a *controller.Action) {
	later := &controller.Action{Wire: a.Wire, To: slices.Clone(a.To), Payload: slices.Clone(a.Payload), Own: a.Own,
		Late: a.Late}
	s.keeper.put(fact{then: func() {
		s.mu.Lock()
		s.send(later)
		full := s.takeFull(nil)
		s.mu.Unlock()
		s.leave(full)
	}})
}

// letLink removes a connection that has ended.
func (s *Server) letLink(c *link) { s.keeper.put(c.letKept()...) }

// letKept returns what is to be written of a connection that was kept and has ended.
func (c *link) letKept() (facts []fact) {
	if c.kept != 0 {
		facts = []fact{{table: controller.TableLinks, key: linkKey(c.kept)}}
		c.kept = 0
	}
	return facts
}

// restore restores the links of an earlier start. What it keeps is one transaction: if this start ends early, the next
// one finds either the old facts or all of the new ones.
func (s *Server) restore(k *controller.Kept) {
	var links []*link
	for i := range k.Links {
		l := &k.Links[i]
		hello := l.Hello
		if hello == nil {
			hello = new(wire.Hello)
			l.Hello = hello
		}
		holder := transport.Holder{Pass: transport.Pass(l.Pass), Tenant: l.Tenant}
		conn := s.links.Restore(linking.Saved{ID: l.Id, Secret: l.Secret, Hello: hello, Holder: holder, Beat: l.HeartbeatMs})
		s.last++
		c := &link{number: s.last, kept: l.Id, let: true, restored: true,
			in: &transport.Incoming{Conn: conn, Hello: hello, Holder: holder}}
		c.outbox.open(c.in, &s.running)
		l.Conn, l.Lease = c.number, int64(s.lease)
		links = append(links, c)
	}
	refused, actions := s.state.Restore(k)
	var facts []fact
	for i := range actions {
		if a := &actions[i]; a.Kind == controller.Keep {
			facts = append(facts, factOf(a))
		} else {
			s.do(a)
		}
	}
	links = slices.DeleteFunc(links, func(c *link) bool {
		err := refused[c.number]
		if err != nil {
			s.log.Warn("a process cannot come back", "name", c.in.Hello.Name, "reason", err)
			facts = append(facts, c.letKept()...)
			s.running.Go(func() { c.in.Close() })
		}
		return err != nil
	})
	s.keeper.put(facts...)
	for _, c := range links { // whose messages keep facts of their own
		s.conns.Set(c.number, c)
		c.outbox.start()
		s.running.Add(1)
		go s.read(c)
	}
	s.cameBack()
}

// cameBack lets connections continue once State has its cluster back. Called with the lock, or before other goroutines
// exist.
func (s *Server) cameBack() {
	if s.away != nil && !s.state.IsComingBack() {
		close(s.away)
		s.away = nil
	}
}

// supersede ends the link that a worker which joins anew had with an earlier start. That is on disk before the worker
// hears of it. Otherwise, if the controller ended in between, the worker would know no link, and would wait for all
// others to come back, among them its former self, until the lease is over.
func (s *Server) supersede(newcomer *link) {
	who := newcomer.in.Hello.GetWorker().GetIdentity()
	if len(who) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns.All() {
		if c != newcomer && c.restored && !s.state.HasComeBack(c.number) &&
			bytes.Equal(c.in.Hello.GetWorker().GetIdentity(), who) {
			s.running.Go(func() { c.in.Close() }) // its reader tells State
		}
	}
}

// awaitOthers blocks until State accepts messages of clients and workers, or the Server closes; at most for the lease.
// Meanwhile it tells newcomer, which may be nil, to wait, so that it does not give up.
func (s *Server) awaitOthers(newcomer *link) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away == nil {
		return
	}
	again := time.NewTicker(transport.WaitAgain)
	defer again.Stop()
	for {
		if newcomer != nil {
			s.mu.Lock()
			why := s.state.AwayText()
			s.mu.Unlock()
			_ = newcomer.in.Wait(why) // it may have gone; then it gets no welcome either
		}
		select {
		case <-away:
			return
		case <-s.done:
			return
		case <-again.C:
		}
	}
}

// readRejoin passes the report of a process that has come back to State, and waits for the others. Messages before the
// report were for the controller's earlier start, or are repeated after it. It reports whether the connection
// continues.
func (s *Server) readRejoin(c *link) bool {
	for {
		kind, payload, err := c.in.Recv()
		if err == nil && kind == wire.KindRejoin {
			if err = s.take(c, kind, payload, true); err == nil {
				s.mu.Lock()
				back := s.state.HasComeBack(c.number)
				s.mu.Unlock()
				if back {
					return s.readEarly(c)
				}
			}
		}
		if err == nil && kind == wire.KindGoodbye {
			err = s.take(c, kind, payload, true)
		}
		if err != nil {
			s.lose(c, err)
			return false
		}
	}
}

// early is a message that came before the others had come back, or the reason why no more will come.
type early struct {
	kind    wire.Kind
	payload []byte
	err     error
}

// maxEarly bounds the early messages that are kept; then nothing more is read.
const maxEarly = 64

// readEarly waits for the others and then passes the messages that have come meanwhile to State. It reports whether the
// connection continues.
//
// It reads while it waits, since the reader of a link resumes it when its connection breaks. Otherwise the process
// would get no answer before the others are back, and that may take the whole lease, after which the process gives up.
// The reader's fields of link stay with this goroutine; the other one calls only Recv, and what Recv calls back.
func (s *Server) readEarly(c *link) bool {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away == nil {
		return true
	}
	came := make(chan early, maxEarly)
	s.running.Go(func() {
		defer close(came)
		for {
			kind, payload, err := c.in.Recv()
			came <- early{kind, bytes.Clone(payload), err}
			select {
			case <-away:
				return
			default:
			}
			if err != nil {
				return
			}
		}
	})
	s.awaitOthers(nil)
	for m := range came {
		err := m.err
		if err == nil {
			_, err = s.bring(c, m.kind, m.payload, 0, true)
		}
		if err != nil {
			s.lose(c, err)
			for range came { // what follows is of a connection that has ended
			}
			return false
		}
	}
	return true
}
