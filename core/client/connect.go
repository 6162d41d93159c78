package client

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Config is what a session on a controller is made from.
type Config struct {
	Dialer  transport.Dialer
	Address string      // of the controller
	Hello   *wire.Hello // name, host and versions; Connect fills in the role
	// Exchange makes this process's end of the exchange of bytes. The session
	// closes it.
	Exchange func(w *wire.Welcome) (transport.Exchange, error)
	Notify   Notify
	// Hurry is asked every HurryEvery by a call that waits for credit, on its own
	// goroutine. Where it reports true, the call takes of the credit that is kept for
	// such calls: its user has pressed Ctrl-C, and is told so when it has returned. Nil:
	// no call hurries.
	Hurry func() bool
}

// HurryEvery is how often a call that waits for credit asks whether it has to hurry:
// often enough for Ctrl-C, and seldom enough to cost nothing.
const HurryEvery = 100 * time.Millisecond

// hurryShare is the share of the credit that is kept for calls that hurry, one part in so many:
// 16 operations of the usual 1,024, for as many times Ctrl-C while none ends.
const hurryShare = 64

// remote is a Cluster behind a connection.
//
// A submission takes order, so that operations leave in the order of their
// numbers; what the reader needs when one ends is under mu alone, so that a
// connection which is full holds up submissions and not ends.
type remote struct {
	conn     transport.Conn
	batcher  transport.Batcher // conn, or nil
	bursts   bool              // operations that queue up leave as one message
	exchange transport.Exchange
	welcome  *wire.Welcome
	space    uint64
	notify   Notify
	hurry    func() bool // Config.Hurry, or nil
	running  sync.WaitGroup
	stop     chan struct{}

	objects  atomic.Uint64 // numbers given
	programs atomic.Uint64
	slices   atomic.Uint64

	order sync.Mutex
	op    uint64 // number given last
	buf   []byte // of the message that is being sent

	mu       sync.Mutex
	room     sync.Cond // credit has come back
	credit   int
	underWay int
	pending  map[uint64]pending // by operation
	graphs   map[uint64]defined
	graph    uint64 // number given last
	compiles map[uint64]*compiling
	compile  uint64 // number given last
	asking   asking
	round    *round // of a profile's, under way; or nil
	profile  uint64 // number given last
	lost     error

	freeing sync.Mutex
	frees   []uint64
	spare   []uint64 // the list before
	timer   *time.Timer
	armed   bool // timer

	telling sync.Mutex // one call of notify at a time
}

// pending is an operation under way.
type pending struct {
	token uint64
	put   *putting
	fetch *fetching
	calls *calling
}

// compiling is a Compile under way.
type compiling struct {
	answer chan *wire.Compiled // holds one; closed without one where the session is lost
	slow   func(worker string, since time.Duration)
}

// freeAfter is how long objects that were let go of wait for company: a submission
// takes them along.
const freeAfter = 500 * time.Microsecond

// Connect begins a session.
//
// Errors: those of the dialer, and the controller's refusal, RESOURCE_EXHAUSTED
// where it has fewer devices than Hello asks for.
func Connect(ctx context.Context, c Config) (Cluster, error) {
	hello := proto.CloneOf(c.Hello)
	hello.Role = wire.Role_ROLE_CLIENT
	conn, welcome, err := c.Dialer.Dial(ctx, c.Address, hello)
	if err != nil {
		return nil, err
	}
	if asked := int(hello.Devices); asked > 0 && len(welcome.Devices) != asked {
		conn.Close()
		return nil, status.New(status.FailedPrecondition, "a session of %s was asked for, and the controller, %s, gave %d devices: its version gives a session all devices; upgrade it, or ask for no number",
			status.Count(asked, "device"), cmp.Or(welcome.Software, "of unknown version"), len(welcome.Devices))
	}
	exchange, err := c.Exchange(welcome)
	if err != nil {
		conn.Close()
		return nil, err
	}
	exchange.Peers(welcome.Workers, nil, nil)
	r := &remote{conn: conn, exchange: exchange, welcome: welcome, space: transport.Transfers(welcome.Session), notify: c.Notify, hurry: c.Hurry, stop: make(chan struct{}),
		credit: int(max(welcome.Credit, 1)), pending: map[uint64]pending{}, graphs: map[uint64]defined{}, compiles: map[uint64]*compiling{}, asking: asking{}}
	r.batcher, _ = conn.(transport.Batcher)
	r.bursts = r.batcher != nil && welcome.Protocol >= wire.ProtocolBurst && !hello.Alone
	r.room.L = &r.mu
	r.timer = time.AfterFunc(time.Hour, r.flush)
	r.timer.Stop()
	r.running.Go(r.read)
	return r, nil
}

