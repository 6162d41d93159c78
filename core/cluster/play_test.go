package cluster_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// drawing is a graph that is being made.
type drawing struct {
	graph.Graph
	last uint64
}

func draw(inputs int) *drawing {
	return &drawing{Graph: graph.Graph{Inputs: inputs, Programs: map[uint64]*graph.Program{}}, last: uint64(inputs)}
}

// run adds a run and returns its first output.
func (d *drawing) run(r *client.Remote, inputs ...uint64) uint64 {
	d.Programs[r.ID] = r.Program()
	d.Nodes = append(d.Nodes, graph.Node{Run: &graph.Run{Program: r.ID, Inputs: inputs, Only: -1}})
	first := d.last + 1
	d.last += uint64(len(r.Info.Outputs))
	return first
}

// move adds a transfer of whole vectors, from devices to devices.
func (d *drawing) move(source uint64, from, to []int) uint64 {
	t := &graph.Transfer{Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}}
	for i := range from {
		t.Moves = append(t.Moves, graph.Move{Source: source, From: uint32(from[i]), To: uint32(to[i])})
	}
	d.Nodes = append(d.Nodes, graph.Node{Transfer: t})
	d.last++
	return d.last
}

// keeps returns the finished graph, with these outputs.
func (d *drawing) keeps(outputs ...uint64) *graph.Graph {
	d.Outputs = outputs
	return &d.Graph
}

// define defines a graph.
func (s *session) define(g *graph.Graph) uint64 {
	s.T.Helper()
	id := statustest.Value(s.Define(g)).OK(s.T)
	return id
}

// played is a play that was submitted.
type played struct {
	s      *session
	g      *graph.Graph
	tokens []uint64 // by node
	first  uint64
}

func (s *session) play(id uint64, g *graph.Graph, inputs ...uint64) *played {
	s.T.Helper()
	p := &played{s: s, g: g, first: s.Objects(g.Made())}
	first := s.Tokens(len(g.Nodes))
	for i := range g.Nodes {
		p.tokens = append(p.tokens, first+uint64(i))
	}
	statustest.OK(s.T, s.Play(&client.PlaySpec{Graph: id, Inputs: inputs, First: p.first, Token: p.tokens[0]}))
	return p
}

// object returns the session's number of something that the play made.
func (p *played) object(local uint64) uint64 { return p.first + local - uint64(p.g.Inputs) - 1 }

// wait waits for the ends of all nodes.
func (p *played) wait() []error {
	p.s.T.Helper()
	errs := make([]error, len(p.tokens))
	for i, token := range p.tokens {
		errs[i] = p.s.Wait(token)
	}
	return errs
}

// good waits, and fails the test where a node failed.
func (p *played) good() {
	p.s.T.Helper()
	for i, err := range p.wait() {
		statustest.OKf(p.s.T, err, "node %d, %s", i, p.g.Name(i))
	}
}

// freeKept frees what the play kept.
func (p *played) freeKept() {
	var all []uint64
	for _, o := range p.g.Outputs {
		all = append(all, p.object(o))
	}
	p.s.Free(all)
}

func (s *session) expect(object uint64, d int, want ...float32) {
	s.T.Helper()
	statustest.EqualSlices(s.T, statustest.Value(s.read(object, d)).OK(s.T), want, "object %d on device %d", object, d)
}

var (
	plus = sim.Program{Name: "plus", Params: []sim.Param{vectorParam[0], vectorParam[0]}, Results: []sim.Result{
		{Op: "add", Args: []int{0, 1}}}}
	consume = sim.Program{Name: "consume", Params: []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}},
		Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 3}}}
)

// A chain makes the same arrays as its nodes do one by one, however often it is played, and keeps only its outputs.
func TestPlayedChainEqualsItsRuns(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		for _, sequential := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", workers, sequential), func(t *testing.T) {
				drivers := simulated(t, workers, 2)
				l := start(t, cluster.InProcess{Drivers: drivers, Sequential: sequential})
				s := connect(t, l, "client")
				devices := clustertest.UpTo(2 * workers)
				one, sum := s.program(addOne, devices...), s.program(sumAll, devices...)
				d := draw(1)
				y := uint64(1)
				for range 20 {
					y = d.run(one, y)
				}
				middle := y
				y = d.run(sum, d.run(one, y))
				g := d.keeps(y, middle)
				id := s.define(g)
				x := s.vector(devices, ramp)
				for range 3 {
					p := s.play(id, g, x)
					p.good()
					total := float32(0)
					for _, k := range devices {
						total += float32(k) + 21
					}
					n := float32(len(devices))
					for _, k := range devices {
						f := float32(k) + 20
						s.expect(p.object(middle), k, f, f+1, f+2, f+3)
						s.expect(p.object(y), k, total, total+n, total+2*n, total+3*n)
					}
					p.freeKept()
				}
				s.Free([]uint64{x})
				clustertest.Free(t, drivers)
				// A forgotten program lives as long as the graph.
				s.Forget(one.ID)
				x = s.vector(devices, ramp)
				p := s.play(id, g, x)
				p.good()
				s.ForgetGraph(id)
				statustest.Fails(t, "a play of a graph that was forgotten",
					s.Play(&client.PlaySpec{Graph: id, Inputs: []uint64{x}, First: 1}), status.InvalidArgument,
					"forgotten")
				p.freeKept()
				s.Free([]uint64{x})
				clustertest.Free(t, drivers)
			})
		}
	}
}

