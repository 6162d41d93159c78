package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/tenant"
)

// Tenants of the twin's clients, and what waits for what on its workers.

// twinTenants are in each file of tenants: the sessions of one that was removed would end when the controller starts
// again.
var twinTenants = []string{"ada", "bob", "eve"}

// table draws a file of tenants.
func (w *twin) table() *tenant.Table {
	var text strings.Builder
	guaranteed := 0
	for _, name := range twinTenants {
		fmt.Fprintf(&text, "[tenants.%s]\nweight = %d\nclass = %q\n", name, rapid.IntRange(1, 9).Draw(w.t, "weight"),
			rapid.SampledFrom([]string{"high", "normal", "low"}).Draw(w.t, "class"))
		least := min(rapid.SampledFrom([]int{0, 0, 10, 50}).Draw(w.t, "guaranteed"), 90-guaranteed)
		if guaranteed += least; least > 0 {
			fmt.Fprintf(&text, "guaranteed = \"%d%%\"\n", least)
		}
		if most := rapid.SampledFrom([]int{0, 0, 1, 50}).Draw(w.t, "at most"); most > 0 {
			fmt.Fprintf(&text, "at-most = \"%d%%\"\n", max(most, least))
		}
		for _, quota := range []string{"device-memory", "host-memory"} {
			if bytes := rapid.SampledFrom([]int{0, 0, 4, 16}).Draw(w.t, quota); bytes > 0 {
				fmt.Fprintf(&text, "%s = \"%dB\"\n", quota, bytes)
			}
		}
		if devices := rapid.IntRange(0, 4).Draw(w.t, "slice-devices"); devices > 0 {
			fmt.Fprintf(&text, "slice-devices = %d\n", devices)
		}
	}
	return tableOf(dummy{}, text.String())
}

// tenantsChange has the controller read another file of tenants.
func (w *twin) tenantsChange() {
	w.config.Tenants = w.table()
	w.step(Event{Kind: Tenants, Table: w.config.Tenants})
}

// endable returns the gangs of a worker that can end: where workers keep the order of devices, those that wait for no
// other one there, nor on other workers.
func (w *twin) endable(worker *twinWorker) (gangs []uint64) {
	for _, gang := range slices.Sorted(maps.Keys(worker.gangs)) {
		if !w.inOrder || len(w.before(gang)) == 0 {
			gangs = append(gangs, gang)
		}
	}
	return gangs
}

// before returns the gangs for which a gang waits. On each of its workers a run waits for earlier runs on the same
// devices and, as what moves bytes does, for what makes the arrays that it reads. It begins on all of its workers
// together. The bytes of a put may come at any time.
func (w *twin) before(gang uint64) (others []uint64) {
	for _, worker := range w.workers {
		g := worker.gangs[gang]
		if g == nil {
			continue
		}
		for number, o := range worker.gangs {
			makes := o.session == g.session && slices.ContainsFunc(g.reads, func(object uint64) bool {
				a := worker.arrays[[2]uint64{uint64(g.session), object}]
				return a != nil && a.pending && slices.Contains(o.makes, object)
			})
			if number != gang && makes || number < gang && slices.ContainsFunc(g.runsOn, func(local uint32) bool {
				return slices.Contains(o.runsOn, local)
			}) {
				others = append(others, number)
			}
		}
	}
	slices.Sort(others)
	return slices.Compact(others)
}

// somethingWaits reports whether the controller holds operations, or runs wait for their turns.
func (w *twin) somethingWaits() bool {
	for _, is := range w.st.islands {
		if is.sched.Queued() > 0 {
			return true
		}
	}
	return len(w.st.held) > 0
}

// standstill says which gangs wait for which others.
func (w *twin) standstill() string {
	var text strings.Builder
	for _, number := range slices.Sorted(maps.Keys(w.workers)) {
		worker := w.workers[number]
		for _, gang := range slices.Sorted(maps.Keys(worker.gangs)) {
			g := worker.gangs[gang]
			fmt.Fprintf(&text, "\nprocess %d: gang %d, operation %d of session %d, waits for gangs %v", worker.process, gang,
				g.op, g.session, w.before(gang))
		}
	}
	for _, g := range w.st.held {
		fmt.Fprintf(&text, "\nthe controller holds operation %d of session %d: %+v", g.op, g.s.id, *g.held)
	}
	for _, is := range w.st.islands {
		for _, g := range is.held {
			fmt.Fprintf(&text, "\nisland %q has operation %d of session %d wait for its turn, until %d at most", is.name, g.op,
				g.s.id, is.sched.Due())
		}
	}
	return text.String()
}
