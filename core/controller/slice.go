package controller

import (
	"fmt"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// slice grants a session a slice, or chooses its devices again.
func (st *State) slice(s *session, m *wire.SliceRequest) {
	var granted *placement.Slice
	var err error
	if m.Devices == 0 {
		granted, err = st.layout.Remap(s.id, m.Slice, s.view)
	} else {
		w := placement.Want{Devices: int(m.Devices), Island: m.Island, Kind: m.Kind}
		for _, n := range m.Topology {
			w.Topology = append(w.Topology, int(n))
		}
		granted, err = st.layout.Grant(s.id, m.Slice, s.view, w)
	}
	answer := &wire.SliceAnswer{Slice: m.Slice, Status: wire.Of(err)}
	if err != nil {
		st.note(s.about(wire.EventDenied), fmt.Sprintf("%s did not get slice %d", s.owner(), m.Slice), err)
	} else {
		for _, d := range granted.Devices {
			answer.Devices = append(answer.Devices, uint32(d))
		}
		st.note(s.about(wire.EventGranted), fmt.Sprintf("%s got slice %d, of %s", s.owner(), m.Slice,
			status.Count(len(granted.Devices), "device")), nil)
	}
	st.send(s.to(), wire.KindSliceAnswer, answer)
}

// releaseSlices ends the grants of slices that a session does not need any more.
func (st *State) releaseSlices(s *session, numbers []uint64) {
	for _, number := range numbers {
		if st.layout.Release(s.id, number) {
			st.note(s.about(wire.EventReleased), fmt.Sprintf("%s released slice %d", s.owner(), number), nil)
		}
	}
}

// spans writes devices in their order, run-length coded.
func spans(all []placement.Span) []*wire.Span {
	out := make([]*wire.Span, len(all))
	for i, span := range all {
		out[i] = &wire.Span{Worker: span.Worker, Local: uint32(span.Local), Count: uint32(span.Count)}
	}
	return out
}
