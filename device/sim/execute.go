package sim

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// executable is a device.Executable.
type executable struct {
	drv   *Driver
	prog  *parsed
	ids   []int // devices of the gang
	local []int // this member's devices, in the gang's order
	place []int // their indices in ids
	blob  []byte
	print string

	// Guarded by the island's lock.
	closed bool
	on     []*dev // that have its code
}

// Name implements device.Executable.
func (x *executable) Name() string { return x.prog.Name }

// Fingerprint implements device.Executable.
func (x *executable) Fingerprint() string { return x.print }

// Devices implements device.Executable.
func (x *executable) Devices() []int { return slices.Clone(x.local) }

// Outputs implements device.Executable.
func (x *executable) Outputs() []device.Output { return slices.Clone(x.prog.results) }

// Cost implements device.Executable.
func (x *executable) Cost() (device.Cost, error) { return x.prog.bytes(), nil }

// Parameters implements device.Executable: it returns what the program declares.
func (x *executable) Parameters() (shapes []shape.Shape, donated []int, known bool) {
	for i, p := range x.prog.Params {
		if p.Donated {
			donated = append(donated, i)
		}
	}
	return slices.Clone(x.prog.params), donated, true
}

// Optimized implements device.Executable. It fails: a simulated program has no
// instructions.
func (x *executable) Optimized() ([]byte, error) {
	return nil, status.New(status.Unimplemented, "%s is a simulated program, which has no compiled form", x.prog.Name)
}

// Serialize implements device.Executable.
func (x *executable) Serialize() (device.Bytes, error) {
	x.drv.is.mu.Lock()
	defer x.drv.is.mu.Unlock()
	return device.NewBytes(slices.Clone(x.blob), nil), x.open()
}

// Close implements device.Executable.
func (x *executable) Close() {
	x.drv.is.mu.Lock()
	x.closed = true
	for _, d := range x.on {
		d.mems[0].inUse -= x.prog.Code
	}
	x.on = nil
	x.drv.is.mu.Unlock()
}

// open returns an error after Close. The caller holds the island's lock.
func (x *executable) open() error {
	if x.closed {
		return status.New(status.FailedPrecondition, "the executable %q is closed", x.prog.Name)
	}
	return x.drv.open()
}

// Execute implements device.Executable.
func (x *executable) Execute(r device.Run) (*device.Results, error) {
	devs, err := x.rows(r)
	if err != nil {
		return nil, status.Wrap(err, "execute %q", x.prog.Name)
	}
	is := x.drv.is
	is.mu.Lock()
	l, err := x.admit(r, devs)
	if err != nil {
		is.unlock()
		return nil, status.Wrap(err, "execute %q", x.prog.Name)
	}
	for i := range l.shards {
		s := &l.shards[i]
		if hook := x.drv.options.Launch; hook != nil {
			is.unlock()
			hook(r.LaunchID, s.on.local)
			is.mu.Lock()
		}
		s.on.queue = append(s.on.queue, s)
		s.queued, s.since = true, is.time()
		s.on.advance()
	}
	is.unlock()
	return l.results, nil
}

// rows checks what can be checked without the lock, and returns the devices.
func (x *executable) rows(r device.Run) ([]*dev, error) {
	bad := func(format string, args ...any) ([]*dev, error) {
		return nil, status.New(status.InvalidArgument, format, args...)
	}
	local := x.local
	if r.Only >= 0 {
		if len(x.ids) != 1 {
			return bad("Only %d: the program is for %d devices, want one for 1", r.Only, len(x.ids))
		}
		if _, err := x.drv.dev(r.Only); err != nil {
			return nil, err
		}
		local = []int{r.Only}
	}
	if len(r.Inputs) != len(local) {
		return bad("%d rows of inputs, want %d, one per device", len(r.Inputs), len(local))
	}
	for i, row := range r.Inputs {
		if len(row) != len(x.prog.params) {
			return bad("%d arguments in row %d, want %d", len(row), i, len(x.prog.params))
		}
	}
	for _, i := range r.NotDonated {
		if i < 0 || i >= len(x.prog.params) {
			return bad("NotDonated names argument %d of %d", i, len(x.prog.params))
		}
	}
	devs := make([]*dev, len(local))
	for i, l := range local {
		devs[i] = x.drv.devs[l]
	}
	return devs, nil
}

// launch is the part of a gang that one member's Execute makes.
type launch struct {
	shards  []shard
	results *device.Results
}

// admit checks the arguments, allocates all outputs or none, consumes donated arguments
// and makes the gang. The caller holds the island's lock.
func (x *executable) admit(r device.Run, devs []*dev) (*launch, error) {
	if err := x.open(); err != nil {
		return nil, err
	}
	donated := make([]bool, len(x.prog.params))
	for i := range donated {
		donated[i] = x.prog.Params[i].Donated && !slices.Contains(r.NotDonated, i)
	}
	in, err := x.arguments(r, devs, donated)
	if err != nil {
		return nil, err
	}
	g, err := x.gang(r)
	if err != nil {
		return nil, err
	}
	if err := x.loadCode(devs); err != nil {
		return nil, err
	}
	stores, err := x.reserve(devs, in, donated)
	if err != nil {
		return nil, err
	}
	l := x.shards(g, devs, in, donated, stores)
	g.came += len(devs)
	x.drv.pending += len(devs)
	x.drv.gangs[g] += len(devs)
	if g.joins {
		if g.came < len(g.shards) {
			x.drv.is.launch[g.key] = g
		} else {
			delete(x.drv.is.launch, g.key)
		}
	}
	return l, nil
}

