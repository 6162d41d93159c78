package cluster_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
)

// single is a cluster of one worker, joined by function calls: whole objects over one simulated driver. What it cannot
// do at once it does in goroutines, so ends may come at any time.
type single struct {
	grant.Slices // none is asked for in these tests
	driver       device.Driver
	platform     string // of the devices, as clients see it
	notify       client.Notify

	mu       sync.Mutex
	next     uint64
	programs map[uint64]*compiled
	objects  map[uint64]map[uint32]device.Buffer
	failed   map[uint64]error // objects that were not made
	making   map[uint64]chan struct{}
	freed    int // objects that were freed
	pending  sync.WaitGroup
	closed   bool
	lost     error
	onClose  func() // nil: nothing more
}

type compiled struct {
	device.Executable
	info *wire.ProgramInfo
}

func newSingle(d device.Driver, notify client.Notify) *single {
	return &single{driver: d, platform: d.Platform(), notify: notify, next: 1, programs: map[uint64]*compiled{},
		objects: map[uint64]map[uint32]device.Buffer{}, failed: map[uint64]error{}, making: map[uint64]chan struct{}{}}
}

func (c *single) WorkerName(uint64) string { return "alone" }

func (c *single) Losses() []uint64 { return nil }

func (c *single) Devices() []*wire.Device {
	var out []*wire.Device
	for i, d := range c.driver.Devices() {
		x := &wire.Device{Number: uint32(i), Worker: 7, Local: uint32(i), Slice: 3, Kind: d.Kind,
			DefaultMemory: uint32(d.Default)}
		for _, m := range d.Memories {
			x.Memories = append(x.Memories, m.Kind)
		}
		out = append(out, x)
	}
	return out
}

func (c *single) Platforms() []*wire.Platform {
	return []*wire.Platform{{Name: c.platform, Version: c.driver.PlatformVersion(),
		Strings: map[string]string{"color": "blue"}, Ints: map[string]int64{"xla_version": 2},
		Lists: []*wire.IntList{{Name: "stablehlo_current_version", Values: []int64{1, 13, 0}}}}}
}

func array(s shape.Shape, memory string) *wire.Array {
	return &wire.Array{Dtype: uint32(s.DType), Dims: s.Dims, Memory: memory}
}

func (c *single) Compile(ctx context.Context, s client.CompileSpec) (*client.Remote, error) {
	x, err := c.driver.Compile(ctx, device.Program{Format: s.Format, Code: s.Code}, s.Options)
	if err != nil {
		return nil, err
	}
	var source sim.Program
	if err := json.Unmarshal(s.Code, &source); err != nil {
		return nil, status.New(status.InvalidArgument, "%w", err)
	}
	cost := x.Cost()
	info := &wire.ProgramInfo{Name: x.Name(), Fingerprint: x.Fingerprint(), Replicas: uint32(len(x.Devices())),
		Partitions: 1,
		Cost: &wire.Cost{ArgumentBytes: cost.ArgumentBytes, OutputBytes: cost.OutputBytes, AliasBytes: cost.AliasBytes,
			TempBytes: cost.TempBytes, CodeBytes: cost.CodeBytes}}
	for _, d := range x.Devices() {
		info.Devices = append(info.Devices, uint32(d))
	}
	for _, o := range x.Outputs() {
		info.Outputs = append(info.Outputs, array(o.Shape, o.Memory))
	}
	for i, p := range source.Params {
		t := shape.Pred
		for t.String() != p.DType {
			t++
		}
		info.Parameters = append(info.Parameters, array(shape.Shape{DType: t, Dims: p.Dims}, ""))
		if p.Donated {
			info.Donated = append(info.Donated, uint32(i))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	c.programs[c.next] = &compiled{x, info}
	return &client.Remote{ID: c.next, Info: info}, nil
}

func (c *single) Forget(program uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs[program].Close()
	delete(c.programs, program)
}

func (c *single) Objects(n int) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.next + 1
	c.next += uint64(n)
	return first
}

// shard returns a shard of an object. The caller holds mu.
func (c *single) shard(object uint64, d uint32) (device.Buffer, error) {
	if made := c.making[object]; made != nil {
		c.mu.Unlock()
		<-made
		c.mu.Lock()
	}
	if err := c.failed[object]; err != nil {
		return nil, err
	}
	if b := c.objects[object][d]; b != nil {
		return b, nil
	}
	return nil, status.New(status.Internal, "object %d has no shard on device %d", object, d)
}

// ended reports the end of an operation after all its events have fired.
func (c *single) ended(token uint64, events []device.Event, err error) {
	c.pending.Add(1)
	if len(events) == 0 {
		c.notify([]client.Ended{{Token: token, Err: err}})
		c.pending.Done()
		return
	}
	events[0].Then(func(e error) {
		c.ended(token, events[1:], firstError(err, e))
		c.pending.Done()
	})
}

func (c *single) Run(r *client.RunSpec) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return status.New(status.Unavailable, "closed")
	}
	x := c.programs[r.Program]
	rows := x.info.Devices
	if r.Only >= 0 {
		rows = []uint32{uint32(r.Only)}
	}
	inputs := make([][]device.Buffer, len(rows))
	from := func(row int, object uint64) error {
		b, err := c.shard(object, rows[row])
		inputs[row] = append(inputs[row], b)
		return err
	}
	var err error
	for i, object := range r.Inputs {
		mixed := slices.IndexFunc(r.Mixed, func(m *wire.Mixed) bool { return int(m.Argument) == i })
		row := 0
		if mixed >= 0 {
			for _, p := range r.Mixed[mixed].Pieces {
				for range p.Rows {
					err = firstError(err, from(row, p.Object))
					row++
				}
			}
			continue
		}
		for row := range rows {
			err = firstError(err, from(row, object))
		}
	}
	var results *device.Results
	if err == nil {
		run := device.Run{Inputs: inputs, Only: r.Only}
		for _, i := range r.NotDonated {
			run.NotDonated = append(run.NotDonated, int(i))
		}
		results, err = x.Execute(run)
	}
	if err != nil {
		for o := range x.info.Outputs {
			c.failed[r.FirstOutput+uint64(o)] = err
		}
		c.ended(r.Token, nil, err)
		return nil
	}
	for o := range x.info.Outputs {
		shards := map[uint32]device.Buffer{}
		for row, d := range rows {
			shards[d] = results.Outputs[row][o]
		}
		c.objects[r.FirstOutput+uint64(o)] = shards
	}
	c.ended(r.Token, results.Done, nil)
	return nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// Put has half of the arrays filled late, on another goroutine.
