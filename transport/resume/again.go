package resume

import (
	"math/rand/v2"
	"time"

	"github.com/openpathways/pathways/core/status"
)

// Pauses between attempts to connect again: twice as long each time.
const (
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Second
)

// Pause returns how long a link waits after an attempt, counted from 0: half of the pause more or less, so that links
// that broke together do not come back together. The time follows from the link's number, so that a simulation repeats.
func Pause(link uint64, attempt int) time.Duration {
	d := pauseMax
	if attempt < 7 { // pauseMin doubled so often is above pauseMax
		d = min(d, pauseMin<<attempt)
	}
	return d/2 + time.Duration(rand.New(rand.NewPCG(link, uint64(attempt))).Int64N(int64(d)))
}

// Outlasts reports whether a link outlives an error of its connection: the connection is lost, and the peer has broken
// no rule.
func Outlasts(err error) bool {
	switch status.CodeOf(err) {
	case status.Unavailable, status.Cancelled, status.DeadlineExceeded:
		return true
	}
	return false
}

// Passes reports whether a later attempt may succeed after one failed with err.
func Passes(err error) bool {
	switch status.CodeOf(err) {
	case status.Unavailable, status.DeadlineExceeded, status.Aborted, status.ResourceExhausted:
		return true
	}
	return false
}
