package client

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// begin numbers an operation, once the session has credit. The caller holds order.
func (r *remote) begin(p pending) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.credited(nil); err != nil {
		return 0, err
	}
	r.op++
	r.underWay++
	r.pending[r.op] = p
	return r.op, nil
}

// credited blocks until the session has credit, or Config.Hurry lets the call use the
// reserved credit, or stop, which may be nil, returns an error. It calls stop first when
// it finds that there is no credit, and then as often as Hurry. The caller holds order
// and mu. credited releases both while it waits: operations in flight may wait for memory,
// and the frees that make room for them must pass.
func (r *remote) credited(stop func() error) error {
	waited, hurries := false, false
	full := func() bool {
		credit := r.credit
		if !hurries {
			credit -= credit / hurryShare
		}
		return r.underWay >= credit && r.lost == nil
	}
	for full() {
		if r.open != nil {
			r.mu.Unlock()
			r.sendPut(false) // which may be what the credit waits for
			r.mu.Lock()
			continue
		}
		r.order.Unlock()
		var err error
		r.mu.Unlock()
		switch {
		case stop != nil:
			err = stop()
		case r.hurry != nil && waited:
			hurries = r.hurry() || hurries
		}
		r.mu.Lock()
		if err == nil && full() {
			r.waitForRoom(stop != nil || r.hurry != nil)
			waited = true
		}
		r.mu.Unlock()
		r.order.Lock()
		r.mu.Lock()
		if err != nil {
			return err
		}
	}
	return r.lost
}

// waitForRoom blocks until credit may have come back or, if ask is set, until it is time
// to call Hurry and stop again. The caller holds mu.
func (r *remote) waitForRoom(ask bool) {
	if ask {
		timer := time.AfterFunc(HurryEvery, func() {
			r.mu.Lock() // Wait releases it once it is listening
			defer r.mu.Unlock()
			r.room.Broadcast()
		})
		defer timer.Stop()
	}
	r.room.Wait()
}

// send sends the operation in buf. If the connection has ended, the reader ends this
// operation with all others; if the message cannot be sent, its number is taken back. Reads is
// what is assembled of its arguments.
func (r *remote) send(kind wire.Kind, op uint64, reads ...*assembly) error {
	r.remember(kind, op, reads)
	err := r.post(kind, false)
	if status.CodeOf(err) == status.InvalidArgument {
		return r.takeBack(op, err)
	}
	return nil
}

// post sends buf, or, if later is set, queues it until the next message is sent.
func (r *remote) post(kind wire.Kind, later bool) error {
	switch {
	case len(r.buf) > wire.MaxMessage:
		return wire.TooLong(kind, len(r.buf), wire.MaxMessage)
	case r.bursts:
		return r.batcher.Join(kind, r.buf, later)
	case later && r.batcher != nil:
		return r.batcher.Later(kind, r.buf)
	}
	return r.conn.Send(kind, r.buf)
}

// takeBack undoes begin of an operation that was not sent.
func (r *remote) takeBack(op uint64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.take(op); !ok {
		return nil // the end of the session has reported its end
	}
	r.op--
	r.room.Broadcast()
	r.leave()
	return err
}

// Run implements Cluster.
func (r *remote) Run(s *RunSpec) error {
	begun := r.recorder.Clock()
	r.order.Lock()
	defer r.order.Unlock()
	p := pending{token: s.Token}
	if s.Call != nil {
		p.calls = &calling{call: s.Call}
	}
	op, err := r.begin(p)
	if err != nil {
		return err
	}
	r.takeFrees()
	r.rememberCall(s.Program, s.Trace)
	run := wire.Run{Op: op, Program: s.Program, FirstOutput: s.FirstOutput, Inputs: s.Inputs, Mixed: s.Mixed,
		NotDonated: s.NotDonated,
		Only:       uint32(s.Only + 1), Trace: s.Trace}
	var reads []*assembly
	if len(run.Mixed) > 0 {
		reads = r.assemble(&run)
	}
	r.buf = run.Append(r.buf[:0])
	err = r.send(wire.KindRun, op, reads...)
	r.called(begun, "run", op, 0)
	return err
}

// submit numbers an operation and sends the message that set returns for it, with more fields, which were encoded
// before. The number is part of the message, and messages leave in the order of their numbers; so that much is encoded
// under the lock, into memory that is kept for the next.
func (r *remote) submit(p pending, kind wire.Kind, set func(op uint64) proto.Message, more []byte) (uint64, error) {
	r.order.Lock()
	defer r.order.Unlock()
	op, err := r.begin(p)
	if err != nil {
		return 0, err
	}
	r.takeFrees()
	if r.buf, err = (proto.MarshalOptions{}).MarshalAppend(r.buf[:0], set(op)); err != nil {
		return op, r.takeBack(op, notEncoded(err))
	}
	r.buf = append(r.buf, more...)
	return op, r.send(kind, op)
}

