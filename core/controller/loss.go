package controller

import (
	"errors"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// What a session loses with a worker: the shards of its arrays there, and what it had loaded there. From then on an
// array is on the devices that are left to it alone, and what would read the others fails with DATA_LOSS.

// errShards is the error of what reads shards that were lost with a worker.
func (st *State) errShards(w *worker) error {
	if status.CodeOf(w.why) == status.DataLoss { // it has said itself what is lost and what to do
		return w.why
	}
	at := st.clock(" at")
	const next = "pathways.events() tells when another worker takes its place, and the array can then be made again"
	if errors.Is(w.why, errStopped) {
		return status.New(status.DataLoss, "a part of this array was on worker %s, which was stopped%s; %s", w.name, at,
			next)
	}
	return status.New(status.DataLoss, "a part of this array was on worker %s, which was lost%s: %w; %s", w.name, at,
		w.why, next)
}

// clock returns the time of day behind a word, "" where it is not known.
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
	return w.gone
}

// lossFirst returns the error of what reads arrays on devices: dead, which is why the devices cannot be used, unless
// the arrays are lost, too; and that of read if they can.
func lossFirst(dead error, read func() error) error {
	if dead == nil {
		return read()
	}
	if err := read(); status.CodeOf(err) == status.DataLoss {
		return err
	}
	return dead
}

// loseWorker takes from a session what it has on a worker that is lost.
func (st *State) loseWorker(s *session, w *worker) {
	why := st.errShards(w)
	left := map[*place]*place{} // what is left of places; nil where nothing is
	var ids []uint64
	for id, o := range s.objects {
		if !o.absent && o.place.workers.has(w.slot) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		o := s.objects[id]
		at, known := left[o.place]
		if !known {
			at = st.leftOf(s, o.place, w)
			left[o.place] = at
		}
		st.loseShards(s, id, o, at, why)
	}
	for p := range s.allPrograms() {
		st.unloaded(p, w.slot)
	}
}

// leftOf returns the place of those of a place's devices that are not a worker's, nil if there are none.
func (st *State) leftOf(s *session, p *place, w *worker) *place {
	rows := slices.DeleteFunc(slices.Clone(p.rows), func(d uint32) bool { return p.in.slots[d] == w.slot })
	if len(rows) == 0 {
		return nil
	}
	at, err := st.place(s, rows)
	if err != nil {
		return nil // there are no more numbers: the array is lost as a whole
	}
	return at
}

// loseShards has an array be on fewer devices, nowhere where at is nil, because of why.
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
	if s.lost == nil {
		s.lost = map[uint64]error{}
	}
	s.lost[id] = why
}

// recharge counts an array on the devices alone that are left to it.
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

// allPrograms calls each for the session's programs, those included that only graphs keep. One may come twice.
func (s *session) allPrograms() func(each func(*program) bool) {
	return func(each func(*program) bool) {
		for _, p := range s.programs {
			if !each(p) {
				return
			}
		}
		for _, g := range s.graphs {
			for _, p := range g.programs {
				if !each(p) {
					return
				}
			}
		}
	}
}

// unloaded records that a program is not loaded any more on the worker of a slot.
func (st *State) unloaded(p *program, slot int) {
	if !p.loaded.has(slot) {
		return
	}
	p.loaded.remove(slot)
	p.loading.remove(slot)
	if c := p.of; c.loadedOn != nil {
		if c.loadedOn[slot]--; c.loadedOn[slot] == 0 {
			delete(c.loadedOn, slot)
		}
		for _, r := range c.residents {
			if r.workers.has(slot) {
				r.lost = r.lost || st.workers[slot].gone != nil
				st.unloadUnused(r)
			}
		}
	}
}
