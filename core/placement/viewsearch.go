package placement

import (
	"fmt"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// ViewSearch is ViewOf in three steps: SearchView, Choose, TakeView. The second one takes longest, and may run in
// parallel with calls of the Map.
type ViewSearch struct {
	devices   int
	platforms []string
	of        []platformSearch
	moved     uint64 // Map.moved of then
}

// platformSearch is a ViewSearch's part for one platform, or for any.
type platformSearch struct {
	all     *View
	free    []candidate // that could be chosen
	several bool
	chosen  []candidate // of them; nil if there are too few
	err     error       // for this case
}

// SearchView begins a search for the devices of a view.
//
// Errors: those of ViewOf.
func (m *Map) SearchView(devices int, platforms ...string) (*ViewSearch, error) {
	s := &ViewSearch{devices: devices, platforms: platforms, moved: m.moved}
	if len(platforms) == 0 {
		return s, m.searchView(s)
	}
	for _, p := range platforms {
		if err := m.searchView(s, p); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// searchView adds a platform, or any, to a search.
func (m *Map) searchView(s *ViewSearch, platform ...string) error {
	all, devices := m.View(platform...), s.devices
	there := fmt.Sprint(all.Len())
	if len(platform) > 0 && len(m.Platforms()) > 1 {
		there += " of platform " + platform[0]
	}
	there += " in " + status.Count(len(all.runs), "worker")
	switch {
	case devices < 1:
		return status.New(status.InvalidArgument, "a session of %s was asked for; expected at least 1",
			status.Count(devices, "device"))
	case devices > all.Len():
		return status.New(status.ResourceExhausted, "a session of %s was asked for, and the cluster has %s; start more "+
			"workers, or ask for fewer devices", status.Count(devices, "device"), there)
	}
	found := &m.scratch.found
	if err := m.candidates(found, &Request{View: all, Want: Want{Devices: devices}}, nil, nil); err != nil {
		return err
	}
	p := platformSearch{all: all, several: found.several, err: status.New(status.ResourceExhausted, "a session of %s was "+
		"asked for, and of the %s too many are in exclusive slices, or kept for a while for requests that wait; \"pathways "+
		"queue\" shows whose; pass wait= to wait for them, or ask for fewer devices", status.Count(devices, "device"), there)}
	p.free, m.scratch.free = found.unreserved(m.scratch.free[:0], m.queue.reserved), nil
	s.of = append(s.of, p)
	return nil
}

// Choose chooses devices. It may run in parallel with calls of the Map.
func (s *ViewSearch) Choose() {
	for i := range s.of {
		p := &s.of[i]
		p.chosen = new(chooser).choose(p.free, Want{Devices: s.devices}, p.several)
	}
}

// TakeView is ViewOf, with the devices that a search has chosen if they are still as they were then. The search may be
// nil.
func (m *Map) TakeView(s *ViewSearch, devices int, platforms ...string) (*View, error) {
	if s == nil || s.devices != devices || !slices.Equal(s.platforms, platforms) || !m.stands(s) {
		return m.ViewOf(devices, platforms...)
	}
	return m.take(s)
}

// stands reports whether no worker has come or gone since a search began, and nothing happened to the devices that it
// has chosen.
func (m *Map) stands(s *ViewSearch) bool {
	if s.moved != m.moved {
		return false
	}
	for i := range s.of {
		p := &s.of[i]
		if p.chosen == nil || slices.ContainsFunc(p.chosen, m.haveChanged) {
			return false
		}
	}
	return true
}

// haveChanged reports whether something happened to free devices since they became a candidate for a view.
func (m *Map) haveChanged(c candidate) bool {
	for number := int(c.number); number < int(c.number+c.count); number++ {
		l := &m.loads[number]
		if l.exclusive != nil || l.cost(false) != c.cost || m.queue.reserved.Has(number) {
			return true
		}
	}
	return false
}

// take makes the view of the devices that a search has chosen.
func (m *Map) take(s *ViewSearch) (*View, error) {
	m.scratch.free = s.of[0].free
	v := &View{sized: true, at: make([]int32, 0, s.devices*len(s.of))}
	for i := range s.of {
		p := &s.of[i]
		if p.chosen == nil {
			return nil, p.err
		}
		for _, c := range p.chosen {
			w, local := p.all.where(int(c.device))
			v.add(w, local, int(c.count))
		}
	}
	m.countView(v, +1)
	return v, nil
}
