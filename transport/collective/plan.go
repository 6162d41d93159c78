package collective

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// smallBytes is the size of a rank's operands up to which an all-reduce brings
// everything to every process, which takes one exchange; above, each process
// folds a part of it and sends the result round, which moves less and takes two.
// Both sides must agree on it: a change is a new protocol.
const smallBytes = 32 << 10

// ways say when collectives between hosts go by other ways than these two. They, too, are agreed.
type ways struct {
	chainLeast  int64 // bytes of an operand from which on an all-reduce may be a chain
	chainChunk  int64 // bytes of a chunk of one, at least
	gatherLeast int   // processes from which on small blocks are gathered
	gatherMost  int64 // bytes of all ranks up to which they are
	lane        int64 // bytes that a process sends another in a lane, at least
}

var usualWays = ways{chainLeast: 4 << 20, chainChunk: 1 << 20, gatherLeast: 12, gatherMost: 128 << 10, lane: 1 << 20}

// # What is guaranteed, and why
//
// Processes do not tell each other their plans, and yet each block that one sends is the block that another gets, piece
// by piece: a plan is a function of the spec, which is in the program, and of the ranks, which the controller tells
// all processes of the gang alike. Only self differs, and it selects from the blocks that all would plan; and whether
// all of a group share a board is seen alike by those that do. So nothing here may look at the clock, at memory, or at
// the order of a map: components sorts what it has found in one.
//
// A wrong spec is wrong everywhere. check looks at the spec and the ranks alone, before anything is laid out, so if a
// call fails in one process, the calls of its group fail in all, and none waits for a block that will not come. What
// passes check is safe to lay out: ranks exist, groups do not overlap, sizes agree and do not overflow.
//
// A round needs only its own blocks and what the rounds before have left in local memory, and a process pushes its
// blocks of a round without waiting for those of the others. So no two processes wait for each other.

// plan is what this process does at one site of a program. It depends on the
// spec and the ranks alone, and every process plans the same blocks.
type plan struct {
	spec  *spmd.Spec
	ranks []Place
	seats []seat // by local device; a table is nil if the device has no rank
	err   error  // why no call of this site can be answered
}

// seat is the place of a local device.
type seat struct {
	rank  int
	table *table // nil if the rank meets no other
	index int    // in table.calls
	err   error
}

// table is one group of ranks as this process sees it.
type table struct {
	index   int // numbers the groups of the site
	peers   []uint64
	near    []bool // by peer: small blocks go by the board; nil if none do
	calls   int    // local members
	rounds  []round
	kernels []kernel // of reductions: by operand
	kept    int64    // bytes that rounds keep for those after them
	bytes   int64    // of all operands here
	way     Way      // if it does not go directly, see below
	// direct is the second of the rounds in which members read what others lend, all but the first of which are the last
	// ones; 0 if there are none. If they do not lend all of it, the rounds between the first and these follow.
	direct  int
	member  int   // the number of this process in the group
	members []int // and those of the peers

	lanes []*table // that have all the rounds, and a part of what they move each; nil if there are none
	first int      // of a lane: the number of its first round
	all   int      // rounds: of a lane, those of all

	// All processes of the group share a board. In each round a process writes one block, which all that need some of it
	// read, each the parts that it knows from the plan to be there.
	together bool
}

// round is one exchange and what is done when its blocks are there.
type round struct {
	sends, gets []pack // by peer; of a table whose processes share a board, sends is nil
	into        []*ref // by peer: where its block goes; nil if that is memory of the exchange
	mail        []int  // peers whose blocks begin with letters on the board
	shown       []int  // peers on the board that get the same long block
	steps       []step
	work        int64 // bytes that the steps touch

	where   bool   // it tells where arrays are, and has steps only if all lend theirs
	out     pack   // of a table whose processes share a board: this process's block
	to      []int  // peers that read it
	readers uint64 // their places, or those of shown
}

// pack is a block: pieces one after the other, each at a multiple of 64.
type pack struct {
	pieces []piece
	bytes  int64
	same   bool // as the block of the peer before
}

type piece struct {
	from ref // in local memory; of blocks that are received, not used
	at   int64
}

