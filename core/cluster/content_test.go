package cluster_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// counted is a driver that counts what it compiles, loads and closes.
type counted struct {
	device.Driver
	compiles, loads, open *atomic.Int32
	begun                 chan struct{} // told of each compile, if there is room
	noSerialize           bool
}

func (d counted) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	d.compiles.Add(1)
	select {
	case d.begun <- struct{}{}:
	default:
	}
	size := len(p.Code)
	p.Code = bytes.TrimRight(p.Code, " ") // which the simulator would look at one by one
	x, err := d.Driver.Compile(ctx, p, options)
	return d.made(x, err, size)
}

func (d counted) Load(ctx context.Context, serialized []byte) (device.Executable, error) {
	d.loads.Add(1)
	size := int(binary.LittleEndian.Uint64(serialized))
	x, err := d.Driver.Load(ctx, serialized[8:8+size])
	return d.made(x, err, len(serialized))
}

func (d counted) made(x device.Executable, err error, size int) (device.Executable, error) {
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &countedExecutable{x, d, size}, nil
}

// countedExecutable is as long as its text where it is serialized.
type countedExecutable struct {
	device.Executable
	d    counted
	size int
}

func (x *countedExecutable) Serialize() (device.Bytes, error) {
	if x.d.noSerialize {
		return device.Bytes{}, status.New(status.Unimplemented, "there is no form for it")
	}
	inner, err := x.Executable.Serialize()
	if err != nil {
		return inner, err
	}
	out := append(binary.LittleEndian.AppendUint64(nil, uint64(len(inner.Data))), inner.Data...)
	return device.NewBytes(append(out, make([]byte, max(0, x.size-len(out)))...), nil), nil
}

func (x *countedExecutable) Close() {
	x.d.open.Add(-1)
	x.Executable.Close()
}

// countedCluster is a cluster of workers whose drivers count.
func countedCluster(t *testing.T, workers int, change func(*counted)) (*cluster.Local, []counted) {
	t.Helper()
	drivers := simulated(t, workers, 1)
	var all []counted
	for i, d := range drivers {
		c := counted{Driver: d, compiles: new(atomic.Int32), loads: new(atomic.Int32), open: new(atomic.Int32),
			begun: make(chan struct{}, 1)}
		if change != nil {
			change(&c)
		}
		all = append(all, c)
		drivers[i] = c
	}
	t.Cleanup(func() {
		for i, c := range all {
			statustest.Equal(t, c.open.Load(), 0, "executables that worker %d keeps", i)
		}
		// A lost worker releases what it was sending on a goroutine of its exchange, which may have yet to begin.
		statustest.Soon(t, content.Used, 0, "bytes of transfers")
	})
	return start(t, cluster.InProcess{Drivers: drivers}), all
}

// padded is addOne with a text of so many bytes.
func padded(size int, devices ...int) client.CompileSpec {
	code := addOne.Source().Code
	return client.CompileSpec{Format: sim.Format, Options: sim.CompileOptions(devices),
		Code: append(slices.Clip(code), bytes.Repeat([]byte(" "), max(0, size-len(code)))...)}
}

// adds runs a program of addOne and reads what it makes.
func (s *session) adds(r *client.Remote, devices ...int) {
	s.T.Helper()
	in := s.vector(devices, ramp)
	token, out := s.Start(r, in)
	statustest.OK(s.T, s.Wait(token))
	for _, d := range devices {
		want := ramp(d)
		for i := range want {
			want[i]++
		}
		statustest.EqualSlices(s.T, statustest.Value(s.read(out, d)).OK(s.T), want, "device %d", d)
	}
	s.Free([]uint64{in, out})
}

// A program of any size runs on several workers. It is compiled once, and loaded once on each worker, for all sessions;
// its bytes never come to the controller. TestProgramThatNoFrameHolds tries long ones.
func TestProgramOfAnySize(t *testing.T) {
	programsOf(t, 100, 128<<10, 256<<10+1, 9<<20)
}

