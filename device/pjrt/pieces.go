package pjrt

// #include "driver.h"
import "C"

import (
	"context"
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

var (
	_ device.Sliced   = (*Buffer)(nil)
	_ device.Receiver = (*Client)(nil)
)

// rows reports whether the device has a buffer's contents as the host does, dense and row by row. The caller uses it.
func (b *Buffer) rows() bool {
	if b.shape.DType.Bits() < 8 || b.bytes != b.shape.HostBytes() {
		return false
	}
	p := b.client.plugin
	var rows C.bool
	return p.check(C.pwdrv_buffer_rows(p.api, b.raw, C.size_t(len(b.shape.Dims)), &rows)) == nil && bool(rows)
}

// Dense implements device.Sliced. It finds out whether the plugin reads parts of buffers by reading none of this one.
func (b *Buffer) Dense() bool {
	if b.useContents() != nil {
		return false
	}
	defer b.release()
	if !b.rows() {
		return false
	}
	c := b.client
	c.slices.Do(func() {
		e, err := b.slice(nil, 0)
		if err == nil && e.Ready() {
			err = e.Wait(context.Background())
		}
		c.noSlices = status.CodeOf(err) == status.Unimplemented
	})
	return !c.noSlices
}

// Slice implements device.Sliced.
func (b *Buffer) Slice(dst []byte, offset int64) (device.Event, error) {
	if err := device.CheckPiece(b.shape, dst, offset); err != nil {
		return nil, err
	}
	if err := b.useContents(); err != nil {
		return nil, err
	}
	defer b.release()
	return b.slice(dst, offset)
}

func (b *Buffer) slice(dst []byte, offset int64) (device.Event, error) {
	c := b.client
	var raw *C.PJRT_Event
	if err := c.plugin.check(C.pwdrv_slice(c.plugin.api, b.raw, dataPointer(dst), C.int64_t(offset),
		C.int64_t(len(dst)), &raw)); err != nil {
		return nil, err
	}
	return c.event(raw, work, nil), nil
}

// incoming is a device.Incoming, by the plugin's transfer manager. That lives until Close and all writes have ended.
type incoming struct {
	to  *Buffer
	raw *C.pwdrv_incoming

	mu     sync.Mutex // guards the rest, and orders the plugin's calls: the last piece is the last of them
	missed int64      // bytes that Write was not called for
	broken bool       // the plugin has refused a piece
	closed bool
	users  int // Close, and the writes that have not ended
}

// Receive implements device.Receiver.
func (c *Client) Receive(s shape.Shape, local int, kind string) (device.Incoming, error) {
	memory, err := c.memory(local, kind)
	if err != nil {
		return nil, err
	}
	if s.HostBytes() <= 0 || s.DType.Bits() < 8 {
		return nil, status.New(status.Unimplemented, "an array of %s does not come in pieces", s)
	}
	if err := c.hold(); err != nil {
		return nil, err
	}
	defer c.drop()
	s.Dims = slices.Clone(s.Dims)
	in := &incoming{missed: s.HostBytes(), users: 1}
	var raw *C.PJRT_Buffer
	if err := c.plugin.check(C.pwdrv_receive(c.plugin.api, c.raw, C.int(s.DType),
		(*C.int64_t)(unsafe.SliceData(s.Dims)), C.size_t(len(s.Dims)), c.handles[local].memories[memory], &in.raw,
		&raw)); err != nil {
		if in.raw != nil {
			_ = c.plugin.check(C.pwdrv_incoming_destroy(c.plugin.api, in.raw))
		}
		return nil, err
	}
	b := &Buffer{}
	b.own(c, raw, s, local, memory, c.measure(raw, s))
	in.to = b
	c.opened()
	if !b.rows() {
		in.Close()
		b.Close()
		return nil, status.New(status.Unimplemented, "the device does not have arrays of %s as the host does", s)
	}
	return in, nil
}

// Buffer implements device.Incoming.
func (in *incoming) Buffer() device.Buffer { return in.to }

// Write implements device.Incoming.
func (in *incoming) Write(data []byte, offset int64) (device.Event, error) {
	s, c := in.to.shape, in.to.client
	if err := device.CheckPiece(s, data, offset); err != nil {
		return nil, err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.closed:
		return nil, status.New(status.FailedPrecondition, "a piece for the array of %s, which takes no more", s)
	case int64(len(data)) > in.missed:
		return nil, status.New(status.InvalidArgument, "a piece of %d bytes for the array of %s, which lacks %d", len(data),
			s, in.missed)
	}
	var raw *C.PJRT_Event
	last := in.missed == int64(len(data))
	if err := c.plugin.check(C.pwdrv_incoming_write(c.plugin.api, in.raw, dataPointer(data), C.int64_t(offset),
		C.int64_t(len(data)), C.bool(last), &raw)); err != nil {
		in.broken = true
		return nil, err
	}
	in.missed -= int64(len(data))
	in.users++
	e := c.event(raw, work, nil)
	e.Then(func(error) { go in.leave() }) // this may be a thread of the plugin, which holds locks
	return e, nil
}

// leave ends a write, or Close.
func (in *incoming) leave() {
	in.mu.Lock()
	in.users--
	left := in.users
	in.mu.Unlock()
	if left == 0 {
		c := in.to.client
		_ = c.plugin.check(C.pwdrv_incoming_destroy(c.plugin.api, in.raw)) // an error could not be handled here
		c.drop()
	}
}

// Close implements device.Incoming.
func (in *incoming) Close() {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return
	}
	in.closed = true
	c := in.to.client
	c.open.Add(-1)
	if in.missed > 0 || in.broken {
		text, size := chars(status.New(status.Cancelled, "%d bytes of the array of %s were never written", in.missed,
			in.to.shape).Error())
		_ = c.plugin.check(C.pwdrv_incoming_fail(c.plugin.api, in.raw, C.int(status.Cancelled), text, size))
	}
	in.mu.Unlock()
	in.leave()
}
