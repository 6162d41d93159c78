package collective

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/bulk"
	"github.com/openpathways/pathways/transport/stream"
	"github.com/openpathways/pathways/transport/transporttest"
)

// A test binary that is started with this in its environment is a worker on a host of its own: "number op bytes each
// ends". It prints its address, and enters a collective of its gang for each line of its standard input.
const hostEnv = "COLLECTIVE_HOST"

// hosts is what a gang of workers does, each on a host of its own. Those in the test's process, its ends, have the
// numbers from 1 on, and dial the one that has the ranks behind the first of them.
type hosts struct {
	op    spmd.Op
	bytes int64 // a rank brings
	each  int   // ranks of a worker
	ends  int
}

func (h hosts) ranks() int { return (h.ends + 1) * h.each }

func (h hosts) gang(between uint64) Gang {
	g := Gang{ID: between, Launch: int32(between)}
	processes := []uint64{1, between}
	for i := 1; i < h.ends; i++ {
		processes = append(processes, uint64(1+i))
	}
	for _, process := range processes {
		for local := range h.each {
			g.Ranks = append(g.Ranks, Place{process, local})
		}
	}
	return g
}

func (h hosts) spec() *spmd.Spec {
	n := int64(h.ranks())
	s := allReduce(h.ranks(), shape.Shape{DType: shape.F32, Dims: []int64{h.bytes / 4}})
	switch s.Op = h.op; h.op {
	case spmd.ReduceScatter:
		s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{h.bytes / 4 / n}}}
	case spmd.AllGather:
		s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{h.bytes / 4 * n}}}
	case spmd.CollectiveBroadcast:
		s.Groups[0][0], s.Groups[0][1] = 1, 0 // the source comes first
	case spmd.CollectivePermute:
		s.Groups = nil
		for r := range h.ranks() {
			s.Pairs = append(s.Pairs, [2]int{r, (r + 1) % h.ranks()})
		}
	case spmd.RaggedAllToAll: // as AllToAll
		rows := shape.Shape{DType: shape.F32, Dims: []int64{n, h.bytes / 4 / n}}
		list := shape.Shape{DType: shape.S64, Dims: []int64{n}}
		s.Operands, s.Results = []shape.Shape{rows, rows, list, list, list, list}, []shape.Shape{rows}
	}
	return s
}

// period is after how many elements those of a rank repeat: a prime number, so that no piece looks like another one.
const period = 997

// brings is element i of what a rank brings. Sums of these depend on their order.
func brings(rank, i int) float32 { return 1 / float32(1+rank+i%period) }

// bring writes a rank's operands. The race detector would take most of a test's time here.
//
//go:norace
func (h hosts) bring(rank int, s *spmd.Spec, operands [][]byte) {
	x := elements[float32](operands[0][:h.bytes])
	for i := range x {
		x[i] = brings(rank, i)
	}
	if h.op == spmd.RaggedAllToAll { // a row to each
		for i := range h.ranks() {
			for operand, v := range map[int]int{2: i, 3: 1, 4: rank, 5: 1} {
				put(s, operands, operand, i, int64(v))
			}
		}
	}
}

// check looks whether a rank has the left fold over all ranks in their order, or what they brought for it.
//
//go:norace
func (h hosts) check(rank int, result []byte) error {
	var sums [period]float32
	for i := range sums {
		for r := range h.ranks() {
			sums[i] += brings(r, i)
		}
	}
	x := elements[float32](result)
	part := len(x) / h.ranks() // that a rank brought
	for i := range x {
		var want float32
		switch h.op {
		case spmd.AllReduce:
			want = sums[i%period]
		case spmd.ReduceScatter:
			want = sums[(rank*len(x)+i)%period]
		case spmd.AllGather:
			want = brings(i/part, i%part)
		case spmd.AllToAll, spmd.RaggedAllToAll:
			want = brings(i/part, rank*part+i%part)
		case spmd.CollectiveBroadcast:
			want = brings(1, i)
		case spmd.CollectivePermute:
			want = brings((rank+h.ranks()-1)%h.ranks(), i)
		}
		if x[i] != want {
			return fmt.Errorf("element %d of rank %d is %v, want %v", i, rank, x[i], want)
		}
	}
	return nil
}

