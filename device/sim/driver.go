package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// platform is the platform's name, if the options do not say another.
const platform = "sim"

// memoryKinds are the memories of every simulated device, the default first.
var memoryKinds = []string{"device", "pinned_host"}

// Driver is a device.Driver of simulated devices.
type Driver struct {
	is      *Island
	options Options
	member  device.Membership
	base    int // id of the first device
	total   int // devices of all members
	devs    []*dev
	listed  []device.Device
	once    sync.Once

	// The island's lock guards the rest.
	handle   func(*device.CollectiveCall) // see Separate
	closed   bool
	pending  int // number of shards and copies that are not done
	borrowed map[*storage]struct{}
	gangs    map[*gang]int // number of the gang's shards here that are not done
}

// dev is one device. The island's lock guards its fields, except those in the first line.
type dev struct {
	drv       *Driver
	id, local int
	mems      []*memory
	queue     []*shard // not yet at the head
	head      *shard   // occupies the device
	runs      script
	allocs    script
	pieces    script
	lost      error
}

func newDriver(o Options, m device.Membership, base, total int) *Driver {
	d := &Driver{is: o.Island, options: o, member: m, base: base, total: total, borrowed: map[*storage]struct{}{},
		gangs: map[*gang]int{}}
	for i := range o.Devices {
		v := &dev{drv: d, id: base + i, local: i}
		for k, limit := range []int64{o.Memory, o.HostMemory} {
			v.mems = append(v.mems, &memory{kind: memoryKinds[k], limit: limit})
		}
		d.devs = append(d.devs, v)
		listed := device.Device{ID: v.id, Kind: "simulated"}
		for k, kind := range memoryKinds {
			listed.Memories = append(listed.Memories, device.Memory{ID: len(memoryKinds)*v.id + k, Kind: kind})
		}
		d.listed = append(d.listed, listed)
	}
	d.is.mu.Lock()
	d.is.drivers[d] = struct{}{}
	d.is.mu.Unlock()
	return d
}

// Platform implements device.Driver.
func (d *Driver) Platform() string { return d.options.Platform }

// PlatformVersion implements device.Driver.
func (d *Driver) PlatformVersion() string {
	return fmt.Sprintf("pathways sim %d (simulated devices, no hardware)", Version)
}

// Devices implements device.Driver.
func (d *Driver) Devices() []device.Device { return d.listed }

// Island returns the island of the driver's devices.
func (d *Driver) Island() *Island { return d.is }

// open returns an error after Close. The caller holds the island's lock.
func (d *Driver) open() error {
	if d.closed {
		return status.New(status.FailedPrecondition, "the driver of simulated devices is closed")
	}
	return nil
}

// dev returns a device by its local index.
func (d *Driver) dev(local int) (*dev, error) {
	if local < 0 || local >= len(d.devs) {
		return nil, status.New(status.InvalidArgument, "there is no device %d, only 0 to %d", local, len(d.devs)-1)
	}
	return d.devs[local], nil
}

// memory returns a memory of the device by its kind.
func (d *dev) memory(kind string) (*memory, error) {
	if kind == "" {
		return d.mems[0], nil
	}
	if i := slices.Index(memoryKinds, kind); i >= 0 {
		return d.mems[i], nil
	}
	return nil, status.New(status.InvalidArgument, "device %d has no memory %s, only %q", d.local, status.Quote(kind),
		memoryKinds)
}

// MemoryStats implements device.Driver, for the default memory.
func (d *Driver) MemoryStats(local int) (device.MemoryStats, error) {
	v, err := d.dev(local)
	if err != nil {
		return device.MemoryStats{}, err
	}
	d.is.mu.Lock()
	defer d.is.mu.Unlock()
	if err := d.open(); err != nil {
		return device.MemoryStats{}, err
	}
	m := v.mems[0]
	return device.MemoryStats{InUse: m.inUse, Limit: m.limit}, nil
}

// read reads a program, to do something with it.
func (d *Driver) read(ctx context.Context, do string, p device.Program) (*parsed, error) {
	if ctx.Err() != nil {
		return nil, status.New(status.Cancelled, "%s: %w", do, ctx.Err())
	}
	if p.Format != Format {
		return nil, status.New(status.InvalidArgument, "program format %s: simulated devices take %q only",
			status.Quote(p.Format), Format)
	}
	return parse(p.Code, d.options.Cost)
}

// Compile implements device.Driver.
func (d *Driver) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	prog, err := d.read(ctx, "compile", p)
	if err != nil {
		return nil, err
	}
	ids, err := devices(options, prog)
	if err != nil {
		return nil, err
	}
	if prog.Devices > 0 && prog.Devices != len(ids) {
		return nil, status.New(status.InvalidArgument, "program %q is for %d devices, the compile options for %d", prog.Name,
			prog.Devices, len(ids))
	}
	return d.executable(prog, ids, p.Code)
}

