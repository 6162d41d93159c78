package collective

import (
	"sync"

	"github.com/openpathways/pathways/core/xla/spmd"
)

// This file has large reductions between hosts go in several parts, lanes, so that one is folded while others arrive.
//
// A lane has rounds of its own, which move and fold a range of each operand by the way that would move all of it. Its
// blocks have keys of their own, so that it does not matter in which order a process comes to its lanes. A process has
// few of them on their way, and begins the next when the blocks of one are there, before it folds them. So its line
// rests no longer than it takes to ask for the next blocks, and it has memory for those of few lanes.
//
// The bits are the same: a fold takes the operands of an element in the order of ranks, whatever its lane.

const (
	// lanesMost is into how many lanes operands are cut, or a few more: as much of the first arrives, and of the last is
	// folded, while nothing else goes on.
	lanesMost = 8
	// lanesAtOnce is how many lanes arrive at a time: one more while the blocks of another are asked for.
	lanesAtOnce = 2
)

// inLanes plans rounds by a way, and more than once if the group folds enough for lanes.
func (b *builder) inLanes(plan func() error) error {
	if b.spec.Op != spmd.AllReduce && b.spec.Op != spmd.ReduceScatter {
		return plan()
	}
	total, patterns := int64(0), make([]region, len(b.cuts))
	for i := range b.cuts {
		var err error
		if patterns[i], err = b.pattern(i); err != nil {
			return err
		}
		total += patterns[i].bytes()
	}
	least := b.ways.lane
	if b.spec.Op == spmd.AllReduce { // of which a process sends each other one a part
		least *= int64(len(b.members))
	}
	each := (max(total/lanesMost, least) + 63) &^ 63
	cuts := b.cutting(each, func(i int) region { return patterns[i] })
	if len(cuts) < 2 || len(cuts) > roundsMax/2 {
		return plan()
	}
	whole := b.table
	defer func() { b.table = whole }()
	for _, c := range cuts {
		b.cuts = c
		b.table = &table{index: whole.index, calls: whole.calls, kernels: whole.kernels, way: Lanes}
		if err := plan(); err != nil {
			return err
		}
		b.table.first = len(whole.lanes) * len(b.table.rounds)
		b.table.all = len(cuts) * len(b.table.rounds)
		whole.lanes = append(whole.lanes, b.table)
	}
	return nil
}

// lanes is the parts of a meeting, each a meeting of the same calls.
type lanes struct {
	whole *meeting

	mu           sync.Mutex // guards the rest
	begun, ended int
	err          error // no further ones begin
}

// split begins the first lanes of a meeting.
func (m *meeting) split() {
	l := &lanes{whole: m}
	for range lanesAtOnce {
		if next := l.next(); next != nil { // or the first has begun the second already
			next.start(0)
		}
	}
}

// next returns the next lane, which the caller starts; nil if there is none.
func (l *lanes) next() *meeting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.begun == len(l.whole.table.lanes) {
		return nil
	}
	m := newMeeting(l.whole.gang, l.whole.site, l.whole.table.lanes[l.begun], l.whole.occurrence)
	m.calls, m.lanes = l.whole.calls, l
	l.begun++
	return m
}

// end is told that a lane has ended. It returns the first error, and whether this was the last lane, with which the
// calls end: as long as there is another one to begin, one that has begun has not ended.
func (l *lanes) end(err error) (first error, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.ended++
	return l.err, l.ended == l.begun
}