// far is a worker that others reach by TCP alone.
type far struct {
	number  uint64
	x       *bulk.Exchange
	e       *Engine
	address string
}

func newFar(number uint64) (*far, error) {
	o := stream.Options{Credentials: transport.Credentials{Token: "secret", Software: "test"}}
	l, err := stream.Listen("tcp:127.0.0.1:0", o, nil)
	if err != nil {
		return nil, err
	}
	x, err := bulk.New(bulk.Config{Self: number, Host: fmt.Sprint("host-", number), Options: o,
		Hello: &wire.Hello{Cluster: "test"}, Listeners: []transport.Listener{l}})
	if err != nil {
		return nil, err
	}
	f := &far{number, x, New(x, 1, nil), l.Address()}
	f.e.ways.chainLeast, f.e.ways.chainChunk, f.e.ways.lane = 1<<20, 128<<10, 128<<10 // as many rounds for fewer bytes
	f.e.ways.gatherLeast = 4                                                          // and for fewer workers
	return f, nil
}

// knows tells it of another one. Who is not told an address waits to be dialed.
func (f *far) knows(number uint64, address ...string) {
	f.x.Peers([]*wire.Process{{Number: number, Name: fmt.Sprint("worker-", number), Addresses: address}}, nil, nil)
}

// greeting is the key of a block by which who waits to be dialed learns that it was.
func greeting(to uint64) transport.Key { return transport.Key{Space: 1 << 40, ID: to} }

// used is how many bytes of memory for blocks it has.
func (f *far) used() (bytes int64) {
	for _, used := range f.x.Memory().Used {
		bytes += used
	}
	return bytes
}

// enter has the ranks of a worker enter a collective, and says how it ends for each.
func (f *far) enter(g Gang, h hosts, s *spmd.Spec, ends chan<- error) {
	for rank, at := range g.Ranks {
		if at.Process == f.number {
			c := Call{Launch: g.Launch, Local: at.Local, Spec: s, Results: [][]byte{aligned(s.Results[0].Bytes())}}
			for _, x := range s.Operands {
				c.Operands = append(c.Operands, aligned(x.Bytes()))
			}
			h.bring(rank, s, c.Operands)
			c.Done = func(err error) {
				if err == nil {
					err = h.check(rank, c.Results[0])
				}
				ends <- err
			}
			f.e.Enter(c)
		}
	}
}

// host is a worker on a host of its own.
func host(s string) error {
	var h hosts
	var number uint64
	if _, err := fmt.Sscan(s, &number, &h.op, &h.bytes, &h.each, &h.ends); err != nil {
		return err
	}
	f, err := newFar(number)
	if err != nil {
		return err
	}
	greeted := make(chan error, h.ends)
	for i := range h.ends {
		other := uint64(1 + i)
		f.knows(other)
		f.x.Expect(other, greeting(number), 8, nil, func(b transport.Block, err error) {
			if err == nil {
				b.Release()
			}
			greeted <- err
		})
	}
	fmt.Println(f.address)
	for range h.ends {
		if err := <-greeted; err != nil {
			return err
		}
	}
	g := h.gang(number)
	f.e.Begin(g)
	spec, ends := h.spec(), make(chan error, h.each)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		f.enter(g, h, spec, ends)
		for range h.each {
			if err := <-ends; err != nil {
				return err
			}
		}
	}
	f.enter(g, h, spec, ends) // the others do not
	f.e.Abort(number, errEnded)
	for range h.each {
		if err := <-ends; status.CodeOf(err) != status.Cancelled {
			return err
		}
	}
	f.e.End(number)
	if used := f.used(); used > 0 {
		return fmt.Errorf("%d bytes of blocks are left", used)
	}
	return f.x.Close()
}

// between is a worker on a host of its own, as the test sees it.
type between struct {
	transporttest.Process
	number uint64
	stdin  io.WriteCloser
}

// farWorkers is the workers in the test's process, with others behind the first of them.
type farWorkers struct {
	*testing.T
	hosts
	spec *spmd.Spec
	near []*far
	next uint64 // number
}

