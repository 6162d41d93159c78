package worker

import (
	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
)

// bands sends regions of a shard that are not contiguous there, in pieces. A piece lies in one band of the shard, and a
// band has at most one piece of each region (see cut). So the bands are read from the device once, in their order, and
// the pieces are copied from there. A band stays until all its pieces have been copied; no more than pieceWindow are
// there at a time, so the slowest receiver sets the pace.
//
// Each piece gets its bytes: the regions' pieces are sent in the order of the bands too, so those of the first band
// that stays are under way, and receivers wait for no other region. After an error all pieces get that instead.
//
// The queue's owner makes all calls.
type bands struct {
	q      *queue
	g      *gang
	source device.Sliced
	moves  []*move
	next   []int64 // piece of each move, of the bands that were not read yet
	left   int     // moves whose pieces have not ended
	ends   []func()
	there  map[int64]*band
	waits  map[int64][]taker // of pieces, until their bands were read
	err    error
}

// band is a part of a shard on the host.
type band struct {
	block  transport.Block
	first  int64 // byte of the shard
	pieces int   // that were not copied yet
	read   bool
}

// taker is a piece that waits for its band.
type taker struct {
	region  region
	dst     []byte
	written func(error)
}

// sendBands sends moves whose source, which is pinned for each of them, is one shard.
func (q *queue) sendBands(g *gang, t *transfer, l *leg, s *devicequeue.Shard, in device.Sliced, moves []*move) {
	b := &bands{q: q, g: g, source: in, moves: moves, next: make([]int64, len(moves)), left: len(moves),
		there: map[int64]*band{}, waits: map[int64][]taker{}}
	b.readMore()
	for _, v := range moves {
		q.sendPieces(g, v, func(r region, dst []byte, written func(error)) {
			q.soon(func() { b.want(v.band(r), taker{r, dst, written}) })
		}, func(err error) {
			if err != nil {
				b.fail(err)
			}
			b.left--
			b.ends = append(b.ends, func() {
				q.state.Unpin(s)
				q.moved(g, t, l, err)
			})
			b.settle()
		})
	}
}

// band returns the number of the band in which a piece lies.
func (v *move) band(r region) (n int64) {
	for k := range v.cut.along {
		n = n*v.shape.Dims[k] + r.start[k]
	}
	k := v.cut.along
	return n*(v.shape.Dims[k]/v.cut.rows+1) + r.start[k]/v.cut.rows
}

// readMore reads as many bands as may stay.
func (b *bands) readMore() {
	for b.err == nil && len(b.there) < pieceWindow {
		n, one, end := b.nextBand()
		if one == nil {
			return
		}
		b.there[n] = one
		one.block = b.q.w.room(b.g.Session, end-one.first, nil)
		e, err := b.source.Slice(one.block.Data, one.first)
		if err != nil {
			b.notRead(n, one, err)
			continue
		}
		e.Then(func(err error) {
			b.q.soon(func() {
				if err != nil {
					b.notRead(n, one, err)
				} else {
					b.cameIn(n, one, nil)
				}
			})
		})
	}
}

// nextBand returns the next band that has pieces, and where its last one ends; nil if there is none.
func (b *bands) nextBand() (first int64, one *band, end int64) {
	for i, v := range b.moves {
		if b.next[i] < v.cut.pieces {
			if n := v.band(v.piece(b.next[i])); one == nil || n < first {
				first, one = n, new(band)
			}
		}
	}
	for i, v := range b.moves {
		if b.next[i] == v.cut.pieces {
			continue
		}
		r := v.piece(b.next[i])
		if v.band(r) != first {
			continue
		}
		b.next[i]++
		at := r.source(width(v.shape))
		if one.pieces == 0 || at.Offset < one.first {
			one.first = at.Offset
		}
		one.pieces++
		end = max(end, at.End())
	}
	return first, one, end
}

// notRead is told that the driver failed to read a band.
func (b *bands) notRead(n int64, one *band, err error) {
	b.q.blame(b.g.Session, sourcesOf(b.moves), err, func(err error) { b.cameIn(n, one, err) })
}

// cameIn is told that a band was read, or will not be because of err.
func (b *bands) cameIn(n int64, one *band, err error) {
	if err != nil {
		b.fail(err)
	}
	one.read = true
	b.settle()
	waits := b.waits[n]
	delete(b.waits, n)
	for _, w := range waits {
		b.want(n, w)
	}
}

// want has the bytes of a piece written once they are there.
func (b *bands) want(n int64, w taker) {
	one := b.there[n]
	switch {
	case b.err != nil:
		w.written(b.err)
	case one == nil || !one.read:
		b.waits[n] = append(b.waits[n], w)
	default:
		go func() { // the copies may take long
			at := w.region.source(width(b.moves[0].shape))
			at.Offset -= one.first
			strided.Copy(w.dst, strided.Dense(int64(len(w.dst))), one.block.Data, at)
			b.q.soon(func() { b.copied(n, one) })
			w.written(nil)
		}()
	}
}

// copied is told that a piece was copied.
func (b *bands) copied(n int64, one *band) {
	if one.pieces--; one.pieces == 0 {
		one.block.Release()
		delete(b.there, n)
		b.readMore()
	}
}

// fail has all pieces that wait get an error.
func (b *bands) fail(err error) {
	if b.err != nil {
		return
	}
	b.err = err
	for n, waits := range b.waits {
		delete(b.waits, n)
		for _, w := range waits {
			w.written(err)
		}
	}
}

// settle ends the moves once all of their pieces have ended, and nothing is read for them any more.
func (b *bands) settle() {
	if b.left > 0 {
		return
	}
	for n, one := range b.there {
		if one.read { // and will not be copied
			one.block.Release()
			delete(b.there, n)
		}
	}
	if len(b.there) > 0 {
		return
	}
	for _, end := range b.ends {
		end()
	}
	b.ends = nil
}
