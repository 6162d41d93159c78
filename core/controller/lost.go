package controller

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// When the controller has started again, an operation that no worker has may still have been dispatched, if its
// messages were lost with the connections. If a later operation of its session shares a device with it and has reached
// another worker, it was dispatched, since the operations of a device are dispatched in order (line.go). So the workers
// that lack both are sent the earlier one first.
//
// A worker that has the later operation has had all that were dispatched before it. If it does not have the earlier
// one, that one failed and was not dispatched, so it is performed as if it had just come. Puts and fetches prove
// nothing about earlier operations, since they may pass them (ahead.go).
//
// The lost operation's number was between those of its neighbors, and no worker has it. So it gets such a number again.

// findLost finds the operations of a session that were dispatched and that no worker has, and adds them to those that
// are under way.
func (r *rebuilding) findLost(s *session) {
	var all []*reminder
	for _, one := range r.underWay {
		if one.s == s {
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		return
	}
	for _, one := range r.sent {
		switch p := one.play; {
		case one.s != s || one.op == 0:
		case p == nil:
			all = append(all, one)
		default:
			for i := range p.g.nodes {
				if !p.past.has(i) {
					all = append(all, &reminder{s: s, op: one.op + uint64(i), ev: one.ev, play: p, node: i})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b *reminder) int { return cmp.Compare(b.op, a.op) }) // the last first
	// By device: the number of a later one that its worker lacks; and devices whose worker has a later one.
	before, held := map[int]uint64{}, set(nil)
	for _, one := range all {
		on, first, n := r.takes(one)
		if one.gang == nil {
			if on.meets(held) || !r.lost(one, on, before) {
				continue
			}
			if one.play != nil {
				one.play.past.add(one.node)
			}
			r.addUnderWay(one, first, n)
		}
		if one.play == nil && (one.ev.Wire == wire.KindPut || one.ev.Wire == wire.KindFetch) {
			continue
		}
		on.each(func(d int) {
			if one.gang.has.has(s.slot(uint32(d))) {
				held.add(d)
			} else if n := before[d]; n == 0 || one.gang.number < n {
				before[d] = one.gang.number
			}
		})
	}
}

// lost makes an operation on some devices a gang that no worker has, if a later one has a device in common with it.
func (r *rebuilding) lost(one *reminder, on set, before map[int]uint64) bool {
	number := uint64(0)
	on.each(func(d int) {
		if n := before[d]; n != 0 && (number == 0 || n < number) {
			number = n
		}
	})
	if number == 0 {
		return false
	}
	for number--; r.numbers[number]; number-- {
	}
	if number == 0 {
		return false
	}
	r.numbers[number] = true
	one.gang = &known{number: number}
	return true
}

// takes returns the virtual devices that take part in an operation, and the objects that it makes.
func (r *rebuilding) takes(one *reminder) (on set, first uint64, n int) {
	s := one.s
	if p := one.play; p != nil {
		node := &p.g.nodes[one.node]
		if len(node.sizes) > 0 {
			first = p.object(node.first)
		}
		return node.over.has, first, len(node.sizes)
	}
	add := func(d uint32) {
		if int(d) < s.len() {
			on.add(int(d))
		}
	}
	switch m := one.ev.Message.(type) {
	case *wire.Run:
		p := s.programs[m.Program]
		if p == nil {
			return nil, 0, 0
		}
		if at, err := r.st.placeOfRun(s, p, m.Only); err == nil {
			on.union(at.has)
		}
		return on, m.FirstOutput, len(p.of.outputs)
	case *wire.Put:
		for _, d := range m.Devices {
			add(d)
		}
		return on, m.Object, 1
	case *wire.Transfer:
		for _, v := range m.Moves {
			add(v.GetFrom())
			add(v.GetTo())
		}
		return on, m.Object, 1
	case *wire.Fetch:
		add(m.Device)
	}
	return on, 0, 0
}
