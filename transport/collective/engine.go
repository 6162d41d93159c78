package collective

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/match"
)

// Engine carries the collectives of one process.
type Engine struct {
	exchange transport.Exchange
	space    uint64
	self     uint64
	board    *Board // nil if there is none
	ways     ways

	mu       sync.RWMutex // taken before a gang's
	launches map[int32]*gang
	gangs    map[uint64]*gang
	gone     match.Recent[uint64] // processes that have gone
	closed   error

	plansMu sync.RWMutex // taken after a gang's
	plans   map[planKey]*plan

	counts counts
}

// planKey finds a plan. It holds on to what it points at, so an address is never
// another spec's.
type planKey struct {
	spec  *spmd.Spec
	ranks *Place
	n     int
}

// plansMax bounds the plans that are kept. They are made again when needed.
const plansMax = 4096

// New makes the engine of a process for one island. The board, which may be nil,
// carries small blocks between its members; it is the engine's alone, and all its
// members have it from the first gang on that they share. Gangs then begin in the
// order of their numbers.
func New(exchange transport.Exchange, island uint32, board *Board) *Engine {
	return &Engine{
		exchange: exchange,
		space:    transport.Collectives(island),
		self:     exchange.Self(),
		board:    board,
		ways:     usualWays,
		launches: map[int32]*gang{},
		gangs:    map[uint64]*gang{},
		plans:    map[planKey]*plan{},
	}
}

// gang is a Gang that has begun here.
type gang struct {
	engine *Engine
	id     uint64
	launch int32
	ranks  []Place

	mu      sync.Mutex // guards the rest
	sites   []*site
	started []*meeting // that wait for other processes
	err     error      // why all calls end with it
}

// site is one collective of a gang's program.
type site struct {
	plan   *plan
	counts []uint32   // by local device: how often it has been here
	open   []*meeting // with members missing
}

// Begin records a gang before it is launched. Recording it again does nothing.
func (e *Engine) Begin(g Gang) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gangs[g.ID] != nil {
		return
	}
	own := &gang{engine: e, id: g.ID, launch: g.Launch, ranks: g.Ranks, err: e.closed}
	e.gangs[g.ID], e.launches[g.Launch] = own, own
	if e.board != nil {
		e.board.begin(g.ID)
	}
	if e.gone.Len() == 0 || own.err != nil {
		return
	}
	for _, r := range g.Ranks {
		if err := e.gone.Why(r.Process); err != nil {
			own.err = err
			return
		}
	}
}

// errEnded ends calls that come when their gang has ended. It is made once, since every gang ends.
var errEnded = status.New(status.Cancelled, "the computation has ended on this worker")

// End forgets a gang all of whose local devices are done with it, or that was
// aborted. Calls that are left end with CANCELLED.
func (e *Engine) End(id uint64) {
	e.mu.Lock()
	g := e.gangs[id]
	if g == nil {
		e.mu.Unlock()
		return
	}
	delete(e.gangs, id)
	if e.launches[g.launch] == g {
		delete(e.launches, g.launch)
	}
	e.mu.Unlock()
	if g.abort(errEnded) {
		e.exchange.Fail(e.space, id, g.reason()) // what came for it since, too
	}
	if e.board != nil {
		e.board.end(id)
	}
}

// Abort ends every call of a gang, also those to come, with err. Of a gang that
// has not begun here, or has ended, there are no calls, and nothing is kept.
func (e *Engine) Abort(id uint64, err error) {
	e.mu.RLock()
	g := e.gangs[id]
	e.mu.RUnlock()
	if g != nil {
		g.fail(err)
	}
}

// Failure returns why the calls of a gang were aborted; nil if they were not, or if the gang is not known.
func (e *Engine) Failure(id uint64) error {
	e.mu.RLock()
	g := e.gangs[id]
	e.mu.RUnlock()
	if g == nil {
		return nil
	}
	return g.reason()
}