// A graph may branch and join over slices on several workers, with transfers between them.
func TestPlayedDiamondOverSlices(t *testing.T) {
	l, drivers := open(t, 4, 1)
	s := connect(t, l, "client")
	top, left, right := []int{0, 1}, []int{2, 3}, []int{3, 1}
	one, add := s.program(addOne, top...), s.program(plus, left...)
	onLeft, onRight := s.program(addOne, left...), s.program(addOne, right...)
	d := draw(1)
	a := d.run(one, 1)
	b := d.run(onLeft, d.move(a, top, left))
	c := d.run(onRight, d.run(onRight, d.move(a, top, right)))
	z := d.run(add, b, d.move(c, right, left))
	g := d.keeps(z)
	id := s.define(g)
	x := s.vector(top, ramp)
	for range 3 {
		p := s.play(id, g, x)
		p.good()
		for i, k := range left {
			f := 2*float32(i) + 5 // (x + 1 + 1) + (x + 1 + 1 + 1)
			s.expect(p.object(z), k, f, f+2, f+4, f+6)
		}
		p.freeKept()
	}
	s.Free([]uint64{x})
	clustertest.Free(t, drivers)
}

// An array that a node donates is gone: neither a later node nor the next play can read it.
func TestPlayedNodesDonate(t *testing.T) {
	l, drivers := open(t, 2, 1)
	s := connect(t, l, "client")
	devices := clustertest.UpTo(2)
	one, eat := s.program(addOne, devices...), s.program(consume, devices...)
	d := draw(1)
	y := d.run(eat, d.run(one, d.run(eat, 1)))
	g := d.keeps(y)
	id := s.define(g)
	x := s.vector(devices, ramp)
	p := s.play(id, g, x)
	p.good()
	s.expect(p.object(y), 1, 8, 9, 10, 11)
	again := s.play(id, g, x)
	for i, err := range again.wait() {
		statustest.Fails(t, fmt.Sprintf("node %d of a play of what was donated", i), err, status.InvalidArgument,
			"node 0, consume", "donated")
	}
	bad := draw(1)
	bad.run(eat, 1)
	bad.run(one, 1)
	statustest.Fails(t, "a graph that reads what it has donated", statustest.Of(s.Define(bad.keeps())),
		status.InvalidArgument, "node 1, add_one", "node 0, consume")
	p.freeKept()
	again.freeKept()
	s.Free([]uint64{x})
	clustertest.Free(t, drivers)
}

// A node that fails on a device fails what depends on it, with its name and line, and nothing else. Nothing leaks.
func TestFailedNodeFailsWhatDependsOnIt(t *testing.T) {
	for _, late := range []bool{false, true} {
		// the controller hears of the failure before or after it has performed the others
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			drivers := simulated(t, 2, 1)
			l := start(t, cluster.InProcess{Drivers: drivers, Sequential: !late})
			s := connect(t, l, "client")
			devices := clustertest.UpTo(2)
			one, add := s.program(addOne, devices...), s.program(plus, devices...)
			named := addOne
			named.Name = "breaks"
			breaks := s.program(named, devices...)
			d := draw(1)
			a := d.run(one, 1)
			b := d.run(breaks, a)
			d.Nodes[1].Run.Trace = []byte("model.py:12")
			c := d.run(one, a)
			e := d.run(add, c, b)
			f := d.run(add, c, c)
			h := d.run(one, d.move(e, devices, []int{1, 0}))
			g := d.keeps(f, h)
			id := s.define(g)
			x := s.vector(devices, ramp)
			statustest.OK(t, drivers[1].(*sim.Driver).FailRun(0, 2, status.New(status.DataLoss, "the computation broke")))
			p := s.play(id, g, x)
			bad := map[int]bool{1: true, 3: true, 5: true, 6: true}
			for i, err := range p.wait() {
				if !bad[i] {
					statustest.Checkf(t, err, "node %d, with which nothing is wrong", i)
				} else if status.CodeOf(err) != status.DataLoss || !strings.Contains(err.Error(), "breaks") ||
					!strings.Contains(err.Error(), "model.py:12") {
					t.Errorf("node %d: %v", i, err)
				}
			}
			s.expect(p.object(f), 0, 4, 6, 8, 10)
			statustest.Fails(t, "what depends on it", statustest.Of(s.read(p.object(h), 0)), status.DataLoss)
			p.freeKept()
			p = s.play(id, g, x)
			p.good()
			p.freeKept()
			s.Free([]uint64{x})
			clustertest.Free(t, drivers)
		})
	}
}

