package worker

import (
	"time"

	"github.com/openpathways/pathways/core/status"
)

// A computation cannot be ended from outside: neither XLA's CPU client nor CUDA has a
// call for it, and only the end of the process frees the device. As long as its session
// lives that is the user's affair. Once the session has gone nothing reads what it
// computes, and only the worker can end it.

// overdue returns the computation for which the worker has to restart, or nil: one whose session ended after ago or
// earlier, and which has been the oldest of its device for as long. A computation behind another session's does not
// count, since that one may be the slow one; nor does a session whose computations end one after the other.
func overdue(all []Running, after time.Duration) *Running {
	for i := range all {
		if r := &all[i]; after > 0 && r.Gone >= after && r.Since >= after {
			return r
		}
	}
	return nil
}

// evict tells the controller that this process restarts and its arrays are lost, and
// then has it do so.
func (w *Worker) evict(r *Running) {
	where := devices(r.Devices)
	why := status.New(status.DataLoss,
		"worker %s restarted, and the arrays on it are lost: %s of %s, which has ended, has run on %s for %v and "+
			"cannot be ended in another way (--evict-after is %v); pathways.events() tells when a worker takes its place, and "+
			"the arrays can then be made again",
		w.config.Name, r, owner(r.Session, r.Client), where, r.Since.Round(time.Second), w.config.EvictAfter)
	w.log.Error("this worker restarts", "worker", w.config.Name, "reason", why)
	w.goodbye(why)
	w.cancel(why)
	w.conn.Close() // waits until that is sent, within bounds
	w.config.Evict(why)
}
