package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// section is how many nodes a message of a graph has here; core/client tries as many as it may have.
var section = usually(256, graph.MaxNodes)

// inSections starts a cluster whose clients send so many nodes of a graph in a message.
func inSections(t *testing.T, section, workers, each int) (*cluster.Local, []device.Driver) {
	t.Helper()
	drivers := simulated(t, workers, each)
	return start(t, cluster.InProcess{Drivers: drivers, Section: section}), drivers
}

// fill adds runs of a program, each of what the one before made, until the graph has
// so many nodes.
func (d *drawing) fill(r *client.Remote, y uint64, nodes int) uint64 {
	for len(d.Nodes) < nodes {
		y = d.run(r, y)
	}
	return y
}

// A graph of more nodes than a message has is played all the same: what crosses the
// cuts is read, moved, donated and kept as anything else, and nothing stays.
func TestLongGraphRunsInSections(t *testing.T) {
	l, drivers := inSections(t, section, 2, 2)
	s := connect(t, l, "client")
	devices := clustertest.UpTo(4)
	one, sum, eat, add := s.program(addOne, devices...), s.program(sumAll, devices...), s.program(consume, devices...),
		s.program(plus, devices...)
	far := s.program(addOne, 3)
	d := draw(1)
	early := d.run(one, 1)                                   // kept, and read in the last section
	some := d.run(one, 1)                                    // the last section reads a shard of it
	y := d.fill(one, 1, section)                             // section-2 more than the input
	y = d.fill(one, d.run(eat, y), 2*section)                // 2*section more, in the memory of the first
	moved := d.run(far, d.move(some, []int{2}, []int{3}))    // 2 more than that of device 2
	z := d.run(add, d.run(sum, early), d.run(add, y, early)) // of all sections
	g := d.keeps(early, z, moved)
	id := s.define(g)
	x := s.vector(devices, ramp)
	for range 2 {
		p := s.play(id, g, x)
		p.good()
		for _, k := range devices {
			f := float32(k)
			s.expect(p.object(early), k, f+1, f+2, f+3, f+4)
			f = 10 + 2*f + float32(2*section+1)
			s.expect(p.object(z), k, f, f+6, f+12, f+18)
		}
		s.expect(p.object(moved), 3, 4, 5, 6, 7)
		p.freeKept()
	}
	s.Free([]uint64{x})
	clustertest.Free(t, drivers)
	s.ForgetGraph(id)
}

// What a play is given for good goes with its last use where it is read, cannot be used
// again, and is freed elsewhere by the caller.
func TestPlayFreesWhatItWasGiven(t *testing.T) {
	l, drivers := open(t, 2, 1)
	s := connect(t, l, "client")
	devices := clustertest.UpTo(2)
	d := draw(1)
	g := d.keeps(d.run(s.program(addOne, 0), d.move(1, []int{0}, []int{0})))
	g.Given = []uint64{1}
	id := s.define(g)
	x := s.vector(devices, ramp)
	p := s.play(id, g, x)
	p.good()
	statustest.Fails(t, "what was given for good is read", statustest.Of(s.read(x, 1)), status.InvalidArgument,
		"donated")
	p.freeKept()
	s.Free([]uint64{x})
	clustertest.Free(t, drivers)
	g.Given = []uint64{2}
	statustest.Fails(t, "a graph whose Given names what its nodes make", statustest.Of(s.Define(g)),
		status.InvalidArgument, "to free array 2")
}

// A node that fails in the first section fails what depends on it in others, and
// nothing else.
func TestPlayPartsFail(t *testing.T) {
	l, drivers := inSections(t, section, 2, 1)
	s := connect(t, l, "client")
	devices := clustertest.UpTo(2)
	one, add := s.program(addOne, devices...), s.program(plus, devices...)
	d := draw(1)
	a := d.run(one, 1)
	b := d.run(one, a)
	d.Nodes[1].Run.Trace = []byte("model.py:12")
	y := d.fill(one, a, section+100)
	bad := d.run(add, y, b)
	good := d.run(add, y, a)
	g := d.keeps(bad, good)
	id := s.define(g)
	x := s.vector(devices, ramp)
	statustest.OK(t, drivers[1].(*sim.Driver).FailRun(0, 2, status.New(status.DataLoss, "the computation broke")))
	p := s.play(id, g, x)
	for i, err := range p.wait() {
		if i != 1 && i != len(g.Nodes)-2 {
			statustest.OKf(t, err, "node %d, with which nothing is wrong", i)
		} else if status.CodeOf(err) != status.DataLoss || !strings.Contains(err.Error(), "model.py:12") {
			t.Errorf("node %d: %v", i, err)
		}
	}
	n := float32(section + 98 + 2)
	s.expect(p.object(good), 1, n+2, n+4, n+6, n+8)
	statustest.Fails(t, "what depends on it", statustest.Of(s.read(p.object(bad), 0)), status.DataLoss)
	p.freeKept()
	s.Free([]uint64{x})
	clustertest.Free(t, drivers)
}

// A play that is stopped between two sections ends: what was sent is done, what was not
// fails, and what only that was to read goes.
func TestPlayPartsStop(t *testing.T) {
	section := usually(1100, graph.MaxNodes) // more than a session's credit: the second waits for the first
	l, drivers := inSections(t, section, 1, 1)
	s := connect(t, l, "client")
	one := s.program(addOne, 0)
	d := draw(1)
	a := d.run(one, 1)
	b := d.fill(one, a, section)
	g := d.keeps(a, d.run(one, b))
	id := s.define(g)
	x, token, write := s.held(0) // nothing ends before it is there
	enough := errors.New("enough")
	p := &client.PlaySpec{Graph: id, Inputs: []uint64{x}, First: s.Objects(g.Made()), Token: s.Tokens(len(g.Nodes)),
		Stop: func() error { return enough }}
	statustest.OKf(t, s.Play(p), "a play of which a section was sent")
	if err := s.Play(p); !errors.Is(err, enough) {
		t.Errorf("a play of which nothing was sent: %v", err)
	}
	write()
	for i := range uint64(section) {
		statustest.OKf(t, s.Wait(p.Token+i), "node %d", i)
	}
	if err := s.Wait(p.Token + uint64(section)); !errors.Is(err, enough) {
		t.Errorf("a node that was not sent: %v", err)
	}
	statustest.Check(t, s.Wait(token))
	s.expect(p.First, 0, 1, 1, 1, 1)
	s.Free([]uint64{x, p.First, p.First + uint64(section)})
	clustertest.Free(t, drivers)
}