// fail aborts the gang and what it has under way in the exchange.
func (g *gang) fail(err error) {
	g.abort(err)
	g.engine.exchange.Fail(g.engine.space, g.id, err)
	if b := g.engine.board; b != nil {
		for _, m := range b.fail(g.id) {
			m.letGo(g.reason())
		}
	}
}

// Lost aborts gangs with ranks on a process that has gone, also those that begin later, with UNAVAILABLE and the text
// of why, which names the process.
func (e *Engine) Lost(process uint64, why error) {
	err := status.New(status.Unavailable, "a part of this computation is lost: %w", why)
	e.mu.Lock()
	e.gone.Add(process, err)
	var hit []*gang
	for _, id := range slices.Sorted(maps.Keys(e.gangs)) {
		g := e.gangs[id]
		if slices.ContainsFunc(g.ranks, func(r Place) bool { return r.Process == process }) {
			hit = append(hit, g)
		}
	}
	e.mu.Unlock()
	if e.board != nil {
		e.board.lost(process)
	}
	for _, g := range hit {
		g.fail(err)
	}
}

// Close aborts all gangs. The exchange stays.
func (e *Engine) Close() {
	err := status.New(status.Cancelled, "the worker is stopping")
	e.mu.Lock()
	e.closed = err
	ids := slices.Sorted(maps.Keys(e.gangs))
	e.mu.Unlock()
	for _, id := range ids {
		e.Abort(id, err)
		e.End(id)
	}
}

// Enter takes a device's arrival at a collective. It does not wait. Done is
// called before Enter returns where the answer is there: the numbers of a
// partition or replica, a rank that meets no other, a call that cannot be answered,
// and the last of a process where all others have come or come soon (Board.patience).
func (e *Engine) Enter(c Call) {
	e.mu.RLock()
	g := e.launches[c.Launch]
	e.mu.RUnlock()
	if g == nil {
		c.Done(status.New(status.FailedPrecondition,
			"a device entered %s %d of launch %d, of which this worker knows no gang", c.Spec.Op, c.Spec.Site, c.Launch))
		return
	}
	g.enter(c)
}

// enter counts the call in. The last member of a meeting starts it.
func (g *gang) enter(c Call) {
	g.mu.Lock()
	if g.err != nil {
		err := g.err
		g.mu.Unlock()
		c.Done(err)
		return
	}
	s, err := g.site(c.Spec)
	if err == nil {
		err = s.admit(&c)
	}
	if err != nil {
		g.mu.Unlock()
		c.Done(err)
		return
	}
	at := &s.plan.seats[c.Local]
	if at.table == nil {
		g.mu.Unlock()
		alone(&c, at.rank)
		c.Done(nil)
		return
	}
	occurrence := s.counts[c.Local]
	s.counts[c.Local]++
	var m *meeting
	i := 0
	for ; i < len(s.open); i++ {
		if o := s.open[i]; o.table == at.table && o.occurrence == occurrence {
			m = o
			break
		}
	}
	if m == nil {
		m = newMeeting(g, c.Spec.Site, at.table, occurrence)
		s.open = append(s.open, m)
	}
	m.calls[at.index] = c
	m.missing--
	if m.missing > 0 {
		g.mu.Unlock()
		return
	}
	last := len(s.open) - 1
	s.open[i], s.open[last] = s.open[last], nil
	s.open = s.open[:last]
	g.mu.Unlock()
	m.start(1 + at.index)
	if b := g.engine.board; b != nil {
		b.linger(m, 1+at.index)
	}
}

// site finds or makes the gang's state of a spec. g.mu is held.
func (g *gang) site(spec *spmd.Spec) (*site, error) {
	if spec.Op == spmd.PartitionID || spec.Op == spmd.ReplicaID { // which have no number
		return &site{plan: g.engine.plan(spec, g.ranks)}, nil
	}
	if spec.Site < 0 || spec.Site >= sites {
		return nil, status.New(status.Unimplemented, "%s has number %d in its program: there may be %d", spec.Op, spec.Site,
			sites)
	}
	for len(g.sites) <= spec.Site {
		g.sites = append(g.sites, nil)
	}
	s := g.sites[spec.Site]
	if s == nil {
		p := g.engine.plan(spec, g.ranks)
		s = &site{plan: p, counts: make([]uint32, len(p.seats))}
		g.sites[spec.Site] = s
	}
	return s, nil
}

