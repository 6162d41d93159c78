package client

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/link"
)

// Config configures a session on a controller.
type Config struct {
	Dialer  transport.Dialer
	Address string      // of the controller
	Hello   *wire.Hello // name, host and versions; Connect fills in the role
	// Exchange makes this process's end of the exchange of bytes. The session closes
	// it.
	Exchange func(w *wire.Welcome) (transport.Exchange, error)
	Notify   Notify
	// Hurry reports whether a call should return soon, because its user has pressed
	// Ctrl-C and Python raises that only after the call. A call that waits for credit
	// calls it every HurryEvery, on its own goroutine; if it returns true, the call uses
	// the credit that is reserved for such calls. Nil means that no call hurries.
	Hurry func() bool
	// Held is called when an operation has waited for other sessions for some time, and
	// when it goes on. It must not block, since the reader calls it; nil is allowed.
	Held func(*wire.Held)
	// Moment is called with what happens to the session's workers and its connection. It must not block; nil is
	// allowed.
	Moment func(Moment)
	// Thread returns the system's number of the calling thread, for recordings of calls; nil asks the system each time.
	Thread func() int32
	// Processor returns for how long a thread of this process has had a processor, and whether it has one, or waits for
	// one, rather than for something else: see core/client/gather.go. Nil is allowed.
	Processor func(thread int32) (took time.Duration, runs bool)
	// Section is how many nodes of a graph one message has; 0 is graph.MaxNodes, which is the most.
	Section int
}

// HurryEvery is the interval at which a call that waits for credit calls Hurry: short
// enough for Ctrl-C, and long enough to cost nothing.
const HurryEvery = 100 * time.Millisecond

// hurryShare is the divisor of the credit that is reserved for calls that hurry: 16
// operations of the usual 1,024, enough for 16 times Ctrl-C while no operation ends.
const hurryShare = 64

// remote implements Cluster on a connection.
//
// A submission holds order, so that operations are sent in the order of their numbers,
// and takes mu inside of it for a moment. The reader takes only mu to end an operation,
// so a connection that is full delays submissions but never ends.
type remote struct {
	conn      transport.Conn
	batcher   transport.Batcher // conn, or nil if it is no Batcher
	bursts    bool              // whether operations that queue up are sent as one message
	exchange  transport.Exchange
	shelf     transport.Shelf // exchange, or nil
	welcome   *wire.Welcome
	platforms []*wire.Platform // its Platform and MorePlatforms
	view      atomic.Pointer[view]
	space     uint64
	notify    Notify
	hurry     func() bool // Config.Hurry; may be nil
	section   int         // Config.Section
	held      func(*wire.Held)
	moments   func(Moment)                                       // Config.Moment; may be nil
	recorder  observe.Recorder                                   // of calls
	thread    func() int32                                       // Config.Thread
	processor func(thread int32) (took time.Duration, runs bool) // Config.Processor; may be nil
	running   sync.WaitGroup

	objects  atomic.Uint64 // the last number used, like the two below
	programs atomic.Uint64
	slices   atomic.Uint64

	hostMemory atomic.Int64 // what the tenant's operations may have under way on a worker's machine; 0: any

	order      sync.Mutex // serializes submissions; taken before mu; guards what follows, up to armedPut
	op         uint64     // number of the last operation
	buf        []byte     // the message that is being sent
	open       *openPut   // the last operation, if its message has yet to be sent; or nil
	assemblies assemblies
	kept       remembered
	epoch      uint64   // of the devices, 0 until the first Rebind
	rebound    []uint64 // by device: the last operation before another worker took the place of a lost one

	gathering *time.Timer // calls sendLate
	armedPut  bool        // whether gathering runs

	mu        sync.Mutex // guards what follows, up to lost
	room      sync.Cond  // signaled when credit has come back
	credit    int
	underWay  int                // operations in flight
	pending   map[uint64]pending // by operation
	graphs    map[uint64]defined
	graph     uint64                // number of the last graph
	compiles  map[uint64]*compiling // by program, whose number is also that of its Compile
	devices   map[uint64]string     // of programs, row by row, as bytes
	lines     map[uint64][]byte     // of programs, that of the user's code which called them first; see rememberCall
	texts     map[uint64][]byte     // long ones of programs, since what they were compiled to may be lost
	giving    map[uint64]bool       // transfers of them that have not ended
	asked     map[uint64]*asking    // requests for slices that wait for their answers
	slicesOf  map[uint64]bool       // those that were granted, and not released
	remapping remapping
	round     *round          // the profile's questions in flight; or nil
	profile   uint64          // number of the last profile
	profiles  map[uint64]bool // those that begin, or have begun, and do not end yet
	gone      map[uint64]bool // workers that are lost
	losses    []uint64        // see Losses
	lossWhy   []error         // by device: of its last loss
	lost      error
	closing   bool // by Close

	freeing sync.Mutex   // guards what follows, up to armed
	frees   []uint64     // objects to free with the next submission, or by timer
	rows    []*wire.Rows // the same of single shards
	spare   []uint64     // the previous list, for reuse
	timer   *time.Timer
	armed   bool // whether timer runs

	telling sync.Mutex // held during a call of notify
}

