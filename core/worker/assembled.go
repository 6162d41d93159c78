package worker

import "github.com/openpathways/pathways/core/wire"

// An assembled object is a name that a session has for shards of others. The goroutine that reads the connection, which
// takes operations apart, puts the members' names in its place: queues and devices know these alone. It does so in the
// order of messages, so a run reads what the name stood for when the run was submitted.

// assemble keeps what an assembled object stands for on the devices here.
func (w *Worker) assemble(session uint32, m *wire.Assemble) {
	members := make([]uint64, len(w.queues))
	next := 0
	for _, piece := range m.Pieces {
		for range piece.GetRows() {
			if next == len(m.Devices) {
				break
			}
			if q := w.device(session, m.Devices[next]); q != nil {
				members[q.local] = piece.Object
			}
			next++
		}
	}
	s := w.sessions[session]
	if s == nil {
		return // it has no devices
	}
	if s.assembled == nil {
		s.assembled = map[uint64][]uint64{}
	}
	s.assembled[m.Object] = members
}

// disband forgets those of some objects that were assembled. Runs that read them have the members' names by now.
func (w *Worker) disband(session uint32, objects []uint64) {
	if s := w.sessions[session]; s != nil && len(s.assembled) > 0 {
		for _, object := range objects {
			delete(s.assembled, object)
		}
	}
}

// readsAssembled reports whether a run reads what was assembled.
func (s *session) readsAssembled(objects []uint64) bool {
	if s == nil || len(s.assembled) == 0 {
		return false
	}
	for _, object := range objects {
		if s.assembled[object] != nil {
			return true
		}
	}
	return false
}
