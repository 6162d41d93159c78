package worker

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// report collects ends of gangs and sends them in batches.
type report struct {
	conn transport.Conn
	// busy: the reader has more to begin, and flushes when it has no more.
	busy atomic.Bool

	mu      sync.Mutex // guards the rest; not held while sending
	ok      []uint64
	spent   []uint64 // device time of each of ok, in nanoseconds
	failed  []*wire.Failure
	sending bool
	sent    sync.Cond // sending has become false
	payload []byte
	// Those that ended and are not settled, in the order of their ends; see rejoin.go.
	ended []record
	why   map[uint64]*wire.Failure // of those that failed, by gang
}

// Ends are not held back beyond so many.
const reportBatch = 64

// add puts the end of a gang into the next batch, and whether it failed for lack of memory here.
func (r *report) add(g *gang, err error, noMemory bool) {
	gang, spent := g.ID, uint64(g.spent.Load())
	r.mu.Lock()
	if g.remembered {
		r.ended = append(r.ended, record{session: g.Session, gang: gang, op: g.op, spent: spent})
	}
	if err == nil {
		r.ok, r.spent = append(r.ok, gang), append(r.spent, spent)
	} else {
		f := &wire.Failure{Number: gang, Status: wire.Of(err), Busy: spent, NoMemory: noMemory}
		r.failed = append(r.failed, f)
		if g.remembered {
			r.keep(f)
		}
	}
	r.mu.Unlock()
}

func (r *report) hold() {
	if !r.busy.Load() {
		r.busy.Store(true)
	}
}

// rest sends all pending ends, and has flush do so from now on.
func (r *report) rest() {
	if r.busy.Load() {
		r.busy.Store(false)
	}
	r.flush()
}

// warn sends all pending ends if one of them is a failure.
func (r *report) warn() {
	r.mu.Lock()
	failed := len(r.failed) > 0
	r.mu.Unlock()
	if failed {
		r.flush()
	}
}

// flush sends all pending ends, unless the reader is about to, or another goroutine is sending already.
func (r *report) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sending {
		return
	}
	for n := len(r.ok) + len(r.failed); n > 0 && (n >= reportBatch || !r.busy.Load()); n = len(r.ok) + len(r.failed) {
		r.sending = true
		failed := r.failed[:min(len(r.failed), wire.MaxFailures)]
		r.payload = (&wire.Completed{Ok: r.ok, Failed: failed, Busy: r.spent}).Append(r.payload[:0])
		r.ok, r.spent, r.failed = r.ok[:0], r.spent[:0], slices.Delete(r.failed, 0, len(failed)) // which clears what it frees
		r.mu.Unlock()
		_ = r.conn.Send(wire.KindCompleted, r.payload) // the reader learns why
		r.mu.Lock()
		r.sending = false
		r.sent.Signal()
	}
}