func (c *single) Put(p *client.PutSpec) error {
	c.mu.Lock()
	late, closed := p.Object%2 == 1, c.closed
	c.mu.Unlock()
	if closed {
		return status.New(status.Unavailable, "closed")
	}
	if p.Gather != nil {
		p.Gather.Sent() // nothing is gathered here
	}
	spec, made := *p, make(chan struct{})
	fill := func() {
		data := make([]byte, spec.Shape.HostBytes())
		spec.Fill(spec.Devices[0], data, func(err error) {
			var b device.Buffer
			if err == nil {
				b, err = c.driver.FromHost(device.Host{
					Shape: spec.Shape, Data: data, Device: int(spec.Devices[0]), Memory: spec.Memory})
			}
			c.mu.Lock()
			if err != nil {
				c.failed[spec.Object] = err
			} else {
				c.objects[spec.Object] = map[uint32]device.Buffer{spec.Devices[0]: b}
			}
			c.mu.Unlock()
			close(made)
			if err != nil {
				c.ended(spec.Token, nil, err)
			} else {
				c.ended(spec.Token, []device.Event{b.Ready()}, nil)
			}
		})
	}
	c.mu.Lock()
	c.making[p.Object] = made
	c.mu.Unlock()
	if late {
		c.pending.Go(fill)
	} else {
		fill()
	}
	return nil
}

func (c *single) SendPuts() {}

func (c *single) FreeRow(uint64, uint32) {}

func (c *single) Transfer(t *wire.Transfer, token uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	shards := map[uint32]device.Buffer{}
	var events []device.Event
	var err error
	for _, m := range t.Moves {
		b, e := c.shard(m.Source, m.From)
		if e == nil {
			b, e = b.CopyTo(int(m.To), t.Array.Memory)
		}
		if err = firstError(err, e); e == nil {
			shards[m.To] = b
			events = append(events, b.Ready())
		}
	}
	if err != nil {
		c.failed[t.Object] = err
	}
	c.objects[t.Object] = shards
	c.ended(token, events, err)
	return nil
}

func (c *single) Fetch(object uint64, d uint32, dst []byte, done func(error)) error {
	c.mu.Lock()
	b, err := c.shard(object, d)
	c.mu.Unlock()
	if err == nil {
		var e device.Event
		if e, err = b.ToHost(dst); err == nil {
			e.Then(done)
			return nil
		}
	}
	done(err)
	return nil
}

func (c *single) Receive(object uint64, d uint32, size int64, arrived func(transport.Block, error)) error {
	dst := make([]byte, size)
	return c.Fetch(object, d, dst, func(err error) { arrived(transport.Block{Data: dst, Release: func() {}}, err) })
}

func (c *single) Lends(uint32, int64) bool { return false }

func (c *single) CanLend(uint32, []byte) error {
	return status.New(status.FailedPrecondition, "nothing is lent")
}

func (c *single) Free(objects []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed += len(objects)
	for _, o := range objects {
		for _, b := range c.objects[o] {
			b.Close()
		}
		delete(c.objects, o)
		delete(c.failed, o)
		delete(c.making, o)
	}
}

func (c *single) StartProfile(context.Context) (client.StopProfile, error) {
	return nil, status.New(status.Unimplemented, "one worker joined by function calls records nothing")
}

func (c *single) Lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *single) Close() error {
	if c.onClose != nil {
		c.onClose()
	}
	c.mu.Lock()
	c.closed = true
	for _, shards := range c.objects {
		for _, b := range shards {
			b.Close()
		}
	}
	for _, p := range c.programs {
		p.Close()
	}
	c.mu.Unlock()
	err := c.driver.Close()
	c.pending.Wait()
	return err
}

func (c *single) Define(*graph.Graph) (uint64, error) {
	return 0, status.New(status.Unimplemented, "graphs are played by clusters of more parts")
}

func (c *single) Play(*client.PlaySpec) error { return nil }

func (c *single) ForgetGraph(uint64) {}