func notEncoded(err error) error {
	return status.New(status.InvalidArgument, "the operation could not be encoded: %w", err)
}

// putting is a Put in flight: its pushes, and the operation itself. remote.mu guards it.
type putting struct {
	to     *view // where its bytes go: what was behind the devices when it was numbered
	left   int
	err    error
	unsent bool // its message has yet to be sent, see gather.go
	rows   []shortRow
	// release returns the memory where the rows lie, once the operation has ended; nil if they do not, see lay.
	release func()
}

// shortRow is a row's bytes that leave with the message.
type shortRow struct {
	worker uint64
	transport.Post
}

// Put implements Cluster.
func (r *remote) Put(s *PutSpec) error {
	size, err := r.sizeOfPut(s)
	if err != nil {
		return err
	}
	begun := r.recorder.Clock()
	put := &putting{left: 1, unsent: s.gathers()}
	if s.Lend == nil {
		put.left += len(s.Devices)
	}
	var op uint64
	var full bool
	if s.gathers() {
		op, put, full, err = r.putRow(s, put)
	} else {
		op, err = r.submit(pending{token: s.Token, put: put}, wire.KindPut, func(op uint64) proto.Message {
			put.to = r.view.Load()
			return &wire.Put{Op: op, Object: s.Object, Devices: s.Devices, Array: &wire.Array{
				Dtype: uint32(s.Shape.DType), Dims: s.Shape.Dims, Memory: s.Memory}}
		}, nil)
	}
	if err != nil {
		return err
	}
	r.pushRows(s, op, size, put)
	// The operation may have failed while its pushes began.
	r.mu.Lock()
	failed, unsent := put.err, put.unsent
	r.mu.Unlock()
	switch {
	case unsent && full:
		r.SendPuts()
	case unsent && size > transport.PostSize:
		r.gathering.Reset(gatherLong) // from now on: to copy the rows takes longer than that
	}
	if failed != nil {
		r.exchange.Fail(r.space, op, failed)
	}
	r.called(begun, "put", op, size*int64(len(s.Devices)))
	return nil
}

// sizeOfPut returns the bytes of a put's row, or why it cannot be submitted.
func (r *remote) sizeOfPut(s *PutSpec) (int64, error) {
	size := s.Shape.HostBytes()
	if size < 0 || len(s.Devices) == 0 {
		return 0, status.New(status.InvalidArgument,
			"device_put of %v to %d devices: expected an array that fits into memory, and at least one device", s.Shape,
			len(s.Devices))
	}
	for _, d := range s.Devices {
		if int(d) >= len(r.Devices()) {
			return 0, status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", d,
				len(r.Devices())-1)
		}
	}
	return size, nil
}

// pushRows sends the rows of a put, each of so many bytes, to their workers, or lends them.
func (r *remote) pushRows(s *PutSpec, op uint64, size int64, put *putting) {
	fill, token := s.Fill, s.Token
	for _, d := range s.Devices {
		if s.Lend != nil {
			r.lend(op, d, s.Lend(d), put, s.Returned)
			continue
		}
		worker, key := put.to.worker(d), transport.Key{Space: r.space, ID: op, Part: uint64(d)}
		end := func(err error) { r.pushed(op, worker, token, put, err) }
		write := func(dst []byte, written func(error)) { fill(d, dst, written) }
		if size <= transport.PostSize {
			r.pushShort(shortRow{worker, transport.Post{Key: key}}, size, write, put, end)
		} else {
			r.exchange.Push(worker, key, size, write, end)
		}
	}
}

// pushShort pushes a row that can be posted. That needs no answer of the worker, which learns
// why if the bytes do not arrive: so the row has ended when its bytes are written. Those of
// an open put leave with its other rows.
func (r *remote) pushShort(b shortRow, size int64, fill func([]byte, func(error)), put *putting,
	done func(error)) {
	b.Data = make([]byte, size)
	fill(b.Data, func(err error) {
		r.mu.Lock()
		unsent := put.unsent && err == nil && len(put.rows) < maxHeld
		if unsent {
			put.rows = append(put.rows, b)
		}
		r.mu.Unlock()
		if !unsent && err == nil && !r.exchange.Post(b.worker, b.Key, b.Data) {
			r.exchange.PushBytes(b.worker, b.Key, b.Data, done)
			return
		}
		done(err)
	})
}

