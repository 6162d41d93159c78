package inproc

import (
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Conditions make a Network like one between machines, for simulation: messages
// take their time, and connections can be cut or broken. Within a connection and
// direction they stay in order; on others, they overtake each other.
type Conditions struct {
	// Delay is how long a message from one part to another takes, and a block's last
	// byte after it was sent, where there is a Bandwidth.
	Delay func(from, to string) time.Duration
	// Bandwidth is how many bytes a second of blocks, such as arrays, go from one
	// process to another; nil, or 0 or less: any number.
	Bandwidth func(from, to string) float64
	// Silence is how long a connection may be cut before both ends take the other
	// for lost, as heartbeats do between processes; 0 has no end.
	Silence time.Duration
	// Breaks reports whether a connection breaks behind a message that has just arrived: what came before it can still
	// be received, and the rest is lost, in both directions. A stream keeps its order, so this is all that it can lose;
	// nil: it loses nothing. It is asked where the ends make another connection: of links (transport/link), once both
	// know that they are one.
	Breaks func(from, to string) bool
	// Repeats returns how long after a Hello that resumes a link the same Hello comes once more, like one that was late,
	// on a connection that is closed when it is answered; 0 or nil: never.
	Repeats func(from string) time.Duration
	// Arrived is told of each message that has arrived; it may be nil.
	Arrived func(from, to string, kind wire.Kind, payload []byte)
}

// path is one direction of a connection with conditions. The queue's lock guards
// it.
type path struct {
	delay   func() time.Duration
	held    []byte   // frames that wait for others to depart with them
	flights []flight // in the order of sending, which is that of arriving
	bytes   int
	timer   *time.Timer // set for the first of flights
	cut     bool
	arrives func(wire.Kind) (breaks bool) // what has just arrived; nil: nothing breaks
	seen    func(wire.Kind, []byte)       // the same; may be nil
	fray    func()                        // breaks the connection; what has arrived can be received
}

// flight is frames that are on their way together, as if by one write, or the end of the sender's frames.
type flight struct {
	due    time.Time
	frames []byte // nil: the end
}

// depart sends the frames that are held on their way, if there are any. Called with the lock.
func (q *queue) depart() {
	if p := q.path; len(p.held) > 0 && q.broken == nil {
		p.bytes += len(p.held)
		q.fly(p.held)
		p.held = nil
		q.burst.Left()
	}
}

// end sends the end of the sender's frames on its way. Called with the lock.
func (q *queue) end() { q.fly(nil) }

func (q *queue) fly(frames []byte) {
	p := q.path
	p.flights = append(p.flights, flight{p.due(), frames})
	if len(p.flights) == 1 {
		q.set()
	}
}

// due returns when a message that is sent now arrives.
func (p *path) due() time.Time {
	due := time.Now().Add(p.delay())
	if n := len(p.flights); n > 0 && due.Before(p.flights[n-1].due) {
		return p.flights[n-1].due
	}
	return due
}

// set sets the timer. Called with the lock.
func (q *queue) set() {
	p := q.path
	if p.cut || len(p.flights) == 0 || q.broken != nil {
		return
	}
	wait := time.Until(p.flights[0].due)
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, q.land)
	} else {
		p.timer.Reset(wait)
	}
}

// land delivers the frames that are due to the reading end.
func (q *queue) land() {
	if q.arrived() {
		q.path.fray()
	}
}

// arrived is land, and reports whether the connection breaks behind it.
func (q *queue) arrived() (breaks bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, now := q.path, time.Now()
	n := 0
	for ; n < len(p.flights) && !p.cut && q.broken == nil && !p.flights[n].due.After(now) && !breaks; n++ {
		rest := p.flights[n].frames
		p.bytes -= len(rest)
		if rest == nil {
			q.over = true
		}
		for len(rest) > 0 && !breaks { // where it breaks, the rest is lost
			kind, payload, next, err := wire.NextFrame(rest)
			if err != nil {
				panic(err) // it was made by AppendFrame
			}
			q.pending, rest = append(q.pending, rest[:len(rest)-len(next)]...), next
			if p.seen != nil {
				p.seen(kind, payload)
			}
			breaks = p.arrives != nil && p.arrives(kind)
		}
	}
	if n > 0 {
		clear(p.flights[:n])
		p.flights = p.flights[n:]
		q.waiting = false
		q.more.Broadcast()
	}
	if !breaks {
		q.set()
	}
	return breaks
}

// snap breaks a direction: messages on their way are lost, and so are those that have arrived unless they are kept.
func (q *queue) snap(err error, keeps bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken == nil {
		q.broken = err
	}
	if !keeps {
		q.pending = nil
	}
	if p := q.path; p != nil {
		p.flights, p.held, p.bytes = nil, nil, 0
		if p.timer != nil {
			p.timer.Stop()
		}
	}
	q.more.Broadcast()
	q.room.Broadcast()
}

// cut holds frames back, or lets them arrive.
func (q *queue) cut(cut bool) {
	q.mu.Lock()
	if p := q.path; p.cut && !cut { // what was held back arrives from now on, not all at one moment
		flights := p.flights
		p.flights = nil
		for _, f := range flights {
			p.flights = append(p.flights, flight{p.due(), f.frames})
		}
	}
	q.path.cut = cut
	q.set()
	q.mu.Unlock()
}