// pending is an operation in flight.
type pending struct {
	token   uint64
	put     *putting
	fetch   *fetching
	calls   *calling
	message []byte      // its frame, where the session outlives its controller
	reads   []*assembly // then: what of a run's arguments is assembled
	play    *playing    // instead, of a play's nodes
}

// freeAfter is how long freed objects wait for a submission that can carry them along.
// After that they are sent by themselves.
const freeAfter = 500 * time.Microsecond

// Connect begins a session.
//
// Errors: those of the dialer, and the controller's refusal: RESOURCE_EXHAUSTED if it
// has fewer devices than Hello asks for.
func Connect(ctx context.Context, c Config) (Cluster, error) {
	hello := proto.CloneOf(c.Hello)
	hello.Role = wire.Role_ROLE_CLIENT
	conn, welcome, err := link.Dial(ctx, c.Dialer, c.Address, hello)
	if err != nil {
		return nil, err
	}
	if asked := int(hello.Devices) * max(1, len(hello.Platforms)); asked > 0 && len(welcome.Devices) != asked {
		conn.Close()
		return nil, status.New(status.FailedPrecondition, "a session of %s was asked for, and the controller, %s, granted "+
			"%d devices: that version always grants all devices; upgrade it, or do not ask for a number of devices",
			status.Count(asked, "device"), cmp.Or(welcome.Software, "of unknown version"), len(welcome.Devices))
	}
	platforms := append([]*wire.Platform{welcome.Platform}, welcome.MorePlatforms...)
	var got []string
	for _, p := range platforms {
		got = append(got, p.GetName())
	}
	if len(hello.Platforms) > 0 && !slices.Equal(got, hello.Platforms) {
		conn.Close()
		return nil, status.New(status.FailedPrecondition, "devices of %s were asked for, and the controller, %s, granted "+
			"some of %s: that version cannot choose; upgrade it, or do not ask for a platform",
			strings.Join(hello.Platforms, " and "), cmp.Or(welcome.Software, "of unknown version"), strings.Join(got, " and "))
	}
	if err := checkDevices(welcome.Devices, len(welcome.Devices), len(platforms)); err != nil {
		conn.Close()
		return nil, err
	}
	exchange, err := c.Exchange(welcome)
	if err != nil {
		conn.Close()
		return nil, err
	}
	exchange.Peers(welcome.Workers, welcome.Vacant, welcome.Vacancy.Err())
	r := &remote{conn: conn, exchange: exchange, welcome: welcome, platforms: platforms,
		space: transport.Transfers(welcome.Session), notify: c.Notify, hurry: c.Hurry, held: c.Held, moments: c.Moment,
		thread: c.Thread, processor: c.Processor,
		section: cmp.Or(c.Section, graph.MaxNodes), credit: int(max(welcome.Credit, 1)),
		pending: map[uint64]pending{}, graphs: map[uint64]defined{}, compiles: map[uint64]*compiling{},
		texts: map[uint64][]byte{}, giving: map[uint64]bool{}, asked: map[uint64]*asking{},
		slicesOf: map[uint64]bool{}, remapping: remapping{}, gone: map[uint64]bool{},
		profiles: map[uint64]bool{}, losses: make([]uint64, len(welcome.Devices)),
		lossWhy: make([]error, len(welcome.Devices)), rebound: make([]uint64, len(welcome.Devices))}
	if r.thread == nil {
		r.thread = asksThread
	}
	r.hostMemory.Store(welcome.HostMemory)
	r.view.Store(&view{devices: welcome.Devices, workers: welcome.Workers})
	r.lostWorkers(welcome.Vacant, welcome.Vacancy.Err())
	r.batcher, _ = conn.(transport.Batcher)
	_, r.kept.on = conn.(transport.Watched)
	r.kept.on = r.kept.on && welcome.Keeps
	r.shelf, _ = exchange.(transport.Shelf)
	r.bursts = r.batcher != nil && !hello.Alone
	r.room.L = &r.mu
	r.timer = time.AfterFunc(time.Hour, r.flush)
	r.timer.Stop()
	r.gathering = time.AfterFunc(time.Hour, r.sendLate)
	r.gathering.Stop()
	r.watch()
	r.running.Go(r.read)
	return r, nil
}

