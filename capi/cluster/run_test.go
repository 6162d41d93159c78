package cluster_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

var vector = shape.Shape{DType: shape.F32, Dims: []int64{4}}

// inputs puts one array on each of a client's first n devices.
func inputs(t testing.TB, c *pjrt.Client, n int) [][]device.Buffer {
	t.Helper()
	rows := make([][]device.Buffer, n)
	for i := range rows {
		b := statustest.Value(c.FromHost(device.Host{Shape: vector, Data: make([]byte, 16), Device: i})).OK(t)
		rows[i] = []device.Buffer{b}
	}
	return rows
}

// compile compiles a program that adds one.
func compile(t testing.TB, c *pjrt.Client, devices ...int) device.Executable {
	t.Helper()
	x := statustest.Value(c.Compile(context.Background(), devicetest.Simulated(devicetest.AddOne, vector).Source(),
		compileoptions.New(len(devices), 1, devices, false))).OK(t)
	return x
}

func release(rows ...[]device.Buffer) {
	for _, row := range rows {
		for _, b := range row {
			b.Close()
		}
	}
}

// Time on the devices stands still until the test moves it: Execute returns all the same, and so do calls that depend
// on results to come.
func TestExecuteReturnsAtOnce(t *testing.T) {
	island := sim.NewIsland(sim.Manual, 1)
	c, _ := newFrontend(t, sim.Options{Devices: 2, Island: island, Cost: time.Second})
	x := compile(t, c, 0, 1)
	rows := inputs(t, c, 2)
	var made [][]device.Buffer
	for range 5 {
		r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(t)
		made = append(made, rows...)
		rows = r.Outputs
	}
	for _, row := range rows {
		if row[0].Ready().Ready() {
			t.Error("a result is ready although no time has passed on the devices")
		}
	}
	for _, row := range rows {
		statustest.Check(t, meanwhile(island, func() error { return row[0].Ready().Wait(t.Context()) }))
	}
	release(append(made, rows...)...)
	x.Close()
	statustest.Check(t, c.Close())
}

// A run enters Go once, whatever the number of devices, and so does a batch of freed objects.
func TestEntriesIntoGo(t *testing.T) {
	c, inner := newFrontend(t, sim.Options{Devices: 8, Island: sim.NewIsland(sim.Instant, 1)})
	x := compile(t, c, 0, 1, 2, 3, 4, 5, 6, 7)
	rows := inputs(t, c, 8)
	before := cluster.ReadStats()
	const runs = 1000
	for range runs {
		r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(t)
		release(r.Outputs...)
	}
	after := cluster.ReadStats()
	statustest.Equal(t, after.Executes-before.Executes, runs, "runs that were counted")
	if n := after.GoEntries - before.GoEntries; n > runs+runs/100 {
		t.Errorf("%d entries into Go for %d runs on 8 devices", n, runs)
	}
	// The last ones go by themselves.
	statustest.Soon(t, inner.freed.Load, runs, "objects that were freed of those that runs made")
	release(rows...)
	x.Close()
	statustest.Check(t, c.Close())
}

// An array whose bytes have come is ready, even if the controller has not yet reported that it was made. An array whose
// bytes were not requested waits for that report.
func TestBytesThatHaveComeAreReady(t *testing.T) {
	var says client.Notify
	words := make(chan client.Ended, 2) // of the controller, on their way
	// Bytes of arrays on other platforms are not brought here.
	o := sim.Options{Devices: 1, Island: sim.NewIsland(sim.Instant, 1), Platform: "cpu"}
	c, _ := newFrontend(t, o, func(notify client.Notify) client.Notify {
		says = notify
		return func(ended []client.Ended) {
			for _, e := range ended {
				words <- e
			}
		}
	})
	var arrays [2]device.Buffer
	for i := range arrays {
		b := statustest.Value(c.FromHost(device.Host{Shape: vector, Data: bytes.Repeat([]byte{7}, 16)})).OK(t)
		arrays[i] = b
	}
	if view := cluster.Look(arrays[0].(*pjrt.Buffer).Raw(), 16); !bytes.Equal(view, bytes.Repeat([]byte{7}, 16)) {
		t.Errorf("the bytes are %v", view)
	}
	if !arrays[0].Ready().Ready() {
		t.Error("an array is not ready whose bytes are here")
	}
	if arrays[1].Ready().Ready() {
		t.Error("an array is ready that the controller has said nothing of, and whose bytes are not here")
	}
	says([]client.Ended{<-words, <-words})
	var others sync.WaitGroup // tells the words on all else, such as the bytes, whose events would stay alive
	others.Go(func() {
		for e := range words {
			says([]client.Ended{e})
		}
	})
	statustest.Check(t, arrays[1].Ready().Wait(t.Context()))
	release(arrays[:])
	statustest.Check(t, c.Close())
	close(words)
	others.Wait()
	nothingAlive(t)
}

// A client that ends leaves nothing alive, even if results and events of its runs were never read.
func TestCloseUnderWay(t *testing.T) {
	island := sim.NewIsland(sim.Manual, 1)
	c, _ := newFrontend(t, sim.Options{Devices: 1, Island: island, Cost: time.Second})
	x := compile(t, c, 0)
	rows := inputs(t, c, 1)
	r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(t)
	release(append(r.Outputs, rows...)...)
	x.Close()
	statustest.Check(t, meanwhile(island, c.Close))
	nothingAlive(t)
}

// A session that is lost has nothing to wait for: shutdown neither waits for what it had under way, nor complains of
// it.
func TestShutdownOfALostSession(t *testing.T) {
	island := sim.NewIsland(sim.Manual, 1)
	c, inner := newFrontend(t, sim.Options{Devices: 1, Island: island, Cost: time.Second})
	x := compile(t, c, 0)
	rows := inputs(t, c, 1)
	r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(t)
	why := error(status.New(status.Unavailable, "the connection broke"))
	inner.lost.Store(&why)
	statustest.Checkf(t, cluster.Shutdown(time.Hour), "shutdown of a session that is lost")
	release(append(r.Outputs, rows...)...)
	x.Close()
	statustest.Check(t, c.Close())
	nothingAlive(t)
}

// BenchmarkExecute is a run on the worker of a cluster in this process.
func BenchmarkExecute(b *testing.B) {
	c, _ := newFrontend(b, sim.Options{Devices: 8, Island: sim.NewIsland(sim.Instant, 1)})
	x := compile(b, c, 0, 1, 2, 3, 4, 5, 6, 7)
	rows := inputs(b, c, 8)
	for b.Loop() {
		r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(b)
		release(r.Outputs...)
	}
	release(rows...)
	x.Close()
	statustest.Check(b, c.Close())
}

// What Serialize wrote is read again, and any other bytes are refused.
func FuzzUnpack(f *testing.F) {
	whole := cluster.Pack("version", "mlir", []byte("module {}"), []byte{1, 2}, true)
	for _, cut := range []int{0, 5, len(whole) - 1, len(whole)} {
		f.Add(whole[:cut])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		version, format, code, options, manual, err := cluster.Unpack(data)
		if err != nil {
			return
		}
		if again := cluster.Pack(version, format, code, options, manual); !bytes.Equal(again, data) {
			// Lengths may be written in more bytes than they need.
			if _, _, _, _, _, err := cluster.Unpack(again); err != nil || len(again) > len(data) {
				t.Errorf("%q is read as a program that is written as %q (%v)", data, again, err)
			}
		}
	})
}
