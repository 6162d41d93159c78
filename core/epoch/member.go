package epoch

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// Config says of what to be a member.
type Config struct {
	Dialer  transport.Dialer
	Address string // of the controller
	Name    string // for people, and for the order of nodes
	Host    string
	Island  string
	Nodes   int
}

// Member is one of an epoch. It is the epoch's device.KeyValues.
type Member struct {
	conn  transport.Conn
	epoch *wire.Epoch
	done  chan struct{} // closed when the epoch is over, or the controller gone

	mu    sync.Mutex // guards the rest
	asked map[uint64]chan *wire.KeyAnswer
	last  uint64
	left  error // why Leave was called
	over  bool
	err   error // why done is closed
}

// Dial asks the controller to be a member, without waiting for the others.
//
// Once the controller may have taken the question, the end of ctx does not end the wait
// for its answer, but for parting: a member that hung up before would be one for a
// moment, and in the way of who comes next. Wait says goodbye for it.
//
// Errors: the dialer's, and the controller's refusal.
func Dial(ctx context.Context, c Config) (*Pending, error) {
	if ctx.Err() != nil {
		return nil, status.New(status.Cancelled, "told to stop before the controller was asked")
	}
	answered, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-answered.Done():
		case <-time.After(parting):
			cancel()
		}
	})()
	conn, _, err := c.Dialer.Dial(answered, c.Address, &wire.Hello{Role: wire.Role_ROLE_MEMBER, Name: c.Name, Host: c.Host,
		Member: &wire.MemberOffer{Island: c.Island, Nodes: uint32(c.Nodes)}})
	if err != nil {
		return nil, err
	}
	return &Pending{conn}, nil
}

// Pending is a member whose epoch has not begun.
type Pending struct{ conn transport.Conn }

// parting is for how long a member that goes waits for a controller that says
// nothing.
const parting = 2 * time.Second

// Wait waits for the others, as long as the controller is there. It is called
// once. Where ctx ends it says goodbye and waits until the controller has taken
// that, so that who comes next does not find a member that has gone.
//
// Errors: why the controller has gone, or CANCELLED with ctx.
func (p *Pending) Wait(ctx context.Context) (*Member, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if payload, err := proto.Marshal(new(wire.Goodbye)); err == nil && p.conn.Send(wire.KindGoodbye, payload) == nil {
			select {
			case <-ended:
			case <-time.After(parting):
			}
		}
		p.conn.Close()
	})
	e, err := begin(p.conn)
	close(ended)
	if !stop() {
		err = status.New(status.Cancelled, "told to stop before the members of the epoch were there")
	}
	if err != nil {
		p.conn.Close()
		return nil, err
	}
	m := &Member{conn: p.conn, epoch: e, done: make(chan struct{}), asked: map[uint64]chan *wire.KeyAnswer{}}
	go m.read()
	return m, nil
}

func begin(conn transport.Conn) (*wire.Epoch, error) {
	for {
		kind, payload, err := conn.Recv()
		if err != nil {
			return nil, err
		}
		switch kind {
		case wire.KindEpoch:
			e := new(wire.Epoch)
			if err := wire.Decode(kind, payload, e); err != nil {
				return nil, err
			}
			return e, e.Over.Err()
		case wire.KindGoodbye:
			return nil, goodbye(payload)
		}
	}
}

// goodbye is why the controller has gone.
func goodbye(payload []byte) error {
	m := new(wire.Goodbye)
	if err := wire.Decode(wire.KindGoodbye, payload, m); err != nil {
		return err
	}
	if err := wire.Leave(m); err != nil {
		return err
	}
	return status.New(status.Unavailable, "the controller said goodbye")
}

// Membership is what a driver joins with.
func (m *Member) Membership() device.Membership {
	return device.Membership{Epoch: m.epoch.Number, Node: int(m.epoch.Node), Nodes: int(m.epoch.Nodes), Store: m}
}

// Done is closed when the epoch is over or the controller has gone. Whatever the
// driver does with other members may then wait for ever.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err says why Done is closed, and whether that is because another member went, so
// that there may be a next epoch; nil before.
func (m *Member) Err() (over bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over, m.err
}

