package worker

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/worker/assembly"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// A move goes one of four ways, or in pieces (pieces.go):
//
//	               to a device of this process                    to another process
//	a whole shard  copyTo, or copyRows if its rows lie otherwise  push (bytes.go)
//	regions of it  pushRegions, into the destination's memory     pushRegions, by the exchange
//
// A source stays pinned until its bytes have been read: no free, drop or donation takes them away meanwhile. Each send
// ends by one call of moved, and each piece for a device here by one call of came.

// send begins to send the pieces of a part, whose sources are pinned.
func (q *queue) send(g *gang, t *transfer, l *leg, sources []devicequeue.Input) {
	type group struct {
		shard   *devicequeue.Shard
		regions []*move
		banded  []*move       // those whose pieces go by bands
		source  device.Sliced // of these
	}
	groups := map[*devicequeue.Shard]*group{}
	var order []*group
	for i, v := range l.sends {
		s := sources[i].Shard
		at := groups[s]
		if at == nil && (!v.whole || v.cut.pieces > 0) {
			at = &group{shard: s}
			groups[s], order = at, append(order, at)
		}
		var in device.Sliced
		if v.cut.pieces > 0 {
			in = sliced(s)
		}
		switch {
		case in != nil && v.region().source(width(v.shape)).IsDense():
			q.sendSlices(g, t, l, s, in, v)
		case in != nil:
			at.source = in
			at.banded = append(at.banded, v)
		case !v.whole || v.cut.pieces > 0:
			at.regions = append(at.regions, v)
		case v.local == nil:
			q.push(g, v.source, s, v.peer, v.key(g), q.begins, func(err error) { q.moved(g, t, l, err) })
		case rowMajor(bufferOf(s)):
			q.copyTo(g, t, s, v)
			q.moved(g, t, l, nil)
			q.state.Unpin(s)
		default:
			q.copyRows(g, t, l, s, v)
		}
	}
	for _, at := range order {
		if len(at.banded) > 0 {
			q.sendBands(g, t, l, at.shard, at.source, at.banded)
		}
		if len(at.regions) > 0 {
			q.sendRegions(g, t, l, at.shard, at.regions)
		}
	}
}

// copyTo moves a whole shard to another device of the driver.
func (q *queue) copyTo(g *gang, t *transfer, s *devicequeue.Shard, v *move) {
	memory := t.memory
	if memory == "" {
		memory = v.queue.memory
	}
	buf, err := bufferOf(s).CopyTo(v.queue.local, memory)
	g.allocated(err)
	v.queue.soon(func() {
		v.local.copied = buf
		v.queue.step(g, t, v.local, assembly.Event{Kind: assembly.Came, Err: err})
	})
}

// rowMajor reports whether a buffer's elements lie row by row, as far as its driver
// knows.
func rowMajor(b device.Buffer) bool {
	ordered, ok := b.(device.Ordered)
	if !ok {
		return true
	}
	order, err := ordered.Order()
	return err != nil || slices.IsSortedFunc(order, func(a, b int64) int { return cmp.Compare(b, a) })
}

// copyRows is copyTo, by way of the host, of a shard that is not in row-major order: an array that has moved always is,
// whichever way it went, so that its client knows its layout.
func (q *queue) copyRows(g *gang, t *transfer, l *leg, s *devicequeue.Shard, v *move) {
	block := q.w.room(g.Session, t.shape.HostBytes(), nil)
	end := func(err error) {
		q.state.Unpin(s)
		if err != nil {
			block.Release()
			q.failRegions(g, t, l, []*move{v}, err)
			return
		}
		v.local.landing.take(block)
		v.came(g, t, nil)
		q.moved(g, t, l, nil)
	}
	copied, err := bufferOf(s).ToHost(block.Data)
	if err != nil {
		end(err)
		return
	}
	copied.Then(func(err error) { q.soon(func() { end(err) }) })
}