// pushed handles the end of one push of a Put, to a worker.
func (r *remote) pushed(op, worker, token uint64, put *putting, err error) {
	r.broke(op, worker, put, err)
	r.mu.Lock()
	put.left--
	last := put.left == 0
	ended := put.err
	r.mu.Unlock()
	if last {
		r.tell([]Ended{{Token: token, Err: ended}})
	}
}

// broke tells the workers that some bytes will not come, since they would wait for them. If the worker they were for is
// lost, it does nothing: the controller has the put go on without it, or ends it.
func (r *remote) broke(op, worker uint64, put *putting, err error) {
	r.mu.Lock()
	_, open := r.pending[op]
	first := err != nil && put.err == nil && !r.gone[worker]
	if first {
		put.err = err
	}
	unsent := put.unsent // sendPut sees the error
	r.mu.Unlock()
	if first && open && !unsent {
		r.abort(op, err)
	}
}

// abort tells the controller that bytes of an operation will not come.
func (r *remote) abort(op uint64, err error) {
	if payload, err := proto.Marshal(&wire.Abort{Gang: op, Status: wire.Of(err)}); err == nil {
		_ = r.conn.Send(wire.KindAbort, payload) // if it fails, the reader gets the error too
	}
}

// lend tells a device's worker where a shard of a Put is in this process's memory.
func (r *remote) lend(op uint64, device uint32, data []byte, put *putting, returned func(device uint32)) {
	worker, key := put.to.worker(device), transport.Key{Space: r.space, ID: op, Part: uint64(device)}
	end := func(err error) {
		r.broke(op, worker, put, err)
		returned(device)
	}
	if l, ok := r.exchange.(transport.Lender); ok && len(data) > 0 {
		l.Lend(worker, key, data, end)
	} else {
		r.exchange.PushBytes(worker, key, data, end) // copies nothing: CanLend returned nil
	}
}

// CanLend implements Cluster.
func (r *remote) CanLend(device uint32, data []byte) error {
	if int(device) >= len(r.Devices()) {
		return status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", device,
			len(r.Devices())-1)
	}
	if len(data) == 0 {
		return nil
	}
	l, ok := r.exchange.(transport.Lender)
	odd := uintptr(unsafe.Pointer(unsafe.SliceData(data))) % alignment
	switch platform := r.platformOf(r.Devices()[device]); {
	case !wire.OnHost(platform):
		return status.New(status.FailedPrecondition,
			"devices of the platform %s have memory of their own, so bytes must be copied to them", platform)
	case !ok:
		return status.New(status.FailedPrecondition, "this session cannot lend memory to workers")
	case odd != 0:
		return status.New(status.FailedPrecondition,
			"the bytes begin %d after a multiple of %d; devices need arrays that begin at a multiple", odd, alignment)
	}
	return l.CanLend(r.worker(device), data)
}

// alignment is the alignment, in bytes, of arrays that devices on the host use in place.
const alignment = 64

// Transfer implements Cluster. It encodes the moves, of which there may be one a shard, before it takes the lock.
func (r *remote) Transfer(t *wire.Transfer, token uint64) error {
	begun := r.recorder.Clock()
	rest, err := proto.Marshal(&wire.Transfer{Object: t.Object, Array: t.Array, Moves: t.Moves})
	if err != nil {
		return notEncoded(err)
	}
	op, err := r.submit(pending{token: token}, wire.KindTransfer, func(op uint64) proto.Message {
		return &wire.Transfer{Op: op}
	}, rest)
	r.called(begun, "transfer", op, 0)
	return err
}

// fetching is a Fetch in flight. remote.mu guards it.
type fetching struct {
	err     error // of the operation
	arrived bool
	late    func(err error) // called with the operation's error once that has ended; nil: nothing waits for it
}

// Fetch implements Cluster.
func (r *remote) Fetch(object uint64, device uint32, dst []byte, done func(error)) error {
	return r.fetch(object, device, int64(len(dst)), dst, func(b transport.Block, err error) {
		if b.Release != nil {
			b.Release()
		}
		done(err)
	})
}

// Receive implements Cluster.
func (r *remote) Receive(object uint64, device uint32, size int64, arrived func(transport.Block, error)) error {
	return r.fetch(object, device, size, nil, arrived)
}

// Lends implements Cluster.
func (r *remote) Lends(device uint32, size int64) bool {
	return int(device) < len(r.Devices()) && r.exchange.Lends(r.worker(device), size)
}

