package collective

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// This file plans the rounds of a group for one process. Every process plans for itself and is told nothing of the
// others' plans. They fit together, and give the same bits whatever the way, since:
//
//   - What process p sends to q is sources(p, q), in that order. Both ends ask for it, p to fill the block and q to
//     know its contents, so a block needs no header. In owners, the two loops over processes and operands stand in
//     for it: a piece is added to sends on one end where it is added to gets on the other.
//   - A fold takes operands by place, never by when or how they came: from[s] is that of place s, in this process or in
//     another's block. So it is the left fold over ranks, as in one process.
//   - Each element of a result is either folded by every process in that same order, or by one of them and copied; or
//     one process after the other goes on with the fold, in the order of their ranks (chain.go).
//
// Nothing is looked at here: a plan depends on the program, the sizes and who is where, and is made once for all runs.

// builder makes the rounds of one group.
type builder struct {
	spec    *spmd.Spec
	group   []int
	members [][]int // places in the group, by process; processes in the order of their first rank
	own     int     // this process
	proc    []int   // by place
	sizes   sizes   // of a table whose processes share a board
	ways    ways    // of others
	cuts    []cut   // by buffer: what of it the round that is planned moves
	call    []int   // by place: which call of its process it is
	table   *table
}

// everyone is the d of a piece that all members of a process want.
const everyone = -1

// source is a piece of data that place s sends: all of an operand, or the part
// of it that is for place d.
type source struct{ s, d, buf int }

func (b *builder) n() int { return len(b.group) }

// region of a source in its operand, as far as the round moves it.
func (b *builder) region(x source) (region, error) {
	r, err := b.source(x)
	if err != nil {
		return region{}, err
	}
	return b.cuts[x.buf].of(r), nil
}

// source is all of a source in its operand.
func (b *builder) source(x source) (region, error) {
	in := b.spec.Operands[x.buf]
	if x.d == everyone || b.spec.Op == spmd.AllToAll && len(b.spec.Operands) > 1 {
		return dense(0, in.Bytes()), nil
	}
	return slab(in, b.spec.Dim, x.d, b.n())
}

// sources returns what process p sends to process q, in the order in which it lies
// in the block.
func (b *builder) sources(p, q int) (out []source) {
	operands := len(b.spec.Operands)
	switch b.spec.Op {
	case spmd.AllReduce, spmd.AllGather, spmd.RaggedAllToAll:
		for _, s := range b.members[p] {
			for i := range operands {
				out = append(out, source{s, everyone, i})
			}
		}
	case spmd.CollectiveBroadcast:
		for i := range operands {
			if b.proc[0] == p {
				out = append(out, source{0, everyone, i})
			}
		}
	case spmd.CollectivePermute:
		for place, s := range b.group {
			if b.proc[place] != p || !b.feeds(s, q) {
				continue
			}
			for i := range operands {
				out = append(out, source{place, everyone, i})
			}
		}
	case spmd.AllToAll:
		for _, s := range b.members[p] {
			for _, d := range b.members[q] {
				out = append(out, source{s, d, b.toward(d)})
			}
		}
	case spmd.ReduceScatter:
		for _, s := range b.members[p] {
			for _, d := range b.members[q] {
				for i := range operands {
					out = append(out, source{s, d, i})
				}
			}
		}
	}
	return out
}

// toward returns the operand of an all-to-all that goes to place d: of the form
// with as many operands as members, the d-th; of the other, the only one.
func (b *builder) toward(d int) int {
	if len(b.spec.Operands) > 1 {
		return d
	}
	return 0
}

// feeds reports whether a rank is the source of a permute for a rank of process q.
func (b *builder) feeds(rank, q int) bool {
	for _, pair := range b.spec.Pairs {
		if pair[0] != rank {
			continue
		}
		for place, r := range b.group {
			if r == pair[1] && b.proc[place] == q {
				return true
			}
		}
	}
	return false
}

// build plans all rounds.
func (b *builder) build() error {
	if b.spec.Op == spmd.AllToAll && len(b.spec.Operands) > 1 && len(b.spec.Operands) != b.n() {
		return status.New(status.InvalidArgument, "it has %d operands in a group of %d", len(b.spec.Operands), b.n())
	}
	var total int64
	for _, x := range b.spec.Operands {
		total += x.Bytes()
	}
	if b.spec.Op == spmd.AllReduce || b.spec.Op == spmd.ReduceScatter {
		for _, x := range b.spec.Operands {
			k, err := kernelOf(x.DType, b.spec.Reduction)
			if err != nil {
				return err
			}
			b.table.kernels = append(b.table.kernels, k)
		}
	}
	b.table.together = b.table.together && len(b.members) > 1 && total > 0
	return b.choose(total)
}

