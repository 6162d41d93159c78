package devicequeue

import "fmt"

// checkedObjects is for how many objects known the queue is checked at every call of Next.
const checkedObjects = 128

// checkOften calls check at every Next while few objects are known, and less often the more
// there are, so that its cost stays that of checkedObjects.
func (q *Queue) checkOften() {
	if q.sinceCheck++; q.sinceCheck*checkedObjects >= q.objects {
		q.sinceCheck = 0
		q.check()
	}
}

// check panics where the Queue's own rules do not hold. It runs in this package's tests
// after every event, and under the build tag invariants.
func (q *Queue) check() {
	objects, used, leaving := 0, int64(0), int64(0)
	for session, t := range q.tables {
		if t.session != session {
			panic(fmt.Sprintf("devicequeue: session %d has the arrays of session %d", session, t.session))
		}
		objects += len(t.shards)
		for object, s := range t.shards {
			switch {
			case s.freed:
				panic(fmt.Sprintf("devicequeue: array %d was freed and is in a table", object))
			case s.readers < 0:
				panic(fmt.Sprintf("devicequeue: array %d is pinned %d times", object, s.readers))
			case (s.state == ready) != (s.Buffer != nil) && !(s.state == failed && s.readers > 0):
				panic(fmt.Sprintf("devicequeue: array %d is in state %d and has a buffer: %t", object, s.state, s.Buffer != nil))
			case s.charge != nil && s.charge.gone != (s.state == failed && s.Buffer == nil):
				panic(fmt.Sprintf("devicequeue: array %d is in state %d; its bytes have gone: %t", object, s.state, s.charge.gone))
			}
		}
	}
	for c := range q.room.arrays {
		used += c.bytes
		if c.going {
			leaving += c.bytes
		}
		if c.users < 0 || c.gone && c.users == 0 {
			panic(fmt.Sprintf("devicequeue: bytes of %s have %d users and are counted", c.what, c.users))
		}
	}
	switch {
	case objects != q.objects:
		panic(fmt.Sprintf("devicequeue: %d objects are counted, there are %d", q.objects, objects))
	case used != q.room.used || leaving != q.room.leaving:
		panic(fmt.Sprintf("devicequeue: %d bytes are counted and %d of them leaving, there are %d and %d",
			q.room.used, q.room.leaving, used, leaving))
	case q.flying != q.flights-len(q.spareFlights) || q.flying > q.config.Window:
		panic(fmt.Sprintf("devicequeue: %d computations are counted, %d flights are in use, of a window of %d",
			q.flying, q.flights-len(q.spareFlights), q.config.Window))
	case q.begun < 0 || q.alone < 0 || q.alone > q.begun:
		panic(fmt.Sprintf("devicequeue: %d things have begun, %d of them alone", q.begun, q.alone))
	case q.head > len(q.parts) || q.head == len(q.parts) && q.head > 0:
		panic(fmt.Sprintf("devicequeue: %d of %d parts have gone", q.head, len(q.parts)))
	}
}
