package placement

import (
	"cmp"
	"slices"
)

// View is a session's list of devices: it numbers them from 0. It does not change; see Rebind.
type View struct {
	runs  []run
	at    []int32 // the index of its run, by virtual device
	sized bool    // made by ViewOf: the session asked for this number of devices
	epoch uint64  // views that the session had before
}

// run is consecutive devices of one worker.
type run struct {
	worker *Worker
	island *Island // the worker's
	base   int     // the worker's First
	device int     // virtual, the first
	local  int     // the first
	count  int
}

// add appends devices of a worker.
func (v *View) add(w *Worker, local, count int) {
	last := len(v.runs) - 1
	if last >= 0 && v.runs[last].worker == w && v.runs[last].local+v.runs[last].count == local {
		v.runs[last].count += count
	} else {
		last++
		v.runs = append(v.runs, run{worker: w, island: w.Island, base: w.First, device: len(v.at), local: local,
			count: count})
	}
	for range count {
		v.at = append(v.at, int32(last))
	}
}

// View returns a view of all devices that the cluster has now, or of those of some platforms: the first one's, then the
// next one's. While no worker comes or goes, it returns the same one again.
func (m *Map) View(platforms ...string) *View {
	if m.same.whole != nil && slices.Equal(m.same.of, platforms) {
		return m.same.whole
	}
	islands, workers, devices := m.islandsOf(platforms), 0, 0
	for _, is := range islands {
		workers += len(is.members)
		for _, w := range is.members {
			devices += w.Devices
		}
	}
	v := &View{runs: make([]run, 0, workers), at: make([]int32, 0, devices)}
	for _, is := range islands {
		for _, w := range is.members {
			v.add(w, 0, w.Devices)
		}
	}
	m.same.whole, m.same.of = v, slices.Clone(platforms)
	return v
}

// islandsOf returns the islands of some platforms, in the order of these, or all islands.
func (m *Map) islandsOf(platforms []string) (all []*Island) {
	if len(platforms) == 0 {
		return m.islands
	}
	for _, p := range platforms {
		for _, is := range m.islands {
			if is.Platform() == p {
				all = append(all, is)
			}
		}
	}
	return all
}

// ViewOf returns a view of the given number of devices of each of some platforms, or of any, chosen like those of a
// slice: from one island if one has enough; there, those that the fewest slices and views of this kind have; among
// these, as many as possible from one worker. Retire ends the view. Devices of exclusive slices, and those that
// requests which wait keep for themselves, are not chosen.
//
// Errors: INVALID_ARGUMENT for fewer than one device, RESOURCE_EXHAUSTED if the cluster
// has too few.
func (m *Map) ViewOf(devices int, platforms ...string) (*View, error) {
	s, err := m.SearchView(devices, platforms...)
	if err != nil {
		return nil, err
	}
	s.Choose()
	return m.take(s)
}

// ViewAs returns the view that a session had before: of these devices, in their order. It is nil if a worker of some
// is neither there nor one of left, from Recall, by its number. Sized and Epoch are what the view's methods of these
// names return; Retire is owed for it.
func (m *Map) ViewAs(devices []Span, sized bool, epoch uint64, left map[uint64]*Worker) *View {
	v := &View{sized: sized, epoch: max(epoch, 1) - 1}
	for _, span := range devices {
		w := cmp.Or(m.workers[span.Worker], left[span.Worker])
		if w == nil || span.Local < 0 || span.Count < 1 || span.Count > w.Devices-span.Local {
			return nil
		}
		v.add(w, span.Local, span.Count)
	}
	if sized {
		m.countView(v, +1)
	}
	return v
}

// Retire ends a view: its devices no longer count as seen. It must be called once per
// view.
func (m *Map) Retire(v *View) {
	if v.sized {
		m.countView(v, -1)
	}
}

// countView adds by to the number of views that see each of v's devices.
func (m *Map) countView(v *View, by int32) {
	m.loaded++
	for _, r := range v.runs {
		if m.isHere(r.worker, r.base) {
			for d := range r.count {
				m.loads[r.base+r.local+d].viewed += by
			}
		}
	}
}

// Sized reports whether the session asked for this number of devices.
func (v *View) Sized() bool { return v.sized }

// Len returns the number of virtual devices.
func (v *View) Len() int { return len(v.at) }

// Device returns the device that a virtual device in [0, Len) stands for.
func (v *View) Device(virtual int) Device {
	w, local := v.where(virtual)
	return Device{Worker: w.Offer.Worker, Local: local, Island: w.Island, Number: w.numbers[local]}
}

func (v *View) where(virtual int) (w *Worker, local int) {
	r := &v.runs[v.at[virtual]]
	return r.worker, r.local + virtual - r.device
}

// lead returns the run of the first of some virtual devices, which local device that is, and how many devices follow
// one another in the run from there on.
func (v *View) lead(devices []int) (at *run, local, count int) {
	first := devices[0]
	at = &v.runs[v.at[first]]
	most := min(len(devices), at.device+at.count-first)
	for count = 1; count < most && devices[count] == first+count; count++ {
	}
	return at, at.local + first - at.device, count
}

// Number returns the number in the whole cluster of a virtual device. Its worker may have left, and another one may
// have got its number.
func (v *View) Number(virtual int) int {
	r := &v.runs[v.at[virtual]]
	return r.base + r.local + virtual - r.device
}

// SpanOf returns the index in Spans of the span that has a virtual device.
func (v *View) SpanOf(virtual int) int { return int(v.at[virtual]) }

// First returns the first virtual device of a span, by its index in Spans.
func (v *View) First(span int) int { return v.runs[span].device }

// Numbers returns the devices' numbers in the whole cluster. The worker of some may have left, and others may have got
// their numbers.
func (v *View) Numbers() (all Numbers) {
	for _, r := range v.runs {
		for d := range r.count {
			all.Add(r.base + r.local + d)
		}
	}
	return all
}

// Span is a run of consecutive devices of one worker.
type Span struct {
	Worker uint64
	Local  int // the first
	Count  int
}

// Spans returns the view's devices, run-length coded.
func (v *View) Spans() []Span {
	spans := make([]Span, len(v.runs))
	for i, r := range v.runs {
		spans[i] = Span{Worker: r.worker.Offer.Worker, Local: r.local, Count: r.count}
	}
	return spans
}

// SpansOf returns some virtual devices run-length coded, in their order.
func (v *View) SpansOf(devices []int) []Span {
	var some View
	for len(devices) > 0 {
		at, local, count := v.lead(devices)
		some.add(at.worker, local, count)
		devices = devices[count:]
	}
	return slices.Clip(some.Spans())
}
