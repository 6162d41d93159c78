package worker

import (
	"slices"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/worker/assembly"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// A long move to or from a worker whose arrays do not lie in host memory goes in pieces, each a block of its own, so
// that the copy from the device, the wire and the copy to the device are under way at once:
//
//	sender    a piece is read from the device into the exchange's memory and sent, while others are under way. Pieces of
//	          regions that are not contiguous there are copied from bands of the array (bands.go). If the device does not
//	          have the array row by row, the driver copies it to the host as a whole, and the pieces go from there
//	receiver  a piece is written to the device from where it came. If pieces of the shard are not contiguous there, or
//	          some come from devices of this process, the shard is put together on the host and handed over as a whole
//
// Both ends cut a move alike, by its region alone, and each chooses its way for itself. Each has pieceWindow pieces of
// a move under way: that is all the host memory that it takes, in blocks of the exchange, unless its way is by the
// whole array. So bytes are sent only as fast as the slowest of the three takes them.
//
// A move ends with its last piece. After an error neither end begins another one, but that the sender offers one that
// fails, so that the receiver hears of it whichever pieces it has had. An error fails the gang here at once, which ends
// the pieces that are under way. A source stays pinned until its move has ended.

const (
	defaultPiece = 4 << 20 // bytes: long beside what a piece costs, short beside an array for which pieces pay
	pieceWindow  = 4       // pieces of a move that are under way: one in each of the three copies, and one to spare
)

// movesInPieces reports whether arrays of a driver's devices move in pieces: those that are not in host memory.
func movesInPieces(d device.Driver) bool { return d.Platform() != "cpu" }

// cut is how a move is cut into regions, by bands of its source: rows of the first dimension in which a row is not
// longer than a piece.
type cut struct {
	pieces int64 // 0: it is not cut
	along  int   // the dimension
	rows   int64 // of a band
	parts  int64 // bands from the first to the last row of the move
}

// cutUp cuts a move by bands of at most so many bytes, unless it is no longer than that. 0 is no limit.
func (v *move) cutUp(most int64) {
	row := width(v.shape)
	if row > most || v.bytes() <= most {
		return
	}
	dims := v.shape.Dims
	if v.whole {
		v.start = make([]int64, len(dims))
		v.at, v.size = v.start, dims
	}
	along := len(dims) - 1
	for along > 0 && row*dims[along] <= most {
		row *= dims[along]
		along--
	}
	rows := most / row
	v.cut = cut{along: along, rows: rows, parts: (v.start[along]+v.size[along]-1)/rows - v.start[along]/rows + 1}
	v.cut.pieces = v.cut.parts
	for _, n := range v.size[:along] {
		v.cut.pieces *= n
	}
}

// piece returns the region that is piece i.
func (v *move) piece(i int64) region {
	r := region{from: v.shape.Dims, start: slices.Clone(v.start), size: slices.Clone(v.size), at: slices.Clone(v.at)}
	narrow := func(k int, first, end int64) {
		r.start[k] += first
		r.at[k] += first
		r.size[k] = end - first
	}
	k, rows := v.cut.along, v.cut.rows
	band := (v.start[k]/rows + i%v.cut.parts) * rows
	narrow(k, max(0, band-v.start[k]), min(v.size[k], band+rows-v.start[k]))
	for i /= v.cut.parts; k > 0; i /= v.size[k] {
		k--
		narrow(k, i%v.size[k], i%v.size[k]+1)
	}
	return r
}

// pieceKey names piece i of what moves to another process.
func (v *move) pieceKey(g *gang, i int64) transport.Key {
	key := v.key(g)
	key.Part |= uint64(i) << 32
	return key
}

// stream is a move whose pieces are under way, a few at a time. Its queue's owner has it.
type stream struct {
	q     *queue
	g     *gang
	v     *move
	begin func(i int64, r region) // begins a piece, which ends by one call of ended
	done  func(error)             // when no piece is under way any more, and none will be
	next  int64
	under int
	err   error // the first
}

// goOn begins as many pieces as may be under way.
func (s *stream) goOn() {
	for s.under < pieceWindow && s.next < s.v.cut.pieces && s.err == nil {
		i := s.next
		s.next++
		s.under++
		s.begin(i, s.v.piece(i))
	}
	if err := s.g.failure(); err != nil { // before the exchange knew of these
		s.q.w.config.Exchange.Fail(transport.Transfers(s.g.Session), s.g.op, err)
	}
	if s.under == 0 {
		s.done(s.err)
	}
}

// ended is told that a piece has ended. It may be called by any goroutine.
func (s *stream) ended(err error) {
	s.q.soon(func() {
		s.under--
		if err == nil && s.next < s.v.cut.pieces {
			err = s.g.failure()
		}
		if err != nil && s.err == nil {
			s.fail(err)
		}
		s.goOn()
	})
}

// fail ends a stream, and the gang here.
func (s *stream) fail(err error) {
	s.err = err
	s.g.fail(s.q.moving(s.g, err))
	if s.v.out == s.q && s.next < s.v.cut.pieces { // the receiver may wait for the next
		s.under++
		s.q.w.config.Exchange.Push(s.v.peer, s.v.pieceKey(s.g, s.next), s.v.piece(s.next).source(width(s.v.shape)).Bytes(),
			func(_ []byte, written func(error)) { written(err) }, s.ended)
		s.next++
	}
}

// sliced returns a shard's buffer if pieces of it can be read one by one, else nil.
func sliced(s *devicequeue.Shard) device.Sliced {
	if in, ok := bufferOf(s).(device.Sliced); ok && in.Dense() {
		return in
	}
	return nil
}

// sendSlices sends a move whose pieces are read from its pinned source.
func (q *queue) sendSlices(g *gang, t *transfer, l *leg, s *devicequeue.Shard, in device.Sliced, v *move) {
	q.sendPieces(g, v, func(r region, dst []byte, written func(error)) {
		failed := func(err error) {
			q.soon(func() { q.blame(g.Session, []uint64{v.source}, err, written) })
		}
		e, err := in.Slice(dst, r.source(width(v.shape)).Offset)
		if err != nil {
			failed(err)
			return
		}
		e.Then(func(err error) {
			if err != nil {
				failed(err)
			} else {
				written(nil)
			}
		})
	}, func(err error) {
		q.state.Unpin(s)
		q.moved(g, t, l, err)
	})
}

// sendPieces sends a move to another process. Fill gets the bytes of its pieces. The queue's owner calls it, and done.
func (q *queue) sendPieces(g *gang, v *move, fill func(r region, dst []byte, written func(error)), done func(error)) {
	s := &stream{q: q, g: g, v: v, done: done}
	s.begin = func(i int64, r region) {
		q.w.config.Exchange.Push(v.peer, v.pieceKey(g, i), r.source(width(v.shape)).Bytes(),
			func(dst []byte, written func(error)) {
				if err := g.failure(); err != nil {
					written(err)
				} else {
					fill(r, dst, written)
				}
			}, s.ended)
	}
	s.goOn()
}

// fromHostCopy gets bytes of a move's pieces from an array on the host.
func fromHostCopy(host []byte, wide int64) func(r region, dst []byte, written func(error)) {
	return func(r region, dst []byte, written func(error)) {
		go func() { // the copies may take long, and the exchange's goroutine is not ours
			strided.Copy(dst, strided.Dense(int64(len(dst))), host, r.source(wide))
			written(nil)
		}()
	}
}

// receives has the driver make the shard of a leg, so that its pieces are written there as they come, if that can be.
func (q *queue) receives(t *transfer, l *leg) {
	r, ok := q.w.driver.(device.Receiver)
	for _, v := range l.gets {
		ok = ok && v.arrives && v.cut.pieces > 0 && v.region().place(t.shape.Dims, width(t.shape)).IsDense()
	}
	if !ok {
		return
	}
	// If there is no memory, it is asked for again when all pieces have come.
	if in, err := r.Receive(t.shape, q.local, t.memory); err == nil {
		l.incoming, l.copied = in, in.Buffer()
	}
}

// getPieces asks for the pieces of a move, which go to the device as they come, or to their places on the host.
func (q *queue) getPieces(g *gang, t *transfer, l *leg, v *move, landing []byte) {
	s := &stream{q: q, g: g, v: v, done: func(err error) {
		q.step(g, t, l, assembly.Event{Kind: assembly.Came, Away: true, Err: err})
	}}
	x, wide := q.w.config.Exchange, width(t.shape)
	s.begin = func(i int64, r region) {
		at := r.place(t.shape.Dims, wide)
		if landing != nil {
			x.ExpectPart(v.peer, v.pieceKey(g, i), transport.Part{Data: landing, At: at}, s.ended)
			return
		}
		x.Expect(v.peer, v.pieceKey(g, i), at.Bytes(), nil, func(b transport.Block, err error) {
			if err != nil {
				s.ended(err)
				return
			}
			e, err := l.incoming.Write(b.Data, at.Offset)
			if err != nil {
				b.Release()
				s.ended(err)
				return
			}
			e.Then(func(err error) {
				b.Release()
				s.ended(err)
			})
		})
	}
	s.goOn()
}

// pieceOf returns how long pieces of a move between this worker and another are; 0: it goes at once.
func (w *Worker) pieceOf(peer uint64) int64 {
	if movesInPieces(w.driver) {
		return w.config.Piece
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.piecewise[peer] {
		return w.config.Piece
	}
	return 0
}
