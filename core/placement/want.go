package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// Want describes the slice that a session asks for.
type Want struct {
	Devices int
	// Topology holds the sizes of the slice's dimensions; their product is Devices. The
	// last dimension is placed on neighbors: consecutive devices of one worker, or, if
	// no worker has enough of them, of one island. If Topology is empty, any devices do.
	Topology []int
	// Island and Kind say where the devices are, and of which kind; "" means any. Without both they are of the first
	// platform of the view.
	Island, Kind string
	// Exclusive: no other session uses the devices while the slice has them. They are in no other slice of anyone, in no
	// other session's view of a fixed size, and Occupied by no other session.
	Exclusive bool
}

// MaxDimensions bounds the dimensions of a topology.
const MaxDimensions = 16

// Check returns an error for a Want that no cluster could satisfy.
//
// Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED for more than MaxGranted devices.
func (w Want) Check() error {
	if w.Devices < 1 {
		return status.New(status.InvalidArgument, "a slice of %s was asked for; it needs at least 1",
			status.Count(w.Devices, "device"))
	}
	if w.Devices > MaxGranted {
		return status.New(status.ResourceExhausted, "a slice of %s was asked for; a session may have %d in all",
			status.Count(w.Devices, "device"), MaxGranted)
	}
	if len(w.Topology) > MaxDimensions {
		return status.New(status.InvalidArgument, "a topology of %d dimensions was asked for; expected at most %d",
			len(w.Topology), MaxDimensions)
	}
	if len(w.Topology) == 0 {
		return nil
	}
	product := 1
	for _, n := range w.Topology {
		if n < 1 || n > w.Devices/product {
			product = 0
			break
		}
		product *= n
	}
	if product != w.Devices {
		return status.New(status.InvalidArgument,
			"topology %v does not have %s; expected positive sizes whose product is the number of devices", w.Topology,
			status.Count(w.Devices, "device"))
	}
	return nil
}

// wanted yields the runs that a slice may have devices of, with their indices, without checking the kind: those of
// workers that have not left, in the wanted island or, if neither island nor kind is given, of the view's first
// platform.
func (m *Map) wanted(v *View, w Want) iter.Seq2[int, *run] {
	return func(yield func(int, *run) bool) {
		var is *Island
		isWanted := false
		for i := range v.runs {
			at := &v.runs[i]
			if !m.isHere(at.worker, at.base) {
				continue
			}
			if at.island != is {
				is = at.island
				ofPlatform := w.Island != "" || w.Kind != "" || at.worker.Platform == v.runs[0].worker.Platform
				isWanted = ofPlatform && (w.Island == "" || w.Island == is.Name)
			}
			if isWanted && !yield(i, at) {
				return
			}
		}
	}
}

// enough returns an error if the view has fewer than the wanted devices, in use or not.
func (m *Map) enough(view *View, w Want) error {
	n := 0
	for _, at := range m.wanted(view, w) {
		if w.Kind == "" {
			n += at.count
			continue
		}
		for k := range at.count {
			if w.Kind == at.worker.kind(at.local+k) {
				n++
			}
		}
	}
	if n < w.Devices || n == 0 {
		return m.tooFew(view, w, n)
	}
	return nil
}

// tooFew is the error of a session that wants more devices than the n that could ever be granted to it.
func (m *Map) tooFew(view *View, w Want, n int) error {
	islands, kinds := map[string]int{}, map[string]int{} // devices by island; by kind, in the islands that match
	known, lost := w.Island == "", 0
	for _, at := range view.runs {
		name := at.island.Name
		here := w.Island == "" || w.Island == name
		known = known || here
		if !m.isHere(at.worker, at.base) {
			if here {
				lost += at.count
			}
			continue
		}
		islands[name] += at.count
		for k := range at.count {
			if here {
				kinds[at.worker.kind(at.local+k)]++
			}
		}
	}
	where := ""
	if w.Island != "" {
		where = fmt.Sprintf(" of island %s", status.Quote(w.Island))
	}
	gone := ""
	if lost > 0 {
		gone = fmt.Sprintf("; %d more have no worker now", lost)
	}
	switch {
	case !known:
		return status.New(status.InvalidArgument, "there is no island %s; there are %s", status.Quote(w.Island),
			counted(islands))
	case n == 0 && len(kinds) > 0:
		return status.New(status.InvalidArgument, "no device%s is of kind %s; there are %s", where,
			status.Quote(w.Kind), counted(kinds))
	case w.Kind != "":
		return status.New(status.ResourceExhausted, "a slice of %s of kind %s was asked for, and the session has %d%s%s",
			status.Count(w.Devices, "device"), status.Quote(w.Kind), n, where, gone)
	}
	return status.New(status.ResourceExhausted, "a slice of %s was asked for, and the session has %d%s%s",
		status.Count(w.Devices, "device"), n, where, gone)
}

// counted formats counts for people.
func counted(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), CompareNames) {
		parts = append(parts, fmt.Sprintf("%q with %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}
