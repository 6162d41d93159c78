package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// binding is what is behind a session's devices in one epoch. It does not change, so what was placed by it means the
// same until it has ended. See rebind.go.
type binding struct {
	view    *placement.View
	spans   []*wire.Span // of the view
	slots   []int        // of the workers, by virtual device
	numbers []int        // in the ledger, by virtual device
	islands []*island    // by virtual device
	workers set          // slots

	// Of the workers, as a client is told.
	at        []*worker        // by span
	processes []*wire.Process  // each once
	brings    []*wire.Platform // of the devices, each once
}

// bind returns the binding of a view: that which it made last, where it is of the same view, as for clients that begin
// one after the other. Workers of the view that have gone have kept their slots.
func (st *State) bind(view *placement.View) *binding {
	if st.bound != nil && st.bound.view == view {
		return st.bound
	}
	n := view.Len()
	b := &binding{view: view, spans: spans(view.Spans()), slots: make([]int, 0, n), numbers: make([]int, 0, n),
		islands: make([]*island, 0, n)}
	before := trail{of: st.bound}
	st.bound = b
	for _, span := range b.spans {
		w := before.next(span.Worker)
		if w == nil || st.workers[w.slot] != w {
			w = st.memberOf(span.Worker)
		}
		b.at = append(b.at, w)
		if !b.workers.has(w.slot) {
			b.processes = append(b.processes, w.process)
			b.knowPlatform(w)
		}
		b.workers.add(w.slot)
		for k := range int(span.Count) {
			b.slots = append(b.slots, w.slot)
			b.numbers = append(b.numbers, w.base+int(span.Local)+k)
			b.islands = append(b.islands, w.island)
		}
	}
	return b
}

// trail goes through the workers of a binding, beside those of one that differs by few of them: it finds most of these
// without a search.
type trail struct {
	of   *binding // or nil
	span int      // the next
}

// next returns the worker of a process number if that is the next one of the binding, or the one behind it; else nil.
func (t *trail) next(process uint64) *worker {
	if t.of == nil {
		return nil
	}
	for i := t.span; i < min(t.span+2, len(t.of.spans)); i++ {
		if t.of.spans[i].Worker == process {
			t.span = i + 1
			return t.of.at[i]
		}
	}
	return nil
}

// memberOf returns the worker of a process number, also one that has gone and keeps its slot; nil if there is none.
func (st *State) memberOf(process uint64) *worker {
	if w := st.processes[process]; w != nil {
		return w
	}
	at := slices.IndexFunc(st.workers, func(w *worker) bool { return w != nil && w.process.Number == process })
	if at < 0 {
		return nil
	}
	return st.workers[at]
}

// newPlace makes a place of virtual devices, for keepPlace. It reads only what does not change, so it may run beside
// Step.
//
// Errors: INVALID_ARGUMENT.
func (b *binding) newPlace(s *session, rows []uint32) (*place, error) {
	if len(rows) == 0 || len(rows) > len(b.slots) {
		return nil, b.notDevices(len(rows))
	}
	p := &place{s: s, in: b, rows: slices.Clone(rows), numbers: make([]int, 0, len(rows))}
	ranks := make([]int, 0, len(rows))
	for i, d := range rows {
		if int(d) >= len(b.slots) {
			return nil, status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", d,
				len(b.slots)-1)
		}
		if p.has.has(int(d)) {
			return nil, status.New(status.InvalidArgument, "device %d is named twice", d)
		}
		p.has.add(int(d))
		p.workers.add(b.slots[d])
		if i == 0 {
			p.island = b.islands[d]
		} else if p.island != b.islands[d] {
			p.island = nil
		}
		ranks = append(ranks, b.view.Device(int(d)).Number)
		p.numbers = append(p.numbers, b.numbers[d])
	}
	p.slot = b.slots[rows[0]]
	slices.Sort(p.numbers)
	for _, d := range p.numbers { // FNV-1a
		p.hash = (p.hash ^ uint64(d)) * 0x100000001b3
	}
	if p.island != nil {
		p.devices = schedule.Devices(ranks...)
	}
	var err error
	p.sorted, err = ledger.Sort(p.numbers)
	return p, err
}

func (b *binding) notDevices(n int) error {
	return status.New(status.InvalidArgument,
		"%d devices are named; this session has %d, and each may be named once", n, len(b.slots))
}
