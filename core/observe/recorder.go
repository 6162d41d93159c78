// Package observe records what devices work on, and writes recordings in the formats
// of the tools that show them: Perfetto's trace events, and the planes of XLA's
// profiler.
//
// While nothing is recorded, a Recorder costs one atomic load: callers check On before
// they read a clock. Its methods, and those of the values it returns, may be called
// from any goroutine. The packages that run devices use it: the worker, and the
// frontend for devices of this process.
package observe

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Span is one computation on one device. Times are nanoseconds since the Unix epoch, by
// the clock of the process that has the device.
type Span struct {
	Program   string // name of its HLO module
	ProgramID uint64
	Gang      uint64 // the same on all devices that run it together
	Device    int32
	Submitted int64 // when its launch began
	Launched  int64 // when the driver had accepted it
	Came      int64 // when the last of what it reads came from elsewhere; 0: all was there, or it is not known
	End       int64 // 0 while it runs
}

// Recorded is the content of a recording.
type Recorded struct {
	Began   int64 // nanoseconds since the Unix epoch
	Spans   []Span
	Events  []Event
	Dropped uint64   // number of spans and events that are missing
	Devices []Device // names for WritePerfetto; it shows other devices by number
	Ended   int64    // what began from then on is cut off; 0: nothing is
	Why     string   // that is so, for people
}

// first returns about that share, from 0 to 1, of a recording: what began before some time.
func (r *Recorded) first(share float64) Recorded {
	begun := make([]int64, 0, len(r.Spans)+len(r.Events))
	for i := range r.Spans {
		begun = append(begun, r.Spans[i].Submitted)
	}
	for i := range r.Events {
		begun = append(begun, r.Events[i].Begin)
	}
	part := *r
	part.Spans, part.Events, part.Ended = nil, nil, r.Began
	if len(begun) > 0 {
		slices.Sort(begun)
		part.Ended = begun[int(share*float64(len(begun)-1))]
	}
	for i := range r.Spans {
		if r.Spans[i].Submitted < part.Ended {
			part.Spans = append(part.Spans, r.Spans[i])
		}
	}
	for i := range r.Events {
		if r.Events[i].Begin < part.Ended {
			part.Events = append(part.Events, r.Events[i])
		}
	}
	return part
}

// Recorder holds the recordings of a process.
type Recorder struct {
	recordings atomic.Pointer[[]*Recording] // nil if there are none
	mu         sync.Mutex                   // serializes writes of recordings
}

// Recording keeps spans between Start and Stop.
type Recording struct {
	recorder *Recorder
	session  uint32
	limit    int
	began    time.Time

	mu      sync.Mutex // guards the rest
	settled sync.Cond  // signaled when running becomes 0 or Stop's patience ends
	names   struct{ spans, events, ways Names }
	spans   chunks[keptSpan]
	events  chunks[keptEvent]
	running int // spans that have not ended
	dropped uint64
	stopped bool
}

// MaxSpans is the number of spans that a recording keeps by default, about 60 MB; further
// spans are only counted. It keeps as many events.
const MaxSpans = 1 << 20

// On reports whether there is any recording.
func (r *Recorder) On() bool { return r.recordings.Load() != nil }

// Clock returns the time of something that may be recorded: nanoseconds since the Unix
// epoch, or 0 if there is no recording. From the start of a recording on it follows the
// clock that is never set, since to ask for the date as well takes twice as long.
func (r *Recorder) Clock() int64 {
	list := r.recordings.Load()
	if list == nil {
		return 0
	}
	began := (*list)[len(*list)-1].began
	return began.UnixNano() + int64(time.Since(began))
}

// Records reports whether there is any recording of a session.
func (r *Recorder) Records(session uint32) bool {
	list := r.recordings.Load()
	return list != nil && slices.ContainsFunc(*list, func(rec *Recording) bool { return rec.session == session })
}

// Start begins to record the computations of a session, and keeps at most limit spans and
// limit events.
// The caller must call Stop or Drop.
func (r *Recorder) Start(session uint32, limit int) *Recording {
	rec := &Recording{recorder: r, session: session, limit: limit, began: time.Now()}
	rec.settled.L = &rec.mu
	rec.spans.free, rec.events.free = freeSpans, freeEvents
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

// Running refers to a span that has not ended, in each recording that has it.
type Running []place

type place struct {
	recording *Recording
	span      *keptSpan // the recording's until it has stopped
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
		case rec.spans.len >= rec.limit:
			rec.dropped++
		default:
			running = append(running, place{rec, rec.keep(&s)})
			rec.running++
		}
		rec.mu.Unlock()
	}
	return running
}

// End records that the computation ended at time at, and when the last of what it read came from elsewhere, or 0.
func (running Running) End(came, at int64) {
	for _, p := range running {
		rec := p.recording
		rec.mu.Lock()
		if !rec.stopped {
			p.span.came, p.span.end = came, max(at, p.span.submitted)
			if rec.running--; rec.running == 0 {
				rec.settled.Broadcast()
			}
		}
		rec.mu.Unlock()
	}
}

// Ended records a computation of a session that has ended. Recordings that began while it ran do not have it.
func (r *Recorder) Ended(session uint32, s *Span) {
	list := r.recordings.Load()
	if list == nil {
		return
	}
	for _, rec := range *list {
		if rec.session == session && rec.began.UnixNano() <= s.Submitted {
			rec.ended(s)
		}
	}
}

func (rec *Recording) ended(s *Span) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.stopped:
	case rec.spans.len >= rec.limit:
		rec.dropped++
	default:
		rec.keep(s)
	}
}

// Stop ends the recording. It blocks until every recorded computation has ended, but no
// longer than patience; the ones that still run after that are dropped.
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
	spans, events := rec.take()
	return Recorded{Began: rec.began.UnixNano(), Spans: spans, Events: events, Dropped: rec.dropped + uint64(rec.running)}
}
