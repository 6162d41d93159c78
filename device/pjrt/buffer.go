package pjrt

// #include "driver.h"
import "C"

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// Buffer is a device.Buffer. Its shape, device and memory are known without asking the plugin, even after Close.
type Buffer struct {
	client *Client
	raw    *C.PJRT_Buffer
	shape  shape.Shape
	local  int
	memory int   // index into the device's memories
	bytes  int64 // on the device

	// One for being open, and one for each call in progress; the last one destroys the plugin's buffer.
	users   atomic.Int32
	closed  atomic.Bool
	counted atomic.Bool // in Client.inUse
	ready   atomic.Pointer[event]
}

// own makes b the owner of a plugin's buffer. The caller holds the client.
func (b *Buffer) own(c *Client, raw *C.PJRT_Buffer, s shape.Shape, local, memory int, bytes int64) {
	b.client, b.raw, b.shape, b.local, b.memory, b.bytes = c, raw, s, local, memory, bytes
	b.users.Store(1)
	c.opened()
	if memory == c.devices[local].Default {
		b.counted.Store(true)
		c.inUse[local].Add(bytes)
	}
}

// measure asks the plugin how large a buffer is on its device.
func (c *Client) measure(raw *C.PJRT_Buffer, s shape.Shape) int64 {
	var bytes C.size_t
	if err := c.plugin.check(C.pwdrv_buffer_bytes(c.plugin.api, raw, &bytes)); err != nil {
		return s.Bytes()
	}
	return int64(bytes)
}

var nothing byte // a nil slice points here in C

func dataPointer(b []byte) unsafe.Pointer {
	if len(b) == 0 {
		return unsafe.Pointer(&nothing)
	}
	return unsafe.Pointer(unsafe.SliceData(b))
}

func checkHost(h device.Host) error {
	if h.Semantics < device.DuringCall || h.Semantics > device.MutableZeroCopy {
		return status.New(status.InvalidArgument, "unknown host semantics %d: use 0 to 3", h.Semantics)
	}
	if h.Shape.DType.Bits() == 0 {
		return status.New(status.InvalidArgument, "an array of %s cannot be brought to a device: its type has no bytes",
			h.Shape)
	}
	for i, d := range h.Shape.Dims {
		if d < 0 {
			return status.New(status.InvalidArgument, "dimension %d of the array is %d: it must be 0 or more", i, d)
		}
	}
	want := h.Shape.HostBytes()
	if want < 0 {
		return status.New(status.InvalidArgument, "an array of %s is too large for any memory", h.Shape)
	}
	if int64(len(h.Data)) != want {
		return status.New(status.InvalidArgument, "an array of %s has %d bytes on the host, %d were given",
			h.Shape, want, len(h.Data))
	}
	return nil
}