// Objects implements Cluster.
func (r *remote) Objects(n int) uint64 { return r.objects.Add(uint64(n)) - uint64(n) + 1 }

// Lost implements Cluster.
func (r *remote) Lost() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Close implements Cluster. It must not be called from Notify.
func (r *remote) Close() error {
	r.mu.Lock()
	r.closing = true
	r.mu.Unlock()
	r.lose(status.New(status.Unavailable, "the session was closed"))
	_ = transport.SayGoodbye(r.conn, nil) // the connection may have ended already
	r.conn.Close()
	r.running.Wait()
	r.freeing.Lock()
	r.timer.Stop()
	r.armed = true // so that nothing starts the timer again
	r.freeing.Unlock()
	r.order.Lock() // waits for a submission that sends
	r.gathering.Stop()
	r.sendPut(false) // which has failed: nothing is sent any more
	r.order.Unlock()
	return r.exchange.Close()
}

// sendMessage sends a message after everything that was submitted before.
func (r *remote) sendMessage(kind wire.Kind, m proto.Message) error { return r.sendNoted(kind, m, nil) }

// sendNoted is sendMessage of what rejoin sends again. Note records it, just before it is sent, or returns why it
// is not; so rejoin, which holds order, sends it again exactly if it was sent before.
func (r *remote) sendNoted(kind wire.Kind, m proto.Message, note func() error) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return status.New(status.InvalidArgument, "a message could not be encoded: %w", err)
	}
	if len(payload) > wire.MaxMessage {
		return wire.TooLong(kind, len(payload), wire.MaxMessage)
	}
	r.order.Lock()
	defer r.order.Unlock()
	if err := r.Lost(); err != nil {
		return err
	}
	r.sendPut(false)
	if kind == wire.KindForget {
		r.rememberFree(kind, payload)
	}
	if note != nil {
		if err := note(); err != nil {
			return err
		}
	}
	return r.unsent(r.conn.Send(kind, payload))
}

// unsent returns what a failed Send means to the caller: err itself if the message was
// invalid, otherwise the error of a lost connection.
func (r *remote) unsent(err error) error {
	if err == nil || status.CodeOf(err) == status.InvalidArgument {
		return err
	}
	return r.broken(err)
}

// afterLoss tells a user what to do after the session was lost.
const afterLoss = "the session's arrays are lost; call pathways.shutdown(), and pathways.init(wait=60) to wait for " +
	"the cluster and begin a new one"

// broken turns the connection's error into the session's.
func (r *remote) broken(err error) error {
	return status.New(status.Unavailable, "the connection to the controller at %s is lost: %w; %s", r.conn.Peer(), err,
		afterLoss)
}

