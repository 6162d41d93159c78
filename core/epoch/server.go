package epoch

import (
	"cmp"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Server runs a State for the connections of members.
type Server struct {
	log     *slog.Logger
	limits  Limits
	running sync.WaitGroup

	mu      sync.Mutex // guards the rest
	state   *State
	links   map[uint64]*link
	last    uint64 // connection
	actions []Action
	closed  bool
}

// link is a member's connection with the messages that its writer has yet to send. The
// server's lock guards it.
type link struct {
	number uint64
	in     *transport.Incoming
	queue  []message
	filled sync.Cond // signaled when the queue is not empty, or over is set
	over   bool      // the connection ends once the queue has been written
}

// message is a message for a writer to send; one without a kind is the Welcome.
type message struct {
	kind wire.Kind
	body proto.Message
}

// NewServer returns a server without members. log may be nil.
func NewServer(l Limits, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{log: log, limits: l.filled(), state: New(l), links: map[uint64]*link{}}
}

// Take accepts a connection that has sent its Hello as a member's. It does not block.
func (s *Server) Take(in *transport.Incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offer := in.Hello.GetMember()
	var err error
	switch {
	case s.closed:
		err = status.New(status.Unavailable, "the controller stops")
	case offer == nil:
		err = status.New(status.InvalidArgument, "member %s names no island; its Hello must carry a MemberOffer",
			in.Hello.GetName())
	}
	s.last++
	c := &link{number: s.last, in: in}
	if err != nil {
		s.refuse(c, err)
		return
	}
	c.filled.L = &s.mu
	s.links[c.number] = c
	s.step(Event{Kind: Join, Member: c.number, Name: in.Hello.Name, Island: cmp.Or(offer.Island, placement.DefaultIsland),
		Nodes: int(offer.Nodes)})
	if s.links[c.number] == c {
		s.running.Add(2)
		go s.write(c)
		go s.read(c)
	}
}

func (s *Server) refuse(c *link, why error) {
	s.log.Warn("a member was refused", "name", c.in.Hello.GetName(), "reason", why)
	s.running.Go(func() { c.in.Refuse(why) }) // takes time: it sends and closes
}

// step applies an event and carries out the actions that follow. The caller holds mu.
func (s *Server) step(ev Event) {
	s.actions = s.state.Step(ev, s.actions[:0])
	for _, a := range s.actions {
		c := s.links[a.To]
		if c == nil {
			continue // its connection has ended; State learns of that next
		}
		switch a.Kind {
		case Welcome:
			s.send(c, message{body: new(wire.Welcome)})
		case Refuse:
			delete(s.links, c.number)
			s.refuse(c, a.Err)
		case Begin:
			s.log.Info("a worker is a member", "name", c.in.Hello.Name, "epoch", a.Epoch, "node", a.Node, "of", a.Nodes)
			s.send(c, message{wire.KindEpoch, &wire.Epoch{Number: a.Epoch, Node: uint32(a.Node), Nodes: uint32(a.Nodes)}})
		case Answer:
			s.send(c, message{wire.KindKeyAnswer, &wire.KeyAnswer{Id: a.ID, Status: wire.Of(a.Err), Value: a.Value}})
		case Over:
			s.log.Warn("a worker's epoch is over", "name", c.in.Hello.Name, "reason", a.Err)
			s.send(c, message{wire.KindEpoch, &wire.Epoch{Number: a.Epoch, Over: wire.Of(a.Err)}})
			s.end(c)
		}
	}
	clear(s.actions)
}

// send queues a message. The caller holds mu.
func (s *Server) send(c *link, m message) {
	c.queue = append(c.queue, m)
	c.filled.Signal()
}

// end closes a connection once its queue has been written. The caller holds mu.
func (s *Server) end(c *link) {
	delete(s.links, c.number)
	c.over = true
	c.filled.Signal()
}

// write sends a link's messages until the link is over.
func (s *Server) write(c *link) {
	defer s.running.Done()
	defer c.in.Close()
	s.mu.Lock()
	for {
		if len(c.queue) == 0 {
			if c.over {
				s.mu.Unlock()
				return
			}
			c.filled.Wait()
			continue
		}
		queue := c.queue
		c.queue = nil
		s.mu.Unlock()
		for _, m := range queue {
			if c.put(m) != nil {
				return // the reader gets the error too
			}
		}
		s.mu.Lock()
	}
}

func (c *link) put(m message) error {
	if w, ok := m.body.(*wire.Welcome); ok {
		return c.in.Welcome(w)
	}
	payload, err := proto.Marshal(m.body)
	if err != nil {
		return status.New(status.Internal, "a message of kind %v could not be encoded: %w", m.kind, err)
	}
	return c.in.Send(m.kind, payload)
}

// read passes a member's requests to State until the connection ends.
func (s *Server) read(c *link) {
	defer s.running.Done()
	var err error
	for err == nil {
		var kind wire.Kind
		var payload []byte
		if kind, payload, err = c.in.Recv(); err == nil {
			err = s.take(c, kind, payload)
		}
	}
	s.mu.Lock()
	s.step(Event{Kind: Leave, Member: c.number, Err: err})
	s.end(c)
	s.mu.Unlock()
	c.in.Close() // unblocks the writer if the member does not read
}

// take passes one message to State. An error ends the membership.
func (s *Server) take(c *link, kind wire.Kind, payload []byte) error {
	switch kind {
	case wire.KindHeartbeat:
		return nil
	case wire.KindGoodbye:
		m := new(wire.Goodbye)
		if err := wire.Decode(kind, payload, m); err != nil {
			return err
		}
		if err := m.Status.Err(); err != nil {
			return err
		}
		return status.New(status.Cancelled, "it said goodbye")
	case wire.KindKeyRequest:
	default:
		return status.New(status.InvalidArgument,
			"a member sent a message of kind %v; expected a heartbeat, a key request or a goodbye", kind)
	}
	m := new(wire.KeyRequest)
	if err := wire.Decode(kind, payload, m); err != nil {
		return err
	}
	ev := Event{Member: c.number, ID: m.Id, Key: string(m.Key), Value: m.Value}
	switch m.Act {
	case wire.KeyRequest_PUT:
		ev.Kind = Put
	case wire.KeyRequest_GET:
		ev.Kind = Get
	case wire.KeyRequest_TRY:
		ev.Kind = Try
	case wire.KeyRequest_DROP:
		ev.Kind = Drop
	default:
		return status.New(status.InvalidArgument, "a key request has act %v; expected PUT, GET, TRY or DROP", m.Act)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(c.queue) > s.limits.Waits {
		return status.New(status.ResourceExhausted, "%d answers wait for member %s to read them, which is above the limit",
			len(c.queue), c.in.Hello.Name)
	}
	s.step(ev)
	return nil
}

// Close says goodbye to all members, ends their connections, and blocks until that is
// done. The caller closes its listeners first.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.links {
		s.send(c, message{wire.KindGoodbye,
			&wire.Goodbye{Status: wire.Of(status.New(status.Unavailable, "the controller stops")), Stops: true}})
		s.end(c)
	}
	s.mu.Unlock()
	s.running.Wait()
}
