// Package observe records what devices work on, and writes it down for the tools
// that people look at it with: Perfetto's trace events, and the planes of XLA's
// profiler.
//
// A Recorder costs one atomic load where nobody records: callers ask On before
// they read a clock. Its methods, and those of what it returns, may be called from
// any goroutine. What runs devices imports it: the worker, and the door of this
// process's devices.
package observe

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Span is one computation on one device. Times are ns since the Unix epoch, by the
// clock of the process whose device it is.
type Span struct {
	Program   string // name of its HLO module
	ProgramID uint64
	Gang      uint64 // the same on all devices that run it together
	Device    int32
	Submitted int64 // when its launch began
	Launched  int64 // when the driver had it
	End       int64 // 0 while it runs
}

// Recorded is what a recording has kept.
type Recorded struct {
	Began   int64 // ns since the Unix epoch
	Spans   []Span
	Dropped uint64   // spans that were launched and are not there
	Devices []Device // which WritePerfetto names; others are known by their numbers
}

// Recorder has the recordings of a process.
type Recorder struct {
	recordings atomic.Pointer[[]*Recording] // nil: none
	mu         sync.Mutex                   // guards its being written
}

// Recording keeps spans between Start and Stop.
type Recording struct {
	recorder *Recorder
	session  uint32
	limit    int
	began    int64

	mu      sync.Mutex // guards the rest
	settled sync.Cond  // running is 0, or late
	spans   []Span
	running int // spans that have not ended
	dropped uint64
	stopped bool
}

// MaxSpans is what a recording keeps by default, some 70 MB; further spans are
// counted.
const MaxSpans = 1 << 20

// On reports whether somebody records.
func (r *Recorder) On() bool { return r.recordings.Load() != nil }

// Start begins to record what is launched for a session, and keeps at most limit
// spans. Stop, or Drop, is owed.
func (r *Recorder) Start(session uint32, limit int) *Recording {
	rec := &Recording{recorder: r, session: session, limit: limit, began: time.Now().UnixNano()}
	rec.settled.L = &rec.mu
	r.change(func(list []*Recording) []*Recording { return append(list, rec) })
	return rec
}

// change replaces the list of recordings.
func (r *Recorder) change(f func([]*Recording) []*Recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*Recording
	if old := r.recordings.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = f(list); len(list) == 0 {
		r.recordings.Store(nil)
	} else {
		r.recordings.Store(&list)
	}
}

// Drop ends a session's recordings.
func (r *Recorder) Drop(session uint32) {
	if r.On() {
		r.change(func(list []*Recording) []*Recording {
			return slices.DeleteFunc(list, func(rec *Recording) bool { return rec.session == session })
		})
	}
}

// Running is a span that has yet to end, in each recording that has it.
type Running []place

type place struct {
	recording *Recording
	index     int
}

// Begin records that a computation of a session was launched.
func (r *Recorder) Begin(session uint32, s Span) (running Running) {
	list := r.recordings.Load()
	if list == nil {
		return nil
	}
	for _, rec := range *list {
		if rec.session != session {
			continue
		}
		rec.mu.Lock()
		switch {
		case rec.stopped:
		case len(rec.spans) >= rec.limit:
			rec.dropped++
		default:
			running = append(running, place{rec, len(rec.spans)})
			rec.spans = append(rec.spans, s)
			rec.running++
		}
		rec.mu.Unlock()
	}
	return running
}

// End records that it has ended, at a time.
func (running Running) End(at int64) {
	for _, p := range running {
		rec := p.recording
		rec.mu.Lock()
		if !rec.stopped {
			rec.spans[p.index].End = max(at, rec.spans[p.index].Submitted)
			if rec.running--; rec.running == 0 {
				rec.settled.Broadcast()
			}
		}
		rec.mu.Unlock()
	}
}

// Stop ends the recording. It waits until what was launched has ended, but no
// longer than patience; what still runs then is dropped.
func (rec *Recording) Stop(patience time.Duration) Recorded {
	rec.recorder.change(func(list []*Recording) []*Recording {
		return slices.DeleteFunc(list, func(other *Recording) bool { return other == rec })
	})
	rec.mu.Lock()
	defer rec.mu.Unlock()
	late := false
	timer := time.AfterFunc(patience, func() {
		rec.mu.Lock()
		late = true
		rec.mu.Unlock()
		rec.settled.Broadcast()
	})
	defer timer.Stop()
	for rec.running > 0 && !late {
		rec.settled.Wait()
	}
	rec.stopped = true
	spans := slices.DeleteFunc(rec.spans, func(s Span) bool { return s.End == 0 })
	rec.spans = nil
	return Recorded{Began: rec.began, Spans: spans, Dropped: rec.dropped + uint64(rec.running)}
}
