package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Profiler records what a session's devices do. The workers that have them record it.
type Profiler interface {
	// StartProfile begins a profile, and blocks until every worker records. If ctx ends
	// first, the profile continues without the workers that have not answered.
	//
	// Errors: FAILED_PRECONDITION while another profile is being started or stopped,
	// UNIMPLEMENTED if the controller is too old, and the session's error if it is lost.
	StartProfile(ctx context.Context) (StopProfile, error)
}

// StopProfile ends a profile; it must be called once. It blocks until the session's
// operations have ended and the workers have sent what they recorded, or until ctx ends.
type StopProfile func(ctx context.Context) Profile

// Profile is the workers' recording.
type Profile struct {
	Devices []observe.Device // all of the session's
	// Spans have virtual devices, and times of this process's clock.
	Spans   []observe.Span
	Events  []observe.Event // by the same clock; the calls are this process's
	Dropped uint64
	Missing []string // for people: workers whose spans are missing, and why
	// Keep has the controller keep a trace of the profile, of at most MaxTrace bytes, for its web page; nil: it has none.
	Keep     func(name string, took time.Duration, trace []byte)
	MaxTrace int
}

// round is a question to all workers of a session, and their answers. remote.mu guards
// it, except where a field says otherwise.
type round struct {
	id       uint64
	stop     bool
	sent     time.Time         // last
	again    bool              // it was sent again, since the controller has started again
	awaits   map[uint64]string // names of the workers that have not answered, or not sent what they recorded
	answered chan struct{}     // closed when awaits is empty
	over     bool
	clocks   map[uint64]clock
	recorded map[uint64]*wire.Recorded
	missing  []string
}

// clock says how far a worker's clock is ahead of this process's, and the bound of the error, in nanoseconds.
type clock struct{ ahead, uncertain int64 }

// measure compares clocks by a question and its answer: sent and came are times of this
// process; the worker read its clock, theirs, some time between them.
func measure(sent, came time.Time, theirs int64) clock {
	half := came.Sub(sent).Nanoseconds() / 2
	c := clock{ahead: theirs - (sent.UnixNano() + half), uncertain: half}
	// Clocks that may agree are assumed to: all processes of a host have the same clock.
	if -half <= c.ahead && c.ahead <= half {
		c.ahead = 0
	}
	return c
}

// end ends the wait for answers.
func (p *round) end() {
	if !p.over {
		p.over = true
		close(p.answered)
	}
}

// without records that a worker will not answer, and why.
func (p *round) without(worker uint64, why string) {
	p.missing = append(p.missing, fmt.Sprintf("worker %s: %s", p.awaits[worker], why))
	p.done(worker)
}

func (p *round) done(worker uint64) {
	delete(p.awaits, worker)
	if len(p.awaits) == 0 {
		p.end()
	}
}

// StartProfile implements Profiler.
func (r *remote) StartProfile(ctx context.Context) (StopProfile, error) {
	r.mu.Lock()
	r.profile++
	id := r.profile
	r.mu.Unlock()
	begun, err := r.askWorkers(ctx, id, false)
	if err != nil {
		return nil, err
	}
	calls := r.recorder.Start(0, observe.MaxSpans)
	return func(ctx context.Context) Profile {
		r.settle(ctx)
		called := calls.Stop(0)
		ended, err := r.askWorkers(ctx, id, true)
		if err != nil {
			ended = new(round)
			ended.missing = []string{err.Error()}
		}
		p := r.gather(begun, ended)
		p.Events, p.Dropped = append(p.Events, called.Events...), p.Dropped+called.Dropped
		if p.MaxTrace = int(r.welcome.MaxTrace); p.MaxTrace > 0 {
			p.Keep = r.keepTrace
		}
		return p
	}, nil
}

// keepTrace is Profile.Keep.
func (r *remote) keepTrace(name string, took time.Duration, trace []byte) {
	m := &wire.Trace{Name: name, TookMs: took.Milliseconds(), Content: wire.ContentOf(trace)}
	for part := range slices.Chunk(trace, wire.TracePart) {
		m.Data = part
		if r.sendMessage(wire.KindTrace, m) != nil {
			return // the session has ended
		}
		m.At += uint64(len(part))
	}
}

// settle blocks until no operation of the session is in flight.
func (r *remote) settle(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.room.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.underWay > 0 && r.lost == nil && ctx.Err() == nil {
		r.room.Wait()
	}
}

