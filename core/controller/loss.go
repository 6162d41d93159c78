package controller

import (
	"errors"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// When a worker is lost, a session loses the shards of its arrays there, and the programs that were loaded there. From
// then on an array is only on its other devices, and operations that would read the lost shards fail with DATA_LOSS.

// onceReplaced tells a user what to do about arrays that were lost with a worker.
const onceReplaced = "if another worker takes its place, pathways.events() tells, and the array can then be made again"

// errShards is the error of operations that read shards which were lost with a worker.
func (st *State) errShards(w *worker) error {
	if w.saysAll() {
		return w.why
	}
	at := st.clock(" at")
	if errors.Is(w.why, errStopped) {
		return status.New(status.DataLoss, "a part of this array was on worker %s, which was stopped%s; %s", w.name, at,
			onceReplaced)
	}
	return status.New(status.DataLoss, "a part of this array was on worker %s, which was lost%s: %w; %s", w.name, at,
		w.why, onceReplaced)
}

// clock returns a word followed by the time of day, "" if that is not known.
func (st *State) clock(word string) string {
	if st.config.Unix == 0 {
		return ""
	}
	return word + time.Unix(0, st.config.Unix+st.now).UTC().Format(" 15:04:05 UTC")
}

// lossOf returns why an operation fails that was under way when a worker was lost.
func (st *State) lossOf(g *gang, w *worker) error {
	if g.kind == wire.KindFetch {
		return st.errShards(w)
	}
	return g.located(w.gone)
}

// losePart ends a lost worker's part of an operation that was under way.
func (st *State) losePart(g *gang, w *worker) {
	why := st.lossOf(g, w)
	if st.goesOn(g) {
		why = nil
	}
	st.through(g, w, 0, why)
}

// A put is not a computation: its rows are independent. So if workers are lost, it continues without their rows, in
// whatever step it is, as long as one worker is left. Its array has then lost their shards, like one that was complete
// before.

// goesOn reports whether an operation continues without those of its workers that are lost.
func (st *State) goesOn(g *gang) bool {
	return g.kind == wire.KindPut && slices.ContainsFunc(g.to.all(), func(slot int) bool {
		return st.workers[slot].gone == nil
	})
}

// shrink removes the rows of a lost worker from a put that is held.
func (st *State) shrink(g *gang, w *worker) {
	at := st.leftOf(g.s, g.place)
	if at == nil {
		st.giveUp(g, w.gone)
		return
	}
	g.vacate()
	g.place, g.to, g.conns = at, at.workers, at.conns
	g.occupy()
	for _, o := range g.retires {
		st.rechargeFreed(g, o)
	}
	g.hosts = slices.DeleteFunc(g.hosts, func(u hostUse) bool { return u.slot == w.slot })
	st.stir()
}

// putLeft returns the part of a put that remains without workers that were lost before, its place, and why the other
// shards are lost. It returns nil, nil, nil if all of the put remains, or none; none does if a device has no worker
// yet.
func (st *State) putLeft(s *session, m *wire.Put, at *place) (*wire.Put, *place, error) {
	left := st.leftOf(s, at)
	if left == nil || len(left.rows) == len(at.rows) {
		return nil, nil, nil
	}
	var why error
	for _, d := range at.rows {
		w := st.workers[at.in.slot(d)]
		switch {
		case w.gone == nil:
		case status.CodeOf(w.why) == status.NotFound:
			return nil, nil, nil
		case why == nil:
			why = st.errShards(w)
		}
	}
	return &wire.Put{Op: m.Op, Object: m.Object, Array: m.Array, Devices: left.rows, Laid: m.Laid}, left, why
}

// lossFirst returns the error of an operation that reads arrays on devices that cannot be used because of dead: dead
// itself, unless the arrays are lost, too. If the devices can be used, it returns the error of read.
func lossFirst(dead error, read func() error) error {
	if dead == nil {
		return read()
	}
	if err := read(); status.CodeOf(err) == status.DataLoss {
		return err
	}
	return dead
}

// loseWorker removes all that a session has on a worker that has gone, except operations under way.
func (st *State) loseWorker(s *session, w *worker) {
	l := &losing{w: w, why: st.errShards(w), array: s.made.first}
	for l.array != nil {
		st.loseArray(l, s)
	}
	for p := range s.allPrograms.each {
		st.unloaded(p, w.slot)
	}
}

func (o *object) isOn(w *worker) bool { return !o.absent && o.place.workers.has(w.slot) }

// loseArray removes the shards on a worker that has gone from the session's next array, and reports whether there were
// any.
func (st *State) loseArray(l *losing, s *session) bool {
	o := l.array
	l.array = o.behind
	if !o.isOn(l.w) {
		return false
	}
	at, known := l.left[o.place]
	if !known {
		if l.left == nil {
			l.left = map[*place]*place{}
		}
		at = st.leftOf(s, o.place)
		l.left[o.place] = at
	}
	st.loseShards(s, o.id, o, at, l.why)
	return true
}

// leftOf returns the place of those devices of a place whose workers are still there, nil if there are none.
func (st *State) leftOf(s *session, p *place) *place {
	rows := slices.DeleteFunc(slices.Clone(p.rows), func(d uint32) bool { return st.workers[p.in.slot(d)].gone != nil })
	if len(rows) == 0 {
		return nil
	}
	at, err := st.place(s, rows)
	if err != nil {
		return nil // there are no more numbers: the array is lost as a whole
	}
	return at
}

// loseShards leaves an array on fewer devices, those of at, or on none if at is nil, because of why.
func (st *State) loseShards(s *session, id uint64, o *object, at *place, why error) {
	s.damage(o, why)
	if o.of == nil {
		st.recharge(s, o, at)
	}
	if at == nil {
		o.absent = true
		if o.err == nil {
			o.err = why
		}
		return
	}
	o.place = at
	s.loses(id, why)
}

// loses records why some shards of an array are lost.
func (s *session) loses(id uint64, why error) {
	if s.lost == nil {
		s.lost = map[uint64]error{}
	}
	s.lost[id] = why
}

// recharge counts an array only on the devices that it still has.
func (st *State) recharge(s *session, o *object, at *place) {
	if o.charge == 0 {
		return
	}
	st.ledger.Free(o.charge)
	o.charge = 0
	if at == nil {
		return
	}
	rows := slices.DeleteFunc(slices.Clone(at.rows), func(d uint32) bool { return o.freed.has(int(d)) })
	if len(rows) == 0 {
		return
	}
	if len(rows) < len(at.rows) {
		var err error
		if at, err = st.place(s, rows); err != nil {
			return
		}
	}
	o.charge = st.ledger.Charge(ledger.Spec{ShardBytes: o.counted, Placement: at.memory, Label: "an array"})
}

// rechargeFreed counts what was freed of a put's array only on the devices that the put still has. It may have lost
// some since, or before the array's own loss of shards was found.
func (st *State) rechargeFreed(put *gang, o *object) {
	if put.place.workers.covers(o.place.workers) {
		return
	}
	at := st.leftOf(put.s, o.place)
	st.recharge(put.s, o, at)
	if at != nil {
		o.place = at
	}
}

// unloaded records that a program is no longer loaded on the worker of a slot.
func (st *State) unloaded(p *program, slot int) {
	if !p.loaded.has(slot) {
		return
	}
	p.loaded.remove(slot)
	p.loading.remove(slot)
	if c := p.of; c.codeBytes() > 0 {
		c.loadedOn.remove(slot)
		for _, r := range c.residents {
			if r.workers.has(slot) {
				r.lost = r.lost || st.workers[slot].gone != nil
				st.unloadUnused(r)
			}
		}
	}
}
