package arrowio

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/arrowmem"
	"github.com/openpathways/pathways/transport/shm"
)

// rig is a session on simulated devices, with an allocator, and what passes through
// it.
type rig struct {
	*sharded.Session
	t       testing.TB
	mem     *arrowmem.Allocator
	drivers []device.Driver
	taps    *taps
	local   *cluster.Local
}

// taps is where memory was.
type taps struct {
	mu       sync.Mutex
	received map[*byte]bool // blocks that have come
	held     atomic.Int64   // of them
	stop     chan struct{}  // closed: Put goes on
}

type tapped struct {
	client.Cluster
	*taps
}

func (t tapped) Put(p *client.PutSpec) error {
	fill := p.Fill
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		go func() {
			<-t.stop
			fill(d, dst, written)
		}()
	}
	return t.Cluster.Put(p)
}

func (t tapped) Receive(object uint64, d uint32, size int64, arrived func(transport.Block, error)) error {
	return t.Cluster.Receive(object, d, size, func(b transport.Block, err error) {
		if err == nil {
			t.mu.Lock()
			t.received[unsafe.SliceData(b.Data)] = true
			t.mu.Unlock()
			t.held.Add(1)
			release := b.Release
			b.Release = func() {
				t.held.Add(-1)
				release()
			}
		}
		arrived(b, err)
	})
}

// open makes a cluster of workers with two devices each. What is not released or
// freed by the end of the test is an error.
func open(t testing.TB, workers int) *rig {
	t.Helper()
	r := &rig{t: t, taps: &taps{received: map[*byte]bool{}, stop: make(chan struct{})}}
	kinds := make([]device.Kind, workers)
	for i := range kinds {
		kinds[i] = sim.Kind{Options: sim.Options{Devices: 2, Island: sim.NewIsland(sim.Instant, 1)}}
	}
	if workers > 1 {
		island := sim.NewIsland(sim.Instant, 1)
		for i := range kinds {
			kinds[i] = sim.Kind{Options: sim.Options{Devices: 2, Island: island}}
		}
	}
	drivers, leave, err := cluster.Join(t.Context(), kinds)
	statustest.OK(t, err)
	leave()
	r.drivers = drivers
	if r.local, err = (cluster.InProcess{Drivers: drivers}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool := shm.NewPool(shm.Config{Limit: 1 << 28, Idle: time.Hour})
	r.mem = arrowmem.New(pool, "arrow", true)
	if r.Session, err = sharded.Open(pool, func(n client.Notify) (client.Cluster, error) {
		c, err := r.local.Connect(t.Context(), "client", n)
		return tapped{c, r.taps}, err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		statustest.Check(t, r.Session.Close())
		clustertest.Free(t, drivers)
		r.local.Close()
		for _, d := range drivers {
			d.Close()
		}
		statustest.Check(t, r.mem.Close())
		statustest.Equal(t, r.taps.held.Load(), 0, "blocks that were not given back")
		pool.Trim()
		if s := pool.Stats(); s.Mapped != 0 {
			t.Errorf("%+v", s)
		}
	})
	return r
}

// run lets what is put go on.
func (r *rig) run() { close(r.taps.stop) }

// bufferOf is memory of the allocator with these bytes.
func (r *rig) bufferOf(data []byte) *memory.Buffer {
	b := memory.NewResizableBuffer(r.mem)
	b.Resize(len(data))
	copy(b.Bytes(), data)
	return b
}

// made makes an array of count elements of random bytes, from an offset on, with so
// many bytes before the first.
func (r *rig) made(t arrow.DataType, offset, count, skew int) arrow.Array {
	dtype := types[t.ID()]
	n := offset + count
	size := n * dtype.Bits() / 8
	if dtype == shape.Pred {
		size = (n + 7) / 8
	}
	whole := r.bufferOf(make([]byte, size+skew))
	defer whole.Release()
	for i := range whole.Bytes() {
		whole.Bytes()[i] = byte(rand.Uint32())
	}
	b := memory.SliceBuffer(whole, skew, size)
	defer b.Release()
	data := array.NewData(t, count, []*memory.Buffer{nil, b}, nil, 0, offset)
	defer data.Release()
	return array.MakeFromData(data)
}

// bytesOf are the dense bytes of an array, told element by element.
func bytesOf(a arrow.Array) []byte {
	switch a := a.(type) {
	case array.ExtensionArray:
		return bytesOf(a.Storage())
	case *array.FixedSizeList:
		var all []byte
		values := bytesOf(a.ListValues())
		for i := range a.Len() {
			from, to := a.ValueOffsets(i)
			size := len(values) / max(a.ListValues().Len(), 1)
			all = append(all, values[int(from)*size:int(to)*size]...)
		}
		return all
	case *array.Boolean:
		var all []byte
		for i := range a.Len() {
			all = append(all, map[bool]byte{true: 1}[a.Value(i)])
		}
		return all
	}
	size := types[a.DataType().ID()].Bits() / 8
	d := a.Data()
	if d.Len() == 0 {
		return nil
	}
	return d.Buffers()[1].Bytes()[d.Offset()*size : (d.Offset()+d.Len())*size]
}

// lists makes fixed-size lists in one another.
func lists(elements arrow.Array, t arrow.DataType, n, offset int) arrow.Array {
	data := array.NewData(t, n, []*memory.Buffer{nil}, []arrow.ArrayData{elements.Data()}, 0, offset)
	defer data.Release()
	return array.MakeFromData(data)
}