// Devices implements Cluster.
func (r *remote) Devices() []*wire.Device { return r.welcome.Devices }

// Platform implements Cluster.
func (r *remote) Platform() *wire.Platform { return r.welcome.Platform }

// WorkerName implements Cluster.
func (r *remote) WorkerName(process uint64) string {
	for _, w := range r.welcome.Workers {
		if w.Number == process && w.Name != "" {
			return w.Name
		}
	}
	return strconv.FormatUint(process, 10)
}

// Objects implements Cluster.
func (r *remote) Objects(n int) uint64 { return r.objects.Add(uint64(n)) - uint64(n) + 1 }

// Lost implements Cluster.
func (r *remote) Lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Close implements Cluster. It is not called from Notify.
func (r *remote) Close() error {
	r.lose(status.New(status.Unavailable, "the session was closed"))
	if payload, err := proto.Marshal(&wire.Goodbye{}); err == nil {
		_ = r.conn.Send(wire.KindGoodbye, payload) // it may have gone already
	}
	r.conn.Close()
	r.running.Wait()
	r.freeing.Lock()
	r.timer.Stop()
	r.armed = true // for good
	r.freeing.Unlock()
	r.order.Lock() // nobody sends
	defer r.order.Unlock()
	return r.exchange.Close()
}

// Compile implements Cluster.
func (r *remote) Compile(ctx context.Context, c CompileSpec) (*Remote, error) {
	answer := make(chan *wire.Compiled, 1)
	id := r.programs.Add(1)
	r.mu.Lock()
	if r.lost != nil {
		r.mu.Unlock()
		return nil, r.lost
	}
	r.compile++
	op := r.compile
	r.compiles[op] = &compiling{answer, c.Slow}
	r.mu.Unlock()
	err := r.sendMessage(wire.KindCompile, &wire.Compile{Op: op, Program: id, Format: c.Format, Code: c.Code, Options: c.Options, Handlers: c.Handlers})
	if err == nil {
		select {
		case m, ok := <-answer:
			if !ok {
				return nil, r.Lost()
			}
			if err := m.Status.Err(); err != nil {
				return nil, err
			}
			return &Remote{ID: id, Info: m.Info}, nil
		case <-ctx.Done():
			err = status.New(status.Cancelled, "compiling was given up: %w", context.Cause(ctx))
			r.Forget(id)
		}
	}
	r.mu.Lock()
	delete(r.compiles, op)
	r.mu.Unlock()
	return nil, err
}

// Forget implements Cluster.
func (r *remote) Forget(program uint64) {
	_ = r.sendMessage(wire.KindForget, &wire.Forget{Programs: []uint64{program}}) // it went with the session otherwise
}

// sendMessage sends a message behind all that was submitted.
func (r *remote) sendMessage(kind wire.Kind, m proto.Message) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return status.New(status.InvalidArgument, "a message does not encode: %w", err)
	}
	r.order.Lock()
	defer r.order.Unlock()
	if err := r.Lost(); err != nil {
		return err
	}
	return r.unsent(r.conn.Send(kind, payload))
}

// unsent is what a failed Send means: the message was none, or the connection is
// no more.
func (r *remote) unsent(err error) error {
	if err == nil || status.CodeOf(err) == status.InvalidArgument {
		return err
	}
	return r.broken(err)
}

// afterLoss is what a user can do who meets a session's loss.
const afterLoss = "the session's arrays are lost; call pathways.shutdown(), and pathways.init(wait=60) to wait for the cluster and begin a new one"

// broken makes what a connection says of its end into what a session says.
func (r *remote) broken(err error) error {
	return status.New(status.Unavailable, "the connection to the controller at %s is lost: %w; %s", r.conn.Peer(), err, afterLoss)
}

