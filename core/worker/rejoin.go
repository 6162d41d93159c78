package worker

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport/content"
)

// A controller that has started again asks its workers what they have: see core/controller/comeback.go. So a worker
// remembers each operation that it was sent, until its client has heard the end: those under way are in Worker.gangs,
// those that ended in report.ended. Between the two nothing is missed, since through adds a gang to the second before
// it takes it out of the first. Of those whose end their clients have heard it remembers the highest number, so that no
// later gang gets one of theirs.
//
// The message that says so is the first that a worker sends over the new line which counts: ends of gangs that were
// sent before it are in it, and none leaves beside it (report.sending).
//
// A controller that ends may have told one process to send something to another, and not the other to receive it, or
// the other way round. So what it had them send, and what it had compiled, does not go on behind its next start: who
// waits for an executable asks again, and clients send their Compiles again.

// record is an operation that ended here.
type record struct {
	session uint32
	gang    uint64
	op      uint64
	spent   uint64 // device time, in nanoseconds
}

// keep remembers why a gang failed. The caller holds mu.
func (r *report) keep(f *wire.Failure) {
	if r.why == nil {
		r.why = map[uint64]*wire.Failure{}
	}
	r.why[f.Number] = f
}

// settle forgets operations whose end a client has heard.
func (r *report) settle(m *wire.Settled) {
	pending := make(map[uint64]bool, len(m.Pending))
	for _, op := range m.Pending {
		pending[op] = true
	}
	r.forget(func(e record) bool { return e.session == m.Session && e.op < m.Next && !pending[e.op] })
}

// drop forgets a session, of which some gangs are under way.
func (r *report) drop(session uint32, under []*gang) {
	r.mu.Lock()
	for _, g := range under {
		g.remembered = false
	}
	r.mu.Unlock()
	r.forget(func(e record) bool { return e.session == session })
}

func (r *report) forget(which func(record) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = slices.DeleteFunc(r.ended, func(e record) bool {
		if !which(e) {
			return false
		}
		delete(r.why, e.gang)
		return true
	})
}

// maxRejoin bounds the bytes of arrays, and those of gangs, in one Rejoin: one of either is shorter, with any error
// that Of returns, and all of a Rejoin is far shorter than a frame.
const maxRejoin = 4 << 20

// someOf returns how many of the first messages have about as many bytes: one at least, if there is one.
func someOf[M proto.Message](all []M) int {
	size := 0
	for i, m := range all {
		if size += proto.Size(m); size > maxRejoin {
			return max(i, 1)
		}
	}
	return len(all)
}

// rejoin reports to a controller that has started again what this worker has. The goroutine that reads the connection
// calls it.
func (w *Worker) rejoin() error {
	w.posts.leave(true)
	for _, s := range w.sessions {
		s.assembled = nil // runs that come from now on read what is assembled from now on
	}
	holdings := map[uint32]*wire.Holding{}
	of := func(session uint32) *wire.Holding {
		h := holdings[session]
		if h == nil {
			h = &wire.Holding{Session: session}
			holdings[session] = h
		}
		return h
	}
	for session := range w.sessions {
		of(session)
	}
	for key := range w.programs {
		h := of(key.session)
		h.Programs = append(h.Programs, key.program)
	}
	for _, h := range holdings {
		slices.Sort(h.Programs)
	}
	r := &w.report
	r.mu.Lock()
	for r.sending { // what is sent does not count: the controller does not listen yet
		r.sent.Wait()
	}
	r.sending = true // so that nothing ends unsaid between what follows and this
	r.mu.Unlock()
	under := w.gangsOf(of)
	w.arrays(of)
	r.mu.Lock()
	// What has ended is in ended, but for gangs of sessions that were dropped.
	for _, gang := range r.ok {
		under.ends(gang)
	}
	for _, f := range r.failed {
		under.ends(f.Number)
	}
	r.ok, r.spent, r.failed = r.ok[:0], r.spent[:0], nil
	for _, e := range r.ended {
		g := under[e.gang]
		if g == nil {
			g = &wire.HeldGang{Gang: e.gang, Op: e.op}
			h := of(e.session)
			h.Gangs = append(h.Gangs, g)
		}
		g.Ended, g.Busy = true, e.spent
		if f := r.why[e.gang]; f != nil {
			g.Failed = f.Status
		}
	}
	r.mu.Unlock()
	err := w.sendRejoin(holdings)
	r.mu.Lock()
	r.sending = false
	r.mu.Unlock()
	if err != nil {
		return err
	}
	r.flush()
	w.askAgain()
	w.endStart()
	return nil
}

