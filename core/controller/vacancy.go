package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// An elastic session (Hello.elastic) may have more devices than the cluster has. Behind the additional ones are
// vacancies: records of workers that count as gone from the start. They are like the first worker of the first island
// of the session's platform: in its island, with as many devices of the same kinds and memories. They are treated like
// lost workers: operations that use their devices fail, with NOT_FOUND, and a worker that is like them takes their
// place as soon as it joins (rebind.go).

// vacant is the name of a vacancy.
const vacant = "a worker that has yet to come"

// maxVacant bounds the devices of a session that have no worker yet, since each takes memory of the controller.
const maxVacant = 4096

// elasticView returns a view of so many devices. Those beyond all devices of the platform that the cluster has are
// vacant.
func (st *State) elasticView(devices int, all *placement.View, platform string) (*placement.View, error) {
	there := all.Len()
	missing := devices - there
	switch {
	case missing <= 0:
		return st.layout.ViewOf(devices, platform)
	case missing > maxVacant:
		return nil, status.New(status.InvalidArgument, "an elastic session of %s was asked for, and the cluster has %d; "+
			"at most %d may have no worker yet", status.Count(devices, "device"), there, maxVacant)
	}
	view, err := st.layout.ViewOf(there, platform)
	if err != nil {
		return nil, err
	}
	spans, left := view.Spans(), map[uint64]*placement.Worker{}
	st.layout.Retire(view)
	like := st.processes[all.Device(0).Worker]
	why := status.New(status.NotFound, "this device has no worker yet: the session asked for %s with elastic=True, "+
		"and the cluster had %d; try again when pathways.events() says that a worker has come",
		status.Count(devices, "device"), there)
	for missing > 0 {
		w, placed, err := st.addVacancy(like, why)
		if err != nil {
			st.releaseUnused()
			return nil, err
		}
		left[w.process.Number] = placed
		n := min(missing, len(w.offer.Devices))
		spans = append(spans, placement.Span{Worker: w.process.Number, Count: n})
		missing -= n
	}
	return st.layout.ViewAs(spans, true, 1, left), nil
}

// addVacancy makes a vacancy that is like a worker.
func (st *State) addVacancy(like *worker, why error) (*worker, *placement.Worker, error) {
	h := &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: vacant, Versions: like.hello.Versions,
		Worker: &wire.WorkerOffer{Island: like.offer.Island, Platform: proto.CloneOf(like.offer.Platform),
			Fingerprint: like.offer.Fingerprint}}
	for _, d := range like.offer.Devices {
		h.Worker.Devices = append(h.Worker.Devices, proto.CloneOf(d))
	}
	st.process++
	w, placed, err := st.leftWorker(h, vacant, st.process)
	if err != nil {
		return nil, nil, err
	}
	w.goes(why)
	st.keepLoss(w)
	return w, placed, nil
}

// leftWorker makes a worker that has left.
func (st *State) leftWorker(h *wire.Hello, name string, process uint64) (*worker, *placement.Worker, error) {
	w, err := st.newWorker(h, name, process)
	if err != nil {
		return nil, nil, err
	}
	placed := st.layout.Recall(w.placed())
	st.seat(w, placed)
	st.workers[w.slot] = w
	return w, placed, nil
}

// releaseUnused frees the slots of all workers that have gone and that no session needs.
func (st *State) releaseUnused() {
	for _, w := range st.workers {
		if w != nil {
			st.release(w)
		}
	}
}

// vacanciesOf tells a session's client which of its workers have not come yet.
func (st *State) vacanciesOf(s *session, m *wire.Welcome) {
	s.workers.each(func(slot int) {
		if w := st.workers[slot]; w.gone != nil {
			m.Vacant, m.Vacancy = append(m.Vacant, w.process.Number), wire.Of(w.gone)
		}
	})
}