// loadCode charges the program's code on the devices that do not have it. What it has charged stays, also after an
// error.
func (x *executable) loadCode(devs []*dev) error {
	if x.prog.Code == 0 {
		return nil
	}
	for _, d := range devs {
		if slices.Contains(x.on, d) {
			continue
		}
		if err := d.charge(d.mems[0], x.prog.Code); err != nil {
			return err
		}
		x.on = append(x.on, d)
	}
	return nil
}

// arguments checks the arguments of all devices, and returns them row by row.
func (x *executable) arguments(r device.Run, devs []*dev, donated []bool) ([]*buffer, error) {
	in := make([]*buffer, 0, len(devs)*len(donated))
	for i, row := range r.Inputs {
		for j, b := range row {
			b, err := x.argument(j, b, devs[i])
			if err != nil {
				return nil, err
			}
			in = append(in, b)
		}
		if j := twice(in[i*len(donated):], donated); j >= 0 {
			return nil, status.New(status.InvalidArgument, "argument %d on device %d is donated and given twice", j,
				devs[i].local)
		}
	}
	return in, nil
}

// shards makes the gang's shards on devs and their results, of arguments and stores that are row by row.
func (x *executable) shards(g *gang, devs []*dev, in []*buffer, donated []bool, stores []*storage) *launch {
	nIn, nOut := len(x.prog.params), len(x.prog.results)
	l := &launch{shards: make([]shard, len(devs)), results: &device.Results{
		Outputs: make([][]device.Buffer, len(devs)), Done: make([]device.Event, len(devs)),
	}}
	// One allocation per type, independent of the number of devices.
	buffers, outputs := make([]buffer, len(devs)*nOut), make([]device.Buffer, len(devs)*nOut)
	inputs, events := make([]*storage, len(in)), make([]*event, len(in))
	for i, b := range in {
		inputs[i], events[i] = b.store, b.ready
		if donated[i%nIn] {
			b.store, b.gone = nil, "donated"
		} else {
			b.store.refs++
		}
	}
	for i, d := range devs {
		s := &l.shards[i]
		s.gang, s.on, s.done.is, s.done.owner = g, d, d.drv.is, g
		s.in, s.inputs = inputs[i*nIn:(i+1)*nIn:(i+1)*nIn], events[i*nIn:(i+1)*nIn]
		s.out = stores[i*nOut : (i+1)*nOut]
		for k, o := range x.prog.results {
			b := &buffers[i*nOut+k]
			b.on, b.mem, b.shape, b.ready, b.store = d, s.out[k].mem, o.Shape, &s.done, s.out[k]
			b.store.refs++ // the shard's reference, until it has written
			outputs[i*nOut+k] = b
		}
		l.results.Outputs[i], l.results.Done[i] = outputs[i*nOut:(i+1)*nOut:(i+1)*nOut], &s.done
		g.shards[x.place[i]] = s
	}
	return l
}

// argument checks one argument.
func (x *executable) argument(j int, given device.Buffer, on *dev) (*buffer, error) {
	b, ok := given.(*buffer)
	switch {
	case given == nil || (ok && b == nil):
		return nil, status.New(status.InvalidArgument, "argument %d on device %d is nil", j, on.local)
	case !ok || b.on.drv != x.drv:
		return nil, status.New(status.InvalidArgument, "argument %d on device %d belongs to another driver", j, on.local)
	case b.on != on:
		return nil, status.New(status.InvalidArgument, "argument %d is on device %d, want device %d", j, b.on.local, on.local)
	case b.shape.DType != x.prog.params[j].DType || !slices.Equal(b.shape.Dims, x.prog.params[j].Dims):
		return nil, status.New(status.InvalidArgument, "argument %d on device %d is %s, want %s", j, on.local, b.shape,
			x.prog.params[j])
	}
	return b, status.Wrap(b.usable(), "argument %d", j)
}

// twice returns a donated argument that a row contains twice, or -1.
func twice(row []*buffer, donated []bool) int {
	for j, b := range row {
		if donated[j] {
			for k := range row {
				if k != j && row[k] == b {
					return j
				}
			}
		}
	}
	return -1
}

// reserve allocates the memory of all outputs, or of none.
func (x *executable) reserve(devs []*dev, in []*buffer, donated []bool) (stores []*storage, err error) {
	p := x.prog
	stores = make([]*storage, 0, len(devs)*len(p.results))
	takes := func(b *buffer, m *memory, k int) bool { return b.mem == m && b.store.charge == p.out[k] }
	for i, d := range devs {
		row := in[i*len(p.params):]
		for k, o := range p.results {
			m := d.mems[slices.Index(memoryKinds, o.Memory)]
			n := p.out[k]
			if a := p.alias[k]; a >= 0 && donated[a] && takes(row[a], m, k) {
				n = 0
			}
			s, err := d.alloc(m, n)
			if err != nil {
				for _, s := range stores {
					s.release()
				}
				return nil, err
			}
			stores = append(stores, s)
		}
	}
	for i := range devs { // no error from here on
		row := in[i*len(p.params):]
		for k := range p.results {
			s := stores[i*len(p.results)+k]
			if a := p.alias[k]; a >= 0 && donated[a] {
				if takes(row[a], s.mem, k) && s.charge == 0 {
					s.charge, row[a].store.charge = p.out[k], 0
				}
				s.takes = row[a].store
			}
		}
	}
	return stores, nil
}