// choose plans the rounds by the way that suits the group. It is the only place that decides which.
func (b *builder) choose(total int64) error {
	b.cuts = b.whole()
	switch {
	case b.table.together:
		return b.together(total)
	case len(b.members) == 1:
		return b.oneRound()
	case b.isGathered(total):
		b.table.way = Doubling
		return b.gather()
	}
	if chunks := b.chained(total); chunks != nil {
		b.table.way = Chain
		b.chain(chunks)
		return nil
	}
	if b.spec.Op == spmd.AllReduce && total > smallBytes {
		b.table.way = TwoExchanges
		return b.inLanes(b.owners)
	}
	b.table.way = OneExchange
	return b.inLanes(b.oneRound)
}

// oneRound plans a single round: each process sends every other one all that it needs.
func (b *builder) oneRound() error {
	r := round{sends: make([]pack, len(b.members)), gets: make([]pack, len(b.members))}
	at := map[source]ref{}
	for q := range b.members {
		if q == b.own {
			for _, x := range b.sources(q, q) {
				reg, err := b.region(x)
				if err != nil {
					return err
				}
				at[x] = ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg}
			}
			continue
		}
		for _, x := range b.sources(b.own, q) {
			reg, err := b.region(x)
			if err != nil {
				return err
			}
			r.sends[q].add(ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg})
		}
		for _, x := range b.sources(q, b.own) {
			reg, err := b.region(x)
			if err != nil {
				return err
			}
			off := r.gets[q].add(ref{reg: reg})
			at[x] = ref{kind: block, call: q, reg: dense(off, reg.bytes())}
		}
	}
	for _, d := range b.members[b.own] {
		if err := b.finish(&r, d, at); err != nil {
			return err
		}
	}
	b.table.rounds = []round{r}
	return nil
}

// ending plans the last steps of one round: what makes the results of place d out of the sources, wherever they lie.
type ending struct {
	*builder
	r  *round
	d  int
	at map[source]ref
}

func (e ending) part(i int, reg region) ref {
	return ref{kind: result, call: e.call[e.d], buf: i, reg: reg, place: e.d}
}

// whole returns the part of result i that the round makes, out of sources in buffer buf.
func (e ending) whole(i, buf int) ref {
	return e.part(i, e.cuts[buf].of(dense(0, e.spec.Results[i].Bytes())))
}

// finish plans what makes the results of place d out of the sources.
func (b *builder) finish(r *round, d int, at map[source]ref) error {
	e := ending{b, r, d, at}
	switch b.spec.Op {
	case spmd.AllReduce:
		e.allReduce()
	case spmd.ReduceScatter:
		e.fold(d)
	case spmd.AllGather:
		return e.allGather()
	case spmd.AllToAll:
		return e.allToAll()
	case spmd.CollectiveBroadcast:
		e.copyFrom(0)
	case spmd.CollectivePermute:
		e.permute()
	case spmd.RaggedAllToAll:
		var from []ref
		for s := range b.group {
			for i := range b.spec.Operands {
				from = append(from, at[source{s, everyone, i}])
			}
		}
		r.step(ragged, e.whole(0, 0), from...)
	}
	return nil
}

// fold folds what all places send toward d, in the order of places.
func (e ending) fold(toward int) {
	for i := range e.spec.Operands {
		var from []ref
		for s := range e.group {
			from = append(from, e.at[source{s, toward, i}])
		}
		e.r.step(folds, e.whole(i, i), from...)
	}
}

// allReduce folds once a process, and copies that to its other members.
func (e ending) allReduce() {
	first := e.members[e.own][0]
	if e.d == first {
		e.fold(everyone)
		return
	}
	for i := range e.spec.Operands {
		to := e.whole(i, i)
		e.r.step(copies, to, ref{kind: result, call: e.call[first], buf: i, reg: to.reg})
	}
}

func (e ending) allGather() error {
	for i := range e.spec.Operands {
		for s := range e.group {
			reg, err := slab(e.spec.Results[i], e.spec.Dim, s, e.n())
			if err != nil {
				return err
			}
			e.r.step(copies, e.part(i, e.cuts[i].of(reg)), e.at[source{s, everyone, i}])
		}
	}
	return nil
}

func (e ending) allToAll() error {
	for s := range e.group {
		buf := e.toward(e.d)
		from := e.at[source{s, e.d, buf}]
		if len(e.spec.Operands) > 1 {
			e.r.step(copies, e.whole(s, buf), from)
			continue
		}
		reg, err := slab(e.spec.Results[0], e.spec.Dim, s, e.n())
		if err != nil {
			return err
		}
		e.r.step(copies, e.part(0, e.cuts[0].of(reg)), from)
	}
	return nil
}

// copyFrom copies all operands of place s.
func (e ending) copyFrom(s int) {
	for i := range e.spec.Operands {
		e.r.step(copies, e.whole(i, i), e.at[source{s, everyone, i}])
	}
}