// fetch copies a shard to into, or, if that is nil, into memory of the exchange.
func (r *remote) fetch(object uint64, device uint32, size int64, into []byte,
	arrived func(transport.Block, error)) error {
	if int(device) >= len(r.Devices()) {
		return status.New(status.InvalidArgument, "device %d is not in this session, which has devices 0 to %d", device,
			len(r.Devices())-1)
	}
	begun := r.recorder.Clock()
	f := new(fetching)
	var worker uint64
	op, err := r.submit(pending{fetch: f}, wire.KindFetch, func(op uint64) proto.Message {
		worker = r.worker(device)
		return &wire.Fetch{Op: op, Object: object, Device: device}
	}, nil)
	if err != nil {
		return err
	}
	r.exchange.Expect(worker, transport.Key{Space: r.space, ID: op, Part: uint64(device)}, size, into,
		func(b transport.Block, err error) {
			r.mu.Lock()
			f.arrived = true
			_, open := r.pending[op]
			switch {
			case err == nil:
			case f.err != nil:
				err = f.err // the operation's own error says more
			case open && (r.gone[worker] || status.CodeOf(err) == status.Unavailable):
				// The way to the worker has ended, perhaps before the controller told that the worker has. The operation ends
				// with the word of the worker or the controller, which says whether the array is lost.
				f.late = func(own error) { arrived(b, cmp.Or(own, err)) }
				r.mu.Unlock()
				return
			}
			r.mu.Unlock()
			arrived(b, err)
		})
	// The operation may have failed before its bytes were expected.
	r.mu.Lock()
	failed := f.err
	if f.arrived {
		failed = nil
	}
	r.mu.Unlock()
	if failed != nil {
		r.exchange.Fail(r.space, op, failed)
	}
	r.called(begun, "fetch", op, size)
	return nil
}

// Free implements Cluster.
func (r *remote) Free(objects []uint64) {
	r.freeing.Lock()
	defer r.freeing.Unlock()
	r.frees = append(r.frees, objects...)
	r.freeSoon()
}

// FreeRow implements Cluster.
func (r *remote) FreeRow(object uint64, device uint32) {
	r.freeing.Lock()
	defer r.freeing.Unlock()
	if n := len(r.rows) - 1; n >= 0 && r.rows[n].Object == object {
		r.rows[n].Devices = append(r.rows[n].Devices, device)
	} else {
		r.rows = append(r.rows, &wire.Rows{Object: object, Devices: []uint32{device}})
	}
	r.freeSoon()
}

// freeSoon has flush called. The caller holds freeing.
func (r *remote) freeSoon() {
	if !r.armed {
		r.armed = true
		r.timer.Reset(freeAfter)
	}
}

// maxFreed is how many objects one Free names: few enough for a frame, whatever their
// numbers.
const maxFreed = 1 << 20

// takeFrees sends the open put, and then the freed objects, in one write with the
// operation that follows. The caller holds order.
func (r *remote) takeFrees() {
	r.sendPut(true)
	r.freeing.Lock()
	frees, rows := r.frees, r.rows
	if len(frees) == 0 && len(rows) == 0 {
		r.freeing.Unlock()
		return
	}
	r.frees, r.spare, r.rows = r.spare[:0], nil, nil
	r.freeing.Unlock()
	frees = append(frees, r.assemblies.without(frees)...)
	if len(rows) > 0 {
		gone := make(map[uint64]bool, len(frees))
		for _, object := range frees {
			gone[object] = true
		}
		rows = slices.DeleteFunc(rows, func(m *wire.Rows) bool { return gone[m.Object] })
	}
	for some := range slices.Chunk(rows, maxFreed/maxRows) {
		r.buf = (&wire.Free{Rows: some}).Append(r.buf[:0])
		r.rememberFree(wire.KindFree, r.buf)
		_ = r.post(wire.KindFree, true)
	}
	for some := range slices.Chunk(frees, maxFreed) {
		r.buf = (&wire.Free{Objects: some}).Append(r.buf[:0])
		r.rememberFree(wire.KindFree, r.buf)
		_ = r.post(wire.KindFree, true) // if it fails, the reader gets the error too
	}
	r.freeing.Lock()
	r.spare = frees
	r.freeing.Unlock()
}

// leave sends queued frees that no operation follows. The caller holds order.
func (r *remote) leave() {
	if r.batcher != nil {
		r.batcher.Flush(true)
	}
}

// flush is called by the timer: no submission has carried the frees along. If another
// goroutine is sending, or waits for room to send, it tries again later. So it does while a put is open, which they
// would close: its other rows would become operations of their own.
func (r *remote) flush() {
	if r.Lost() != nil {
		return // the session's objects were freed with it
	}
	if !r.order.TryLock() {
		r.timer.Reset(freeAfter)
		return
	}
	defer r.order.Unlock()
	if r.open != nil {
		r.timer.Reset(gatherLong)
		return
	}
	r.freeing.Lock()
	r.armed = false
	r.freeing.Unlock()
	r.takeFrees()
	r.leave()
}
