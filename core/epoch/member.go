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

// Config describes the membership that a worker asks for.
type Config struct {
	Dialer  transport.Dialer
	Address string // of the controller
	Name    string // for people, and for the order of nodes
	Host    string
	Island  string
	Nodes   int
}

// Member is a member of an epoch. It implements device.KeyValues on the epoch's store.
type Member struct {
	conn  transport.Conn
	epoch *wire.Epoch
	done  chan struct{} // closed when the epoch is over or the connection to the controller is lost

	mu    sync.Mutex                      // guards the rest
	asked map[uint64]chan *wire.KeyAnswer // unanswered requests, by ID
	last  uint64                          // ID of the last request
	left  error                           // the reason passed to Leave
	over  bool                            // see Err
	err   error                           // why done is closed
}

// Dial asks the controller for membership, without waiting for the other members.
//
// Once the controller may have accepted the request, the end of ctx does not abort the
// wait for its answer at once, but after goodbyeWait: a worker that hung up before that
// would stay a member for a moment, and might take the place of the next one. Wait then
// says goodbye for it.
//
// Errors: those of the dialer, and the controller's refusal.
func Dial(ctx context.Context, c Config) (*Pending, error) {
	if ctx.Err() != nil {
		return nil, status.New(status.Cancelled, "stopped before the controller was asked")
	}
	answered, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-answered.Done():
		case <-time.After(goodbyeWait):
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

// goodbyeWait is how long a member that leaves waits for a controller that does not
// answer. A controller answers in milliseconds; two seconds cover a very busy machine.
const goodbyeWait = 2 * time.Second

// Wait blocks until all members are there or the connection to the controller ends. It
// must be called once. If ctx ends, it says goodbye and waits until the controller has
// received that, so that the controller does not match the next worker with a member
// that has left.
//
// Errors: the reason why the connection ended; CANCELLED if ctx ended.
func (p *Pending) Wait(ctx context.Context) (*Member, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if transport.SayGoodbye(p.conn, nil) == nil {
			select {
			case <-ended:
			case <-time.After(goodbyeWait):
			}
		}
		p.conn.Close()
	})
	e, err := begin(p.conn)
	close(ended)
	if !stop() {
		err = status.New(status.Cancelled, "stopped before all members of the epoch had joined")
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

// goodbye returns the controller's reason for leaving.
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

// Membership returns what a driver needs to join its devices to those of the others.
func (m *Member) Membership() device.Membership {
	return device.Membership{Epoch: m.epoch.Number, Node: int(m.epoch.Node), Nodes: int(m.epoch.Nodes), Store: m}
}

// Done returns a channel that is closed when the epoch is over or the connection to the
// controller is lost. Calls of the driver that involve other members may then never
// return.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err returns why Done is closed, or nil if it is not. over reports whether the reason
// is that another member left, so that there may be a next epoch.
func (m *Member) Err() (over bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over, m.err
}

// Leave ends the epoch for all its members, with a reason. A worker calls it if it wants
// to be in the next epoch.
func (m *Member) Leave(why error) {
	m.mu.Lock()
	if m.left == nil {
		m.left = status.New(status.Aborted, "this worker left epoch %d: %w", m.epoch.Number, why)
	}
	m.mu.Unlock()
	m.goodbye(why)
}

// Close leaves the epoch, which ends it for all members.
func (m *Member) Close() { m.goodbye(nil) }

func (m *Member) goodbye(why error) {
	_ = transport.SayGoodbye(m.conn, why) // if it fails, the end of the connection has the same effect
	m.conn.Close()
	<-m.done
}

// read handles the controller's messages until the epoch is over.
func (m *Member) read() {
	over, err := m.answers()
	m.mu.Lock()
	if m.left != nil && !over {
		over, err = true, m.left
	}
	m.over, m.err = over, err
	m.mu.Unlock()
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
			if err := wire.Decoded(kind, payload, new(wire.KeyAnswer), m.answer); err != nil {
				return false, err
			}
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

// answer passes an answer to the request that waits for it.
func (m *Member) answer(a *wire.KeyAnswer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.asked[a.Id]; c != nil {
		delete(m.asked, a.Id)
		c <- a // does not block: the channel has room for its only answer
	}
}

// Put implements device.KeyValues. It returns ALREADY_EXISTS if the key has a different
// value.
func (m *Member) Put(ctx context.Context, key string, value []byte) error {
	_, err := m.ask(ctx, wire.KeyRequest_PUT, key, value)
	return err
}

// Get implements device.KeyValues. It also fails when the epoch is over.
func (m *Member) Get(ctx context.Context, key string) ([]byte, error) {
	return m.ask(ctx, wire.KeyRequest_GET, key, nil)
}

// TryGet returns a key's value without waiting; ok reports whether the key has one.
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
		if status.CodeOf(err) == status.InvalidArgument { // it is too long for a message, and nothing was sent
			return nil, status.Wrap(err, "key %s", status.Quote(key))
		}
		<-m.done // read ends soon too, and knows why: the controller may have ended the epoch
		if _, why := m.Err(); why != nil {
			err = why
		}
		return nil, status.Wrap(err, "key %s", status.Quote(key))
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
		return nil, status.Wrap(err, "key %s", status.Quote(key))
	case <-ctx.Done():
		forget()
		if act == wire.KeyRequest_GET {
			_ = m.send(&wire.KeyRequest{Id: id, Act: wire.KeyRequest_DROP})
		}
		code := status.Cancelled
		if context.Cause(ctx) == context.DeadlineExceeded {
			code = status.DeadlineExceeded
		}
		return nil, status.New(code, "waiting for key %s of epoch %d: %w", status.Quote(key), m.epoch.Number,
			context.Cause(ctx))
	}
}

func (m *Member) send(r *wire.KeyRequest) error {
	payload, err := proto.Marshal(r)
	if err != nil {
		return status.New(status.Internal, "a request could not be encoded: %w", err)
	}
	return m.conn.Send(wire.KindKeyRequest, payload)
}
