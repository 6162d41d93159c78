package worker

import (
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
	"github.com/openpathways/pathways/transport/content"
)

// The long constants of a portable program are not part of what is compiled, serialized and loaded: a driver would copy
// them each time. They are arrays that each run takes behind the program's arguments (device.Part). A worker has them
// once, in memory that its devices read in place if they can. They go to other workers and into the cache as two parts
// of the artifact, behind its serialized form and code: a wire.Constants, and the bytes.

// constantAlign is where the bytes of each constant begin: where devices can read them in place.
const constantAlign = 64

// constantsOf returns the parts of an artifact with these constants, for the caller to release; none if there are none.
//
// Errors: RESOURCE_EXHAUSTED.
func constantsOf(all []device.Constant) ([]*content.Memory, error) {
	if len(all) == 0 {
		return nil, nil
	}
	table, size := new(wire.Constants), int64(0)
	for _, c := range all {
		table.Arrays = append(table.Arrays, array(c.Shape, ""))
		size += aligned(c.Shape.HostBytes())
	}
	data, err := content.Reserve(int(size))
	if err != nil {
		return nil, err
	}
	at := int64(0)
	for _, c := range all {
		n := c.Shape.HostBytes()
		c.CopyTo(data.Data[at : at+n])
		at += aligned(n)
	}
	return []*content.Memory{content.Bytes(wire.Encode(nil, table)), data}, nil
}

func aligned(n int64) int64 { return (n + constantAlign - 1) &^ (constantAlign - 1) }

// withConstants is an executable that appends constants to the inputs of each run, and does not list them among its
// parameters.
type withConstants struct {
	device.Executable
	table, data *content.Memory
	count       int               // constants
	bytes       int64             // of them
	buffers     [][]device.Buffer // by local device
	closed      atomic.Bool
}

// withConstants returns an executable with the constants of an artifact, which it holds; x if there are none. It closes
// x if it fails.
//
// Errors: DATA_LOSS where the parts are malformed; those of the driver.
func (w *Worker) withConstants(x device.Executable, parts []*content.Memory) (_ device.Executable, err error) {
	if len(parts) < 2 || len(parts[0].Data) == 0 {
		return x, nil
	}
	c := &withConstants{Executable: x, table: parts[0], data: parts[1]}
	c.hold()
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	table := new(wire.Constants)
	if err := proto.Unmarshal(c.table.Data, table); err != nil {
		return nil, status.New(status.DataLoss, "the list of a program's constants is damaged: %w", err)
	}
	c.count, c.buffers = len(table.Arrays), make([][]device.Buffer, len(w.queues))
	at := int64(0)
	for _, a := range table.Arrays {
		h := device.Host{Semantics: device.ZeroCopy, Apart: true}
		h.Shape = shape.Shape{DType: shape.DType(a.Dtype), Dims: a.Dims}
		n := h.Shape.HostBytes()
		if n < 0 || n > int64(len(c.data.Data))-at {
			return nil, status.New(status.DataLoss, "the constants of a program have %d bytes, which is too short for %s at %d",
				len(c.data.Data), h.Shape, at)
		}
		h.Data = c.data.Data[at : at+n]
		h.Done = c.data.Release
		for local := range c.buffers {
			h.Device = local
			c.data.Hold()
			b, err := w.driver.FromHost(h)
			if err != nil {
				c.data.Release()
				return nil, status.Wrap(err, "a constant of a program")
			}
			c.buffers[local] = append(c.buffers[local], b)
		}
		at += aligned(n)
		c.bytes += n
	}
	return c, nil
}

// settleConstants moves the constants of an artifact that no program has here any more to a file, as its other parts
// are: the controller may keep it for the next session. They stay in memory if a run or a load is still under way. Only
// the goroutine that reads the connection calls it.
func (w *Worker) settleConstants(artifact uint64) {
	a := &w.artifacts
	a.mu.Lock()
	k := a.kept[artifact]
	settles := k != nil && len(k.constants) > 0 && !k.settled && k.live == nil && !a.loads(artifact)
	if !settles {
		a.mu.Unlock()
		return
	}
	k.settled = true
	parts := slices.Clone(k.constants)
	for _, part := range parts {
		part.Hold()
	}
	a.mu.Unlock()
	w.beside.Go(func() {
		host.Behind()
		spill(parts...)
		release(parts...)
	})
}

// loads reports whether an executable of an artifact is loaded. The caller holds mu.
func (a *artifacts) loads(number uint64) bool {
	for _, l := range a.loaded {
		if l.number == number {
			return true
		}
	}
	return false
}

// hold returns the parts of the artifact for the caller to release.
func (x *withConstants) hold() []*content.Memory {
	x.table.Hold()
	x.data.Hold()
	return []*content.Memory{x.table, x.data}
}

// Parameters implements device.Executable.
func (x *withConstants) Parameters() (shapes []shape.Shape, donated []int, known bool) {
	shapes, donated, known = x.Executable.Parameters()
	return shapes[:max(0, len(shapes)-x.count)], donated, known
}

// Cost implements device.Executable: constants are no arguments.
func (x *withConstants) Cost() (device.Cost, error) {
	c, err := x.Executable.Cost()
	c.ArgumentBytes = max(0, c.ArgumentBytes-x.bytes)
	return c, err
}

// Execute implements device.Executable.
func (x *withConstants) Execute(r device.Run) (*device.Results, error) {
	devices := x.Devices()
	if r.Only >= 0 {
		devices = []int{r.Only}
	}
	rows := slices.Clone(r.Inputs)
	for i, row := range rows {
		if i < len(devices) && devices[i] < len(x.buffers) {
			rows[i] = slices.Concat(row, x.buffers[devices[i]])
		}
	}
	r.Inputs = rows
	return x.Executable.Execute(r)
}

// Close implements device.Executable. Runs that were begun have their inputs.
func (x *withConstants) Close() {
	if x.closed.Swap(true) {
		return
	}
	x.Executable.Close()
	for _, row := range x.buffers {
		for _, b := range row {
			b.Close()
		}
	}
	release(x.table, x.data)
}
