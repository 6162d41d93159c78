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

// remember keeps the message of an operation, which is in buf. The caller holds order.
func (r *remote) remember(kind wire.Kind, op uint64) {
	if !r.kept.on {
		return
	}
	message := wire.AppendFrame(make([]byte, 0, len(r.buf)+wire.Header), kind, r.buf)
	r.mu.Lock()
	if p, ok := r.pending[op]; ok {
		p.message = message
		r.pending[op] = p
	}
	r.mu.Unlock()
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
	m := &wire.Settled{Next: r.op + 1, Pending: slices.Collect(maps.Keys(r.pending))}
	r.running.Go(func() {
		if payload, err := proto.Marshal(m); err == nil {
			_ = r.conn.Send(wire.KindSettled, payload) // if it fails, the reader gets the error too
		}
	})
}

// maxFrames is how many bytes of frames one Rejoin has, but for one that is longer.
const maxFrames = 8 << 20

// rejoin tells a controller that has started again what this session has. The reader calls it: nothing is received
// meanwhile, so a submission that holds order does not wait for this.
func (r *remote) rejoin() error {
	r.order.Lock()
	defer r.order.Unlock()
	r.sendPut(false) // so that all numbers that were given have messages
	var frames [][]byte
	add := func(kind wire.Kind, payload []byte) { frames = append(frames, wire.AppendFrame(nil, kind, payload)) }
	last, sent := &wire.Rejoin{Epoch: r.epoch}, map[uint64]bool{} // graphs
	r.mu.Lock()
	last.Last = r.op
	last.Programs = slices.Sorted(maps.Keys(r.devices))
	for _, id := range slices.Sorted(maps.Keys(r.graphs)) {
		for _, s := range r.graphs[id].sections {
			sent[s.graph] = true
			add(wire.KindGraph, s.message)
		}
	}
	for _, op := range slices.Sorted(maps.Keys(r.pending)) {
		if p := r.pending[op].play; p != nil && !sent[p.of.graph] { // it was forgotten behind its play
			sent[p.of.graph] = true
			add(wire.KindGraph, p.of.message)
		}
	}
	for _, a := range r.assemblies.by {
		if a.object != 0 {
			add(wire.KindAssemble, a.message)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.compiles)) {
		add(wire.KindCompile, r.compiles[id].message)
	}
	giving := slices.Collect(maps.Keys(r.giving))
	var aborts []*wire.Abort
	var play *playing // whose message was added last
	for _, op := range slices.Sorted(maps.Keys(r.pending)) {
		p := r.pending[op]
		if p.play != nil {
			last.Pending = append(last.Pending, op)
			if p.play != play {
				play = p.play
				frames = append(frames, play.message)
			}
			continue
		}
		if p.put == nil {
			frames = append(frames, p.message)
			continue
		}
		frame, err := r.delivered(op, p.message)
		frames = append(frames, frame)
		if err = cmp.Or(p.put.err, err); err != nil {
			aborts = append(aborts, &wire.Abort{Gang: op, Status: wire.Of(err)})
		}
	}
	var requests []*wire.SliceRequest
	for _, number := range slices.Sorted(maps.Keys(r.asked)) {
		requests = append(requests, r.asked[number].again())
	}
	for slice, list := range r.remapping {
		for range list {
			requests = append(requests, &wire.SliceRequest{Slice: slice})
		}
	}
	last.Slices = slices.AppendSeq(slices.Collect(maps.Keys(r.asked)), maps.Keys(r.slicesOf))
	var profiles []*wire.Profile
	for _, id := range slices.Sorted(maps.Keys(r.profiles)) { // which workers go on with, or begin now
		profiles = append(profiles, &wire.Profile{Id: id})
	}
	if p := r.round; p != nil {
		p.sent, p.again = time.Now(), true
		if p.stop {
			profiles = append(profiles, &wire.Profile{Id: p.id, Stop: true})
		}
	}
	r.mu.Unlock()
	for _, m := range profiles {
		if payload, err := proto.Marshal(m); err == nil {
			add(wire.KindProfile, payload)
		}
	}
	for _, m := range requests {
		if payload, err := proto.Marshal(m); err == nil {
			add(wire.KindSliceRequest, payload)
		}
	}
	for _, m := range aborts {
		if payload, err := proto.Marshal(m); err == nil {
			add(wire.KindAbort, payload)
		}
	}
	if err := r.sendRejoin(append(frames, r.kept.frees...), last); err != nil {
		return err
	}
	for _, transfer := range giving { // who was to receive it may not know; it is asked for anew
		content.Fail(r.exchange, transfer, status.New(status.Unavailable, "the controller has started again"))
	}
	r.moment(MomentRestarted, "", nil, nil)
	return nil
}

var errRowLost = status.New(status.Unavailable, "the worker that it was sent to is gone")

// delivered returns the frame of a put without the rows whose bytes went to a worker in whose place another one is now:
// that one would wait for them, since all that is sent again comes behind its coming. If no row is left, it returns the
// frame as it is, and why the put cannot go on. The caller holds order and mu.
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
		if len(some) > 0 && len(some)+len(f) > maxFrames {
			if err := send(&wire.Rejoin{More: true, Frames: some}); err != nil {
				return err
			}
			some = some[:0]
		}
		some = append(some, f...)
	}
	last.Frames = some
	return send(last)
}
