package worker

import (
	"sync"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/wire"
)

// This file tells the controller what devices do, computation by computation, while they are looked at. While
// they are not, a computation costs one load more, and otherwise some twenty nanoseconds and no allocation.

// lane records what a device has done since the last heartbeat. The queue's owner adds to it.
type lane struct {
	mu      sync.Mutex // guards the rest
	until   time.Duration
	bars    []bar // a ring: the newest are kept
	first   int
	count   int
	dropped uint64 // computations of bars that had to go
}

// bar is a computation, or several that are too short to be seen one by one. Times are by Worker.elapsed.
type bar struct {
	session    uint32
	runs       uint32
	program    string
	begin, end time.Duration
}

// Computations of a session and program that follow each other become one bar, if it is no longer than blur and the
// device was idle no longer than gap in between: less than the eye sees of a second.
const (
	blur = time.Millisecond
	gap  = 20 * time.Microsecond
)

// mostBars bounds the bars of a lane, as mostWatch does the time that it is kept for without being asked for again.
const (
	mostBars  = 4 << 10
	mostWatch = time.Minute
)

// watch begins to report what devices do, or extends the time for it.
func (w *Worker) watch(m *wire.Watch) {
	until := w.elapsed() + min(time.Duration(m.Ms)*time.Millisecond, mostWatch)
	bars := max(1, min(int(m.Bars), mostBars))
	for _, local := range m.Devices {
		if int(local) >= len(w.queues) {
			continue
		}
		q := w.queues[local]
		l := q.lane.Load()
		if l == nil || len(l.bars) < bars {
			l = &lane{bars: make([]bar, bars)} // what another has is lost, which is never missed
			q.lane.Store(l)
		}
		l.mu.Lock()
		l.until = max(l.until, until)
		l.mu.Unlock()
	}
}

// add adds a computation.
func (l *lane) add(session uint32, program string, begin, end time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 {
		last := &l.bars[(l.first+l.count-1)%len(l.bars)]
		if last.session == session && last.program == program && begin-last.end <= gap && end-last.begin <= blur {
			last.end = end
			last.runs++
			return
		}
	}
	if l.count == len(l.bars) {
		l.dropped += uint64(l.bars[l.first].runs)
		l.first = (l.first + 1) % len(l.bars)
		l.count--
	}
	l.bars[(l.first+l.count)%len(l.bars)] = bar{session, 1, program, begin, end}
	l.count++
}

// take returns what there is, and starts over. It reports whether a browser still looks.
func (l *lane) take(into []bar, now time.Duration) (bars []bar, dropped uint64, looked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.count {
		into = append(into, l.bars[(l.first+i)%len(l.bars)])
	}
	dropped = l.dropped
	l.first, l.count, l.dropped = 0, 0, 0
	return into, dropped, now < l.until
}

// doing returns what the devices did since it was called last; nil while no browser looks. One goroutine calls it: that
// of the heartbeats.
func (w *Worker) doing() *wire.Doing {
	var m *wire.Doing
	var bars []bar
	var names observe.Names
	for _, q := range w.queues {
		l := q.lane.Load()
		if l == nil {
			continue
		}
		if m == nil {
			m = new(wire.Doing)
		}
		now := w.elapsed()
		var dropped uint64
		var looked bool
		if bars, dropped, looked = l.take(bars[:0], now); !looked {
			q.lane.CompareAndSwap(l, nil) // unless another has come
		}
		if len(bars) > 0 {
			m.Lanes = append(m.Lanes, tellLane(&names, q.local, bars, dropped))
		}
		m.NowNs, m.Programs = int64(now), names.Texts
	}
	return m
}

// tellLane makes the message of a lane, and numbers its programs.
func tellLane(names *observe.Names, local int, bars []bar, dropped uint64) *wire.Doing_Lane {
	n := len(bars)
	out := &wire.Doing_Lane{Local: uint32(local), Dropped: dropped, Sessions: make([]uint32, n),
		Programs: make([]uint32, n), Runs: make([]uint32, n), GapNs: make([]uint64, n), Ns: make([]uint64, n)}
	end := time.Duration(0)
	for i, b := range bars {
		out.Sessions[i], out.Programs[i], out.Runs[i] = b.session, names.Of(b.program), b.runs
		out.GapNs[i], out.Ns[i] = uint64(b.begin-end), uint64(b.end-b.begin)
		end = b.end
	}
	return out
}