func (w *farWorkers) begin() {
	for i := range w.ends {
		w.near = append(w.near, statustest.Value(newFar(uint64(1+i))).OK(w))
	}
	w.Cleanup(func() {
		for _, f := range w.near {
			statustest.Equal(w, f.used(), 0, "bytes of blocks of worker %d", f.number)
			f.e.Close()
			f.x.Close()
		}
	})
	own := Gang{ID: 1, Launch: 1}
	for i, f := range w.near {
		own.Ranks = append(own.Ranks, Place{f.number, 0})
		for _, other := range w.near[:i] {
			other.knows(f.number, f.address)
			f.knows(other.number)
		}
	}
	for _, f := range w.near {
		f.e.Begin(own)
	}
	w.next = 10
	w.others()
}

// start starts a worker, and the gang that it has with the others.
func (w *farWorkers) start() *between {
	b := &between{number: w.next}
	b.Command = exec.Command(os.Args[0], "-test.run=^$")
	w.next++
	b.Command.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %d", hostEnv, b.number, w.op, w.bytes, w.each,
		w.ends))
	b.Command.Stderr = os.Stderr
	b.stdin = statustest.Value(b.Command.StdinPipe()).OK(w)
	out := statustest.Value(b.Command.StdoutPipe()).OK(w)
	statustest.OK(w, b.Command.Start())
	w.Cleanup(func() { _ = b.Command.Process.Kill() })
	address := statustest.Value(bufio.NewReader(out).ReadString('\n')).OK(w)
	b.Line = transporttest.Forward(w, strings.TrimPrefix(strings.TrimSpace(address), "tcp:"))
	b.Gate.Watch(b.Line)
	for _, f := range w.near {
		f.knows(b.number, b.Line.Address)
		f.x.PushBytes(b.number, greeting(b.number), make([]byte, 8), nil)
		f.e.Begin(w.gang(b.number))
	}
	return b
}

// run has all workers enter a collective, and returns the end of each rank of the test's.
func (w *farWorkers) run(b *between) <-chan error {
	ends := make(chan error, w.ends*w.each)
	for _, f := range w.near {
		f.enter(w.gang(b.number), w.hosts, w.spec, ends)
	}
	_, _ = b.stdin.Write([]byte{'\n'}) // the bytes of the others may have had it killed by now
	return ends
}

// end returns the next of the ends that run has returned.
func (w *farWorkers) end(ends <-chan error) error {
	select {
	case err := <-ends:
		return err
	case <-time.After(time.Minute):
		w.Fatal("a collective does not end")
		return nil
	}
}

// right waits until a collective has ended, with the right results.
func (w *farWorkers) right(ends <-chan error) {
	w.Helper()
	for range w.ends * w.each {
		statustest.OK(w, w.end(ends))
	}
}

// others has the workers in the test's process do some collectives of their own: all goes on for them, and takes its
// time.
func (w *farWorkers) others() {
	var all []*Engine
	for _, f := range w.near {
		all = append(all, f.e)
	}
	goOn(w, 1, all)
}

// goOn has engines do some collectives of a gang in which each has a rank.
func goOn(t testing.TB, launch int32, engines []*Engine) {
	x := shape.Shape{DType: shape.F32, Dims: []int64{16 << 10}}
	s := allReduce(len(engines), x)
	for range 3 {
		var all sync.WaitGroup
		for _, e := range engines {
			all.Add(1)
			e.Enter(Call{Launch: launch, Spec: s, Operands: [][]byte{aligned(x.Bytes())}, Results: [][]byte{aligned(x.Bytes())},
				Done: func(err error) {
					statustest.Check(t, err)
					all.Done()
				}})
		}
		all.Wait()
	}
}

// phases returns just before which bytes of a collective something happens to a worker: the first ones, those in the
// middle of a block, and the last ones.
func (w *farWorkers) phases(b *between) []int64 {
	w.right(w.run(b)) // its streams are there now
	before := b.Gate.Passed()
	w.right(w.run(b))
	all := b.Gate.Passed() - before
	if all < w.bytes {
		w.Errorf("only %d bytes go to the worker and from it", all)
	}
	return []int64{0, all / 2, all - min(48<<10, w.bytes/2)}
}

