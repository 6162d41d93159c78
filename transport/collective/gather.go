package collective

import "github.com/openpathways/pathways/core/xla/spmd"

// This file plans how many processes bring small blocks to each other, which each of them needs whole.
//
// A message costs more than its bytes, so blocks travel together. In each round a process sends all that it has to
// another, and gets as much from a third, so that it has twice as many blocks afterwards: P processes need log P rounds
// instead of P − 1 messages each (Bruck et al., 1997). Blocks lie in the order of processes, this one's first:
//
//	process 2 of 5  has       gets from
//	round 0         2         3: 3
//	round 1         2 3       4: 4 0
//	round 2         2 3 4 0   1: 1
//
// What reduces is then folded by each process, in the order of ranks, as everywhere.

// isGathered reports whether the group's blocks go this way.
func (b *builder) isGathered(total int64) bool {
	switch b.spec.Op {
	case spmd.AllReduce, spmd.AllGather, spmd.RaggedAllToAll:
		return len(b.members) >= b.ways.gatherLeast && total*int64(b.n()) <= b.ways.gatherMost
	}
	return false
}

// gather plans all rounds.
func (b *builder) gather() error {
	n := len(b.members)
	var own pack
	at := map[source]ref{}
	begins, ends := make([]int64, n), make([]int64, n) // of the others' blocks in kept memory, by distance
	for d := range n {
		var theirs pack
		if d > 1 {
			begins[d] = (ends[d-1] + 63) &^ 63
		}
		p := (b.own + d) % n
		for _, x := range b.sources(p, b.own) {
			reg, err := b.region(x)
			if err != nil {
				return err
			}
			if d == 0 {
				at[x] = ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg}
				own.add(at[x])
				continue
			}
			off := theirs.add(ref{reg: reg})
			at[x] = ref{kind: kept, reg: dense(begins[d]+off, reg.bytes())}
		}
		ends[d] = begins[d] + theirs.bytes
	}
	b.table.kept = ends[n-1]
	for has := 1; has < n; has *= 2 {
		r := round{sends: make([]pack, n), gets: make([]pack, n)}
		to, from, blocks := (b.own+n-has)%n, (b.own+has)%n, min(has, n-has)
		for _, piece := range own.pieces {
			r.sends[to].add(piece.from)
		}
		if blocks > 1 {
			r.sends[to].add(ref{kind: kept, reg: dense(begins[1], ends[blocks-1]-begins[1])})
		}
		more := ref{kind: kept, reg: dense(begins[has], ends[has+blocks-1]-begins[has])}
		r.gets[from].add(more)
		r.step(copies, more, ref{kind: block, call: from, reg: dense(0, more.reg.bytes())})
		b.table.rounds = append(b.table.rounds, r)
	}
	for _, d := range b.members[b.own] {
		if err := b.finish(&b.table.rounds[len(b.table.rounds)-1], d, at); err != nil {
			return err
		}
	}
	return nil
}
