package worker

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/status"
)

// queue is one device: a goroutine that owns the device's shards and begins its
// parts of gangs, in order.
type queue struct {
	w     *Worker
	local int
	box   mailbox

	shards  atomic.Int64 // for reports
	flights *flights     // what it computes
	stands  atomic.Pointer[standing]
	stopped chan struct{}

	// Of the goroutine, or of who stands in for it.
	batch   []note // taken out of the box, and done up to at
	at      int
	early   int // of the batch from at on, calls that may be made early
	tables  map[uint32]*table
	last    *table // looked at last
	todo    []part // from head on: parts that have not begun
	head    int
	meeting bool      // the first of todo is at hand and waits for the gang's other devices
	slot    int       // in flights, of that
	held    []*shard  // that the part being begun, or at hand, reads
	using   []*charge // of them
	flying  int       // computations under way
	begun   int       // what other workers may wait for: computations, and copies to them
	room    memory
	inputs  []input
	stays   bool // serve goes on
	spare   []*shard
	memory  string // default memory kind
	row     [1][]deviceBuffer
}

// part is a device's part of a gang.
type part struct {
	g *gang
	i int
}

// standing is what a queue that waits stands at.
type standing struct {
	gang   uint64
	format string
	what   string
	since  time.Time
}

func newQueue(w *Worker, local int) *queue {
	q := &queue{w: w, local: local, tables: map[uint32]*table{}, stopped: make(chan struct{}), stays: true, flights: newFlights(w.config.Window)}
	q.room.limit, q.room.arrays = w.config.MemoryLimit, charges{}
	q.box.wake, q.box.ended.L = make(chan struct{}, 1), &q.box.mu
	d := w.driver.Devices()[local]
	if d.Default < len(d.Memories) {
		q.memory = d.Memories[d.Default].Kind
	}
	return q
}

// serve is the queue's goroutine.
func (q *queue) serve() {
	defer close(q.stopped)
	for q.stays {
		q.take()
		for q.at < len(q.batch) {
			n := q.batch[q.at]
			q.at++
			switch {
			case n.call != nil:
				if n.early {
					q.early--
				}
				n.call()
				q.advance()
			case n.part.g == nil:
				q.advance()
			default:
				q.accept(n.part)
			}
		}
		q.w.report.flush()
	}
	for session := range q.tables {
		q.drop(session)
	}
}

// accept begins a part, in its turn.
func (q *queue) accept(p part) {
	if q.head == len(q.todo) && q.begin(p) {
		return
	}
	q.todo = append(q.todo, p)
	if _, frees := p.g.work.(*free); frees && q.room.short {
		q.advance()
	}
}

// stop ends the goroutine once it has done what was posted before.
func (q *queue) stop() {
	q.post(note{call: func() { q.stays = false }})
}

// advance begins parts until one has to wait.
func (q *queue) advance() {
	for q.head < len(q.todo) && q.begin(q.todo[q.head]) {
		q.next()
	}
}

// next takes the first part out of the list.
func (q *queue) next() {
	q.todo[q.head] = part{}
	q.head++
	switch {
	case q.head == len(q.todo):
		q.todo, q.head = q.todo[:0], 0
	case q.head > 64 && q.head > len(q.todo)/2: // at most as many moved as were begun since
		n := copy(q.todo, q.todo[q.head:])
		clear(q.todo[n:])
		q.todo, q.head = q.todo[:n], 0
	}
	q.goesOn()
}

// begin begins a part, or says that it has to wait.
func (q *queue) begin(p part) bool {
	g := p.g
	switch g.work.(type) {
	case *run:
		return q.run(p)
	case *put:
		return q.put(p)
	case *transfer:
		return q.transfer(p)
	case *fetch:
		return q.fetch(p)
	case *free:
		q.free(g)
	case leave:
		q.drop(g.session)
	}
	return true
}

// waits takes note of what the queue waits for, and is false.
func (q *queue) waits(g *gang, format string, args ...any) bool {
	if s := q.stands.Load(); s == nil || s.gang != g.id || s.format != format {
		q.stands.Store(&standing{g.id, format, fmt.Sprintf(format, args...), time.Now()})
	}
	return false
}

// goesOn forgets what the queue waited for: its part is begun.
func (q *queue) goesOn() {
	if q.stands.Load() != nil {
		q.stands.Store(nil)
	}
}

// explain says where an error happened, behind its text. Errors that came from
// another operation stay as they are.
func (q *queue) explain(err error, what string, trace []byte) error {
	if err == nil {
		return nil
	}
	if len(trace) > 0 {
		what += ", called at " + string(trace)
	}
	return status.New(status.CodeOf(err), "%w [%s, on device %d of worker %s]", err, what, q.local, q.w.config.Name)
}