// ref is a region of an operand or result of a local call, or of a peer's block.
type ref struct {
	kind  kind
	call  int // in table.calls; of a block and of what is lent, the peer
	buf   int // of what is lent: its place in the letter about that
	reg   region
	place int // of the result of a ragged all-to-all: its member's place in the group
}

type kind uint8

const (
	operand kind = iota
	result
	block
	kept   // what rounds have kept for those after them
	told   // where the arrays are that this process lends
	folded // the part of a result that this process folds for all, or its stand-in
	lent   // an array that a peer lends
)

// step is work on memory that is all there: a copy of from[0], a fold of all of
// from, or zeros.
type step struct {
	to   ref
	from []ref
	op   stepOp
}

type stepOp uint8

const (
	copies stepOp = iota
	folds
	foldsOn // onto the first of from
	zeros
	ragged // to is the result, from the six operands of each member in group order
)

// planOf returns what process self does at the site of a spec, whose ranks are at these places. board, which may be
// nil, is memory that self shares with other processes: a group that shares it as a whole has one block a process and
// round.
func planOf(s *spmd.Spec, ranks []Place, self uint64, board *Board, ways ways) *plan {
	p := &plan{spec: s, ranks: ranks}
	p.err = p.check()
	for rank, at := range ranks {
		if at.Process != self {
			continue
		}
		for len(p.seats) <= at.Local {
			p.seats = append(p.seats, seat{rank: -1})
		}
		p.seats[at.Local] = seat{rank: rank, err: p.err}
	}
	if p.err != nil || s.Op == spmd.PartitionID || s.Op == spmd.ReplicaID {
		return p
	}
	groups := s.Groups
	if s.Op == spmd.CollectivePermute {
		groups = components(s.Pairs)
	}
	for i, g := range groups {
		p.seat(i, g, self, board, ways)
	}
	for i := range p.seats {
		if s := &p.seats[i]; s.rank >= 0 && s.table == nil && s.err == nil && p.spec.Op != spmd.CollectivePermute &&
			p.spec.Op != spmd.CollectiveBroadcast {
			s.err = status.New(status.InvalidArgument, "rank %d is in no group of %s", s.rank, p.spec.Name())
		}
	}
	return p
}

// address finds the readers of a table whose processes share a board, and whether all blocks are letters.
func (t *table) address(b *Board) {
	t.near, t.way = make([]bool, len(t.peers)), Letters
	for i := range t.near {
		t.near[i] = true
	}
	for k := range t.rounds {
		r := &t.rounds[k]
		readers := make([]uint64, len(r.to))
		for i, to := range r.to {
			readers[i] = t.peers[to]
		}
		r.readers = b.readers(readers)
		longest := r.out.bytes
		for i := range r.gets {
			if r.gets[i].bytes > 0 {
				r.mail = append(r.mail, i)
			}
			longest = max(longest, r.gets[i].bytes)
		}
		if longest > mailMax {
			t.way = Areas
		}
	}
}

// meet says which blocks begin with letters on a board.
func (t *table) meet(b *Board) {
	if b == nil || !slices.ContainsFunc(t.peers, b.reaches) {
		return
	}
	t.near = make([]bool, len(t.peers))
	for i, peer := range t.peers {
		t.near[i] = b.reaches(peer)
	}
	for k := range t.rounds {
		r := &t.rounds[k]
		for i, g := range r.gets {
			if t.near[i] && g.bytes > 0 {
				r.mail = append(r.mail, i)
			}
		}
		r.share(t, b)
	}
}

// land has each block that a step would only copy arrive at the destination of that copy. Blocks from the board are
// read in place.
func (t *table) land() {
	for k := range t.rounds {
		r := &t.rounds[k]
		r.into = make([]*ref, len(r.gets))
		readers := make([]int, len(r.gets))
		for _, s := range r.steps {
			for _, f := range s.from {
				if f.kind == block {
					readers[f.call]++
				}
			}
		}
		r.steps = slices.DeleteFunc(r.steps, func(s step) bool {
			if s.op != copies || s.to.reg.count > 1 || s.from[0].kind != block {
				return false
			}
			peer := s.from[0].call
			if readers[peer] > 1 || s.from[0].reg.bytes() < r.gets[peer].bytes || t.near != nil && t.near[peer] {
				return false
			}
			r.into[peer] = &s.to
			r.work -= 2 * s.to.reg.bytes()
			return true
		})
	}
}

