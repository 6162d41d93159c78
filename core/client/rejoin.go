package client

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/content"
)

// A controller that has started again knows of a session what it had on its disk, and what workers have. The client
// says the rest: what it has sent and knows no end of. See core/controller/comeback.go for why nothing is done twice.
//
// What has an end is kept until then: operations in pending, Compiles in compiles, graphs in graphs. A Free or a
// Forget has none, so the last ones are kept, and sent again: to free an array twice does nothing. Each message is
// kept before it is sent. So what was sent over the new connection before Rejoin, and which the controller passes
// over, is in Rejoin.

// keepsFrees bounds the frees that are kept, in bytes: more than a controller and its connections have on their way to
// workers, which is below a megabyte for each. If one is lost all the same, its array stays until the session ends.
const keepsFrees = 1 << 20

// settleEvery is after how many ends workers are told which operations have ended: seldom enough to cost nothing, and
// often enough that they remember little.
const settleEvery = 256

// remembered is what is kept of messages. It is of no use where the session does not outlive its controller.
type remembered struct {
	on    bool     // it does
	frees [][]byte // frames of Free and Forget, the oldest first; the caller holds order
	bytes int      // of frees
	ends  int      // since workers were told; remote.mu guards it
}

// remember keeps the message of an operation, which is in buf, and what is assembled of its arguments. The caller holds
// order.
func (r *remote) remember(kind wire.Kind, op uint64, reads []*assembly) {
	if !r.kept.on {
		return
	}
	message := wire.AppendFrame(make([]byte, 0, len(r.buf)+wire.Header), kind, r.buf)
	r.mu.Lock()
	if p, ok := r.pending[op]; ok {
		p.message, p.reads = message, reads
		r.pending[op] = p
	}
	r.mu.Unlock()
}

// rememberCall keeps the line of the user's code that called a program first, which the controller is not told again.
func (r *remote) rememberCall(program uint64, line []byte) {
	if !r.kept.on || len(line) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.devices[program]; !has || r.lines[program] != nil {
		return
	}
	if r.lines == nil {
		r.lines = map[uint64][]byte{}
	}
	r.lines[program] = slices.Clone(line[:min(len(line), wire.MaxText)])
}

// rememberFree keeps a Free or a Forget. The caller holds order.
func (r *remote) rememberFree(kind wire.Kind, payload []byte) {
	k := &r.kept
	if !k.on {
		return
	}
	k.frees = append(k.frees, wire.AppendFrame(nil, kind, payload))
	k.bytes += len(payload) + wire.Header
	drop := 0
	for ; k.bytes > keepsFrees && drop < len(k.frees)-1; drop++ {
		k.bytes -= len(k.frees[drop])
	}
	if drop > len(k.frees)/2 || drop > 0 && len(k.frees) == cap(k.frees) {
		k.frees = slices.Clone(k.frees[drop:])
	} else {
		clear(k.frees[:drop])
		k.frees = k.frees[drop:]
	}
}

// settles tells workers which operations have ended, if enough have since they were told last. The caller holds mu.
func (r *remote) settles(ended int) {
	k := &r.kept
	if !k.on {
		return
	}
	if k.ends += ended; k.ends < max(settleEvery, 2*len(r.pending)) {
		return
	}
	k.ends = 0
	m := &wire.Settled{Next: r.op + 1, Pending: slices.Sorted(maps.Keys(r.pending))}
	r.running.Go(func() {
		if payload, err := proto.Marshal(m); err == nil {
			_ = r.conn.Send(wire.KindSettled, payload) // if it fails, the reader gets the error too
		}
	})
}

// maxFrames is how many bytes of frames one Rejoin has, but for one that is longer.
const maxFrames = 8 << 20

// retold is what this session tells a controller that has started again.
type retold struct {
	frames [][]byte
	last   *wire.Rejoin // the end of them
}

