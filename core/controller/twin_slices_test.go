package controller

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Slices of the twin's clients, over starts of the controller. slice_random_test.go has tenants with quotas, too.

// twinSlices are the slices of a client.
type twinSlices struct {
	last  uint64
	waits map[uint64]*wire.SliceRequest // by slice
	has   map[uint64][]uint32
	alone map[uint64]bool
}

func newTwinSlices() twinSlices {
	return twinSlices{waits: map[uint64]*wire.SliceRequest{}, has: map[uint64][]uint32{}, alone: map[uint64]bool{}}
}

// asksForSlice has a client ask for a slice.
func (w *twin) asksForSlice(c *twinClient) {
	s := &c.slices
	s.last++
	m := &wire.SliceRequest{Slice: s.last, Devices: uint32(rapid.IntRange(1, c.devices).Draw(w.t, "devices of slice")),
		Exclusive: rapid.IntRange(0, 2).Draw(w.t, "alone") == 0,
		WaitMs:    rapid.SampledFrom([]uint64{0, 20, wire.LongestWait}).Draw(w.t, "wait"),
		Priority:  int32(rapid.IntRange(-1, 1).Draw(w.t, "priority"))}
	s.waits[m.Slice] = m
	w.say(c.conn, wire.KindSliceRequest, m)
}

// remapsSlice has a client ask for other devices of a slice that it has.
func (w *twin) remapsSlice(c *twinClient) {
	s := &c.slices
	if number, _ := pick(w, s.has, "slice"); number != 0 && s.waits[number] == nil {
		s.waits[number] = &wire.SliceRequest{Slice: number}
		w.say(c.conn, wire.KindSliceRequest, s.waits[number])
	}
}

// releasesSlice has a client release a slice: also one that it waits for, or does not have any more.
func (w *twin) releasesSlice(c *twinClient) {
	s := &c.slices
	number := rapid.Uint64Range(1, s.last+1).Draw(w.t, "slice")
	delete(s.waits, number)
	delete(s.has, number)
	w.say(c.conn, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}})
}

// sliceAnswered takes what a client hears of a slice.
func (w *twin) sliceAnswered(c *twinClient, m *wire.SliceAnswer) {
	s := &c.slices
	asked := s.waits[m.Slice]
	switch {
	case m.Position > 0:
		return
	case asked == nil && w.mute[c.conn]: // the controller has not heard that it was released
		return
	case asked == nil:
		w.t.Fatalf("session %d is answered for slice %d, for which it does not wait: %v", c.session, m.Slice, m)
	}
	delete(s.waits, m.Slice)
	if m.Status.Err() != nil {
		return
	}
	if asked.Devices > 0 && len(m.Devices) != int(asked.Devices) {
		w.t.Fatalf("slice %d of %d devices got %v", m.Slice, asked.Devices, m.Devices)
	}
	if s.has[m.Slice] = m.Devices; asked.Devices > 0 {
		s.alone[m.Slice] = asked.Exclusive
	}
}

// slicesAgree checks that clients have the slices that the controller knows, and that no one else has an exclusive one.
func (w *twin) slicesAgree() {
	if w.st.comeback != nil {
		return
	}
	waiting := 0
	users, alone := map[int]int{}, map[int]bool{} // slices of each device of the cluster
	for _, conn := range slices.Sorted(maps.Keys(w.clients)) {
		c := w.clients[conn]
		s := w.st.sessions[c.session]
		if s == nil {
			continue
		}
		all := w.st.layout.Slices(s.id)
		statustest.MustEqual(w.t, len(all), len(c.slices.has),
			"session %d has slices %v, and the controller knows", s.id, c.slices.has)
		for _, slice := range all {
			if got := c.slices.has[slice.Number]; !slices.Equal(got, numbersOf(slice.Devices)) ||
				c.slices.alone[slice.Number] != slice.Want.Exclusive {
				w.t.Fatalf("slice %d of session %d has %v, its client was told %v", slice.Number, s.id, slice.Devices, got)
			}
			for _, d := range slice.Devices {
				if s.behind(uint32(d)).gone != nil {
					continue
				}
				number := s.number(uint32(d))
				users[number]++
				alone[number] = alone[number] || slice.Want.Exclusive
			}
		}
		for number, asked := range c.slices.waits {
			if asked.Devices == 0 {
				w.t.Fatalf("session %d has no answer about other devices of slice %d", s.id, number)
			}
			waiting++
		}
	}
	for number, n := range users {
		if alone[number] && n > 1 {
			w.t.Fatalf("device %d is in an exclusive slice, and in %d others", number, n-1)
		}
	}
	if waiting != len(w.st.asked) {
		w.t.Fatalf("%d requests for slices wait for their clients, %d for the controller", waiting, len(w.st.asked))
	}
}

// retellSlices says which slices a client has, and asks again for those that it waits for.
func (c *twinClient) retellSlices(m *wire.Rejoin, ask func(*wire.SliceRequest)) {
	s := &c.slices
	for _, number := range slices.Sorted(maps.Keys(s.waits)) {
		ask(s.waits[number])
	}
	named := slices.Collect(maps.Keys(s.has))
	for number, asked := range s.waits {
		if asked.Devices > 0 {
			named = append(named, number)
		}
	}
	slices.Sort(named)
	m.Slices = named
}
