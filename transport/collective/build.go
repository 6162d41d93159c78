package collective

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// builder makes the rounds of one group.
type builder struct {
	spec    *spmd.Spec
	group   []int
	members [][]int // places in the group, by process; processes in the order of their first rank
	own     int     // this process
	proc    []int   // by place
	call    []int   // by place: which call of its process it is
	table   *table
}

// everyone is the d of a piece that all members of a process want.
const everyone = -1

// source is a piece of data that place s sends: all of an operand, or the part
// of it that is for place d.
type source struct{ s, d, buf int }

func (b *builder) n() int { return len(b.group) }

// region of a source in its operand.
func (b *builder) region(x source) (region, error) {
	in := b.spec.Operands[x.buf]
	if x.d == everyone || b.spec.Op == spmd.AllToAll && len(b.spec.Operands) > 1 {
		return dense(0, in.Bytes()), nil
	}
	return slab(in, b.spec.Dim, x.d, b.n())
}

// sources gives what process p sends to process q, in the order in which it lies
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

// toward gives the operand of an all-to-all that goes to place d: of the form
// with as many operands as members, the d-th; of the other, the only one.
func (b *builder) toward(d int) int {
	if len(b.spec.Operands) > 1 {
		return d
	}
	return 0
}

// feeds says whether a rank is the source of a permute for a rank of process q.
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
	if b.spec.Op == spmd.AllReduce && total > smallBytes && len(b.members) > 1 {
		return b.owners()
	}
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

// finish plans what makes the results of place d out of the sources.
func (b *builder) finish(r *round, d int, at map[source]ref) error {
	to := func(i int, reg region) ref { return ref{kind: result, call: b.call[d], buf: i, reg: reg, place: d} }
	full := func(i int) ref { return to(i, dense(0, b.spec.Results[i].Bytes())) }
	switch b.spec.Op {
	case spmd.AllReduce:
		for i := range b.spec.Operands {
			if first := b.members[b.own][0]; d != first { // folded once, then copied
				r.step(copies, full(i), ref{kind: result, call: b.call[first], buf: i, reg: full(i).reg})
				continue
			}
			var from []ref
			for s := range b.group {
				from = append(from, at[source{s, everyone, i}])
			}
			r.step(folds, full(i), from...)
		}
	case spmd.ReduceScatter:
		for i := range b.spec.Operands {
			var from []ref
			for s := range b.group {
				from = append(from, at[source{s, d, i}])
			}
			r.step(folds, full(i), from...)
		}
	case spmd.AllGather:
		for i := range b.spec.Operands {
			for s := range b.group {
				reg, err := slab(b.spec.Results[i], b.spec.Dim, s, b.n())
				if err != nil {
					return err
				}
				r.step(copies, to(i, reg), at[source{s, everyone, i}])
			}
		}
	case spmd.AllToAll:
		for s := range b.group {
			from := at[source{s, d, b.toward(d)}]
			if len(b.spec.Operands) > 1 {
				r.step(copies, full(s), from)
				continue
			}
			reg, err := slab(b.spec.Results[0], b.spec.Dim, s, b.n())
			if err != nil {
				return err
			}
			r.step(copies, to(0, reg), from)
		}
	case spmd.CollectiveBroadcast:
		for i := range b.spec.Operands {
			r.step(copies, full(i), at[source{0, everyone, i}])
		}
	case spmd.CollectivePermute:
		s := -1
		for _, pair := range b.spec.Pairs {
			if pair[1] == b.group[d] {
				for place, rank := range b.group {
					if rank == pair[0] {
						s = place
					}
				}
			}
		}
		for i := range b.spec.Operands {
			if s < 0 {
				r.step(zeros, full(i))
				continue
			}
			r.step(copies, full(i), at[source{s, everyone, i}])
		}
	case spmd.RaggedAllToAll:
		var from []ref
		for s := range b.group {
			for i := range b.spec.Operands {
				from = append(from, at[source{s, everyone, i}])
			}
		}
		r.step(ragged, full(0), from...)
	}
	return nil
}

// owners plans an all-reduce of which each process folds a part: one round
// brings it the part of all ranks, the next brings the folded parts to all.
func (b *builder) owners() error {
	parts := func(i, p int) region {
		bytes := b.spec.Operands[i].Bytes()
		cut := func(p int) int64 {
			if p == len(b.members) {
				return bytes
			}
			return bytes / 64 * int64(p) / int64(len(b.members)) * 64
		}
		return dense(cut(p), cut(p+1)-cut(p))
	}
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
	for i, x := range b.spec.Results {
		for _, d := range b.members[b.own][1:] {
			two.step(copies, ref{kind: result, call: b.call[d], buf: i, reg: dense(0, x.Bytes())},
				ref{kind: result, call: b.call[first], buf: i, reg: dense(0, x.Bytes())})
		}
	}
	b.table.rounds = []round{one, two}
	return nil
}

func (r *round) step(op stepOp, to ref, from ...ref) {
	r.steps = append(r.steps, step{to, from, op})
	r.work += to.reg.bytes() * int64(1+len(from))
}

// add puts a piece behind the others and gives its place in the block.
func (p *pack) add(from ref) int64 {
	at := (p.bytes + 63) &^ 63
	p.pieces = append(p.pieces, piece{from, at})
	p.bytes = at + from.reg.bytes()
	return at
}

// prune leaves out the processes that this one neither sends to nor gets from.
func (b *builder) prune(processes []uint64) {
	t := b.table
	keep, at := []int{}, make([]int, len(processes))
	for q, process := range processes {
		talks := false
		for _, r := range t.rounds {
			talks = talks || r.sends[q].bytes > 0 || r.gets[q].bytes > 0
		}
		if talks {
			at[q] = len(keep)
			keep, t.peers = append(keep, q), append(t.peers, process)
		}
	}
	for i := range t.rounds {
		r := &t.rounds[i]
		for k, q := range keep {
			r.sends[k], r.gets[k] = r.sends[q], r.gets[q]
		}
		r.sends, r.gets = r.sends[:len(keep)], r.gets[:len(keep)]
		for k := range r.sends {
			r.sends[k].same = k > 0 && slices.Equal(r.sends[k].pieces, r.sends[k-1].pieces)
		}
		for _, s := range r.steps {
			for j := range s.from {
				if s.from[j].kind == block {
					s.from[j].call = at[s.from[j].call]
				}
			}
		}
	}
}