// held submits a put whose bytes are written when write is called.
func (s *session) held(devices ...uint32) (object, token uint64, write func()) {
	s.T.Helper()
	let := make(chan func(error), len(devices))
	p := &client.PutSpec{Object: s.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, Devices: devices,
		Token: s.Tokens(1),
		Fill:  func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
	statustest.OK(s.T, s.Put(p))
	var written []func(error)
	for range devices {
		written = append(written, <-let)
	}
	return p.Object, p.Token, func() {
		for _, done := range written {
			done(nil)
		}
	}
}

// A client that leaves in the middle of a play leaves nothing behind.
func TestPlayOfDepartedClientIsDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, drivers := open(t, 2, 1)
		s := connect(t, l, "client")
		devices := clustertest.UpTo(2)
		one, sum := s.program(addOne, devices...), s.program(sumAll, devices...)
		d := draw(1)
		y := d.run(one, d.run(sum, d.move(d.run(one, 1), devices, []int{1, 0})))
		g := d.keeps(y)
		id := s.define(g)
		x, token, write := s.held(0, 1)
		p := s.play(id, g, x)
		s.play(id, g, x)
		s.Close()
		write()
		if err := s.Wait(token); err == nil {
			t.Error("a put whose session went succeeds")
		}
		for i, err := range p.wait() {
			if err == nil {
				t.Errorf("node %d, whose session went, succeeds", i)
			}
		}
		clustertest.Free(t, drivers)
		synctest.Wait()
		statustest.EqualSlices(t, l.Report().Sessions, nil, "sessions that are still there")
	})
}

// A worker that is lost in the middle of a play fails only the nodes that need it, with an error that names it.
func TestWorkerLostWhileItPlays(t *testing.T) {
	l, drivers := open(t, 2, 1)
	s := connect(t, l, "client")
	here, both := s.program(addOne, 0), s.program(sumAll, 0, 1)
	d := draw(2)
	a := d.run(here, 1)
	d.run(both, 2)
	b := d.move(a, []int{0}, []int{1})
	c := d.run(here, a)
	g := d.keeps(b, c)
	id := s.define(g)
	x := s.vector([]int{0}, ramp)
	w, token, write := s.held(0, 1)
	p := s.play(id, g, x, w)
	var losing sync.WaitGroup
	losing.Go(func() { l.Lose(1) }) // it waits for pending writes
	first := s.Wait(p.tokens[1])
	write()
	losing.Wait()
	statustest.Checkf(t, s.Wait(token), "a put to several workers, one of which was lost meanwhile")
	s.expect(w, 0, 0, 0, 0, 0)
	statustest.Fails(t, "its shard on the lost worker", statustest.Of(s.read(w, 1)), status.DataLoss, "worker-1")
	errs := []error{s.Wait(p.tokens[0]), first, s.Wait(p.tokens[2]), s.Wait(p.tokens[3])}
	for _, i := range []int{1, 2} {
		if !isLoss(errs[i]) || !strings.Contains(errs[i].Error(), "worker-1") {
			t.Errorf("node %d, with a part on a worker that was lost: %v", i, errs[i])
		}
	}
	for _, i := range []int{0, 3} {
		if errs[i] != nil {
			t.Errorf("node %d, beside: %v", i, errs[i])
		}
	}
	s.expect(p.object(c), 0, 2, 3, 4, 5)
	p.freeKept()
	p = s.play(id, g, x, w)
	errs = p.wait()
	if errs[0] != nil || errs[1] == nil || errs[2] == nil || errs[3] != nil {
		t.Errorf("a play behind the loss: %v", errs)
	}
	p.freeKept()
	s.Free([]uint64{x, w})
	clustertest.Free(t, drivers[:1])
}

// The message that defines a graph does not grow with the number of shards.
func TestGraphMessageDoesNotGrowWithShards(t *testing.T) {
	var chain, edge []int
	for _, n := range []int{1, 8, 512, 4096} {
		devices, others := make([]uint32, n), make([]int, n)
		for i := range n {
			devices[i], others[i] = uint32(i), n+i
		}
		add := &graph.Program{Name: "add", Parameters: 1, Outputs: []int64{16}, Devices: devices}
		d := draw(1)
		d.Programs[1] = add
		d.Nodes = []graph.Node{{Run: &graph.Run{Program: 1, Inputs: []uint64{1}, Only: -1}},
			{Run: &graph.Run{Program: 1, Inputs: []uint64{2}, Only: -1}}}
		chain = append(chain, proto.Size(wire.GraphOf(1, &d.Graph)))
		d.Nodes, d.last = d.Nodes[:1], 2
		d.move(2, clustertest.UpTo(n), others)
		edge = append(edge, proto.Size(wire.GraphOf(1, &d.Graph)))
		statustest.OK(t, d.Check())
	}
	for i := range chain {
		if chain[i] != chain[0] {
			t.Errorf("a chain takes %v bytes", chain)
		}
		if count := 5; edge[i] > edge[0]+count+1 { // the count of devices, and longer numbers of devices
			t.Errorf("an edge between slices takes %v bytes", edge)
		}
	}
}
