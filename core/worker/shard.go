package worker

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

type deviceBuffer = device.Buffer

// table is the shards of one session on one device, by object.
type table struct {
	session uint32
	shards  map[uint64]*shard
	// lost are errors of what failed when nobody could name it any more: runs that
	// had begun read it.
	lost map[uint64]error
}

// maxLost bounds table.lost; where there is more, errors lose the name of what
// failed first.
const maxLost = 1024

// fail ends a shard that a run has promised.
func (t *table) fail(object uint64, err error) {
	if s := t.shards[object]; s != nil {
		s.fail(err)
		return
	}
	if t.lost == nil || len(t.lost) >= maxLost {
		t.lost = map[uint64]error{}
	}
	t.lost[object] = err
}

// failure is why a shard that was promised has no contents, nil where it has.
func (t *table) failure(object uint64) error {
	if s := t.shards[object]; s == nil {
		return t.lost[object]
	} else if s.state == failed && s.err != errDonated {
		return s.err
	}
	return nil
}

// shard is one object's part on one device. The device's queue owns it.
type shard struct {
	state   state
	freed   bool // nobody can name it any more
	readers int  // copies that have yet to be begun by the driver
	buf     device.Buffer
	err     error
	maker   uint64  // the island's number of the gang that makes it, where that counts
	charge  *charge // nil where its bytes are not counted
}

type state uint8

const (
	pending state = iota // bytes are on their way
	ready                // the driver has it, or has promised it
	failed
)

// table gives a session's shards.
func (q *queue) table(session uint32) *table {
	if t := q.last; t != nil && t.session == session {
		return t
	}
	t := q.tables[session]
	if t == nil {
		t = &table{session: session, shards: map[uint64]*shard{}}
		q.tables[session] = t
	}
	q.last = t
	return t
}

// add makes a pending shard.
func (q *queue) add(session uint32, object uint64) *shard {
	var s *shard
	if n := len(q.spare) - 1; n >= 0 {
		s, q.spare = q.spare[n], q.spare[:n]
	} else {
		s = new(shard)
	}
	t := q.table(session)
	if was := t.shards[object]; was != nil { // an object made twice: a session harms itself alone
		q.remove(was)
	} else {
		q.shards.Add(1)
	}
	t.shards[object] = s
	return s
}

// lose makes a shard that failed.
func (q *queue) lose(session uint32, object uint64, err error) {
	q.add(session, object).fail(err)
}

// fail ends a shard that has no contents, or whose contents are an error.
func (s *shard) fail(err error) {
	if s.buf != nil && s.readers == 0 {
		s.buf.Close()
		s.buf = nil
	}
	s.charge.leaves()
	if s.buf == nil {
		s.charge.goes()
	}
	s.state, s.err = failed, err
}

// remove lets go of a shard that is in no table any more.
func (q *queue) remove(s *shard) {
	s.freed = true
	s.charge.leaves()
	if s.readers > 0 || s.state == pending {
		return // who reads or brings it comes back
	}
	q.bury(s)
}

func (q *queue) bury(s *shard) {
	if s.buf != nil {
		s.buf.Close()
	}
	s.charge.goes()
	*s = shard{}
	if len(q.spare) < 256 {
		q.spare = append(q.spare, s)
	}
}

// read ends a copy's use of a shard.
func (q *queue) read(s *shard) {
	s.readers--
	switch {
	case s.readers > 0:
	case s.freed:
		q.bury(s)
	case s.state == failed && s.buf != nil:
		s.buf.Close()
		s.buf = nil
		s.charge.goes()
	}
}

// came ends a pending shard: with a buffer, or with an error.
func (q *queue) came(s *shard, buf device.Buffer, err error) {
	s.buf, s.err, s.state = buf, err, ready
	if err != nil {
		s.state = failed
		s.charge.goes()
	}
	if s.freed && s.readers == 0 {
		q.bury(s)
	}
}

// find gives a shard that is there, nil and no error where it is pending.
func (q *queue) find(t *table, object uint64) (*shard, error) {
	s := t.shards[object]
	switch {
	case s == nil:
		return nil, status.New(status.NotFound, "array %d has no shard on device %d of worker %s: it was freed, or never put there", object, q.local, q.w.config.Name)
	case s.state == pending:
		return nil, nil
	case s.state == failed:
		return nil, s.err
	}
	return s, nil
}

// free lets go of objects.
func (q *queue) free(g *gang) {
	t := q.table(g.session)
	for _, object := range g.work.(*free).objects {
		if s := t.shards[object]; s != nil {
			delete(t.shards, object)
			q.shards.Add(-1)
			q.remove(s)
		}
	}
}

// leave is the work of what comes behind the last parts of a session.
type leave struct{}

// leave lets go of all objects of a session that has ended, and again of those
// that its parts which wait here are still to fail.
func (q *queue) leave(session uint32) {
	q.drop(session)
	if q.head < len(q.todo) {
		q.todo = append(q.todo, part{g: &gang{w: q.w, session: session, work: leave{}}})
	}
}

// drop lets go of all objects of a session.
func (q *queue) drop(session uint32) {
	t := q.tables[session]
	if t == nil {
		return
	}
	delete(q.tables, session)
	q.last = nil
	q.shards.Add(-int64(len(t.shards)))
	for _, s := range t.shards {
		q.remove(s)
	}
}
