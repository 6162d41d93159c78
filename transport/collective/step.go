package collective

import (
	"runtime"
	"sync"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/uncached"
)

const (
	// foldBlock is how much of a result is folded at a time: it stays in the
	// first cache while the operands pass.
	foldBlock = 8 << 10
	// splitWork is how many bytes of work are worth a goroutine of their own.
	splitWork = 8 << 20
	// longResult is the size from which a result is written past the caches: it would evict what is still to be read.
	longResult = 4 << 20
)

// run does a round's steps.
func (m *meeting) run(r *round) error {
	for i := range r.steps {
		s := &r.steps[i]
		switch s.op {
		case copies:
			m.copy(s)
		case zeros:
			clear(m.memory(s.to)[s.to.reg.off:][:s.to.reg.run])
		case folds, foldsOn:
			m.fold(s)
		case ragged:
			if err := m.ragged(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// copy copies a region. Long dense ones are split over the processors that this process may use.
func (m *meeting) copy(s *step) {
	to, put := m.memory(s.to), plainly
	if len(to) >= longResult {
		put = uncached.Copy
	}
	from, size := m.memory(s.from[0]), s.to.reg.bytes()
	if size > 0 && &to[s.to.reg.off] == &from[s.from[0].reg.off] { // a part that was folded in place
		return
	}
	parts := m.parts(2 * size)
	if parts <= 1 || s.to.reg.count > 1 || s.from[0].reg.count > 1 {
		move(to, s.to.reg, from, s.from[0].reg, put)
		return
	}
	to, from = to[s.to.reg.off:][:size], from[s.from[0].reg.off:][:size]
	split(size, parts, func(a, b int64) { put(to[a:b], from[a:b]) })
}

// parts returns into how many parts work that touches so many bytes is split.
func (m *meeting) parts(bytes int64) int64 {
	processors := runtime.GOMAXPROCS(0)
	if m.table.together { // its peers, on the same processors, do the same
		processors /= len(m.table.peers) + 1
	}
	return min(int64(processors), bytes/splitWork)
}

// split does work on parts of a range at a time, each but the last a multiple of 64.
func split(size, parts int64, work func(from, end int64)) {
	var wg sync.WaitGroup
	for i := range parts {
		from, end := size/64*i/parts*64, size/64*(i+1)/parts*64
		if i == parts-1 {
			end = size
		}
		wg.Go(func() { work(from, end) })
	}
	wg.Wait()
}

// fold folds the regions of a step into a dense region. Large ones are split over
// the processors this process may use.
func (m *meeting) fold(s *step) {
	k := m.table.kernels[s.to.buf]
	ins := make([]term, len(s.from))
	var like region
	for _, f := range s.from {
		if f.reg.count > 1 {
			like = f.reg
		}
	}
	for i, f := range s.from {
		ins[i] = term{m.memory(f), f.reg.like(like)}
	}
	on := s.op == foldsOn
	to := s.to.reg.like(like)
	out := m.memory(s.to)
	if to.count > 1 {
		flushed(func() {
			for i := range to.count {
				foldRun(k, out[to.off+i*to.stride:][:to.run], ins, on, i, 0)
			}
		})
		return
	}
	acc := out[to.off : to.off+to.run]
	parts := m.parts(to.run * int64(len(ins)))
	if parts <= 1 {
		flushed(func() { foldRun(k, acc, ins, on, 0, 0) })
		return
	}
	split(to.run, parts, func(from, end int64) {
		flushed(func() { foldRun(k, acc[from:end], ins, on, 0, from) })
	})
}

// term is one operand of a fold.
type term struct {
	data []byte
	reg  region
}

// foldRun folds the i-th run of all terms, from a place in it on, into acc: onto the first term if on is set, which is
// a value that was folded before. It is called by flushed.
func foldRun(k kernel, acc []byte, ins []term, on bool, i, from int64) {
	blocks := make([][]byte, len(ins))
	for at := int64(0); at < int64(len(acc)); at += foldBlock {
		a := acc[at:min(at+foldBlock, int64(len(acc)))]
		for n, t := range ins {
			off := t.reg.off + i*t.reg.stride + from + at
			blocks[n] = t.data[off : off+int64(len(a))]
		}
		if on {
			copy(a, blocks[0])
			k.all(a, blocks[1:])
		} else {
			k.begin(a, blocks)
		}
	}
}

// offsets reads integers of a type that ragged sizes may have.
func offsets(t shape.DType, b []byte) []int64 {
	if t == shape.S64 {
		return elements[int64](b)
	}
	narrow := elements[int32](b)
	out := make([]int64, len(narrow))
	for i, v := range narrow {
		out[i] = int64(v)
	}
	return out
}

// ragged is a ragged all-to-all for one member: its result begins as its second
// operand, and each member writes into it the rows of its first operand that it
// has for this one. Operands 2, 3 and 4 of a member say, for each member it sends
// to, from which row, how many, and to which row there.
func (m *meeting) ragged(s *step) error {
	spec := m.calls[0].Spec
	place, n := s.to.place, len(s.from)/6
	out := m.memory(s.to)
	own := s.from[place*6+1]
	copy(out, m.memory(own)[own.reg.off:own.reg.off+own.reg.run])
	rows := func(x shape.Shape) (count, size int64) {
		if x.Dims[0] == 0 {
			return 0, 0
		}
		return x.Dims[0], x.Bytes() / x.Dims[0]
	}
	inRows, size := rows(spec.Operands[0])
	outRows, _ := rows(spec.Results[0])
	for from := range n {
		get := func(i int) []byte {
			r := s.from[from*6+i]
			return m.memory(r)[r.reg.off : r.reg.off+r.reg.run]
		}
		in := get(0)
		starts, sizes, targets := offsets(spec.Operands[2].DType, get(2)), offsets(spec.Operands[3].DType, get(3)),
			offsets(spec.Operands[4].DType, get(4))
		each := len(starts) / n // updates for one member
		for i := place * each; i < (place+1)*each; i++ {
			a, c, b := starts[i], sizes[i], targets[i]
			if a < 0 || c < 0 || b < 0 || a > inRows-c || b > outRows-c {
				return status.New(status.InvalidArgument, "%s: member %d sends rows %d to %d of %d to rows from %d on of %d",
					spec.Name(), from, a, a+c, inRows, b, outRows)
			}
			copy(out[b*size:(b+c)*size], in[a*size:(a+c)*size])
		}
	}
	return nil
}