func (a *retold) add(kind wire.Kind, payload []byte) {
	a.frames = append(a.frames, wire.AppendFrame(nil, kind, payload))
}

func (a *retold) say(kind wire.Kind, m proto.Message) {
	if payload, err := proto.Marshal(m); err == nil {
		a.add(kind, payload)
	}
}

// rejoin reports to a controller that has started again what this session has. The reader calls it, and receives
// nothing meanwhile, so a submission that holds order does not wait for this.
func (r *remote) rejoin() error {
	r.order.Lock()
	defer r.order.Unlock()
	r.sendPut(false) // so that all numbers that were given have messages
	r.mu.Lock()
	a := &retold{last: &wire.Rejoin{Epoch: r.epoch, Last: r.op}}
	var uncalled []uint64 // as far as is known
	for _, id := range slices.Sorted(maps.Keys(r.devices)) {
		if line := r.lines[id]; len(line) > 0 {
			a.last.Programs, a.last.FirstCalls = append(a.last.Programs, id), append(a.last.FirstCalls, line)
		} else {
			uncalled = append(uncalled, id)
		}
	}
	a.last.Programs = append(a.last.Programs, uncalled...)
	r.retellGraphs(a)
	for _, id := range slices.Sorted(maps.Keys(r.compiles)) {
		a.add(wire.KindCompile, r.compiles[id].message)
	}
	r.retellOperations(a)
	r.retellProfiles(a)
	r.retellSlices(a)
	giving := slices.Sorted(maps.Keys(r.giving))
	r.mu.Unlock()
	if err := r.sendRejoin(append(a.frames, r.kept.frees...), a.last); err != nil {
		return err
	}
	for _, transfer := range giving { // who was to receive it may not know; it is asked for anew
		content.Fail(r.exchange, transfer, status.New(status.Unavailable, "the controller has started again"))
	}
	r.moment(MomentRestarted, "", nil, nil)
	return nil
}

// retellGraphs adds all graphs, and the sections that plays under way are of. The caller holds mu.
func (r *remote) retellGraphs(a *retold) {
	sent := map[uint64]bool{}
	for _, id := range slices.Sorted(maps.Keys(r.graphs)) {
		for _, s := range r.graphs[id].sections {
			sent[s.graph] = true
			a.add(wire.KindGraph, s.message)
		}
	}
	for _, op := range slices.Sorted(maps.Keys(r.pending)) {
		if p := r.pending[op].play; p != nil && !sent[p.of.graph] { // it was forgotten behind its play
			sent[p.of.graph] = true
			a.add(wire.KindGraph, p.of.message)
		}
	}
}

// retellOperations adds the messages of operations under way, and behind them the ends of puts that cannot go on. The
// caller holds order and mu.
func (r *remote) retellOperations(a *retold) {
	var aborts []*wire.Abort
	var play *playing // whose message was added last
	told := map[*assembly]bool{}
	for _, op := range slices.Sorted(maps.Keys(r.pending)) {
		p := r.pending[op]
		switch {
		case p.play != nil:
			a.last.Pending = append(a.last.Pending, op)
			if p.play != play {
				play = p.play
				a.frames = append(a.frames, play.message)
			}
		case p.put == nil:
			r.retellAssemblies(a, p, told)
			a.frames = append(a.frames, p.message)
		default:
			frame, err := r.delivered(op, p.message)
			a.frames = append(a.frames, frame)
			if err = cmp.Or(p.put.err, err); err != nil {
				aborts = append(aborts, &wire.Abort{Gang: op, Status: wire.Of(err)})
			}
		}
	}
	for _, m := range aborts {
		a.say(wire.KindAbort, m)
	}
	for _, as := range r.assemblies.by {
		if !told[as] {
			as.object, as.message = 0, nil // the next run that reads it has it assembled
		}
	}
}

