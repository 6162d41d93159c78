package worker

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// An error of a move says once where it happened, also where it has come from the move's other
// worker, or from what made the array, or has become the gang's.
func TestMoveErrorSaysOnceWhereItHappened(t *testing.T) {
	q := &queue{local: 1, w: &Worker{config: Config{Name: "w1"}}}
	g := newGang(q.w, 1, 1, 1, 0)
	g.work = &transfer{what: movingArray, trace: []byte("train.py:3")}
	lost := status.New(status.DataLoss, "no luck")
	const want = "no luck [moving an array, called at train.py:3, on device 1 of worker w1]"
	first := q.moving(g, lost)
	if first.Error() != want {
		t.Errorf("got %q, want %q", first, want)
	}
	far := status.New(status.DataLoss, "no luck [moving an array, on device 0 of worker w0]") // as it comes over the wire
	made := status.New(status.Internal, "no luck [step, called at train.py:2, on device 0 of worker w0]")
	for _, err := range []error{first, far, made} {
		if got := q.moving(g, err); got != err {
			t.Errorf("%q became %q", err, got)
		}
	}
	g.fail(lost)
	statustest.Equal(t, q.moving(g, lost), lost, "the gang's error became")
	if err := q.moving(newGang(q.w, 2, 2, 1, 0), nil); err != nil {
		t.Errorf("no error became %q", err)
	}
}