// sendRegions sends regions of a shard: from where it is, if the host can read it there,
// or else from a copy on the host.
func (q *queue) sendRegions(g *gang, t *transfer, l *leg, s *devicequeue.Shard, moves []*move) {
	read := func() {
		for range moves {
			q.state.Unpin(s)
		}
	}
	send := func(host transport.Block) { // the copies may take long, and the driver's goroutine is not ours
		go q.pushRegions(g, t, l, host, moves)
	}
	if v, ok := bufferOf(s).(device.Viewer); ok {
		seen := q.begins()
		bufferOf(s).Ready().Then(func(err error) {
			seen()
			if err != nil {
				q.soon(func() {
					read()
					q.failRegions(g, t, l, moves, err)
				})
			} else if data := v.View(); data != nil { // the shard stays read until the regions are out of it
				send(transport.Block{Data: data, Release: read})
			} else {
				q.soon(func() { q.copyRegions(g, t, l, s, moves, read, send) })
			}
		})
		return
	}
	q.copyRegions(g, t, l, s, moves, read, send)
}

// wanted is a copy of a shard on the host that waits for memory.
type wanted struct {
	session uint32
	size    int64
	then    func(transport.Block)
	begun   func() // ends its count as a copy that has begun
}

// hostCopy calls then with memory for a copy of a shard. If the exchange has no room for it, a device has one copy at a
// time, so memory is bounded, however many transfers are under way. Copies wait for those that were asked for before,
// and these for nothing that is behind them.
func (q *queue) hostCopy(g *gang, size int64, then func(transport.Block)) {
	q.wanted = append(q.wanted, wanted{g.Session, size, then, q.begins()})
	q.nextCopies()
}

func (q *queue) nextCopies() {
	for len(q.wanted) > 0 {
		v := q.wanted[0]
		host, ok := q.w.config.Exchange.Room(transport.Transfers(v.session), v.size, nil)
		if !ok && q.copies > 0 {
			return
		}
		if !ok {
			host = q.w.pinned(v.session, v.size)
		}
		q.wanted = q.wanted[1:]
		q.copies++
		release := host.Release
		host.Release = func() {
			release()
			q.soon(func() {
				q.copies--
				q.nextCopies()
			})
		}
		v.then(host)
		v.begun()
	}
}

// copyRegions brings a shard to the host once, and has its regions sent from there.
func (q *queue) copyRegions(g *gang, t *transfer, l *leg, s *devicequeue.Shard, moves []*move, read func(),
	send func(transport.Block)) {
	q.hostCopy(g, bufferOf(s).Shape().HostBytes(), func(host transport.Block) {
		e, err := bufferOf(s).ToHost(host.Data)
		read()
		if err != nil {
			host.Release()
			q.failRegions(g, t, l, moves, err)
			return
		}
		copied := q.begins()
		e.Then(func(err error) {
			copied()
			if err != nil {
				host.Release()
				q.soon(func() { q.failRegions(g, t, l, moves, err) })
				return
			}
			send(host)
		})
	})
}

// pushRegions sends regions of an array on the host, in place. It releases the array when they have arrived. Those for
// other processes are offered first: the exchange copies them together, as far as it knows them, and their receivers
// find memory for them while this process copies its own.
func (q *queue) pushRegions(g *gang, t *transfer, l *leg, host transport.Block, moves []*move) {
	left := len(moves)
	end := func(err error) { // once a region
		q.soon(func() {
			if left--; left == 0 {
				host.Release()
			}
			q.moved(g, t, l, err)
		})
	}
	wide := width(t.shape)
	for _, v := range moves {
		switch {
		case v.cut.pieces > 0:
			q.soon(func() { q.sendPieces(g, v, fromHostCopy(host.Data, wide), end) })
		case v.local == nil:
			part := transport.Part{Data: host.Data, At: v.region().source(wide)}
			q.w.config.Exchange.PushPart(v.peer, v.key(g), part, end)
		}
	}
	if err := g.failure(); err != nil {
		q.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
	for _, v := range moves {
		if v.local != nil {
			strided.Copy(q.landing(g, t, v.local), v.region().place(t.shape.Dims, wide), host.Data, v.region().source(wide))
			v.came(g, t, nil)
			end(nil)
		}
	}
}

// failRegions ends moves whose bytes the driver failed to read.
func (q *queue) failRegions(g *gang, t *transfer, l *leg, moves []*move, err error) {
	q.blame(g.Session, sourcesOf(moves), err, func(err error) {
		for _, v := range moves {
			if v.local != nil {
				v.came(g, t, err)
			}
			q.moved(g, t, l, err)
		}
	})
}

func sourcesOf(moves []*move) (objects []uint64) {
	for _, v := range moves {
		objects = append(objects, v.source)
	}
	return objects
}