// Leave ends the epoch, for all its members and this one, for a reason. It is for
// those who want to be in the next.
func (m *Member) Leave(why error) {
	m.mu.Lock()
	if m.left == nil {
		m.left = status.New(status.Aborted, "this worker gives up epoch %d: %w", m.epoch.Number, why)
	}
	m.mu.Unlock()
	m.goodbye(why)
}

// Close leaves the epoch, which is over with that for all its members.
func (m *Member) Close() { m.goodbye(nil) }

func (m *Member) goodbye(why error) {
	if payload, err := proto.Marshal(&wire.Goodbye{Status: wire.Of(why)}); err == nil {
		_ = m.conn.Send(wire.KindGoodbye, payload) // the end of the connection says it too
	}
	m.conn.Close()
	<-m.done
}

// read takes what the controller says until the epoch is over.
func (m *Member) read() {
	over, err := m.answers()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left != nil && !over {
		over, err = true, m.left
	}
	m.over, m.err = over, err
	close(m.done)
	m.conn.Close()
}

func (m *Member) answers() (over bool, err error) {
	for {
		kind, payload, err := m.conn.Recv()
		if err != nil {
			return false, err
		}
		switch kind {
		case wire.KindKeyAnswer:
			a := new(wire.KeyAnswer)
			if err := wire.Decode(kind, payload, a); err != nil {
				return false, err
			}
			m.mu.Lock()
			if c := m.asked[a.Id]; c != nil {
				delete(m.asked, a.Id)
				c <- a // it has room
			}
			m.mu.Unlock()
		case wire.KindEpoch:
			e := new(wire.Epoch)
			if err := wire.Decode(kind, payload, e); err != nil {
				return false, err
			}
			if err := e.Over.Err(); err != nil {
				return true, err
			}
		case wire.KindGoodbye:
			return false, goodbye(payload)
		}
	}
}

// Put implements device.KeyValues. A key that has another value already is
// ALREADY_EXISTS.
func (m *Member) Put(ctx context.Context, key string, value []byte) error {
	_, err := m.ask(ctx, wire.KeyRequest_PUT, key, value)
	return err
}

// Get implements device.KeyValues. It fails also when the epoch is over.
func (m *Member) Get(ctx context.Context, key string) ([]byte, error) {
	return m.ask(ctx, wire.KeyRequest_GET, key, nil)
}

// TryGet gives a key's value if it is there.
func (m *Member) TryGet(ctx context.Context, key string) (value []byte, ok bool, err error) {
	value, err = m.ask(ctx, wire.KeyRequest_TRY, key, nil)
	if status.CodeOf(err) == status.NotFound {
		return nil, false, nil
	}
	return value, err == nil, err
}

func (m *Member) ask(ctx context.Context, act wire.KeyRequest_Act, key string, value []byte) ([]byte, error) {
	answer := make(chan *wire.KeyAnswer, 1)
	m.mu.Lock()
	m.last++
	id := m.last
	m.asked[id] = answer
	m.mu.Unlock()
	forget := func() {
		m.mu.Lock()
		delete(m.asked, id)
		m.mu.Unlock()
	}
	if err := m.send(&wire.KeyRequest{Id: id, Act: act, Key: []byte(key), Value: value}); err != nil {
		forget()
		<-m.done // soon, and it knows why: the controller may have said that the epoch is over
		if _, why := m.Err(); why != nil {
			err = why
		}
		return nil, status.Wrap(err, "key %q", key)
	}
	select {
	case a := <-answer:
		return a.Value, a.Status.Err()
	case <-m.done:
		select {
		case a := <-answer:
			return a.Value, a.Status.Err()
		default:
		}
		_, err := m.Err()
		return nil, status.Wrap(err, "key %q", key)
	case <-ctx.Done():
		forget()
		if act == wire.KeyRequest_GET {
			_ = m.send(&wire.KeyRequest{Id: id, Act: wire.KeyRequest_DROP})
		}
		code := status.Cancelled
		if context.Cause(ctx) == context.DeadlineExceeded {
			code = status.DeadlineExceeded
		}
		return nil, status.New(code, "waiting for key %q of epoch %d: %w", key, m.epoch.Number, context.Cause(ctx))
	}
}

func (m *Member) send(r *wire.KeyRequest) error {
	payload, err := proto.Marshal(r)
	if err != nil {
		return status.New(status.Internal, "a request does not encode: %w", err)
	}
	return m.conn.Send(wire.KindKeyRequest, payload)
}