// heldGangs are gangs that a Rejoin names, by number.
type heldGangs map[uint64]*wire.HeldGang

// ends says of a gang that it has ended.
func (all heldGangs) ends(gang uint64) {
	if g := all[gang]; g != nil {
		g.Ended = true
	}
}

// gangsOf reports the gangs that are under way, and returns them.
func (w *Worker) gangsOf(of func(session uint32) *wire.Holding) heldGangs {
	under := heldGangs{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.under(func(*gang) bool { return true }) {
		held := &wire.HeldGang{Gang: g.ID, Op: g.op}
		h := of(g.Session)
		h.Gangs = append(h.Gangs, held)
		under[g.ID] = held
	}
	return under
}

// arrays reports the shards of all devices, once these have begun what was sent before and can begin.
func (w *Worker) arrays(of func(session uint32) *wire.Holding) {
	type key struct {
		session uint32
		object  uint64
	}
	known := map[key]*wire.HeldArray{}
	for _, q := range w.queues {
		looked := make(chan struct{})
		q.soon(func() {
			defer close(looked)
			q.state.Each(func(session uint32, object uint64, b devicequeue.Buffer, donated bool, err error) {
				a := known[key{session, object}]
				if a == nil {
					a = &wire.HeldArray{Object: object}
					known[key{session, object}] = a
					h := of(session)
					h.Arrays = append(h.Arrays, a)
				}
				a.Devices = append(a.Devices, uint32(q.local))
				a.Donated = a.Donated || donated
				if err != nil {
					a.Failed = wire.Of(err)
				}
				if b, ok := b.(device.Buffer); ok {
					a.Bytes, a.Memory = max(a.Bytes, b.Shape().Bytes()), b.Memory()
				}
			})
			q.state.Leaving(func(session uint32, bytes int64) {
				h := of(session)
				if h.Leaving == nil {
					h.Leaving = make([]int64, len(w.queues))
				}
				h.Leaving[q.local] += bytes
			})
		})
		select {
		case <-looked:
		case <-w.ctx.Done():
			<-looked // of an owner that will come to it, since queues end behind the reader
		}
	}
}

// sendRejoin sends what this worker has, in as many messages as it takes.
func (w *Worker) sendRejoin(holdings map[uint32]*wire.Holding) error {
	var all []*wire.Rejoin
	for _, session := range slices.Sorted(maps.Keys(holdings)) {
		h := holdings[session]
		for first := true; first || len(h.Arrays)+len(h.Gangs) > 0; first = false {
			arrays, gangs := someOf(h.Arrays), someOf(h.Gangs)
			one := &wire.Holding{Session: session, Arrays: h.Arrays[:arrays], Gangs: h.Gangs[:gangs]}
			if first {
				one.Programs, one.Leaving = h.Programs, h.Leaving
			}
			h.Arrays, h.Gangs = h.Arrays[arrays:], h.Gangs[gangs:]
			all = append(all, &wire.Rejoin{More: true, Holdings: []*wire.Holding{one}})
		}
	}
	all = append(all, &wire.Rejoin{Artifacts: w.artifacts.offered(), Last: w.newest})
	for _, m := range all {
		if err := w.conn.Send(wire.KindRejoin, wire.Encode(nil, m)); err != nil {
			return err
		}
	}
	return nil
}

// endStart gives up what an earlier start of the controller has had processes send and compile.
func (w *Worker) endStart() {
	why := status.New(status.Unavailable, "the controller has started again")
	w.mu.Lock()
	for _, op := range slices.Sorted(maps.Keys(w.giveUp)) {
		w.giveUp[op](why)
	}
	w.mu.Unlock()
	a := &w.artifacts
	a.mu.Lock()
	giving, ended := slices.Sorted(maps.Keys(a.giving)), a.ended
	a.start, a.ended = context.WithCancelCause(w.ctx)
	a.mu.Unlock()
	ended(why)
	for _, transfer := range giving {
		content.Fail(w.config.Exchange, transfer, why)
	}
}

// askAgain sends again what the controller was asked and may not have answered.
func (w *Worker) askAgain() {
	w.mu.Lock()
	var calls [][]byte
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		calls = append(calls, w.calls[id].message)
	}
	w.mu.Unlock()
	for _, message := range calls {
		_ = w.conn.Send(wire.KindHostCall, message) // the reader learns why
	}
	for _, number := range w.artifacts.wanted() {
		_ = w.conn.Send(wire.KindWant, wire.Encode(nil, &wire.Want{Artifact: number}))
	}
}