func programsOf(t *testing.T, sizes ...int) {
	for _, size := range sizes {
		for _, serializes := range []bool{true, false} {
			t.Run(fmt.Sprint(size, serializes), func(t *testing.T) {
				workers := 3
				if size == 256<<10+1 { // more than one worker sends to at a time
					workers = 11
				}
				l, drivers := countedCluster(t, workers, func(c *counted) { c.noSerialize = !serializes })
				devices := clustertest.UpTo(workers)
				sessions := []*session{connect(t, l, "a"), connect(t, l, "b")}
				var remotes [2]*client.Remote
				var both sync.WaitGroup
				for i, s := range sessions {
					both.Go(func() {
						var err error
						if remotes[i], err = s.Compile(t.Context(), padded(size, devices...)); err != nil {
							t.Error(err)
						}
					})
				}
				if both.Wait(); t.Failed() {
					return
				}
				for i, s := range sessions {
					s.adds(remotes[i], devices...)
				}
				for i, d := range drivers {
					compiles, loads := d.compiles.Load(), d.loads.Load()
					switch {
					case i == 0 && compiles > 1 && serializes, i > 0 && compiles+loads != 1, d.open.Load() != 1:
						t.Errorf("worker %d compiled %d times and loaded %d times, and has %d executables", i, compiles, loads,
							d.open.Load())
					case i == 0 && size > 256<<10 && compiles+loads != 1:
						t.Errorf("what worker 0 compiled was loaded again: %d times compiled, %d loaded", compiles, loads)
					}
				}
				r := l.Report()
				large, kept := size > 256<<10, r.ArtifactBytes >= int64(size)
				if r.Compiled != 1 || r.CompiledBytes > 1<<20 || large != kept {
					t.Errorf("the report tells of %d programs with %d bytes in the controller and %d in workers", r.Compiled,
						r.CompiledBytes, r.ArtifactBytes)
				}
			})
		}
	}
}

// A client that leaves while it sends a program's text, or before, holds up no other that wants the same.
func TestClientLeavesWithItsProgram(t *testing.T) {
	l, drivers := countedCluster(t, 1, nil)
	const size = 9 << 20 // more than one chunk
	for range usually(10, 40) {
		first, second := connect(t, l, "first"), connect(t, l, "second")
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = first.Compile(ctx, padded(size, 0)) // it may be done before it leaves
		}()
		go leave()
		r := statustest.Value(second.Compile(t.Context(), padded(size, 0))).OK(t)
		second.adds(r, 0)
		second.Forget(r.ID)
		<-gone
	}
	if n := drivers[0].compiles.Load(); n < 1 {
		t.Errorf("it was compiled %d times", n)
	}
}

// The worker that compiled is lost while another asks for what it made: that one's runs fail with a sentence, or go on
// where it has it already; the next to compile the program has it compiled again.
func TestWorkerIsLostWithWhatItCompiled(t *testing.T) {
	l, drivers := countedCluster(t, 2, nil)
	s := connect(t, l, "a")
	r := statustest.Value(s.Compile(t.Context(), padded(1<<20, 0, 1))).OK(t)
	x := s.vector([]int{0, 1}, ramp)
	l.Lose(0)
	token, _ := s.Start(r, x)
	if err := s.Wait(token); !isLoss(err) {
		t.Errorf("a run on a lost worker ended with %v, want UNAVAILABLE or DATA_LOSS", err)
	}
	again := statustest.Value(s.Compile(t.Context(), padded(1<<20, 1))).OK(t)
	s.adds(again, 1)
	statustest.Equal(t, drivers[1].compiles.Load(), 1, "how often the other worker compiled")
}

// A worker is lost with what it compiled while another is to load it. That one's runs go on: it has it already, or
// compiles it with the text that the client sends again.
func TestProgramIsCompiledAgain(t *testing.T) {
	for range 10 { // until it did not have it yet
		l, drivers := countedCluster(t, 2, nil)
		s := connect(t, l, "a")
		statustest.OK(t, statustest.Of(s.Compile(t.Context(), padded(16<<20, 0))))
		r := statustest.Value(s.Compile(t.Context(), padded(16<<20, 1))).OK(t)
		l.Lose(0)
		s.adds(r, 1)
		compiles, loads := drivers[1].compiles.Load(), drivers[1].loads.Load()
		if compiles+loads != 1 {
			t.Errorf("worker 1 compiled it %d times and loaded it %d times, want once together", compiles, loads)
		}
		if compiles == 1 {
			return
		}
		l.Close()
	}
	t.Error("it was never compiled again")
}

// A program that is longer than XLA takes is refused at once.
func TestProgramLongerThanXLATakes(t *testing.T) {
	l, _ := countedCluster(t, 1, nil)
	s := connect(t, l, "a")
	spec := padded(0, 0)
	code, err := unix.Mmap(-1, 0, 1<<31, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	statustest.OK(t, err)
	defer func() { _ = unix.Munmap(code) }()
	spec.Code = code
	_, err = s.Compile(t.Context(), spec)
	statustest.Fails(t, "2 GiB", err, status.ResourceExhausted, "at most 2147483647")
}
