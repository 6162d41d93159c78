package client

import (
	"cmp"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// JAX copies a sharded array to its devices shard by shard: one call for each, one behind the other. Such puts are
// gathered: they become the rows of one operation that makes one object. The first row is given its operation's number
// and object at once, and its message stays open: the next row joins it if it has the same shape and memory, a device
// that is not among the rows, and a place in what the session's tenant may have under way on the worker's machine: the
// rows of one operation need that at once, those of two do not. A row for a lost worker stays alone, and fails at once.
// Long rows are pushed at once, whether the message was sent or not. Short ones are put into memory that the workers
// read, and the message says where (lay); if a worker cannot read there, all of them leave with the message, in one
// write for each worker.
//
// The message is sent, and the put is closed
//
//   - before the next message of the session, but for frees that no operation carries along, which wait for it: so
//     operations still reach the controller in the order of their numbers, and an open put is always the session's
//     last operation;
//   - before a submission waits for credit, which may be this operation's;
//   - when every device of the session is a row;
//   - when SendPuts is called: a thread is about to wait for the array;
//   - when it has waited for long enough (sendLate), so that its bytes travel while the caller does something else. A
//     caller that was only kept off its processor is waited for (goesOn): on a busy machine its rows would become
//     operations of their own, each of which would hold memory while it waits for that of the next.
//
// All rows share the end of the operation, and its error. A worker that is lost meanwhile is no error, as long as
// another one is left: only its own rows are lost, see core/controller/loss.go. What else can happen to a row fails all
// of them: this process and a worker cannot reach each other, a worker or a device has no memory for it, or the caller
// has no bytes. Then an array is not what was asked for although its devices are there, and all that wait for it must
// hear that, not only those that read that row.

// How long an open put waits for a further row, or for someone who needs it: longer than JAX takes to slice the next
// row. A put whose rows are long is sent soon, since the workers ask for the bytes only then. For short ones it is
// enough that they leave some time later: a thread that waits sends them (SendPuts), and a timer for each put would
// wake an idle process.
const (
	gatherLong  = 2 * time.Millisecond
	gatherShort = 10 * time.Millisecond // between one and two of these
)

// maxHeld bounds the short rows that wait for their message: 4 MiB at most.
const maxHeld = 256

// maxRows bounds the rows of an open put, so that its message is far shorter than a frame.
const maxRows = 64 << 10

// Gathering is the caller's handle of a Put that further rows may join. Its methods are called with the session's lock
// held: they must not block, nor call the session.
type Gathering interface {
	// Join adds the row of another put, and returns false if the object has been released. If it returns true, the row
	// ends with the object's Token, and nothing is called of the row's own Gathering.
	Join(row *PutSpec) bool
	// Sent is called once: no further row joins.
	Sent()
}

// openPut is a put whose message has not been sent yet. remote.order guards it.
type openPut struct {
	op, object, token uint64
	shape             shape.Shape
	memory            string
	devices           []uint32
	put               *putting
	with              Gathering
	waited            bool  // for gatherShort
	thread            int32 // that makes it
	seen              stride
}

// stride is how far a thread has come with a put.
type stride struct {
	rows int
	took time.Duration // of a processor
}

// gathers reports whether a put may be gathered with others.
func (s *PutSpec) gathers() bool {
	return s.Gather != nil && len(s.Devices) == 1 && s.Lend == nil && utf8.ValidString(s.Memory)
}

// fits reports whether a put can be a further row of this one.
func (o *openPut) fits(s *PutSpec) bool {
	return o.memory == s.Memory && o.shape.DType == s.Shape.DType && slices.Equal(o.shape.Dims, s.Shape.Dims) &&
		len(o.devices) < maxRows && !slices.Contains(o.devices, s.Devices[0])
}

// hasHostMemory reports whether one more row of an open put is within what the session's tenant may have under way on
// the worker of its device.
func (r *remote) hasHostMemory(o *openPut, device uint32) bool {
	most := r.hostMemory.Load()
	if most == 0 {
		return true
	}
	rows := int64(1)
	for _, d := range o.devices {
		if r.worker(d) == r.worker(device) {
			rows++
		}
	}
	return o.shape.HostBytes() <= most/rows
}

// putRow numbers a put of one row: as a row of the open put, or as a new one, which it leaves open. Full reports
// whether no other row can join.
func (r *remote) putRow(s *PutSpec, put *putting) (op uint64, _ *putting, full bool, err error) {
	r.order.Lock()
	defer r.order.Unlock()
	alone := r.isLost(r.worker(s.Devices[0]))
	if o := r.open; o != nil && !alone && o.fits(s) && r.hasHostMemory(o, s.Devices[0]) && o.with.Join(s) {
		s.Object, s.Token, s.Gather = o.object, o.token, o.with
		r.mu.Lock()
		err, o.put.left = r.lost, o.put.left+1
		r.mu.Unlock()
		if err != nil {
			return 0, nil, false, err
		}
		o.devices = append(o.devices, s.Devices[0])
		return o.op, o.put, len(o.devices) == len(r.Devices()), nil
	}
	r.sendPut(false)
	if op, err = r.begin(pending{token: s.Token, put: put}); err != nil {
		return 0, nil, false, err
	}
	put.to = r.view.Load()
	r.takeFrees()
	r.leave()
	r.open = &openPut{op: op, object: s.Object, token: s.Token, memory: s.Memory, devices: slices.Clone(s.Devices),
		shape: shape.Shape{DType: s.Shape.DType, Dims: slices.Clone(s.Shape.Dims)}, put: put, with: s.Gather,
		thread: r.thread()}
	r.armGathering(gatherShort)
	return op, put, alone || len(r.Devices()) == 1, nil
}

// sendPut sends the open put, if there is one; if later is set, with the message that follows. The caller holds order.
func (r *remote) sendPut(later bool) {
	o := r.open
	if o == nil {
		return
	}
	r.open = nil
	// It encodes, since gathers has looked at its text, and fits into a frame. If it cannot be sent, the reader learns of
	// the end of the connection, too.
	laid, release := r.lay(o)
	r.buf, _ = proto.MarshalOptions{}.MarshalAppend(r.buf[:0], &wire.Put{Op: o.op, Object: o.object, Devices: o.devices,
		Laid: laid, Array: &wire.Array{Dtype: uint32(o.shape.DType), Dims: o.shape.Dims, Memory: o.memory}})
	r.remember(wire.KindPut, o.op, nil)
	_ = r.post(wire.KindPut, later)
	r.mu.Lock()
	o.put.unsent = false
	_, underWay := r.pending[o.op]
	err, rows := o.put.err, o.put.rows
	o.put.rows = nil
	if underWay {
		o.put.release, release = release, nil
	}
	r.mu.Unlock()
	if release != nil {
		release()
	}
	switch {
	case !underWay: // the operation, or the session, has ended
	case err != nil: // bytes of a row were lost before
		r.abort(o.op, err)
	case laid != nil:
	default:
		r.postRows(o, rows)
	}
	o.with.Sent()
}

// lay puts the rows of a put into memory that their workers read, if all rows are short and all workers can read it:
// then no message goes to a worker but the controller's. It returns their place for the message, and a function to call
// when the operation has ended.
func (r *remote) lay(o *openPut) (laid *wire.Laid, release func()) {
	if r.shelf == nil {
		return nil, nil
	}
	r.mu.Lock()
	rows, err := o.put.rows, o.put.err
	r.mu.Unlock()
	first, last := slices.Min(o.devices), slices.Max(o.devices)
	size, n := o.shape.HostBytes(), int64(last-first)+1
	if err != nil || len(rows) < len(o.devices) || size == 0 || n > 2*int64(len(rows)) {
		return nil, nil
	}
	var workers []uint64
	for _, row := range rows {
		if !slices.Contains(workers, row.worker) {
			workers = append(workers, row.worker)
		}
	}
	b, offset, ok := r.shelf.Lay(workers, n*size)
	if !ok {
		return nil, nil
	}
	for _, row := range rows {
		copy(b.Data[(int64(row.Key.Part)-int64(first))*size:], row.Data)
	}
	return &wire.Laid{Offset: uint64(offset), First: first}, b.Release
}

// postRows sends the short rows of a put.
func (r *remote) postRows(o *openPut, rows []shortRow) {
	slices.SortStableFunc(rows, func(a, b shortRow) int { return cmp.Compare(a.worker, b.worker) })
	var blocks []transport.Post
	for len(rows) > 0 {
		worker, n := rows[0].worker, 0
		blocks = blocks[:0]
		for ; n < len(rows) && rows[n].worker == worker; n++ {
			blocks = append(blocks, rows[n].Post)
		}
		for _, b := range blocks[transport.PostAll(r.exchange, worker, blocks):] {
			r.exchange.PushBytes(worker, b.Key, b.Data, func(err error) { r.broke(o.op, worker, o.put, err) })
		}
		rows = rows[n:]
	}
}

// armGathering has sendLate called after a while, unless it will be anyway. The caller holds order.
func (r *remote) armGathering(after time.Duration) {
	if !r.armedPut {
		r.armedPut = true
		r.gathering.Reset(after)
	}
}

// sendLate sends a put that has waited for long enough, and looks again later at one that has not.
func (r *remote) sendLate() {
	if !r.order.TryLock() {
		r.gathering.Reset(gatherLong)
		return
	}
	defer r.order.Unlock()
	r.armedPut = false
	switch o := r.open; {
	case o == nil:
	case r.goesOn(o):
		r.armGathering(gatherLong)
	case o.waited || o.shape.HostBytes() > transport.PostSize:
		r.sendPut(false)
	default:
		o.waited = true
		r.armGathering(gatherShort)
	}
}

// goesOn reports whether the thread that makes a put may be about to add a row: since the last look it has added one,
// or it runs, or would if it had a processor, and has had one for less time than a row takes.
func (r *remote) goesOn(o *openPut) bool {
	if r.processor == nil {
		return false
	}
	took, runs := r.processor(o.thread)
	if now := (stride{len(o.devices), took}); now.rows != o.seen.rows {
		o.seen = now
		return true
	}
	return runs && took-o.seen.took < gatherLong
}

// SendPuts implements Cluster. If a submission is under way, that sends the open put; or sendLate does, if it has
// already looked.
func (r *remote) SendPuts() {
	if !r.order.TryLock() {
		r.gathering.Reset(gatherLong)
		return
	}
	defer r.order.Unlock()
	r.sendPut(false)
}