// read takes what the controller sends until the connection ends.
func (r *remote) read() {
	var batch []Ended
	completed := new(wire.Completed)
	for {
		kind, payload, err := r.conn.Recv()
		if err == nil {
			switch kind {
			case wire.KindCompleted:
				if err = completed.Parse(payload); err == nil {
					batch = r.completed(completed, batch)
				}
			case wire.KindCompiled:
				err = r.compiled(payload)
			case wire.KindCompiling:
				m := new(wire.Compiling)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.compiling(m)
				}
			case wire.KindSliceAnswer:
				m := new(wire.SliceAnswer)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.answered(m)
				}
			case wire.KindHostCall:
				m := new(wire.HostCall)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.hostCall(m)
				}
			case wire.KindProfiled:
				m := new(wire.Profiled)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.profiled(m, time.Now())
				}
			case wire.KindPeers:
				m := new(wire.Peers)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.exchange.Peers(m.Come, m.Gone, m.Why.Err())
					r.unprofiled(m.Gone, m.Why.Err())
				}
			case wire.KindGoodbye:
				m := new(wire.Goodbye)
				if err = wire.Decode(kind, payload, m); err == nil {
					r.tell(batch)
					r.lose(status.New(status.Unavailable, "the controller ended the session: %s; %s", m.Status.GetMessage(), afterLoss))
					r.conn.Close()
					return
				}
			}
		}
		if err != nil {
			r.tell(batch)
			r.lose(r.broken(err))
			r.conn.Close()
			return
		}
		if len(batch) > 0 && (!r.conn.Buffered() || len(batch) >= 1024) {
			r.tell(batch)
			batch = batch[:0]
		}
	}
}

func (r *remote) tell(batch []Ended) {
	if len(batch) > 0 && r.notify != nil {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.notify(batch)
	}
}

// completed ends operations. It adds what the user is to be told to batch.
func (r *remote) completed(m *wire.Completed, batch []Ended) []Ended {
	r.mu.Lock()
	for _, op := range m.Ok {
		if p, ok := r.take(op); ok {
			batch = r.ended(p, nil, batch)
		}
	}
	fail := map[uint64]error{}
	for _, f := range m.Failed {
		if p, ok := r.take(f.Number); ok {
			err := f.Status.Err()
			if err == nil {
				err = status.New(status.Internal, "the operation failed and the controller gave no reason")
			}
			batch = r.ended(p, err, batch)
			if p.moves() {
				fail[f.Number] = err
			}
		}
	}
	if m.Credit > 0 {
		r.credit = int(min(m.Credit, 1<<30))
	}
	r.room.Broadcast()
	r.mu.Unlock()
	for op, err := range fail {
		r.exchange.Fail(r.space, op, err)
	}
	return batch
}

// take takes an operation out of those under way.
func (r *remote) take(op uint64) (pending, bool) {
	p, ok := r.pending[op]
	if ok {
		delete(r.pending, op)
		r.underWay--
	}
	return p, ok
}

// moves says whether bytes come or go under the operation's number.
func (p pending) moves() bool { return p.put != nil || p.fetch != nil || p.calls != nil }

// ended adds an operation to batch, if nothing else of it is under way.
func (r *remote) ended(p pending, err error, batch []Ended) []Ended {
	switch {
	case p.fetch != nil:
		p.fetch.err = err // its bytes, or that they will not come, are the end
	case p.put != nil:
		if p.put.err == nil {
			p.put.err = err
		}
		if p.put.left--; p.put.left == 0 {
			batch = append(batch, Ended{Token: p.token, Err: p.put.err})
		}
	case p.calls != nil && p.calls.under > 0:
		p.calls.over, p.calls.err = true, err
	default:
		batch = append(batch, Ended{Token: p.token, Err: err})
	}
	return batch
}

func (r *remote) compiled(payload []byte) error {
	m := new(wire.Compiled)
	if err := wire.Decode(wire.KindCompiled, payload, m); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.compiles[m.Op]; c != nil {
		delete(r.compiles, m.Op)
		if m.Status.Err() == nil && m.Info == nil {
			m.Status = wire.Of(status.New(status.Internal, "the controller says nothing of the compiled program"))
		}
		c.answer <- m
	}
	return nil
}

// compiling tells of a compile that takes its time.
func (r *remote) compiling(m *wire.Compiling) {
	r.mu.Lock()
	c := r.compiles[m.Op]
	r.mu.Unlock()
	if c != nil && c.slow != nil {
		c.slow(m.Worker, time.Duration(m.SinceMs)*time.Millisecond)
	}
}

// lose ends the session, once, and all that is under way in it.
func (r *remote) lose(err error) {
	r.mu.Lock()
	if r.lost != nil {
		r.mu.Unlock()
		return
	}
	r.lost = err
	var batch []Ended
	var fail []uint64
	for op, p := range r.pending {
		batch = r.ended(p, err, batch)
		if p.moves() {
			fail = append(fail, op)
		}
	}
	clear(r.pending)
	for op, c := range r.compiles {
		delete(r.compiles, op)
		close(c.answer)
	}
	for slice, list := range r.asking {
		delete(r.asking, slice)
		for _, q := range list {
			close(q.answer)
		}
	}
	if r.round != nil {
		r.round.end()
	}
	r.room.Broadcast()
	r.mu.Unlock()
	r.tell(batch)
	for _, op := range fail {
		r.exchange.Fail(r.space, op, err)
	}
}