// share finds the peers on the board that get the same long block.
func (r *round) share(t *table, b *Board) {
	var readers []uint64
	for i := range r.sends {
		if s := &r.sends[i]; t.near[i] && s.bytes > mailMax &&
			(len(r.shown) == 0 || slices.Equal(s.pieces, r.sends[r.shown[0]].pieces)) {
			r.shown, readers = append(r.shown, i), append(readers, t.peers[i])
		}
	}
	r.readers = b.readers(readers)
}

// check looks for errors that a spec shows by itself.
func (p *plan) check() error {
	s := p.spec
	numberless := s.Op == spmd.PartitionID || s.Op == spmd.ReplicaID
	if !numberless && (s.Site < 0 || s.Site >= sites) || len(s.Groups) > groupsMax {
		return status.New(status.Unimplemented,
			"%s %d of a program with %d groups: sites are numbered below %d, and have %d groups at most", s.Op, s.Site,
			len(s.Groups), sites, groupsMax)
	}
	for _, x := range slices.Concat(s.Operands, s.Results) {
		if x.Bytes() < 0 {
			return p.invalid("the shape %s has no size", x)
		}
	}
	if err := p.checkRanks(); err != nil {
		return err
	}
	switch s.Op {
	case spmd.PartitionID, spmd.ReplicaID:
		if len(s.Results) != 1 || s.Results[0].Bytes() != 4 || s.Parts < 1 {
			return p.invalid("it returns %v of %d partitions, want one u32", s.Results, s.Parts)
		}
		return nil
	case spmd.RaggedAllToAll:
		return checkRagged(s)
	case spmd.AllReduce, spmd.ReduceScatter:
		for _, x := range s.Operands {
			if s.DType != shape.Invalid && x.DType != s.DType && len(s.Operands) == 1 {
				return p.invalid("it folds %s, its operand is %s", s.DType, x)
			}
			if _, err := kernelOf(x.DType, s.Reduction); err != nil {
				return err
			}
		}
	case spmd.AllGather, spmd.AllToAll, spmd.CollectivePermute, spmd.CollectiveBroadcast:
	default:
		return p.invalid("its number %d is unknown", s.Op)
	}
	return p.checkSizes()
}

// invalid is an error of the spec.
func (p *plan) invalid(format string, args ...any) error {
	return status.Wrap(status.New(status.InvalidArgument, format, args...), "%s", p.spec.Name())
}

// checkRanks checks that groups and pairs are of ranks that there are, each in one group and the target of one pair.
func (p *plan) checkRanks() error {
	seen := map[int]bool{}
	for _, g := range p.spec.Groups {
		for _, r := range g {
			if r < 0 || r >= len(p.ranks) || seen[r] {
				return p.invalid("rank %d of %d is unknown or in two groups", r, len(p.ranks))
			}
			seen[r] = true
		}
	}
	targets := map[int]bool{}
	for _, t := range p.spec.Pairs {
		if min(t[0], t[1]) < 0 || max(t[0], t[1]) >= len(p.ranks) || targets[t[1]] {
			return p.invalid("the pair %v is not of ranks below %d, or a second one for its target", t, len(p.ranks))
		}
		targets[t[1]] = true
	}
	return nil
}

// checkSizes checks that each result has the size which its operand makes in a group.
func (p *plan) checkSizes() error {
	s := p.spec
	if len(s.Operands) == 0 || len(s.Operands) != len(s.Results) {
		return p.invalid("it has %d operands and %d results", len(s.Operands), len(s.Results))
	}
	for i, x := range s.Operands {
		n, want := int64(1), s.Results[i].Bytes()
		if len(s.Groups) > 0 {
			n = int64(len(s.Groups[0]))
		}
		got := x.Bytes()
		switch s.Op {
		case spmd.AllGather:
			got *= n
		case spmd.ReduceScatter:
			want *= n
		}
		if got != want || x.DType != s.Results[i].DType {
			return p.invalid("operand %d is %s, result %s in groups of %d", i, x, s.Results[i], n)
		}
	}
	return nil
}

