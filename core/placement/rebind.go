package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// # Views have epochs
//
// The number of a session's devices never changes, and a View does not change either. When a worker has left and
// another one takes its place, the session gets a new View, that of the next epoch, in which all other devices are as
// they were.
//
// A worker takes the place of another as a whole, device by device in their local order, so programs that were compiled
// for consecutive devices of one worker stay valid. It has to match the other: the same island, fingerprint, number of
// devices, kinds and memories. It must not have devices in the view already, and none of its devices may be kept for
// others. If it gets devices of an exclusive slice, no other session may have a slice, arrays or computations on these.
// If there are several, one with the name of the lost worker is preferred, since that is the same worker started again;
// then one whose devices are in the fewest slices and views of a fixed size.

// Epoch returns which view of its session this is: 1, 2, 3 …
func (v *View) Epoch() uint64 { return v.epoch + 1 }

// Rebind returns the session's view of the next epoch, nil if no worker can take the place of one that has left. The
// session's slices and requests belong to that view from then on, and it has to be ended by Retire instead of the view
// before. The caller may exclude workers by usable.
func (m *Map) Rebind(session uint32, v *View, usable func(worker uint64) bool, occupied Occupied) *View {
	known := m.compare(v)
	if len(known.free) == 0 || len(known.lost) == 0 {
		return nil
	}
	free, by := known.free, map[*Worker]*Worker{}
	for _, i := range known.lost {
		lost := v.runs[i].worker
		if _, looked := by[lost]; looked {
			continue
		}
		shared := m.sharedFor(session, lost, occupied)
		by[lost] = m.replacement(lost, free, func(w *Worker) bool { return usable(w.Offer.Worker) && !shared(w) })
		free = slices.DeleteFunc(slices.Clone(free), func(w *Worker) bool { return w == by[lost] })
	}
	maps.DeleteFunc(by, func(_, w *Worker) bool { return w == nil })
	if len(by) == 0 {
		return nil
	}
	if known.next == nil || !maps.Equal(known.by, by) {
		next := &View{runs: slices.Clone(v.runs), at: v.at, sized: v.sized, epoch: v.epoch + 1}
		for _, i := range known.lost {
			if w := by[v.runs[i].worker]; w != nil {
				next.runs[i].worker, next.runs[i].base = w, w.First
			}
		}
		known.by, known.next = by, next
	}
	m.move(session, v, known.next)
	return known.next
}

// sharedFor returns a function that reports whether other sessions have slices, arrays or computations on those devices
// of a worker that would be in exclusive slices of a session, if it took the place of the lost one.
func (m *Map) sharedFor(session uint32, lost *Worker, occupied Occupied) func(*Worker) bool {
	var alone []int // local numbers
	var used Numbers
	if mine := m.holders[session]; mine != nil {
		for _, s := range mine.slices {
			for _, d := range s.Devices {
				if w, local := s.View.where(d); w == lost && s.Want.Exclusive {
					alone = append(alone, local)
				}
			}
		}
	}
	if len(alone) > 0 && occupied != nil {
		used = occupied(session)
	}
	return func(w *Worker) bool {
		return slices.ContainsFunc(alone, func(local int) bool {
			l := &m.loads[w.First+local]
			return l.granted > 0 || l.viewed > 0 || used.Has(w.First+local)
		})
	}
}

// compare finds what a view has of the workers that are there, and lacks.
func (m *Map) compare(v *View) *same {
	known := &m.same
	if known.view == v {
		return known
	}
	known.view, known.free, known.lost, known.by, known.next = v, nil, nil, nil, nil
	m.mark++
	for i, r := range v.runs {
		if r.worker.mark = m.mark; !m.isHere(r.worker, r.base) {
			known.lost = append(known.lost, i)
		}
	}
	for _, is := range m.islands {
		for _, w := range is.members {
			if w.mark != m.mark {
				known.free = append(known.free, w)
			}
		}
	}
	return known
}