// askWorkers asks all workers and waits for their answers.
func (r *remote) askWorkers(ctx context.Context, id uint64, stop bool) (*round, error) {
	p := &round{id: id, stop: stop, awaits: map[uint64]string{}, answered: make(chan struct{}),
		clocks: map[uint64]clock{}, recorded: map[uint64]*wire.Recorded{}}
	for _, w := range r.view.Load().workers {
		p.awaits[w.Number] = cmp.Or(w.Name, fmt.Sprint(w.Number))
	}
	err := r.sendNoted(wire.KindProfile, &wire.Profile{Id: id, Stop: stop}, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.lost != nil:
			return r.lost
		case r.round != nil:
			return status.New(status.FailedPrecondition, "another profile of this session is being started or stopped")
		}
		r.round, p.sent = p, time.Now()
		r.profiles[id] = true
		if stop {
			delete(r.profiles, id)
		}
		return nil
	})
	if err == nil {
		select {
		case <-p.answered:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	if late := len(p.awaits) > 0; late && err == nil {
		err = r.lost
	}
	p.over = true
	for w := range p.awaits {
		p.without(w, "it has not answered in time")
	}
	if r.round == p {
		r.round = nil
	}
	if err != nil {
		delete(r.profiles, id)
	}
	r.mu.Unlock()
	if stop { // drop what arrives after this
		r.exchange.Fail(r.space, wire.ProfileKey(id), status.New(status.Cancelled, "the profile has ended"))
	}
	return p, err
}

// profiled handles a worker's answer, which came at the time came.
func (r *remote) profiled(m *wire.Profiled, came time.Time) {
	r.mu.Lock()
	p := r.round
	if p == nil || p.over || p.id != m.Id || p.stop != m.Stop || p.awaits[m.Worker] == "" {
		r.mu.Unlock()
		return
	}
	if _, answered := p.clocks[m.Worker]; answered { // and what it has recorded is on its way
		r.mu.Unlock()
		return
	}
	if err := m.Status.Err(); err != nil {
		if p.again && p.stop && status.CodeOf(err) == status.NotFound {
			err = status.New(status.Unavailable, "the controller was started again while it ended the profile; what it has "+
				"recorded is lost")
		}
		p.without(m.Worker, err.Error())
		r.mu.Unlock()
		return
	}
	p.clocks[m.Worker] = measure(p.sent, came, m.NowNs)
	if m.Bytes <= 0 {
		p.done(m.Worker)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	key := transport.Key{Space: r.space, ID: wire.ProfileKey(m.Id), Part: m.Worker}
	r.exchange.Expect(m.Worker, key, m.Bytes, nil, func(b transport.Block, err error) {
		recorded := new(wire.Recorded)
		if err == nil {
			err = wire.Decode(wire.KindProfiled, b.Data, recorded)
			b.Release()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case p.over:
		case err != nil:
			p.without(m.Worker, err.Error())
		default:
			p.recorded[m.Worker] = recorded
			p.done(m.Worker)
		}
	})
}

// unprofiled ends the wait for workers that are gone.
func (r *remote) unprofiled(gone []uint64, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.round; p != nil && !p.over {
		for _, w := range gone {
			if p.awaits[w] != "" {
				p.without(w, fmt.Sprint(why))
			}
		}
	}
}

// gather merges what the workers have recorded into one profile.
func (r *remote) gather(begun, ended *round) Profile {
	out := Profile{Missing: slices.Concat(begun.missing, ended.missing)}
	names := map[uint64]string{}
	for _, w := range r.view.Load().workers {
		names[w.Number] = w.Name
	}
	numbers := map[uint64]map[uint32]int32{} // virtual devices, by worker and local device
	for _, d := range r.Devices() {
		out.Devices = append(out.Devices, observe.Device{Number: int32(d.Number), Platform: r.platformOf(d),
			Worker: cmp.Or(names[d.Worker], fmt.Sprint(d.Worker))})
		if numbers[d.Worker] == nil {
			numbers[d.Worker] = map[uint32]int32{}
		}
		numbers[d.Worker][d.Local] = int32(d.Number)
	}
	for worker, m := range ended.recorded {
		c := ended.clocks[worker]
		if first, ok := begun.clocks[worker]; ok && first.uncertain < c.uncertain {
			c = first
		}
		out.Dropped += m.Dropped
		out.Events = append(out.Events, events(m, cmp.Or(names[worker], fmt.Sprint(worker)), numbers[worker], c.ahead)...)
		for _, e := range m.Spans {
			device, ok := numbers[worker][e.Local]
			if !ok || uint64(e.Program) >= uint64(len(m.Programs)) {
				continue // the worker sent an unknown device
			}
			at, came := int64(e.Submitted)-c.ahead, int64(0)
			if e.Came > 0 {
				came = at + int64(e.Came)
			}
			out.Spans = append(out.Spans, observe.Span{
				Program: m.Programs[e.Program], ProgramID: e.Number, Gang: e.Gang, Device: device,
				Submitted: at, Launched: at + int64(e.Launched), Came: came, End: at + int64(e.End)})
		}
	}
	return out
}