// joined is a connection of a Network with conditions, of parts by these names.
type joined struct {
	a, b   string
	ab, ba *queue
	timer  *time.Timer // of its silence, while it is cut
	isLink atomic.Bool // both ends know that it is one, or it resumes one
}

// mayBreak has the connection break where the conditions say so.
func (j *joined) mayBreak(breaks func(from, to string) bool, resumes bool) {
	j.isLink.Store(resumes)
	for _, way := range []struct {
		q        *queue
		from, to string
	}{{j.ab, j.a, j.b}, {j.ba, j.b, j.a}} {
		way.q.path.fray = func() { j.snap(j.broke(), true) }
		way.q.path.arrives = func(kind wire.Kind) bool {
			if kind == wire.KindReceived { // the dialer's first has no other reason
				j.isLink.Store(true)
			}
			return j.isLink.Load() && breaks(way.from, way.to)
		}
	}
}

func (j *joined) broke() error {
	return status.New(status.Unavailable, "the connection between %s and %s broke", j.a, j.b)
}

// repeat has the Hello of a connection come once more.
func (n *Network) repeat(l *Listener, name string, hello *wire.Hello) {
	after := n.Conditions.Repeats(name)
	if after <= 0 {
		return
	}
	hello = proto.CloneOf(hello)
	ours, theirs := Pair(name, l.name)
	n.join(name, l.name, ours, false)
	l.running.Add(2)
	go func() {
		defer l.running.Done()
		defer ours.Close()
		select {
		case <-time.After(after):
			go l.greet(theirs)
			_, _ = transport.Greet(l.ctx, ours, hello, n.Credentials) // the answer is of no use
		case <-l.ctx.Done():
			l.running.Done()
			theirs.Close()
		}
	}()
}

func (j *joined) over() bool {
	ended := 0
	for _, q := range []*queue{j.ab, j.ba} {
		q.mu.Lock()
		if q.broken != nil || q.read != nil || q.over {
			ended++
		}
		q.mu.Unlock()
	}
	return ended == 2
}

// join puts a new connection under the network's conditions. Called with the
// network's lock.
func (n *Network) join(a, b string, c *Conn, resumes bool) {
	conditions := n.Conditions
	c.out.path = &path{delay: func() time.Duration { return conditions.Delay(a, b) }, cut: n.away[a] || n.away[b]}
	c.in.path = &path{delay: func() time.Duration { return conditions.Delay(b, a) }, cut: n.away[a] || n.away[b]}
	kept := n.joined[:0]
	for _, j := range n.joined {
		if !j.over() {
			kept = append(kept, j)
		}
	}
	clear(n.joined[len(kept):])
	j := &joined{a: a, b: b, ab: c.out, ba: c.in}
	if conditions.Breaks != nil {
		j.mayBreak(conditions.Breaks, resumes)
	}
	if see := conditions.Arrived; see != nil {
		c.out.path.seen = func(kind wire.Kind, payload []byte) { see(a, b, kind, payload) }
		c.in.path.seen = func(kind wire.Kind, payload []byte) { see(b, a, kind, payload) }
	}
	n.joined = append(kept, j)
	if c.out.path.cut {
		n.silent(j)
	}
}

// silent breaks a connection that stays cut.
func (n *Network) silent(j *joined) {
	d := n.Conditions.Silence
	if d <= 0 || j.timer != nil {
		return
	}
	j.timer = time.AfterFunc(d, func() {
		j.snap(status.New(status.Unavailable,
			"%s and %s have not heard of each other for %v; one has stopped or hangs, or the network is cut", j.a, j.b, d),
			false)
	})
}

func (j *joined) snap(err error, keeps bool) {
	j.ab.snap(err, keeps)
	j.ba.snap(err, keeps)
}

// Cut cuts a part off: nothing arrives there, and nothing from there, until Heal.
// A part that is frozen looks the same to others. Networks have it that have
// Conditions, as Heal and Break.
func (n *Network) Cut(part string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away[part] = true
	for _, j := range n.joined {
		if j.a == part || j.b == part {
			j.ab.cut(true)
			j.ba.cut(true)
			n.silent(j)
		}
	}
}

// Heal undoes Cut. Messages that were sent meanwhile arrive.
func (n *Network) Heal(part string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.away, part)
	for _, j := range n.joined {
		if (j.a == part || j.b == part) && !n.away[j.a] && !n.away[j.b] {
			if j.timer != nil {
				j.timer.Stop()
				j.timer = nil
			}
			j.ab.cut(false)
			j.ba.cut(false)
		}
	}
}

// Break breaks the connections of a part; messages on their way are lost. It can make new ones.
func (n *Network) Break(part string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, j := range n.joined {
		if j.a == part || j.b == part {
			j.snap(j.broke(), false)
		}
	}
}

// cross calls f when the bytes, which are there now, have crossed the way: at once where it has no bandwidth, and else
// a delay after the last was sent.
func (t *transfer) cross(f func()) {
	h, w, rate := t.from.hub, way{t.from.self, t.to.self}, 0.0
	if h.Bandwidth != nil {
		rate = h.Bandwidth(w.from, w.to)
	}
	if rate <= 0 {
		f()
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	begin := now
	if h.busy[w].After(now) {
		begin = h.busy[w]
	}
	h.busy[w] = begin.Add(time.Duration(float64(t.size) / rate * float64(time.Second)))
	last := h.busy[w].Sub(now)
	if h.Delay != nil {
		last += h.Delay(w.from, w.to)
	}
	time.AfterFunc(last, f)
}
