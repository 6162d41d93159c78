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

// Profiler records what a session's devices do, by the workers that have them.
type Profiler interface {
	// StartProfile begins to record, and returns when every worker does. The end of
	// ctx ends the wait: the profile goes on without the workers that have not
	// answered.
	//
	// Errors: FAILED_PRECONDITION while another is being started or stopped,
	// UNIMPLEMENTED where the controller is too old, and of a session that is lost.
	StartProfile(ctx context.Context) (StopProfile, error)
}

// StopProfile ends a profile, once. It waits until the session's operations have
// ended and the workers have told what they recorded, but no longer than for ctx.
type StopProfile func(ctx context.Context) Profile

// Profile is what workers have recorded.
type Profile struct {
	Devices []observe.Device // all of the session's
	// Spans are by virtual device, with the times of this process's clock.
	Spans   []observe.Span
	Dropped uint64
	Missing []string // for people: workers whose spans are not there, and why
}

// round is a question to all workers of a session's, and their answers. Under
// remote.mu, but for what says otherwise.
type round struct {
	id       uint64
	stop     bool
	sent     time.Time
	awaits   map[uint64]string // workers that have yet to answer, or to send what they recorded; their names
	answered chan struct{}     // closed when there are none
	over     bool
	clocks   map[uint64]clock
	recorded map[uint64]*wire.Recorded
	missing  []string
}

// clock is how far a worker's clock is ahead of this process's, and how wrong that may
// be, in ns.
type clock struct{ ahead, uncertain int64 }

// measure reads a worker's clock off an answer to a question that was sent and
// answered at these times of ours. The worker read it some time between them.
func measure(sent, came time.Time, theirs int64) clock {
	half := came.Sub(sent).Nanoseconds() / 2
	c := clock{ahead: theirs - (sent.UnixNano() + half), uncertain: half}
	// Clocks that may be the same are taken for the same: those of one host are.
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

// without takes note that a worker will not answer.
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
	if r.welcome.Protocol < wire.ProtocolProfile {
		return nil, status.New(status.Unimplemented,
			"the controller is older than profiles; install the same version of openpathways on all machines")
	}
	r.mu.Lock()
	r.profile++
	id := r.profile
	r.mu.Unlock()
	begun, err := r.askWorkers(ctx, id, false)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) Profile {
		r.settle(ctx)
		ended, err := r.askWorkers(ctx, id, true)
		if err != nil {
			ended = new(round)
			ended.missing = []string{err.Error()}
		}
		return r.gather(begun, ended)
	}, nil
}

// settle waits until nothing of the session is under way.
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

// askWorkers asks all workers, and waits for their answers.
func (r *remote) askWorkers(ctx context.Context, id uint64, stop bool) (*round, error) {
	p := &round{id: id, stop: stop, awaits: map[uint64]string{}, answered: make(chan struct{}),
		clocks: map[uint64]clock{}, recorded: map[uint64]*wire.Recorded{}}
	for _, w := range r.welcome.Workers {
		p.awaits[w.Number] = cmp.Or(w.Name, fmt.Sprint(w.Number))
	}
	r.mu.Lock()
	switch {
	case r.lost != nil:
		defer r.mu.Unlock()
		return nil, r.lost
	case r.round != nil:
		defer r.mu.Unlock()
		return nil, status.New(status.FailedPrecondition, "another profile of this session is being started or stopped")
	}
	r.round, p.sent = p, time.Now()
	r.mu.Unlock()
	err := r.sendMessage(wire.KindProfile, &wire.Profile{Id: id, Stop: stop})
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
	r.round = nil
	r.mu.Unlock()
	if stop { // what still arrives is of no use
		r.exchange.Fail(r.space, wire.ProfileKey(id), status.New(status.Cancelled, "the profile has ended"))
	}
	return p, err
}

// profiled takes a worker's answer, which came at a time.
func (r *remote) profiled(m *wire.Profiled, came time.Time) {
	r.mu.Lock()
	p := r.round
	if p == nil || p.over || p.id != m.Id || p.stop != m.Stop || p.awaits[m.Worker] == "" {
		r.mu.Unlock()
		return
	}
	if err := m.Status.Err(); err != nil {
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

// unprofiled takes note that workers have gone.
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

// gather makes one profile of what workers have recorded.
func (r *remote) gather(begun, ended *round) Profile {
	out := Profile{Missing: slices.Concat(begun.missing, ended.missing)}
	names := map[uint64]string{}
	for _, w := range r.welcome.Workers {
		names[w.Number] = w.Name
	}
	numbers := map[uint64]map[uint32]int32{} // virtual devices, by worker and local device
	for _, d := range r.welcome.Devices {
		out.Devices = append(out.Devices, observe.Device{Number: int32(d.Number), Platform: r.welcome.Platform.GetName(),
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
		for _, e := range m.Spans {
			device, ok := numbers[worker][e.Local]
			if !ok || uint64(e.Program) >= uint64(len(m.Programs)) {
				continue // the worker makes no sense
			}
			at := int64(e.Submitted) - c.ahead
			out.Spans = append(out.Spans, observe.Span{
				Program: m.Programs[e.Program], ProgramID: e.Number, Gang: e.Gang, Device: device,
				Submitted: at, Launched: at + int64(e.Launched), End: at + int64(e.End)})
		}
	}
	return out
}
