package pjrt

// #include "driver.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// executeContext has what a run's handlers may ask for (PJRT's execute context). It must stay open until the run is
// done.
type executeContext struct {
	client *Client
	raw    *C.PJRT_ExecuteContext
}

// newContext makes a context for executions whose collectives s carries. The caller holds the client.
func (c *Client) newContext(s *service) (*executeContext, error) {
	x := &executeContext{client: c}
	if err := c.plugin.check(C.pwdrv_context_create(c.plugin.api, &x.raw)); err != nil {
		return nil, err
	}
	if err := c.plugin.check(C.pwdrv_context_client(c.plugin.api, x.raw, C.uintptr_t(s.self))); err != nil {
		_ = c.plugin.check(C.pwdrv_context_destroy(c.plugin.api, x.raw))
		return nil, err
	}
	c.opened()
	return x, nil
}

// close frees the context. It must not be called while another call uses it.
func (x *executeContext) close() {
	if x.raw != nil {
		_ = x.client.plugin.check(C.pwdrv_context_destroy(x.client.plugin.api, x.raw))
		x.raw = nil
		x.client.closedOne()
	}
}

// Execute runs the computation once on all its devices. The plugin may run a
// cheap one before it returns.
func (x *Executable) Execute(r device.Run) (*device.Results, error) {
	if err := x.use(); err != nil {
		return nil, err
	}
	defer x.release()
	devices, only, err := x.place(r)
	if err != nil {
		return nil, err
	}
	var few [8]*Buffer
	inputs, err := x.inputs(r, devices, few[:0])
	if err != nil {
		return nil, err
	}
	// From here on every input is kept alive, so that none is destroyed meanwhile.
	defer func() {
		for _, b := range inputs {
			b.release()
		}
	}()
	numArgs := len(r.Inputs[0])
	l := x.launch(len(devices), numArgs)
	if l == nil {
		return nil, short(int64(len(devices)) * int64(numArgs+len(x.outputs)) * int64(unsafe.Sizeof(l)))
	}
	defer x.keep(l)
	args := unsafe.Slice(l.args, len(inputs))
	for i, b := range inputs {
		args[i] = b.raw
	}
	kept := unsafe.Slice(l.kept, numArgs)
	for i, n := range r.NotDonated {
		kept[i] = C.int64_t(n)
	}
	var context *C.PJRT_ExecuteContext
	if s, err := x.client.serving(); err != nil {
		return nil, err
	} else if s != nil {
		context = s.context.raw
	}
	var deleted C.int64_t
	p := x.client.plugin
	err = p.check(C.pwdrv_execute(p.api, x.loaded, l, C.int(r.LaunchID), C.size_t(len(r.NotDonated)), only, context,
		&deleted))
	if err != nil {
		return nil, err
	}
	if deleted >= 0 {
		row, arg := int(deleted)/numArgs, int(deleted)%numArgs
		return nil, status.New(status.FailedPrecondition, "argument %d of %s for device %d was deleted or donated",
			arg, x.name, devices[row])
	}
	x.consumed(r, inputs, numArgs)
	return x.results(l, devices), nil
}

// place returns the devices that run, and the one that the plugin must be told, if any.
func (x *Executable) place(r device.Run) (devices []int, only *C.PJRT_Device, err error) {
	devices = x.devices
	at := -1
	switch {
	case r.Only >= 0:
		if len(x.devices) != 1 {
			return nil, nil, status.New(status.InvalidArgument,
				"%s is for %d devices: it cannot run on device %d only", x.name, len(x.devices), r.Only)
		}
		if err := x.client.checkDevice(r.Only); err != nil {
			return nil, nil, err
		}
		if !x.portable && r.Only != x.devices[0] {
			return nil, nil, status.New(status.FailedPrecondition,
				"%s was compiled for device %d and cannot run on device %d: compile it as portable", x.name, x.devices[0], r.Only)
		}
		if x.portable {
			at = r.Only
		}
		devices = x.client.numbers[r.Only : r.Only+1]
	case x.portable:
		at = x.devices[0]
	}
	if at >= 0 {
		only = x.client.handles[at].raw
	}
	if len(r.Inputs) != len(devices) {
		return nil, nil, status.New(status.InvalidArgument,
			"%s runs on %d devices: it takes %d rows of inputs, %d were given",
			x.name, len(devices), len(devices), len(r.Inputs))
	}
	return devices, only, nil
}

// inputs checks the buffers of a run, row after row, and keeps them alive: it appends them to held, which is empty.
// With an error it keeps none.
func (x *Executable) inputs(r device.Run, devices []int, held []*Buffer) (_ []*Buffer, err error) {
	defer func() {
		if err != nil {
			for _, b := range held {
				b.release()
			}
		}
	}()
	numArgs := len(r.Inputs[0])
	if x.params != nil && len(x.params.Params) != numArgs {
		return nil, status.New(status.InvalidArgument, "%s takes %d arguments, %d were given", x.name, len(x.params.Params),
			numArgs)
	}
	for i, n := range r.NotDonated {
		if n < 0 || n >= numArgs || slices.Contains(r.NotDonated[:i], n) {
			return nil, status.New(status.InvalidArgument,
				"NotDonated names argument %d: it must name each of arguments 0 to %d at most once", n, numArgs-1)
		}
	}
	held = slices.Grow(held, len(devices)*numArgs)
	for row, inputs := range r.Inputs {
		if len(inputs) != numArgs {
			return held, status.New(status.InvalidArgument, "row 0 of the inputs of %s has %d arguments, row %d has %d",
				x.name, numArgs, row, len(inputs))
		}
		for i, input := range inputs {
			b, ok := input.(*Buffer)
			if !ok || b == nil || b.client != x.client {
				return held, status.New(status.InvalidArgument, "argument %d of %s is not a buffer of the same client", i, x.name)
			}
			if b.local != devices[row] {
				return held, status.New(status.InvalidArgument, "argument %d of %s is on device %d, it must be on device %d",
					i, x.name, b.local, devices[row])
			}
			if x.params != nil && !same(b.shape, x.params.Params[i]) {
				return held, status.New(status.InvalidArgument, "argument %d of %s is %s, it must be %s",
					i, x.name, b.shape, x.params.Params[i])
			}
			if err := b.use(); err != nil {
				return held, status.Wrap(err, "argument %d of %s", i, x.name)
			}
			held = append(held, b)
		}
		if err := x.donatedTwice(r, held[row*numArgs:]); err != nil {
			return held, err
		}
	}
	return held, nil
}

