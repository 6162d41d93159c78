package collective

import "github.com/openpathways/pathways/core/xla/spmd"

// This file plans large all-reduces in which a running value passes from process to process.
//
// A fold is over ranks in their order. So where each process has ranks that follow each other, the first can fold its
// own and send the value to the second, which goes on with its own, and so on; the last has the result, which goes the
// same way back. What is sent has the size of one operand, however many ranks a process has, while processes that each
// fold a part send the operands of all ranks. The array goes in chunks, one behind the other, so that all processes
// work at once: in each round a process gets a chunk's value from the one before it and another chunk's result from the
// one behind it.
//
//	round       0        1           2              3
//	process 0   fold a   fold b      fold c         result a
//	process 1            go on a     go on b        go on c, result a comes …
//
// Here round r of process p folds chunk r − p; the result of chunk c comes to p in round c + 2n − 2 − p, n being the
// number of processes.

// chunksMost is into how many chunks an array is cut at most: enough that the first and last rounds, in which some
// processes have nothing to do, do not matter.
const chunksMost = 16

// chained returns the chunks of the chain of an all-reduce; nil if there is none, or if it takes longer than owners.
func (b *builder) chained(total int64) [][]cut {
	if b.spec.Op != spmd.AllReduce || total < b.ways.chainLeast {
		return nil
	}
	next, most := 0, 0
	for _, places := range b.members {
		for _, place := range places {
			if place != next {
				return nil
			}
			next++
		}
		most = max(most, len(places))
	}
	chunks := b.cutting(max(b.ways.chainChunk, (total/chunksMost+63)&^63), func(i int) region {
		return dense(0, b.spec.Operands[i].Bytes())
	})
	// What goes through the connection of a process, in each direction, as parts of an operand.
	n, k := float64(len(b.members)), float64(len(chunks))
	each := 2.0 // a value to the next and a result to the one before
	if n == 2 {
		each = 1
	}
	if each*(k+2*n-2)/k >= (n-1)/n*float64(most+1) {
		return nil
	}
	return chunks
}

// chain plans the rounds of a chain.
func (b *builder) chain(chunks [][]cut) {
	n := len(b.members)
	rounds := len(chunks) + 2*n - 2
	for r := range rounds {
		one := round{sends: make([]pack, n), gets: make([]pack, n)}
		at := func(c int) bool {
			if c < 0 || c >= len(chunks) {
				return false
			}
			b.cuts = chunks[c]
			return true
		}
		if at(r - b.own) {
			b.goOn(&one)
		}
		if at(r-b.own-1) && b.own < n-1 {
			b.pass(&one, b.own+1)
		}
		if at(r-2*n+2+b.own) && b.own < n-1 {
			b.takeResult(&one)
		}
		if at(r-2*n+1+b.own) && b.own > 0 {
			b.pass(&one, b.own-1)
		}
		b.table.rounds = append(b.table.rounds, one)
	}
}

// pass sends this process's partial result of a chunk to another.
func (b *builder) pass(r *round, to int) {
	for i := range b.spec.Operands {
		if piece := b.mine(i); piece.reg.bytes() > 0 {
			r.sends[to].add(piece)
		}
	}
}

// come is where the block that another process passes lies.
func (b *builder) come(r *round, from int, like ref) ref {
	at := r.gets[from].add(ref{reg: like.reg})
	return ref{kind: block, call: from, reg: dense(at, like.reg.bytes())}
}

// goOn folds the operands of the members here onto the value of the process before.
func (b *builder) goOn(r *round) {
	for i := range b.spec.Operands {
		to := b.mine(i)
		if to.reg.bytes() == 0 {
			continue
		}
		op, from := folds, []ref(nil)
		if b.own > 0 {
			op, from = foldsOn, append(from, b.come(r, b.own-1, to))
		}
		for _, s := range b.members[b.own] {
			from = append(from, ref{kind: operand, call: b.call[s], buf: i, reg: to.reg})
		}
		r.step(op, to, from...)
		if b.own == len(b.members)-1 {
			b.copies(r, to)
		}
	}
}

// takeResult brings a chunk's result, which the process behind has, to the members here.
func (b *builder) takeResult(r *round) {
	for i := range b.spec.Operands {
		if to := b.mine(i); to.reg.bytes() > 0 {
			r.step(copies, to, b.come(r, b.own+1, to))
			b.copies(r, to)
		}
	}
}
