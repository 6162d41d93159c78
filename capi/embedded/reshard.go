package embedded

/*
#include <stdlib.h>
#include "reshard.h"
*/
import "C"

import (
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/export"
	core "github.com/openpathways/pathways/core/embedded"
	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

const (
	// atOnce is how many bytes at most the calling thread copies itself, if they are ready; the plugin, too, runs cheap
	// computations there. Copying more would delay the call noticeably.
	atOnce = 64 << 10
	// each is the number of bytes that justify another goroutine.
	each = 1 << 20
)

// move is an array that is being moved from one sharding to another. Each region is copied when its source is ready.
type move struct {
	s       *session
	plan    *reshard.Plan
	handle  cgo.Handle
	c       *C.pw_moving
	client  *C.PJRT_Client
	from    *C.pw_export_array // until it has started
	shape   *C.pw_shape        // of a destination shard; holds a reference of its own
	array   *C.pw_array
	bytes   int64 // of a destination shard
	width   int64 // of an element
	sources []source
	dests   []destination

	mu      sync.Mutex
	waits   int           // sources that are not ready, and 1 until pieces may be copied
	wake    chan struct{} // closed when all sources are ready, if start waits for them
	begun   bool          // pieces may be copied, unless the move was given up
	undone  bool          // it was
	ready   []*reshard.Piece
	left    int // pieces that are not copied yet
	copying int // goroutines
	most    int // of these
}

// source is a shard from which bytes are copied.
type source struct {
	pieces []*reshard.Piece
	once   sync.Once
	data   []byte // nil: it has an error
}

// destination is a shard that is assembled.
type destination struct {
	memory  *C.PJRT_Memory
	fulfill unsafe.Pointer // its promise, or nil
	to      *C.pw_buffer   // without a promise
	once    sync.Once
	data    []byte       // in C's memory
	left    atomic.Int32 // pieces that are still missing
	failed  atomic.Int32 // 1 + a source that has an error
	short   atomic.Bool  // memory was short
}

//export pwGoReshard
func pwGoReshard(h *C.pw_export_array, number C.uint64_t, out **C.pw_export_array, canWait *C.bool) (refusal *C.char) {
	var err error
	defer base.Refuse(&err, &refusal)
	*out, err = begin(h, uint64(number))
	*canWait = C.bool(core.CanWait(err))
	return nil
}

// begin starts to move an array, and returns the array that it becomes.
func begin(h *C.pw_export_array, number uint64) (*C.pw_export_array, error) {
	s := get(h.client.session)
	if s == nil {
		return nil, closed()
	}
	way, err := export.Get(number)
	if err != nil {
		return nil, err
	}
	steps, err := way.Steps(nil)
	if err != nil {
		return nil, err
	}
	plan := steps[0] // the only one
	first := C.pw_export_shard(h, 0)
	dtype := shape.DType(first.shape._type)
	if err := check(h, plan, dtype); err != nil {
		return nil, err
	}
	devices, err := s.targets(h.client, plan)
	if err != nil {
		return nil, err
	}
	m := &move{s: s, plan: plan, client: h.client, from: h, width: int64(dtype.Bits()) / 8}
	m.bytes = shape.Shape{DType: dtype, Dims: plan.To[0].Size}.Bytes()
	object, err := s.Array(devices.local, m.bytes, "reshard")
	if freeAll(err) {
		object, err = s.Array(devices.local, m.bytes, "reshard")
	}
	if err != nil {
		return nil, err
	}
	made, err := m.prepare(devices.ids, way.Memory, object)
	if err != nil {
		s.Free(object)
		return nil, err
	}
	if err := m.start(h, made); err != nil {
		C.pw_export_drop(&made.base)
		return nil, err
	}
	return made, nil
}

// short returns the error of an allocation in C that failed.
func short(what string, bytes int64) error {
	return status.New(status.ResourceExhausted,
		"this process has no memory left for %s (%d bytes); drop arrays that are not needed, or give the process more memory",
		what, bytes)
}

// prepare makes the destination without contents. The core counts it as object.
func (m *move) prepare(ids []int32, memory string, object uint64) (*C.pw_export_array, error) {
	first, to := C.pw_export_shard(m.from, 0), m.plan.To[0].Size
	m.shape = C.pw_shape_new(first.shape._type, (*C.int64_t)(unsafe.SliceData(to)), C.size_t(len(to)))
	if m.shape == nil {
		return nil, short("the shape of an array", int64(8*len(to)))
	}
	kind := C.CString(memory)
	defer C.free(unsafe.Pointer(kind))
	made := C.pw_moved_new(m.client, (*C.int32_t)(unsafe.SliceData(ids)), C.size_t(len(ids)), m.shape, kind,
		C.uint64_t(object), &m.array)
	if made == nil {
		C.pw_shape_drop(m.shape)
		return nil, short("the shards of an array", int64(len(ids))*int64(unsafe.Sizeof(C.pw_buffer{})))
	}
	return made, nil
}

// check returns an error if a plan does not fit an array of this dtype.
func check(h *C.pw_export_array, plan *reshard.Plan, dtype shape.DType) error {
	var mixed error
	err := export.Check(plan, int(h.n), func(i int) (int, []int64) {
		b := C.pw_export_shard(h, C.size_t(i))
		if is := shape.DType(b.shape._type); is != dtype {
			mixed = status.New(status.InvalidArgument, "shard %d of the array is of %s, and the first of %s", i, is, dtype)
		}
		return int(b.device.id), unsafe.Slice((*int64)(C.pw_shape_dims(b.shape)), b.shape.num_dims)
	})
	switch {
	case err != nil:
		return err
	case dtype.Bits()%8 != 0 || dtype.Bits() == 0:
		return status.New(status.Unimplemented,
			"an array of %s, whose elements are smaller than a byte; convert it to a wider type first", dtype)
	}
	return mixed
}

// targets are a plan's destinations.
type targets struct {
	ids   []int32
	local []int
}

func (s *session) targets(c *C.PJRT_Client, plan *reshard.Plan) (t targets, err error) {
	for _, to := range plan.To {
		d := C.pw_device_numbered(c, C.int(to.Device))
		if d == nil {
			return t, status.New(status.InvalidArgument, "device %d is not of this client, or is not its own", to.Device)
		}
		t.ids, t.local = append(t.ids, int32(to.Device)), append(t.local, int(d.index))
	}
	return t, nil
}

// start watches the sources, and copies at once or hands out promises. If it fails, it frees the move.
func (m *move) start(h, made *C.pw_export_array) error {
	m.sources, m.dests = make([]source, len(m.plan.From)), make([]destination, len(m.plan.To))
	for i := range m.dests {
		b := C.pw_export_shard(made, C.size_t(i))
		m.dests[i].memory, m.dests[i].to = b.memory, b
		m.dests[i].left.Store(int32(len(m.plan.Of(i))))
	}
	m.waits = 1
	for i := range m.plan.Pieces {
		p := &m.plan.Pieces[i]
		s := &m.sources[p.From]
		if s.pieces = append(s.pieces, p); len(s.pieces) == 1 {
			m.waits++
		}
	}
	m.left, m.most = len(m.plan.Pieces), max(1, min(runtime.GOMAXPROCS(0), int(m.bytes*int64(len(m.dests))/each)))
	m.s.moves.Add(1)
	m.handle = cgo.NewHandle(m)
	if m.c = C.pw_moving_new(h, C.uintptr_t(m.handle)); m.c == nil {
		m.let()
		return short("an array on its way", int64(h.n)*int64(unsafe.Sizeof(C.pw_source{})))
	}
	ready := m.watch()

	var several C.bool
	gang := C.pw_export_gang(h, &several)
	promises := bool(C.pw_can_promise())
	if !ready && (!promises || bool(several)) {
		// Only one gang can be named as the one that the result depends on.
		m.await()
		ready = true
	}
	if ready {
		failed := m.open()
		if !promises || failed == 0 && m.bytes*int64(len(m.dests)) <= atOnce {
			err := m.now(failed)
			m.end()
			return err
		}
	}
	err := m.promise()
	if err == nil {
		C.pw_moved_begun(m.array, h, gang)
	}
	m.begin(err != nil)
	return err
}

// watch watches the sources, and reports whether all are ready.
func (m *move) watch() bool {
	for i := range m.sources {
		if len(m.sources[i].pieces) > 0 && bool(C.pw_moving_watch(m.c, C.size_t(i))) {
			m.arrived(i)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits == 1
}

// await waits until all sources are ready.
func (m *move) await() {
	m.mu.Lock()
	if m.waits == 1 {
		m.mu.Unlock()
		return
	}
	m.wake = make(chan struct{})
	m.mu.Unlock()
	<-m.wake
}

//export pwGoMove
func pwGoMove(handle C.uintptr_t, source C.size_t) {
	cgo.Handle(handle).Value().(*move).arrived(int(source))
}

// arrived records that a source is ready, or has failed.
func (m *move) arrived(source int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits--
	m.ready = append(m.ready, m.sources[source].pieces...)
	if m.wake != nil && m.waits == 1 {
		close(m.wake)
	}
	m.goOn()
}

// begin lets pieces be copied; or, if the move is given up, lets its end come.
func (m *move) begin(undone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undone = undone
	m.waits--
	m.begun = true
	m.goOn()
}

// goOn has goroutines copy what is ready. Called with the lock.
func (m *move) goOn() {
	switch {
	case !m.begun:
	case !m.undone:
		for range min(m.most-m.copying, len(m.ready)) {
			m.copying++
			go m.run()
		}
	case m.waits == 0:
		go m.end()
	}
}

// end frees everything except the result.
func (m *move) end() {
	C.pw_moving_free(m.c)
	m.let()
}

func (m *move) let() {
	C.pw_shape_drop(m.shape)
	m.handle.Delete()
	m.s.moves.Done()
}

// open finds the bytes of sources, which are all ready. It returns 0, or 1 + the index of a source that has an error.
func (m *move) open() (failed int) {
	for i := range m.sources {
		if len(m.sources[i].pieces) > 0 && m.read(i) == nil {
			failed = 1 + i
		}
	}
	return failed
}

// read returns the bytes of a source that is ready, or nil if it has an error.
func (m *move) read(source int) []byte {
	s := &m.sources[source]
	s.once.Do(func() {
		if bytes := C.pw_moving_bytes(m.c, C.size_t(source)); bytes != nil {
			dtype := shape.DType(C.pw_export_shard(m.c.from, C.size_t(source)).shape._type)
			size := shape.Shape{DType: dtype, Dims: m.plan.From[source].Size}.Bytes()
			s.data = unsafe.Slice((*byte)(unsafe.Pointer(bytes)), size)
		}
	})
	return s.data
}

// now makes the result on the calling thread.
func (m *move) now(failed int) error {
	if failed > 0 {
		s := C.pw_moving_source(m.c, C.size_t(failed-1))
		return status.New(status.Code(s.code), "%s", C.GoString(s.message))
	}
	for i := range m.plan.Pieces {
		if !m.copy(&m.plan.Pieces[i]) {
			for k := range m.dests {
				C.free(unsafe.Pointer(unsafe.SliceData(m.dests[k].data)))
			}
			return short("a shard of an array", m.bytes)
		}
	}
	for i := range m.dests {
		var message *C.char
		if code := m.put(&m.dests[i], &message); code != 0 {
			return base.Failure(code, message)
		}
	}
	return nil
}

// promise makes the result's buffers before their contents exist.
func (m *move) promise() error {
	for i := range m.dests {
		d := &m.dests[i]
		var message *C.char
		code := C.pw_moved_promise(d.to, &d.fulfill, &message)
		if code == 0 {
			continue
		}
		defer C.free(unsafe.Pointer(message))
		for k := range i {
			m.fail(&m.dests[k], C.int(status.Cancelled), message)
		}
		return status.New(status.Code(code), "%s", C.GoString(message))
	}
	return nil
}

// copy copies one piece to its destination. It returns false if memory is short.
func (m *move) copy(p *reshard.Piece) bool {
	d := &m.dests[p.To]
	d.once.Do(func() {
		if memory := C.pw_moved_memory(C.size_t(m.bytes)); memory != nil {
			d.data = unsafe.Slice((*byte)(memory), m.bytes)
		}
	})
	if d.data == nil {
		return false
	}
	reshard.Copy(d.data, m.plan.To[p.To].Size, p.At, m.read(p.From), m.plan.From[p.From].Size, p.Start, p.Size,
		m.width)
	return true
}

// put passes a destination's bytes to the plugin.
func (m *move) put(d *destination, message **C.char) C.int {
	to := d.to
	if d.fulfill != nil {
		to = nil // its owner may have destroyed it
	}
	return C.pw_moved_put(m.client, d.memory, m.shape, unsafe.Pointer(unsafe.SliceData(d.data)), d.fulfill, to, message)
}

func (m *move) fail(d *destination, code C.int, message *C.char) {
	C.pw_moved_fail(m.client, d.memory, m.shape, d.fulfill, code, message)
}

// run copies pieces as long as any are ready.
func (m *move) run() {
	for p := m.next(); p != nil; p = m.next() {
		m.piece(p)
		if m.done() {
			C.pw_moved_settled(m.array)
			m.end()
		}
	}
}

// next takes a piece that is ready; nil ends the goroutine.
func (m *move) next() *reshard.Piece {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ready) == 0 {
		m.copying--
		return nil
	}
	p := m.ready[0]
	m.ready = m.ready[1:]
	return p
}

// done reports whether the piece that was copied was the last.
func (m *move) done() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left--
	return m.left == 0
}

// piece copies a piece, and completes its destination if it was the last one.
func (m *move) piece(p *reshard.Piece) {
	d := &m.dests[p.To]
	if m.read(p.From) == nil {
		d.failed.Store(int32(1 + p.From))
	} else if d.failed.Load() == 0 && !m.copy(p) {
		d.short.Store(true)
	}
	if d.left.Add(-1) > 0 {
		return
	}
	if d.short.Load() {
		message := C.CString(short("a shard of an array", m.bytes).Error())
		m.fail(d, C.int(status.ResourceExhausted), message)
		C.free(unsafe.Pointer(message))
		return
	}
	if from := d.failed.Load(); from > 0 {
		if d.data != nil {
			C.free(unsafe.Pointer(unsafe.SliceData(d.data)))
		}
		s := C.pw_moving_source(m.c, C.size_t(from-1))
		m.fail(d, s.code, s.message)
		return
	}
	var message *C.char
	if code := m.put(d, &message); code != 0 {
		m.fail(d, code, message)
		C.free(unsafe.Pointer(message))
	}
}
