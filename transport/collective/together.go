package collective

import (
	"slices"

	"github.com/openpathways/pathways/core/xla/spmd"
)

// This file plans collectives among processes that share a board.
//
// In each round a process writes one block, and reads those of the others in place. Large arrays take many rounds of
// some 2 MiB a process, so that what one writes is still in a cache when others read it, and areas stay small, however
// large the arrays are. Rounds follow each other without a further word: that all blocks of a round have come says that
// their writers were through with the round before.
//
// A reduction's bits do not depend on any of this: each element is folded once, or at each process alike, over all
// ranks in group order.

// sizes say how collectives go among the members of a board, which all have the same.
type sizes struct {
	// block is how many bytes a process writes in a round. Smaller blocks cost more wake-ups for the same bytes, larger
	// ones fall out of the cache before all have read them.
	block int64
	// piece is how many bytes of an array a round moves at least, whatever the number of ranks.
	piece int64
	// foldEach is up to how many bytes of all ranks every process folds an all-reduce by itself; above, each folds a part
	// and shows it to the others, which takes a further round. Two ranks never gain by that.
	foldEach int64
}

var usualSizes = sizes{block: 2 << 20, piece: 4 << 10, foldEach: 512 << 10}

// whole returns the cuts of a round that moves everything.
func (b *builder) whole() []cut {
	all := make([]cut, len(b.spec.Operands))
	for i, x := range b.spec.Operands {
		all[i] = cut{0, x.Bytes()}
		if b.spec.Op == spmd.ReduceScatter || b.spec.Op == spmd.AllToAll && len(b.spec.Operands) == 1 {
			all[i].to /= int64(b.n())
		}
	}
	return all
}

// pattern is the region that says where operand i may be cut: those of one round have to be cut alike.
func (b *builder) pattern(i int) (region, error) {
	switch b.spec.Op {
	case spmd.AllGather:
		return slab(b.spec.Results[i], b.spec.Dim, 0, b.n())
	case spmd.AllToAll, spmd.ReduceScatter:
		return b.source(source{0, 0, i})
	}
	return b.source(source{0, everyone, i})
}

// published are the sources that process p writes for others.
func (b *builder) published(p int) (out []source) {
	seen := map[source]bool{}
	for q := range b.members {
		if q == p {
			continue
		}
		for _, x := range b.sources(p, q) {
			if !seen[x] {
				seen[x] = true
				out = append(out, x)
			}
		}
	}
	return out
}

// chunks returns the cuts of each round.
func (b *builder) chunks() (all [][]cut, err error) {
	if b.spec.Op == spmd.RaggedAllToAll { // whose rows are where its operands say
		return [][]cut{b.whole()}, nil
	}
	most, bytes := 0, int64(0)
	for p := range b.members {
		most = max(most, len(b.published(p)))
	}
	for _, x := range b.spec.Operands {
		bytes += x.Bytes()
	}
	operands := len(b.spec.Operands)
	if b.spec.Op == spmd.AllToAll && operands > 1 { // of which each goes to another process
		operands, bytes = 1, b.spec.Operands[0].Bytes()
	}
	each := max(b.sizes.block/int64(max(1, most/operands)), b.sizes.piece, bytes/(roundsMax/2)) &^ 63
	if operands < len(b.spec.Operands) {
		for c := range dense(0, bytes).cutting(each) {
			all = append(all, slices.Repeat([]cut{c}, b.n()))
		}
		return all, nil
	}
	patterns := make([]region, operands)
	for i := range patterns {
		if patterns[i], err = b.pattern(i); err != nil {
			return nil, err
		}
	}
	return b.cutting(each, func(i int) region { return patterns[i] }), nil
}

// cutting cuts all operands, whose regions pattern returns, into the cuts of rounds of so many bytes.
func (b *builder) cutting(each int64, pattern func(i int) region) (all [][]cut) {
	now, used := make([]cut, len(b.spec.Operands)), int64(0)
	flush := func() {
		if used > 0 {
			all = append(all, slices.Clone(now))
			clear(now)
			used = 0
		}
	}
	for i := range b.spec.Operands {
		for c := range pattern(i).cutting(each) {
			if used+c.to-c.from > each || now[i] != (cut{}) {
				flush()
			}
			now[i], used = c, used+c.to-c.from
		}
	}
	flush()
	return all
}