// retellAssemblies adds the assembled arrays that a run reads, except those already told: after the operations that
// make their members, even if these were freed since. The program for which an array was first assembled may be
// forgotten, so it is assembled for the one that runs, which has the same devices.
func (r *remote) retellAssemblies(a *retold, p pending, told map[*assembly]bool) {
	for _, as := range p.reads {
		if told[as] {
			continue
		}
		told[as] = true
		m, run := new(wire.Assemble), new(wire.Run)
		if _, payload, _, err := wire.NextFrame(p.message); err == nil && run.Parse(payload) == nil &&
			proto.Unmarshal(as.message, m) == nil {
			m.Program = run.Program
			a.say(wire.KindAssemble, m)
		}
	}
}

// retellProfiles adds profiles, which workers go on with, or begin now. The caller holds mu.
func (r *remote) retellProfiles(a *retold) {
	for _, id := range slices.Sorted(maps.Keys(r.profiles)) {
		a.say(wire.KindProfile, &wire.Profile{Id: id})
	}
	if p := r.round; p != nil {
		p.sent, p.again = time.Now(), true
		if p.stop {
			a.say(wire.KindProfile, &wire.Profile{Id: p.id, Stop: true})
		}
	}
}

// retellSlices adds the requests for slices that wait for an answer, and names them and the slices that the session
// has. The caller holds mu.
func (r *remote) retellSlices(a *retold) {
	for _, number := range slices.Sorted(maps.Keys(r.asked)) {
		a.say(wire.KindSliceRequest, r.asked[number].again())
	}
	for _, slice := range slices.Sorted(maps.Keys(r.remapping)) {
		for range r.remapping[slice] {
			a.say(wire.KindSliceRequest, &wire.SliceRequest{Slice: slice})
		}
	}
	a.last.Slices = slices.AppendSeq(slices.Sorted(maps.Keys(r.asked)), maps.Keys(r.slicesOf))
	slices.Sort(a.last.Slices)
}

var errRowLost = status.New(status.Unavailable, "the worker that it was sent to is gone")

// delivered returns the frame of a put without the rows whose bytes went to a worker that another one has replaced:
// that one would wait for them, since all that is sent again comes after it has joined. If no row is left, it returns
// the frame as it is, and why the put cannot go on. The caller holds order and mu.
func (r *remote) delivered(op uint64, frame []byte) ([]byte, error) {
	m := new(wire.Put)
	if _, payload, _, err := wire.NextFrame(frame); err != nil || proto.Unmarshal(payload, m) != nil {
		return frame, nil // the controller finds the same
	}
	var why error
	m.Devices = slices.DeleteFunc(m.Devices, func(d uint32) bool {
		lost := op <= r.rebound[d]
		if lost {
			why = cmp.Or(r.lossWhy[d], errRowLost)
		}
		return lost
	})
	if why == nil || len(m.Devices) == 0 {
		return frame, why
	}
	m.Lost = wire.Of(why)
	payload, err := proto.Marshal(m)
	if err != nil {
		return frame, why
	}
	return wire.AppendFrame(nil, wire.KindPut, payload), nil
}

// sendRejoin sends frames in as many messages as they take, and last with the rest of them.
func (r *remote) sendRejoin(frames [][]byte, last *wire.Rejoin) error {
	send := func(m *wire.Rejoin) error {
		payload, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		return r.conn.Send(wire.KindRejoin, payload)
	}
	var some []byte
	for _, f := range frames {
		if len(f) > wire.MaxMessage+wire.Header {
			continue // it was not sent, and what it is of fails
		}
		if len(some) > 0 && len(some)+len(f) > maxFrames {
			if err := send(&wire.Rejoin{More: true, Frames: some}); err != nil {
				return err
			}
			some = some[:0]
		}
		some = append(some, f...)
	}
	if len(some) > maxFrames { // a long one; last has fields of its own
		if err := send(&wire.Rejoin{More: true, Frames: some}); err != nil {
			return err
		}
		some = nil
	}
	last.Frames = some
	return send(last)
}