// replacement returns the one of some workers that takes the place of one which has left; nil if there is none.
func (m *Map) replacement(lost *Worker, free []*Worker, usable func(*Worker) bool) (best *Worker) {
	use := func(w *Worker) (n int32) {
		for local := range w.Devices {
			l := &m.loads[w.First+local]
			n += l.granted + l.viewed
		}
		return n
	}
	other := func(w *Worker) int {
		if w.Name == lost.Name {
			return 0
		}
		return 1
	}
	for _, w := range free {
		if w.Island != lost.Island || !w.isLike(lost) || !usable(w) || m.isKept(w) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(other(w), other(best)), cmp.Compare(use(w), use(best))) < 0 {
			best = w
		}
	}
	return best
}

// isLike reports whether a worker can do what another one of its island did.
func (w *Worker) isLike(o *Worker) bool {
	return w.Fingerprint == o.Fingerprint && w.Platform == o.Platform && w.Devices == o.Devices &&
		slices.Equal(w.Kinds, o.Kinds) && slices.Equal(w.Memories, o.Memories)
}

// Lacks says for people which devices of a session's view have no worker, what kind of worker would take the place of
// the first, and why no worker that is there does; "" if all have one.
func (m *Map) Lacks(session uint32, v *View, occupied Occupied) string {
	devices, workers := 0, map[*Worker]bool{}
	var first *Worker
	for _, r := range v.runs {
		if !m.isHere(r.worker, r.base) {
			devices += r.count
			workers[r.worker] = true
			first = cmp.Or(first, r.worker)
		}
	}
	if first == nil {
		return ""
	}
	text := fmt.Sprintf("%d of its %s wait for %s of island %s, with %s each", devices, status.Count(v.Len(), "device"),
		status.Count(len(workers), "worker"), first.Island.Name, first.describeDevices())
	shared := m.sharedFor(session, first, occupied)
	for _, w := range m.compare(v).free {
		switch {
		case w.Island != first.Island:
			text += fmt.Sprintf("; %s is of island %s", w.Name, w.Island.Name)
		case w.Devices != first.Devices || !slices.Equal(w.Kinds, first.Kinds):
			text += fmt.Sprintf("; %s has %s", w.Name, w.describeDevices())
		case !w.isLike(first):
			text += fmt.Sprintf("; %s has other memories, or another plugin or processor", w.Name)
		case m.isKept(w):
			text += fmt.Sprintf("; %s is in an exclusive slice, or kept for one", w.Name)
		case shared(w):
			text += fmt.Sprintf("; %s is used by other sessions, and is to be in an exclusive slice", w.Name)
		default:
			continue // it is about to take a place
		}
		return text
	}
	return text
}

// describeDevices says for people how many devices of which kind a worker has.
func (w *Worker) describeDevices() string {
	text := status.Count(w.Devices, "device")
	kinds := slices.Compact(slices.Clone(w.Kinds))
	if len(kinds) == 0 || kinds[0] == "" {
		return text
	}
	return text + " of kind " + strings.Join(kinds, ", ")
}

// isKept reports whether some device of a worker is in an exclusive slice, or kept for a request for one.
func (m *Map) isKept(w *Worker) bool {
	for number := w.First; number < w.First+w.Devices; number++ {
		if m.loads[number].exclusive != nil || m.queue.reserved.Has(number) {
			return true
		}
	}
	return false
}

// move replaces the view of a session.
func (m *Map) move(session uint32, from, to *View) {
	m.queue.search.cancel()
	if mine := m.holders[session]; mine != nil {
		for _, s := range mine.slices {
			m.count(s, -1)
			s.View = to
			m.count(s, +1)
		}
		for _, r := range mine.requests {
			r.View = to
		}
	}
	if to.sized {
		m.countView(from, -1)
		m.countView(to, +1)
	}
}