// permute copies from the place that is paired with d. Without one, the results are zeros.
func (e ending) permute() {
	for _, pair := range e.spec.Pairs {
		if s := slices.Index(e.group, pair[0]); pair[1] == e.group[e.d] && s >= 0 {
			e.copyFrom(s)
			return
		}
	}
	for i := range e.spec.Operands {
		e.r.step(zeros, e.whole(i, i))
	}
}

// owners plans an all-reduce of which each process folds a part: one round
// brings it the part of all ranks, the next brings the folded parts to all.
func (b *builder) owners() error {
	parts := b.owned
	one := round{sends: make([]pack, len(b.members)), gets: make([]pack, len(b.members))}
	two := round{sends: make([]pack, len(b.members)), gets: make([]pack, len(b.members))}
	first := b.members[b.own][0]
	for i := range b.spec.Operands {
		mine := parts(i, b.own)
		from := make([]ref, b.n())
		for q, places := range b.members {
			for _, s := range places {
				if q == b.own {
					from[s] = ref{kind: operand, call: b.call[s], buf: i, reg: mine}
					continue
				}
				from[s] = ref{kind: block, call: q, reg: dense(one.gets[q].add(ref{reg: mine}), mine.bytes())}
			}
			if q == b.own {
				continue
			}
			for _, s := range b.members[b.own] {
				one.sends[q].add(ref{kind: operand, call: b.call[s], buf: i, reg: parts(i, q)})
			}
			theirs := ref{kind: result, call: b.call[first], buf: i, reg: parts(i, q)}
			off := two.gets[q].add(ref{reg: theirs.reg})
			two.step(copies, theirs, ref{kind: block, call: q, reg: dense(off, theirs.reg.bytes())})
			two.sends[q].add(ref{kind: result, call: b.call[first], buf: i, reg: mine})
		}
		one.step(folds, ref{kind: result, call: b.call[first], buf: i, reg: mine}, from...)
	}
	for i := range b.cuts {
		b.copies(&two, b.mine(i))
	}
	b.table.rounds = []round{one, two}
	return nil
}

// mine returns the part of operand i that the round moves, in the result of the first member here.
func (b *builder) mine(i int) ref {
	return ref{kind: result, call: b.call[b.members[b.own][0]], buf: i, reg: dense(b.cuts[i].from,
		b.cuts[i].to-b.cuts[i].from)}
}

// copies brings a result of the first member here to the others.
func (b *builder) copies(r *round, from ref) {
	for _, d := range b.members[b.own][1:] {
		to := from
		to.call = b.call[d]
		r.step(copies, to, from)
	}
}

// owned returns the part of operand i that process p folds in a round.
func (b *builder) owned(i, p int) region {
	return b.cuts[i].part(p, len(b.members))
}

// part returns the p-th of n parts of what is cut, which begin at multiples of 64.
func (c cut) part(p, n int) region {
	at := func(p int) int64 {
		if p == n {
			return c.to
		}
		return c.from + (c.to-c.from)/64*int64(p)/int64(n)*64
	}
	return dense(at(p), at(p+1)-at(p))
}

func (r *round) step(op stepOp, to ref, from ...ref) {
	if to.reg.bytes() == 0 && op != ragged {
		return
	}
	r.steps = append(r.steps, step{to, from, op})
	r.work += to.reg.bytes() * int64(1+len(from))
}

// add puts a piece behind the others and returns its place in the block.
func (p *pack) add(from ref) int64 {
	at := (p.bytes + 63) &^ 63
	p.pieces = append(p.pieces, piece{from, at})
	p.bytes = at + from.reg.bytes()
	return at
}

// prune leaves out the processes that this one neither sends to nor gets from, and numbers the others anew. Until then
// a process is known by its number in members, which all agree about. A send that is the same as the one before, piece
// by piece, is marked: it is packed once.
func (t *table) prune(processes []uint64) {
	keep, at := []int{}, make([]int, len(processes))
	for q, process := range processes {
		talks := false
		for _, r := range t.rounds {
			talks = talks || !t.together && r.sends[q].bytes > 0 || r.gets[q].bytes > 0 || slices.Contains(r.to, q)
		}
		if talks {
			at[q] = len(keep)
			keep, t.peers = append(keep, q), append(t.peers, process)
		}
	}
	t.members = keep
	for i := range t.rounds {
		r := &t.rounds[i]
		for k, q := range keep {
			r.gets[k] = r.gets[q]
			if !t.together {
				r.sends[k] = r.sends[q]
			}
		}
		r.gets = r.gets[:len(keep)]
		r.sends = r.sends[:min(len(keep), len(r.sends))]
		for i := range r.to {
			r.to[i] = at[r.to[i]]
		}
		for k := range r.sends {
			r.sends[k].same = k > 0 && slices.Equal(r.sends[k].pieces, r.sends[k-1].pieces)
		}
		for _, s := range r.steps {
			for j := range s.from {
				if k := s.from[j].kind; k == block || k == lent {
					s.from[j].call = at[s.from[j].call]
				}
			}
		}
	}
}