// executable makes an executable of a program for devices.
func (d *Driver) executable(prog *parsed, ids []int, code []byte) (device.Executable, error) {
	if len(prog.Calls) > 0 && len(ids) != 1 {
		return nil, status.New(status.InvalidArgument, "program %q calls its collectives and is for %d devices: want one, "+
			"since each device runs it by itself", prog.Name, len(ids))
	}
	x := &executable{drv: d, prog: prog, ids: ids}
	seen := map[int]bool{}
	for i, id := range ids {
		if id < 0 || id >= d.total || seen[id] {
			return nil, status.New(status.InvalidArgument, "program %q for devices %v: want each of them once, from 0 to %d",
				prog.Name, ids, d.total-1)
		}
		seen[id] = true
		if local := id - d.base; local >= 0 && local < len(d.devs) {
			x.local, x.place = append(x.local, local), append(x.place, i)
		}
	}
	if len(x.local) == 0 {
		return nil, status.New(status.InvalidArgument, "program %q for devices %v: none is this member's, which has %d to %d",
			prog.Name, ids, d.base, d.base+len(d.devs)-1)
	}
	blob, err := json.Marshal(serialized{Version: Version, Devices: ids, Cost: int64(prog.cost), Program: code})
	if err != nil {
		return nil, status.New(status.InvalidArgument, "program %q: %w", prog.Name, err)
	}
	sum := sha256.Sum256(blob)
	x.blob, x.print = blob, hex.EncodeToString(sum[:])
	d.is.mu.Lock()
	defer d.is.mu.Unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	return x, nil
}

// serialized is an executable as bytes.
type serialized struct {
	Version int             `json:"sim"`
	Devices []int           `json:"devices"`
	Cost    int64           `json:"cost_ns"`
	Program json.RawMessage `json:"program"`
}

// Load implements device.Driver.
func (d *Driver) Load(ctx context.Context, blob []byte) (device.Executable, error) {
	d.is.mu.Lock()
	err := d.open()
	d.is.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var s serialized
	if err := json.Unmarshal(blob, &s); err != nil || s.Version == 0 {
		return nil, status.New(status.InvalidArgument, "these %d bytes are not an executable of simulated devices", len(blob))
	}
	if s.Version != Version {
		return nil, status.New(status.InvalidArgument,
			"an executable of version %d of the simulated devices, want %d: compile it again", s.Version, Version)
	}
	prog, err := parse(s.Program, d.options.Cost)
	if err != nil {
		return nil, err
	}
	return d.executable(prog, s.Devices, s.Program)
}

// FromHost implements device.Driver.
func (d *Driver) FromHost(h device.Host) (device.Buffer, error) {
	v, err := d.dev(h.Device)
	if err != nil {
		return nil, err
	}
	m, err := v.memory(h.Memory)
	if err != nil {
		return nil, err
	}
	if h.Shape.DType.Bits() == 0 || h.Shape.Bytes() < 0 || h.Shape.HostBytes() < 0 {
		return nil, status.New(status.InvalidArgument,
			"host array of %s: want a known element type and dimensions that are not negative and fit in memory", h.Shape)
	}
	if n := h.Shape.HostBytes(); int64(len(h.Data)) != n {
		return nil, status.New(status.InvalidArgument, "host array of %s has %d bytes, want %d", h.Shape, len(h.Data), n)
	}
	if h.Semantics < device.DuringCall || h.Semantics > device.MutableZeroCopy {
		return nil, status.New(status.InvalidArgument, "host semantics %d are not known", h.Semantics)
	}
	done := h.Done
	if done == nil {
		done = func() {}
	}
	var data []byte
	if h.Semantics == device.DuringCall {
		data = bytes.Clone(h.Data)
	}

	d.is.mu.Lock()
	defer d.is.unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	charge := h.Shape.Bytes()
	if h.Apart {
		charge = 0
	}
	s, err := v.alloc(m, charge)
	if err != nil {
		return nil, err
	}
	s.refs++ // until the bytes have been copied
	b := &buffer{on: v, mem: m, shape: cloneShape(h.Shape), store: s, ready: &event{is: d.is}}
	switch h.Semantics {
	case device.DuringCall:
		s.data = data
		d.is.calls = append(d.is.calls, done)
		b.copy(b.ready, nil, s.release)
	case device.UntilDone:
		b.copy(b.ready, func() { data = bytes.Clone(h.Data) }, func() {
			s.data = data
			d.is.calls = append(d.is.calls, done)
			s.release()
		})
	default:
		s.data, s.shared, s.done = h.Data, h.Semantics == device.ZeroCopy, done
		d.borrowed[s] = struct{}{}
		b.copy(b.ready, nil, s.release)
	}
	return b, nil
}

func cloneShape(s shape.Shape) shape.Shape {
	return shape.Shape{DType: s.DType, Dims: slices.Clone(s.Dims)}
}

// Close implements device.Driver. Work that can never finish, because gangs are deadlocked
// or wait for members that have not come, is ended with ABORTED; Close then returns that
// error, after it has closed the driver.
func (d *Driver) Close() error {
	var err error
	d.once.Do(func() { err = d.close() })
	return err
}

func (d *Driver) close() error {
	is := d.is
	is.mu.Lock()
	defer is.unlock()
	d.closed = true
	var ended error
	for {
		is.settle(func() bool { return d.pending > 0 })
		if d.pending == 0 {
			break
		}
		err := is.hang()
		if err == nil {
			err = status.New(status.Aborted, "the driver was closed while its work waited for members that had not come")
		}
		if ended == nil {
			ended = err
		}
		for _, g := range d.inOrder() {
			g.abort(is, err)
		}
	}
	for _, v := range d.devs {
		d.miss(v, status.New(status.Unavailable, "simulated device %d has left with its member %d", v.id, d.member.Node))
	}
	for s := range d.borrowed {
		s.data = nil
		s.letGo()
	}
	delete(is.drivers, d)
	is.forget(d.member.Epoch)
	return ended
}