// components returns the sets of ranks that pairs join, each sorted, and in the order of their first ranks.
func components(pairs [][2]int) [][]int {
	of, groups := map[int]int{}, map[int][]int{}
	for i, p := range pairs {
		for _, r := range p {
			if _, ok := of[r]; !ok {
				k := len(pairs)*2 + i*2
				if r == p[1] {
					k++
				}
				of[r], groups[k] = k, []int{r}
			}
		}
		a, b := min(of[p[0]], of[p[1]]), max(of[p[0]], of[p[1]])
		if a != b {
			for _, r := range groups[b] {
				of[r] = a
			}
			groups[a] = append(groups[a], groups[b]...)
			delete(groups, b)
		}
	}
	out := make([][]int, 0, len(groups))
	for _, g := range groups {
		slices.Sort(g)
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b []int) int { return a[0] - b[0] })
	return out
}

// seat plans one group, if one of its ranks is here.
func (p *plan) seat(index int, group []int, self uint64, board *Board, ways ways) {
	b := builder{spec: p.spec, group: group, table: &table{index: index}, call: make([]int, len(group)),
		proc: make([]int, len(group)), ways: ways}
	var processes []uint64
	for place, rank := range group {
		at := p.ranks[rank]
		i := slices.Index(processes, at.Process)
		if i < 0 {
			i = len(processes)
			processes, b.members = append(processes, at.Process), append(b.members, nil)
		}
		b.members[i] = append(b.members[i], place)
		b.proc[place] = i
	}
	b.own = slices.Index(processes, self)
	if b.own < 0 {
		return
	}
	for i, place := range b.members[b.own] {
		b.call[place] = i
	}
	b.table.calls = len(b.members[b.own])
	b.table.together = board != nil && !slices.ContainsFunc(processes, func(q uint64) bool { return !board.reaches(q) })
	if b.table.together {
		b.sizes = board.sizes
	}
	err := b.build()
	if err != nil {
		err = status.Wrap(err, "%s", p.spec.Name())
	}
	for _, t := range append(b.table.lanes, b.table) {
		t.prune(processes)
		if t.together {
			t.address(board)
		} else {
			t.meet(board)
			t.land()
		}
		if len(t.peers) == 0 {
			t.way = OneWorker
		}
		for _, x := range p.spec.Operands {
			t.bytes += x.Bytes() * int64(t.calls)
		}
	}
	for i, place := range b.members[b.own] {
		s := &p.seats[p.ranks[group[place]].Local]
		s.table, s.index, s.err = b.table, i, err
	}
}

// checkRagged looks at the spec of a ragged all-to-all: rows of dimension 0, an
// array to put them into, and for each member offsets, sizes, target offsets and
// received sizes.
func checkRagged(s *spmd.Spec) error {
	bad := func() error {
		return status.New(status.InvalidArgument,
			"%s takes rows, an output of the same type, and four lists of s32 or s64, a multiple of the group long; it has "+
				"%v and returns %v",
			s.Name(), s.Operands, s.Results)
	}
	if len(s.Operands) != 6 || len(s.Results) != 1 {
		return bad()
	}
	in, out, res := s.Operands[0], s.Operands[1], s.Results[0]
	if len(in.Dims) == 0 || len(in.Dims) != len(out.Dims) || in.DType != out.DType || in.DType.Bits()%8 != 0 ||
		res.DType != out.DType || !slices.Equal(res.Dims, out.Dims) || !slices.Equal(in.Dims[1:], out.Dims[1:]) {
		return bad()
	}
	for _, x := range s.Operands[2:] {
		if len(x.Dims) != 1 || x.DType != s.Operands[2].DType || x.DType != shape.S32 && x.DType != shape.S64 ||
			x.Dims[0] != s.Operands[2].Dims[0] {
			return bad()
		}
		for _, g := range s.Groups {
			if len(g) == 0 || x.Dims[0]%int64(len(g)) != 0 {
				return bad()
			}
		}
	}
	return nil
}