// same reports whether a buffer is what a program takes. A token has no contents, so any buffer will do.
func same(a, b shape.Shape) bool {
	return b.DType == shape.Token || a.DType == b.DType && slices.Equal(a.Dims, b.Dims)
}

// donatedTwice returns an error for a row with the same donated buffer twice: one device would refuse it while the
// others start.
func (x *Executable) donatedTwice(r device.Run, row []*Buffer) error {
	if x.params == nil {
		return nil
	}
	for _, i := range x.params.Donated {
		if i >= len(row) || slices.Contains(r.NotDonated, i) {
			continue
		}
		for j := range row {
			if j != i && row[j] == row[i] {
				return status.New(status.InvalidArgument,
					"argument %d of %s is donated and is argument %d too: give a copy, or do not donate it", i, x.name, j)
			}
		}
	}
	return nil
}

// consumed takes donated inputs out of the account. An input that the plugin did not consume, since its memory is still
// being viewed, stays.
func (x *Executable) consumed(r device.Run, inputs []*Buffer, numArgs int) {
	look := func(b *Buffer) {
		if b.counted.Load() && b.deleted() {
			b.uncount()
		}
	}
	if x.params != nil {
		for _, i := range x.params.Donated {
			for ; i < len(inputs) && numArgs > 0; i += numArgs {
				look(inputs[i])
			}
		}
	} else if len(r.NotDonated) < numArgs {
		for _, b := range inputs {
			look(b)
		}
	}
}

// results makes buffers and events of the results of a launch.
func (x *Executable) results(l *C.pwdrv_launch, devices []int) *device.Results {
	c, n := x.client, len(x.outputs)
	raws := unsafe.Slice(l.outputs, len(devices)*n)
	sizes := x.sizes.Load()
	if sizes == nil {
		measured := make([]int64, n)
		for i := range measured {
			measured[i] = c.measure(raws[i], x.outputs[i].Shape)
		}
		sizes = &measured
		x.sizes.Store(sizes)
	}
	buffers := make([]Buffer, len(raws))
	r, values := newResults(len(devices), len(raws))
	for d, local := range devices {
		for i := range n {
			at := d*n + i
			buffers[at].own(c, raws[at], x.outputs[i].Shape, local, x.memories[i], (*sizes)[i])
			values[at] = &buffers[at]
		}
		r.Outputs[d] = values[d*n : (d+1)*n : (d+1)*n]
	}
	events := unsafe.Slice(l.events, len(devices))
	errs := unsafe.Slice(l.errors, len(devices))
	for d, fired := range unsafe.Slice(l.fired, len(devices)) {
		if bool(fired) {
			r.Done[d] = failed(c.plugin.take(errs[d]))
		} else {
			r.Done[d] = c.watch(events[d], work, nil)
		}
	}
	return r
}

// newResults makes the results of a run on some devices, and room for all their buffers: in one piece for the most
// usual run, of one result on one device. The buffers themselves live longer.
func newResults(devices, buffers int) (*device.Results, []device.Buffer) {
	if devices == 1 && buffers == 1 {
		one := new(struct {
			device.Results
			outputs [1][]device.Buffer
			done    [1]device.Event
			values  [1]device.Buffer
		})
		one.Outputs, one.Done = one.outputs[:], one.done[:]
		return &one.Results, one.values[:]
	}
	return &device.Results{Outputs: make([][]device.Buffer, devices), Done: make([]device.Event, devices)},
		make([]device.Buffer, buffers)
}

// launch returns C arrays for a run, or nil if memory is short; keep takes them back.
func (x *Executable) launch(devices, numArgs int) *C.pwdrv_launch {
	for {
		l := x.unused()
		if l == nil {
			return C.pwdrv_launch_new(C.size_t(devices), C.size_t(numArgs), C.size_t(len(x.outputs)))
		}
		if int(l.num_args) == numArgs {
			return l
		}
		C.free(unsafe.Pointer(l))
	}
}

// unused returns arrays that keep has kept; nil if there are none.
func (x *Executable) unused() *C.pwdrv_launch {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.idle) == 0 {
		return nil
	}
	l := x.idle[len(x.idle)-1]
	x.idle = x.idle[:len(x.idle)-1]
	return l
}

func (x *Executable) keep(l *C.pwdrv_launch) {
	x.mu.Lock()
	if len(x.idle) < maxIdle {
		x.idle = append(x.idle, l)
		l = nil
	}
	x.mu.Unlock()
	if l != nil {
		C.free(unsafe.Pointer(l))
	}
}
