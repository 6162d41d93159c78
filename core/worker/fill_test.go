package worker

import (
	"context"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/device"
)

// burnt is a buffer that has failed, and its event.
type burnt struct {
	device.Buffer
	err error
}

func (b burnt) Ready() device.Event { return spent{b.err} }

type spent struct{ err error }

func (spent) Ready() bool                  { return true }
func (e spent) Wait(context.Context) error { return e.err }
func (e spent) Then(f func(error))         { f(e.err) }

// Who reads a copy that had failed at once waits until it is known why.
func TestReaderOfACopyThatFailedAtOnceHasItsCause(t *testing.T) {
	q := &queue{w: &Worker{}, state: devicequeue.New(devicequeue.Config{Window: 1})}
	const session, object = 1, 5
	g := newGang(q.w, 1, 1, session, 0)
	q.state.Submit(devicequeue.Part{Gang: &devicequeue.Gang{ID: 1, Session: session, First: object, Owner: g,
		Recipe: &devicequeue.Recipe{Kind: devicequeue.Transfer, Makes: 1}}})
	s := q.state.Next(devicequeue.Facts{}).Flight.Made[0]
	raw, why := status.New(status.Internal, "dispatching"), status.New(status.Internal, "no luck [step]")
	var found func(error)
	same := func(err error) error { return err }
	cause := func(_ error, then func(error)) { found = then }
	var done, read error
	q.fill(g, object, s, burnt{err: raw}, same, cause, func(err error) { done = err })
	q.blame(session, []uint64{object}, raw, func(err error) { read = err })
	if done != nil || read != nil {
		t.Fatalf("before the cause is known: the copy ends with %v, its reader with %v", done, read)
	}
	found(why)
	statustest.Equal(t, done, why, "the copy ends with")
	statustest.Equal(t, read, why, "its reader ends with")
}