// together plans all rounds.
func (b *builder) together(total int64) error {
	chunks, err := b.chunks()
	if err != nil {
		return err
	}
	if len(chunks) == 0 || len(chunks) >= roundsMax-directRounds { // nothing moves; or not in so many rounds
		chunks = [][]cut{b.whole()}
	}
	if b.spec.Op == spmd.AllReduce && b.n() > 2 && total*int64(b.n()) > b.sizes.foldEach {
		b.foldedParts(chunks)
	} else if err := b.inChunks(chunks); err != nil {
		return err
	}
	if b.goesDirectly(total) {
		return b.directly()
	}
	return nil
}

// inChunks plans a round for each chunk, after which its part of the results is there.
func (b *builder) inChunks(chunks [][]cut) error {
	for _, c := range chunks {
		b.cuts = c
		l := b.layout()
		at := map[source]ref{}
		for p := range b.members {
			for _, x := range b.published(p) {
				reg, err := b.region(x)
				if err != nil {
					return err
				}
				at[x] = l.add(p, ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg})
			}
		}
		for _, x := range b.sources(b.own, b.own) {
			reg, err := b.region(x)
			if err != nil {
				return err
			}
			at[x] = ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg}
		}
		for _, d := range b.members[b.own] {
			if err := b.finish(&l.round, d, at); err != nil {
				return err
			}
		}
		b.table.rounds = append(b.table.rounds, l.meet(b.reads))
	}
	return nil
}

// reads reports whether process q reads what p writes.
func (b *builder) reads(q, p int) bool { return q != p && len(b.sources(p, q)) > 0 }

// layout is a round with the blocks of all processes.
type layout struct {
	round
	own    int
	blocks []pack // by process; pieces of other processes are not kept
}

func (b *builder) layout() *layout { return &layout{own: b.own, blocks: make([]pack, len(b.members))} }

// add puts a piece into the block of process p, and returns where this process finds it: its own where it is.
func (l *layout) add(p int, from ref) ref {
	at := l.blocks[p].bytes
	if from.reg.bytes() > 0 {
		at = l.blocks[p].add(from)
	}
	if p == l.own {
		return from
	}
	l.blocks[p].pieces = l.blocks[p].pieces[:0]
	return ref{kind: block, call: p, reg: dense(at, from.reg.bytes())}
}

// meet plans a round in which each process reads the blocks of others, as reads says.
func (l *layout) meet(reads func(q, p int) bool) round {
	l.gets = make([]pack, len(l.blocks))
	l.out = l.blocks[l.own]
	for p := range l.blocks {
		if l.blocks[p].bytes > 0 && reads(l.own, p) {
			l.gets[p].bytes = l.blocks[p].bytes
		}
		if l.out.bytes > 0 && reads(p, l.own) {
			l.to = append(l.to, p)
		}
	}
	return l.round
}

// foldedParts plans an all-reduce of which each process folds a part. A round brings the part of one chunk from all
// ranks, and the folded parts of the chunk before to all.
func (b *builder) foldedParts(chunks [][]cut) {
	for k := range len(chunks) + 1 {
		l := b.layout()
		if k < len(chunks) {
			b.cuts = chunks[k]
			b.foldOwn(l)
		}
		if k > 0 {
			b.cuts = chunks[k-1]
			b.takeFolded(l)
		}
		b.table.rounds = append(b.table.rounds, l.meet(func(q, p int) bool { return q != p }))
	}
}

// foldOwn brings this process its part of all ranks, and folds it.
func (b *builder) foldOwn(l *layout) {
	for i := range b.spec.Operands {
		mine := b.owned(i, b.own)
		from := make([]ref, b.n())
		for p, places := range b.members {
			for _, s := range places {
				from[s] = ref{kind: operand, call: b.call[s], buf: i, reg: mine}
				for q := range b.members {
					if q == p {
						continue
					}
					at := l.add(p, ref{kind: operand, call: b.call[s], buf: i, reg: b.owned(i, q)})
					if q == b.own {
						from[s] = at
					}
				}
			}
		}
		l.step(folds, ref{kind: result, call: b.call[b.members[b.own][0]], buf: i, reg: mine}, from...)
	}
}

// takeFolded brings all processes' parts to the first member here, and from it to the others.
func (b *builder) takeFolded(l *layout) {
	first := b.call[b.members[b.own][0]]
	for i := range b.spec.Operands {
		for p := range b.members {
			part := ref{kind: result, call: first, buf: i, reg: b.owned(i, p)}
			if at := l.add(p, part); p != b.own {
				l.step(copies, part, at)
			}
		}
		b.copies(&l.round, b.mine(i))
	}
}