// plan finds or makes a plan.
func (e *Engine) plan(spec *spmd.Spec, ranks []Place) *plan {
	key := planKey{spec, &ranks[0], len(ranks)}
	e.plansMu.RLock()
	p := e.plans[key]
	e.plansMu.RUnlock()
	if p != nil {
		return p
	}
	p = planOf(spec, ranks, e.self, e.board, e.ways)
	e.plansMu.Lock()
	if len(e.plans) >= plansMax {
		clear(e.plans)
	}
	e.plans[key] = p
	e.plansMu.Unlock()
	return p
}

// admit reports whether a call fits its spec and its device has a part in it.
func (s *site) admit(c *Call) error {
	if c.Local < 0 || c.Local >= len(s.plan.seats) || s.plan.seats[c.Local].rank < 0 {
		return status.New(status.FailedPrecondition, "device %d entered %s, but the gang has no rank there", c.Local,
			c.Spec.Name())
	}
	if err := s.plan.seats[c.Local].err; err != nil {
		return err
	}
	spec := s.plan.spec
	if len(c.Operands) != len(spec.Operands) || len(c.Results) != len(spec.Results) {
		return status.New(status.InvalidArgument, "%s has %d operands and %d results, the call %d and %d", spec.Name(),
			len(spec.Operands), len(spec.Results), len(c.Operands), len(c.Results))
	}
	for i, b := range c.Operands {
		if want := spec.Operands[i].Bytes(); int64(len(b)) != want {
			return status.New(status.InvalidArgument, "operand %d of %s has %d bytes, %s has %d", i, spec.Name(), len(b),
				spec.Operands[i], want)
		}
	}
	for i, b := range c.Results {
		if want := spec.Results[i].Bytes(); int64(len(b)) != want {
			return status.New(status.InvalidArgument, "result %d of %s has %d bytes, %s has %d", i, spec.Name(), len(b),
				spec.Results[i], want)
		}
	}
	return nil
}

// alone answers a call that needs no other.
func alone(c *Call, rank int) {
	switch c.Spec.Op {
	case spmd.PartitionID:
		binary.LittleEndian.PutUint32(c.Results[0], uint32(rank%c.Spec.Parts))
	case spmd.ReplicaID:
		binary.LittleEndian.PutUint32(c.Results[0], uint32(rank/c.Spec.Parts))
	default: // of a permute or broadcast that brings nothing here
		for _, r := range c.Results {
			clear(r)
		}
	}
}

// abort makes err the gang's, unless it has one, and ends the calls whose
// meetings have not started; the exchange ends those that have. It reports whether
// the gang was aborted before.
func (g *gang) abort(err error) (before bool) {
	g.mu.Lock()
	if g.err != nil {
		g.mu.Unlock()
		return true
	}
	g.err = err
	var left []*meeting
	for _, s := range g.sites {
		if s != nil {
			left = append(left, s.open...)
			s.open = nil
		}
	}
	g.mu.Unlock()
	for _, m := range left {
		m.end(err)
	}
	return false
}

// wait records that a meeting waits for other processes, until waited. It is
// reason, too.
func (g *gang) wait(m *meeting) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m.at = len(g.started)
	if m.round > 0 { // bytes came meanwhile
		m.seen = time.Time{}
	}
	g.started = append(g.started, m)
	return g.err
}

// waited ends wait, if the meeting had a process to wait for. It returns why the gang has failed, as reason does.
func (g *gang) waited(m *meeting) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.peers != nil {
		last := len(g.started) - 1
		g.started[m.at] = g.started[last]
		g.started[m.at].at = m.at
		g.started[last] = nil
		g.started = g.started[:last]
	}
	return g.err
}

// reason is why the gang was aborted, or nil.
func (g *gang) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