// read handles the controller's messages until the connection ends.
func (r *remote) read() {
	var batch []Ended
	completed := new(wire.Completed)
	for {
		kind, payload, err := r.conn.Recv()
		switch {
		case err != nil:
		case kind == wire.KindRestarted:
			err = r.rejoin()
		case kind == wire.KindCompleted:
			if err = completed.Parse(payload); err == nil {
				batch = r.completed(completed, batch)
			}
		case kind == wire.KindGoodbye:
			m := new(wire.Goodbye)
			if err = wire.Decode(kind, payload, m); err == nil {
				r.tell(batch)
				r.lose(status.New(status.Unavailable, "the controller ended the session: %s; %s", m.Status.GetMessage(),
					afterLoss))
				r.conn.Close()
				return
			}
		default:
			err = r.hear(kind, payload)
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

// hear takes in a message of the controller that ends neither operations nor the session.
func (r *remote) hear(kind wire.Kind, payload []byte) error {
	switch kind {
	case wire.KindCompiled:
		return r.compiled(payload)
	case wire.KindCompiling:
		return wire.Decoded(kind, payload, new(wire.Compiling), r.compiling)
	case wire.KindHeld:
		return wire.Decoded(kind, payload, new(wire.Held), func(m *wire.Held) {
			if r.held != nil && m.Held != nil {
				r.held(m)
			}
		})
	case wire.KindGive:
		return wire.Decoded(kind, payload, new(wire.Give), r.give)
	case wire.KindSliceAnswer:
		return wire.Decoded(kind, payload, new(wire.SliceAnswer), r.answered)
	case wire.KindHostCall:
		return wire.Decoded(kind, payload, new(wire.HostCall), r.hostCall)
	case wire.KindProfiled:
		return wire.Decoded(kind, payload, new(wire.Profiled), func(m *wire.Profiled) { r.profiled(m, time.Now()) })
	case wire.KindRebind:
		return r.offered(payload)
	case wire.KindPeers:
		return wire.Decoded(kind, payload, new(wire.Peers), func(m *wire.Peers) {
			r.lostWorkers(m.Gone, m.Why.Err())
			r.exchange.Peers(m.Come, m.Gone, m.Why.Err())
			r.unprofiled(m.Gone, m.Why.Err())
			r.tellLost(m.Gone, m.Why.Err())
		})
	}
	return nil
}

func (r *remote) tell(batch []Ended) {
	if len(batch) > 0 && r.notify != nil {
		r.telling.Lock()
		defer r.telling.Unlock()
		r.notify(batch)
	}
}

// completed ends operations, and adds those to batch whose bytes are not in flight.
func (r *remote) completed(m *wire.Completed, batch []Ended) []Ended {
	r.mu.Lock()
	for _, op := range m.Ok {
		if p, ok := r.take(op); ok {
			batch = r.ended(p, nil, batch)
		}
	}
	type failure struct {
		op  uint64
		err error
	}
	var fail []failure
	for _, f := range m.Failed {
		if p, ok := r.take(f.Number); ok {
			err := f.Status.Err()
			if err == nil {
				err = status.New(status.Internal, "the operation failed and the controller gave no reason")
			}
			batch = r.ended(p, err, batch)
			if p.hasBytes() {
				fail = append(fail, failure{f.Number, err})
			}
		}
	}
	r.settles(len(m.Ok) + len(m.Failed))
	r.hostMemory.Store(m.HostMemory)
	if m.Credit > 0 {
		r.credit = int(min(m.Credit, 1<<30))
	}
	r.room.Broadcast()
	r.mu.Unlock()
	for _, f := range fail {
		r.exchange.Fail(r.space, f.op, f.err)
	}
	return batch
}

// take removes an operation from those in flight and returns it.
func (r *remote) take(op uint64) (pending, bool) {
	p, ok := r.pending[op]
	if ok {
		delete(r.pending, op)
		r.underWay--
	}
	return p, ok
}

// hasBytes reports whether the operation transfers bytes of this process.
func (p pending) hasBytes() bool { return p.put != nil || p.fetch != nil || p.calls != nil }

// ended adds an operation to batch, unless its bytes are still in flight.
func (r *remote) ended(p pending, err error, batch []Ended) []Ended {
	switch {
	case p.fetch != nil:
		p.fetch.err = err // the operation ends when its bytes arrive or fail
		if late := p.fetch.late; late != nil {
			r.running.Go(func() { late(err) })
		}
	case p.put != nil:
		if p.put.err == nil {
			p.put.err = err
		}
		if p.put.release != nil {
			p.put.release()
			p.put.release = nil
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

// lose ends the session, once, and fails everything that is in flight in it.
func (r *remote) lose(err error) {
	r.mu.Lock()
	if r.lost != nil {
		r.mu.Unlock()
		return
	}
	r.lost = err
	ended := !r.closing
	var batch []Ended
	var fail []uint64
	for _, op := range slices.Sorted(maps.Keys(r.pending)) {
		p := r.pending[op]
		batch = r.ended(p, err, batch)
		if p.hasBytes() {
			fail = append(fail, op)
		}
	}
	clear(r.pending)
	for _, op := range slices.Sorted(maps.Keys(r.compiles)) {
		close(r.compiles[op].answer)
	}
	clear(r.compiles)
	clear(r.texts)
	for _, number := range slices.Sorted(maps.Keys(r.asked)) {
		r.asked[number].request.End(nil, err)
	}
	clear(r.asked)
	for _, slice := range slices.Sorted(maps.Keys(r.remapping)) {
		for _, q := range r.remapping[slice] {
			close(q.answer)
		}
	}
	clear(r.remapping)
	if r.round != nil {
		r.round.end()
	}
	r.room.Broadcast()
	r.mu.Unlock()
	if ended {
		r.moment(MomentEnded, "", nil, err)
	}
	r.tell(batch)
	for _, op := range fail {
		r.exchange.Fail(r.space, op, err)
	}
}