// FromHost makes a buffer of host bytes. The plugin chooses whether a zero-copy buffer aliases them: the CPU plugin
// does if they are 64-byte aligned.
func (c *Client) FromHost(h device.Host) (device.Buffer, error) {
	if err := checkHost(h); err != nil {
		return nil, err
	}
	memory, err := c.memory(h.Device, h.Memory)
	if err != nil {
		return nil, err
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	var done *C.PJRT_Event
	var raw *C.PJRT_Buffer
	at := &c.handles[h.Device]
	dims := slices.Clone(h.Shape.Dims)
	if err := c.plugin.check(C.pwdrv_from_host(c.plugin.api, c.raw, dataPointer(h.Data), C.int(h.Shape.DType),
		(*C.int64_t)(unsafe.SliceData(dims)), C.size_t(len(dims)), C.int(h.Semantics), at.raw, at.memories[memory],
		&done, &raw)); err != nil {
		return nil, err
	}
	b := &Buffer{}
	s := shape.Shape{DType: h.Shape.DType, Dims: dims}
	b.own(c, raw, s, h.Device, memory, c.measure(raw, s))
	if h.Apart {
		b.uncount()
	}
	kind := work
	if h.Semantics == device.ZeroCopy || h.Semantics == device.MutableZeroCopy {
		kind = lent
	}
	var then func(error)
	if h.Done != nil {
		then = func(error) { h.Done() } // the buffer has the error
	}
	c.event(done, kind, then)
	return b, nil
}

// Failed makes a buffer that has failed with err: reading it returns err's code and text. It stands for a result that a
// computation elsewhere should have made.
func (c *Client) Failed(s shape.Shape, local int, memory string, err error) (*Buffer, error) {
	at, bad := c.memory(local, memory)
	if bad != nil {
		return nil, bad
	}
	if err == nil || status.CodeOf(err) == status.OK {
		return nil, status.New(status.InvalidArgument, "a failed buffer needs an error")
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	text, size := chars(err.Error())
	var raw *C.PJRT_Buffer
	s.Dims = slices.Clone(s.Dims)
	if err := c.plugin.check(C.pwdrv_failed_buffer(c.plugin.api, c.raw, C.int(status.CodeOf(err)), text, size,
		C.int(s.DType), (*C.int64_t)(unsafe.SliceData(s.Dims)), C.size_t(len(s.Dims)), c.handles[local].memories[at],
		&raw)); err != nil {
		return nil, err
	}
	b := &Buffer{}
	b.own(c, raw, s, local, at, 0)
	return b, nil
}

// use keeps the plugin's buffer alive until release.
func (b *Buffer) use() error {
	for {
		n := b.users.Load()
		if n == 0 || b.closed.Load() {
			return status.New(status.FailedPrecondition, "the buffer of %s is closed", b.shape)
		}
		if b.users.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (b *Buffer) release() {
	if b.users.Add(-1) == 0 {
		// Its memory is freed after the work that reads it. An error could not be handled here.
		_ = b.client.plugin.check(C.pwdrv_buffer_destroy(b.client.plugin.api, b.raw))
		b.client.closedOne()
	}
}

// uncount subtracts the buffer from the bytes in use on the device.
func (b *Buffer) uncount() {
	if b.counted.CompareAndSwap(true, false) {
		b.client.inUse[b.local].Add(-b.bytes)
	}
}

// Raw returns the plugin's PJRT_Buffer*. It is valid until Close.
func (b *Buffer) Raw() unsafe.Pointer { return unsafe.Pointer(b.raw) }

// Shape returns the shape of the shard. It must not be changed.
func (b *Buffer) Shape() shape.Shape { return b.shape }

// Device returns the local index of the buffer's device.
func (b *Buffer) Device() int { return b.local }

// Memory returns the kind of memory that the buffer is in.
func (b *Buffer) Memory() string { return b.client.devices[b.local].Memories[b.memory].Kind }

// Order implements device.Ordered.
func (b *Buffer) Order() ([]int64, error) {
	if err := b.useContents(); err != nil {
		return nil, err
	}
	defer b.release()
	order := make([]int64, len(b.shape.Dims))
	p := b.client.plugin
	err := p.check(C.pwdrv_buffer_order(p.api, b.raw, (*C.int64_t)(unsafe.SliceData(order)), C.size_t(len(order))))
	return order, err
}

// View implements device.Viewer for arrays in the memory of a CPU.
func (b *Buffer) View() []byte {
	c := b.client
	if c.platform != "cpu" || b.shape.DType.Bits() < 8 || b.bytes == 0 || b.bytes != b.shape.HostBytes() {
		return nil
	}
	order, err := b.Order()
	if err != nil || !slices.IsSortedFunc(order, func(a, b int64) int { return cmp.Compare(b, a) }) {
		return nil
	}
	if b.useContents() != nil {
		return nil
	}
	defer b.release()
	var pointer unsafe.Pointer
	if c.plugin.check(C.pwdrv_buffer_pointer(c.plugin.api, b.raw, &pointer)) != nil || pointer == nil {
		return nil
	}
	return unsafe.Slice((*byte)(pointer), b.bytes)
}

// Ready returns an event that fires when the contents are there, or with the error of the work that should have made
// them.
func (b *Buffer) Ready() device.Event {
	if e := b.ready.Load(); e != nil {
		return e
	}
	if err := b.use(); err != nil {
		return failed(err)
	}
	defer b.release()
	c := b.client
	var raw *C.PJRT_Event
	if err := c.plugin.check(C.pwdrv_buffer_ready(c.plugin.api, b.raw, &raw)); err != nil {
		return failed(err)
	}
	e := c.event(raw, work, nil)
	if !b.ready.CompareAndSwap(nil, e) {
		return b.ready.Load()
	}
	return e
}

// ToHost copies the contents to dst, row-major, however they are laid out on the device.
func (b *Buffer) ToHost(dst []byte) (device.Event, error) {
	if want := b.shape.HostBytes(); int64(len(dst)) != want {
		return nil, status.New(status.InvalidArgument, "an array of %s has %d bytes on the host, there is room for %d",
			b.shape, want, len(dst))
	}
	if err := b.useContents(); err != nil {
		return nil, err
	}
	defer b.release()
	c := b.client
	var raw *C.PJRT_Event
	if err := c.plugin.check(C.pwdrv_to_host(c.plugin.api, b.raw, dataPointer(dst), C.size_t(len(dst)),
		C.size_t(len(b.shape.Dims)), &raw)); err != nil {
		return nil, err
	}
	return c.event(raw, work, nil), nil
}

// useContents is use, but returns an error for a buffer whose contents are gone.
func (b *Buffer) useContents() error {
	if err := b.use(); err != nil {
		return err
	}
	if b.deleted() {
		b.release()
		return status.New(status.FailedPrecondition, "the buffer of %s was deleted or donated", b.shape)
	}
	return nil
}

// CopyTo copies to a device and memory; "" is the device's default one.
func (b *Buffer) CopyTo(local int, memory string) (device.Buffer, error) {
	c := b.client
	to, err := c.memory(local, memory)
	if err != nil {
		return nil, err
	}
	if err := b.useContents(); err != nil {
		return nil, err
	}
	defer b.release()
	at := &c.handles[local]
	var raw *C.PJRT_Buffer
	err = c.plugin.check(C.pwdrv_copy_to_memory(c.plugin.api, b.raw, at.memories[to], &raw))
	if status.CodeOf(err) == status.Unimplemented && to == c.devices[local].Default {
		err = c.plugin.check(C.pwdrv_copy_to_device(c.plugin.api, b.raw, at.raw, &raw))
	}
	if err != nil {
		return nil, err
	}
	copied := &Buffer{}
	copied.own(c, raw, b.shape, local, to, c.measure(raw, b.shape))
	return copied, nil
}

// Deleted reports whether the contents were donated, or the buffer was closed.
func (b *Buffer) Deleted() bool {
	if b.use() != nil {
		return true
	}
	defer b.release()
	return b.deleted()
}

// deleted asks the plugin. The caller uses the buffer.
func (b *Buffer) deleted() bool {
	var deleted C.bool
	err := b.client.plugin.check(C.pwdrv_buffer_deleted(b.client.plugin.api, b.raw, &deleted))
	return err == nil && bool(deleted)
}

// Close deletes the buffer. A second Close does nothing.
func (b *Buffer) Close() {
	if !b.closed.Swap(true) {
		b.uncount()
		b.release()
	}
}
