package controller

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/wire"
)

// This file keeps what devices did in the last seconds, for viewers of the timeline. Workers know when each of their
// computations began and ended. Those that are watched report it with their heartbeats (wire.Watch, wire.Doing); the
// others report nothing. So a gang takes the same path whether its devices are watched or not. Reports are kept as they
// come and forgotten soon, and a viewer asks for few devices. So the controller pays for one message a second from each
// watched worker, however many gangs there are.

const (
	lookFor   = 5e9 // ns for which workers report after a look
	lookAgain = 1e9 // ns after which another look extends that
	// Older reports of a worker are forgotten, in ns. It bounds what is kept, too: see keepDoing.
	keepsDoing = 12e9
)

// The bars per heartbeat: for all devices of one look together, and at least and at most for each of them.
const (
	barsOfAll = 32 << 10
	leastBars = 256
	mostBars  = 4 << 10
)

// mostLanes bounds the devices of one look.
const mostLanes = 64

// doing is a worker's reports of its devices' work.
type doing struct {
	all   []*wire.Doing // that came lately, oldest first
	asked []int64       // until when it tells, by local device; nil: of none
	ahead int64         // what the controller's clock is ahead of its own, in nanoseconds
}

// Row is some devices of a worker, with local numbers from First.
type Row struct {
	w            *worker
	First, Count int
}

// Choose returns work that finds the rows of the devices that a look asks for, and how many there are to choose from.
// It may run in parallel with Step: what it reads of a worker does not change.
func (st *State) Choose(look *wire.Look) (work func() (rows []Row, devices int)) {
	all := st.present
	return func() (rows []Row, devices int) { return choose(look, slices.Clone(all)) }
}

func choose(look *wire.Look, all []*worker) (rows []Row, devices int) {
	all = slices.DeleteFunc(all, func(w *worker) bool {
		return look.Island != "" && w.island.name != look.Island || look.Worker != 0 && w.process.Number != look.Worker
	})
	slices.SortFunc(all, compareWorkers)
	skip, left := int(look.First), int(min(look.Most, mostLanes))
	for _, w := range all {
		n := len(w.offer.Devices)
		devices += n
		first := min(skip, n)
		skip -= first
		if count := min(n-first, left); count > 0 {
			rows, left = append(rows, Row{w, first, count}), left-count
		}
	}
	return rows, devices
}

// compareWorkers is the order of workers in reports.
func compareWorkers(x, y *worker) int {
	return cmp.Or(cmp.Compare(x.island.index, y.island.index), placement.CompareNames(x.name, y.name),
		cmp.Compare(x.process.Number, y.process.Number))
}

// look asks workers to report what devices do, from now on.
func (st *State) look(rows []Row) {
	lanes := 0
	for _, r := range rows {
		lanes += r.Count
	}
	st.looked = st.now + lookFor
	for _, r := range rows {
		if r.w.gone != nil {
			continue
		}
		d := &r.w.doing
		if d.asked == nil {
			*d = doing{asked: make([]int64, len(r.w.offer.Devices))}
		}
		m := &wire.Watch{Ms: lookFor / 1e6, Bars: uint32(min(max(barsOfAll/lanes, leastBars), mostBars))}
		for i := range r.Count {
			if until := &d.asked[r.First+i]; *until < st.now+lookFor-lookAgain {
				*until = st.now + lookFor
				m.Devices = append(m.Devices, uint32(r.First+i))
			}
		}
		if len(m.Devices) > 0 {
			st.send(r.w.to[:], wire.KindWatch, m)
		}
	}
}

// lookAway forgets what devices did once no browser asks any more.
func (st *State) lookAway() {
	if st.looked == 0 || st.now < st.looked {
		return
	}
	st.looked = 0
	for _, w := range st.workers {
		if w != nil {
			w.doing = doing{}
		}
	}
}

// clockSlack is how much later each message of a worker may seem to have come than the fastest so far, in nanoseconds:
// the most that the two clocks drift apart in a second.
const clockSlack = 100e3

// keepDoing keeps a worker's report of its devices' work, and forgets old ones. It ignores reports that were not asked
// for, or that come more often than heartbeats.
func (st *State) keepDoing(w *worker, m *wire.Doing) {
	d := &w.doing
	for len(d.all) > 0 && (st.now-d.all[0].NowNs-d.all[0].AheadNs > keepsDoing || len(d.all) >= mostDoing) {
		d.all = d.all[1:]
	}
	if d.asked == nil || st.looked == 0 {
		return
	}
	// A message that took long makes the worker's clock seem late, so the fastest message is the most accurate.
	if ahead := st.now - m.NowNs; len(d.all) == 0 || ahead < d.ahead+clockSlack {
		d.ahead = ahead
	} else {
		d.ahead += clockSlack
	}
	st.told++
	m.AheadNs, m.Number = d.ahead, st.told
	d.all = append(d.all, m)
}

// mostDoing bounds the messages that are kept from a worker: as many as come in the time that they are kept, at ten a
// second.
const mostDoing = 120

// Timeline returns what is known of the devices' work after a number.
func (st *State) Timeline(rows []Row, after uint64) *wire.Timeline {
	t := &wire.Timeline{NowNs: st.now, Newest: st.told, Shared: st.table != nil}
	for _, r := range rows {
		row := &wire.Timeline_Row{Island: r.w.island.name, Process: r.w.process, First: uint32(r.First),
			Count: uint32(r.Count)}
		for _, m := range r.w.doing.all {
			if m.Number > after {
				row.Doing = append(row.Doing, m)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	for _, s := range st.sessions {
		t.Owners = append(t.Owners, &wire.Timeline_Owner{Session: s.id, Tenant: s.tenant.terms.Name})
	}
	return t
}
