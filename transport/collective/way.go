package collective

import (
	"sync/atomic"

	"github.com/openpathways/pathways/core/xla/spmd"
)

// Way is how the bytes of a collective went.
type Way uint8

// The ways, which docs/collectives explains.
const (
	OneWorker Way = iota + 1
	// Between workers that share a board:
	Letters
	Areas
	Direct
	// Between others:
	Doubling
	OneExchange
	TwoExchanges
	Chain
	Lanes
)

// String returns the name of the way in traces and metrics; "" if it is not known.
func (w Way) String() string { return wayNames[w] }

var wayNames = [...]string{"", "one worker", "letters", "areas", "direct", "doubling", "one exchange", "two exchanges",
	"chain", "lanes"}

// Count is how many calls of this process's devices have succeeded, and the bytes of their operands.
type Count struct {
	Op           spmd.Op
	Way          Way
	Calls, Bytes uint64
}

type counts [spmd.RaggedAllToAll + 1][len(wayNames)]struct{ calls, bytes atomic.Uint64 }

// Counts returns what devices have called since the engine began, but for calls that need no other rank.
func (e *Engine) Counts() (all []Count) {
	for op := range e.counts {
		for way := range e.counts[op] {
			if c := &e.counts[op][way]; c.calls.Load() > 0 {
				all = append(all, Count{spmd.Op(op), Way(way), c.calls.Load(), c.bytes.Load()})
			}
		}
	}
	return all
}

// count counts the calls of a meeting that has succeeded, and tells them their way.
func (m *meeting) count() {
	way := m.table.way
	if m.direct {
		way = Direct
	}
	c := &m.gang.engine.counts[m.calls[0].Spec.Op][way]
	c.calls.Add(uint64(len(m.calls)))
	c.bytes.Add(uint64(m.table.bytes))
	for i := range m.calls {
		if told := m.calls[i].Way; told != nil {
			*told = way
		}
	}
}