// A worker on another host is stopped, is slow, or is killed before, in and at the end of a collective. All that share
// no collective with it go on. One that was stopped, or is slow, goes on to the right results; if it is killed, every
// call that needs it fails with its name; and nothing is left of either.
func TestWorkerOfAnotherHostStopsOrIsKilled(t *testing.T) {
	for name, c := range map[string]struct {
		hosts
		way Way
	}{
		"large all-reduce, many ranks": {hosts{spmd.AllReduce, 2 << 20, 3, 2}, Chain},
		"large all-reduce":             {hosts{spmd.AllReduce, 2 << 20, 1, 2}, Lanes},
		"all-reduce":                   {hosts{spmd.AllReduce, 192 << 10, 1, 2}, TwoExchanges},
		"reduce-scatter":               {hosts{spmd.ReduceScatter, 3 << 20, 1, 2}, Lanes},
		"all-gather":                   {hosts{spmd.AllGather, 1 << 20, 1, 2}, OneExchange},
		"all-to-all":                   {hosts{spmd.AllToAll, 3 << 20, 2, 2}, OneExchange},
		"collective-permute":           {hosts{spmd.CollectivePermute, 3 << 20, 1, 2}, OneExchange},
		"collective-broadcast":         {hosts{spmd.CollectiveBroadcast, 3 << 20, 1, 2}, OneExchange},
		"ragged all-to-all":            {hosts{spmd.RaggedAllToAll, 3 << 20, 1, 2}, OneExchange},
		"small all-reduce":             {hosts{spmd.AllReduce, 32 << 10, 1, 3}, Doubling},
		"small all-gather":             {hosts{spmd.AllGather, 8 << 10, 1, 3}, Doubling},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &farWorkers{T: t, hosts: c.hosts, spec: c.spec()}
			w.begin()
			b := w.start()
			phases := w.phases(b)
			gone := slices.ContainsFunc(w.near[0].e.Counts(), func(n Count) bool { return n.Op == c.op && n.Way == c.way })
			statustest.Equal(w, gone, true, "it goes by the way that it is a test of")
			for _, at := range phases {
				w.stops(b, at)
			}
			w.isSlow(b, phases[2])
			b.stdin.Close()
			statustest.Checkf(w, b.Command.Wait(), "the worker")
			for _, f := range w.near {
				f.e.End(b.number)
			}
			// In the middle of a fold of which each has a part, every rank needs some of it yet.
			inParts := c.way == Chain || c.way == Lanes || c.way == TwoExchanges
			for i, at := range phases {
				w.isKilled(w.start(), at, i == 0 || i == 1 && inParts)
			}
		})
	}
}

// stops stops the worker at a byte, and has it go on when others have done something.
func (w *farWorkers) stops(b *between, at int64) {
	stopped := b.StopAt(w, at)
	ends := w.run(b)
	<-stopped
	w.others()
	b.Continue(w)
	w.right(ends)
}

// isSlow has the worker stand still again and again, and its line with it.
func (w *farWorkers) isSlow(b *between, end int64) {
	b.SlowDown(w, end/15, end, w.others)
	w.right(w.run(b))
	statustest.Equal(w, b.Gate.Left(), 0, "times that it did not stand still")
	if breaks := w.near[0].x.Breaks(); len(breaks) > 0 {
		w.Errorf("connections broke: %v", breaks)
	}
}

// isKilled kills the worker at a byte, and tells the others so, as the controller does. Either all of their calls need
// it then, or some do: the others have all that they need.
func (w *farWorkers) isKilled(b *between, at int64, all bool) {
	w.right(w.run(b))
	killed := b.KillAt(w, at)
	ends := w.run(b)
	<-killed
	w.others()
	text := fmt.Sprint("worker-", b.number)
	why := status.New(status.Unavailable, "%s was killed", text)
	for _, f := range w.near {
		f.x.Peers(nil, []uint64{b.number}, why)
		f.e.Lost(b.number, why)
	}
	failed := 0
	for range w.ends * w.each {
		if err := w.end(ends); err != nil || all {
			statustest.Fails(w, "what needs the worker", err, status.Unavailable, text)
			failed++
		}
	}
	if failed == 0 {
		w.Error("no call needed the worker")
	}
	w.others()
	for _, f := range w.near {
		f.e.End(b.number)
		statustest.Soon(w, f.used, 0, "bytes of blocks of worker %d", f.number)
		statustest.Equal(w, len(f.e.gangs), 1, "gangs, those of others")
	}
}
