package controller

import (
	"fmt"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// A session may still name an array, or a shard of one, that no worker has reported after the controller started again.
// It was freed, donated or failed before, or was lost with a worker. The controller cannot tell which, so its errors
// name each of these.

// forgottenShard returns the error for a read of a shard that no worker has reported, although some reported other
// shards of its array.
func (s *session) forgottenShard(id uint64) error {
	return status.New(status.DataLoss, "a part of array %d is not there: %s", id, s.forgotten)
}

// forgottenArray returns the error for a read of an array of which no worker has reported a shard, in a session that
// began before the controller started again.
func (s *session) forgottenArray(id uint64) error {
	return status.New(status.DataLoss, "array %d is not there: %s", id, s.forgotten)
}

// noteMissing records why arrays of a session may be missing: the workers with which they may have been lost.
func (st *State) noteMissing(s *session) {
	var where []string
	s.workers.each(func(slot int) {
		if w := st.workers[slot]; w.gone != nil && w.name != vacant {
			where = append(where, fmt.Sprintf("it was on worker %s, which was lost%s (%v)", w.name, st.clock(" by"), w.why))
		}
	})
	const gone, again = "it was freed, moved or failed before the controller started again", "make it again"
	if s.forgotten = gone + "; " + again; where != nil {
		s.forgotten = strings.Join(append(where, gone), ", or ") + "; " + onceReplaced
	}
}
