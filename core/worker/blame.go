package worker

import "slices"

// This file finds out why a computation or a copy failed: mostly because what it read had failed, of whose error
// drivers keep the text alone. What made that knows the whole error, but the driver may tell of its end later.

// making is what the driver has under way that makes objects of a session on a device.
type making struct {
	session      uint32
	first, count uint64   // the objects
	ends         []func() // what waits for its end
}

// makes tells that the driver makes objects from here on, until made.
func (q *queue) makes(m *making, session uint32, first uint64, count int) {
	m.session, m.first, m.count = session, first, uint64(count)
	q.making = append(q.making, m)
}

// made tells that objects are there, or that the state machine knows why they are not.
func (q *queue) made(m *making) {
	i := slices.Index(q.making, m)
	if i < 0 {
		return
	}
	q.making = slices.Delete(q.making, i, i+1)
	for _, end := range m.ends {
		end()
	}
}

// blame finds out why the driver failed to read objects, and calls then with that: the error of the first of them that
// has failed, or else err, the driver's. It waits for the end of what makes them, which began before and waits for
// nothing behind it. The queue's owner calls it, and then.
func (q *queue) blame(session uint32, objects []uint64, err error, then func(error)) {
	if why := q.state.Cause(session, objects); why != nil {
		then(why)
		return
	}
	for _, m := range q.making {
		if m.session == session && slices.ContainsFunc(objects, m.has) {
			m.ends = append(m.ends, func() { q.blame(session, objects, err, then) })
			return
		}
	}
	then(err)
}

func (m *making) has(object uint64) bool { return object-m.first < m.count }
