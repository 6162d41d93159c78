package controller

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// binding says which workers' devices are behind a session's devices in one epoch. It does not change, so operations
// that were placed by it stay valid until they have ended. See rebind.go.
type binding struct {
	view    *placement.View
	spans   []*wire.Span     // of the view
	at      []*worker        // by span
	workers set              // slots
	brings  []*wire.Platform // of the devices, each once
}

// len returns the number of virtual devices.
func (b *binding) len() int { return b.view.Len() }

// behind returns the worker of a virtual device. Its slot and its island do not change.
func (b *binding) behind(d uint32) *worker { return b.at[b.view.SpanOf(int(d))] }

// first returns the first virtual device of a span.
func (b *binding) first(span int) uint32 { return uint32(b.view.First(span)) }

// slot returns the slot of the worker of a virtual device.
func (b *binding) slot(d uint32) int { return b.behind(d).slot }

// number returns the number in the ledger of a virtual device.
func (b *binding) number(d uint32) int { return b.view.Number(int(d)) }

// bind returns the binding of a view. It is the one made last if the view is the same, as it is for clients that begin
// one after another. Workers of the view that have gone have kept their slots.
//
// All gangs wait meanwhile. So what has not changed since the binding made last is copied from there: when one of ten
// thousand workers has come or gone, that is nearly everything.
func (st *State) bind(view *placement.View) *binding {
	if st.bound != nil && st.bound.view == view {
		return st.bound
	}
	left := view.Spans()
	b := &binding{view: view, spans: make([]*wire.Span, 0, len(left)), at: make([]*worker, 0, len(left))}
	before := trail{of: cmp.Or(st.bound, new(binding))}
	st.bound = b
	for len(left) > 0 {
		same := before.along(left)
		if same == 0 {
			same = 1
			b.add(st.memberOf(left[0].Worker), left[0])
		} else {
			before.copy(b, same)
		}
		left = left[same:]
	}
	for i, w := range b.at {
		b.workers.add(w.slot)
		if i == 0 || w.island != b.at[i-1].island { // of one island, all devices are of one platform
			b.knowPlatform(w)
		}
	}
	return b
}

// add appends devices of a worker.
func (b *binding) add(w *worker, s placement.Span) {
	b.spans, b.at = append(b.spans, &wire.Span{Worker: s.Worker, Local: uint32(s.Local), Count: uint32(s.Count)}),
		append(b.at, w)
}

// trail walks through the spans of a binding, in parallel with those of a view that differs in few of them.
type trail struct {
	of   *binding
	span int // the next
}

// farthest is how many spans of workers that have left the view along skips: those of a host, or two.
const farthest = 16

// along returns how many of these spans, from the first one on, the binding has, too, from its next span on or from one
// not much farther on; that one becomes its next. A worker keeps its slot as long as views have it, so the binding's
// entries for such spans are still valid.
func (t *trail) along(spans []placement.Span) (n int) {
	is := func(i int, s placement.Span) bool {
		o := t.of.spans[i]
		return o.Worker == s.Worker && int(o.Local) == s.Local && int(o.Count) == s.Count
	}
	for at := t.span; at < min(t.span+farthest, len(t.of.spans)); at++ {
		for n < len(spans) && at+n < len(t.of.spans) && is(at+n, spans[n]) {
			n++
		}
		if n > 0 {
			t.span = at
			return n
		}
	}
	return 0
}

// copy appends the next n spans to a binding.
func (t *trail) copy(b *binding, n int) {
	from := t.span
	t.span += n
	b.spans, b.at = append(b.spans, t.of.spans[from:t.span]...), append(b.at, t.of.at[from:t.span]...)
}

// memberOf returns the worker of a process number, even if it has gone and keeps its slot; nil if there is none.
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

// newPlace makes a place of virtual devices, for keepPlace. It reads only what does not change, so it may run in
// parallel with Step.
//
// Errors: INVALID_ARGUMENT.
func (b *binding) newPlace(s *session, rows []uint32) (*place, error) {
	if len(rows) == 0 || len(rows) > b.len() {
		return nil, b.notDevices(len(rows))
	}
	p := &place{s: s, in: b, rows: slices.Clone(rows), numbers: make([]int, 0, len(rows))}
	ranks := make([]int, 0, len(rows))
	for i, d := range rows {
		if int(d) >= b.len() {
			return nil, status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", d,
				b.len()-1)
		}
		if p.has.has(int(d)) {
			return nil, status.New(status.InvalidArgument, "device %d is named twice", d)
		}
		p.has.add(int(d))
		w := b.behind(d)
		p.workers.add(w.slot)
		if i == 0 {
			p.slot, p.island = w.slot, w.island
		} else if p.island != w.island {
			p.island = nil
		}
		ranks = append(ranks, b.view.Device(int(d)).Number)
		p.numbers = append(p.numbers, b.number(d))
	}
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
		"%d devices are named; this session has %d, and each may be named once", n, b.len())
}
