package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/sim"
)

// The faults of the simulation (simulation_test.go): each says what it does, when, and how it ends.

// parts keeps a worker and another worker or a client apart, for a short time, in which all waits, or a long one.
func (x *trial) parts(r *rand.Rand, name string, workers, clients int) fault {
	other := fmt.Sprint("worker-", r.IntN(workers))
	if r.IntN(3) == 0 {
		other = fmt.Sprint("c", r.IntN(clients))
	}
	d := time.Duration(r.Int64N(int64(3 * apartFor)))
	if d > apartFor*9/10 {
		x.apart[[2]string{name, other}] = true
	}
	return fault{what: fmt.Sprintf("%s and %s are apart for %v", name, other, d), do: func() {
		if other != name {
			x.local.Part(name, other)
			time.AfterFunc(d, func() { x.local.Meet(name, other) })
		}
	}}
}

// isCutOff cuts off a process that comes back before its silence is noticed.
func (x *trial) isCutOff(r *rand.Rand, name string, away map[string]bool) fault {
	d := time.Duration(r.Int64N(int64(silence) * 3 / 4))
	return fault{what: fmt.Sprintf("%s is cut off for %v", name, d), do: func() {
		if away[name] {
			return
		}
		x.local.Cut(name)
		time.Sleep(d)
		x.local.Heal(name)
	}}
}

func (x *trial) isCutOffForGood(name string, away map[string]bool) fault {
	x.doomed[name] = true
	return fault{what: name + " is cut off for good", do: func() {
		away[name] = true
		x.local.Cut(name)
	}}
}

// breaks breaks the connection of a process to the controller. With leases it is made again, and nothing else happens.
func (x *trial) breaks(name string) fault {
	if x.lease > 0 {
		return fault{what: "the connection of " + name + " breaks, and is made again", do: func() {
			if x.mends(name) {
				x.local.Break(name)
			}
		}}
	}
	x.doomed[name] = true
	return fault{what: "the connection of " + name + " breaks", do: func() { x.local.Break(name) }}
}

func (x *trial) crashes(n int, name string, away map[string]bool) fault {
	x.doomed[name] = true
	return fault{what: name + " crashes", do: func() {
		x.lose(n, "crashed")
		x.vanish(name)
		away[name] = true
	}}
}

// fails has a device of worker n fail one of its next runs or allocations.
func (x *trial) fails(r *rand.Rand, n int, name string) fault {
	k, nth, alloc := r.IntN(x.each), 1+r.IntN(5), r.IntN(2) == 0
	x.flaky[n*x.each+k] = true
	return fault{what: fmt.Sprintf("device %d of %s fails", k, name), do: func() {
		fail := x.drivers[n].FailRun
		if alloc {
			fail = x.drivers[n].FailAlloc
		}
		statustest.Check(x.t, fail(k, nth, status.New(status.Internal, badLuck)))
	}}
}

func (x *trial) losesController(workers, clients int) fault {
	for i := range workers {
		x.doomed[fmt.Sprint("worker-", i)] = true
	}
	for i := range clients {
		x.doomed[fmt.Sprint("c", i)] = true
	}
	return fault{what: "the controller is cut off for good", do: func() { x.local.Cut("controller") }}
}

// open opens what the controller keeps.
func (x *trial) open() *durable.Store {
	s := statustest.Value(durable.Open(x.dir)).OK(x.t)
	return s
}

// restartsController has the controller die and start again, and nothing else happens.
func (x *trial) restartsController(workers, clients int) fault {
	return fault{what: "the controller dies, and starts again", do: func() {
		for i := range workers + clients {
			name := fmt.Sprint("worker-", i)
			if i >= workers {
				name = fmt.Sprint("c", i-workers)
			}
			if !x.doomed[name] && !x.mends(name) {
				return
			}
		}
		dead, err := x.local.Restart(func() *durable.Store {
			x.store = x.open()
			return x.store
		})
		statustest.Check(x.t, err)
		x.dead = append(x.dead, dead)
	}}
}

func (x *trial) computesWithoutEnd(r *rand.Rand, workers int) fault {
	n, k := r.IntN(workers), r.IntN(x.each)
	name := fmt.Sprint("worker-", n)
	x.doomed[name], x.endless[name] = true, true
	return fault{at: time.Duration(r.Int64N(int64(workTime / 2))),
		what: fmt.Sprintf("a client has device %d of %s compute without end, and goes", k, name),
		do:   func() { x.clients.Go(func() { x.spin(n, k) }) }}
}

// spin is a client that has a device compute without end, and goes. It may meet other
// faults before.
func (x *trial) spin(worker, local int) {
	s, err := x.local.Connect(x.t.Context(), "spinner", func([]client.Ended) {})
	if err != nil {
		return
	}
	defer s.Close()
	for i, d := range s.Devices() {
		if d.Worker != uint64(worker+1) || int(d.Local) != local {
			continue
		}
		century := 100 * 365 * 24 * time.Hour
		endless := sim.Program{Name: "endless", Results: []sim.Result{{Op: "fill", DType: "f32", Value: 1}}, Cost: &century}
		r, err := s.Compile(x.t.Context(), client.CompileSpec{
			Format: sim.Format, Code: endless.Source().Code, Options: sim.CompileOptions([]int{i})})
		if err == nil && s.Run(&client.RunSpec{Program: r.ID, FirstOutput: s.Objects(1), Only: -1, Token: 1}) == nil {
			time.Sleep(silence) // until it has begun
		}
		x.vanish("spinner")
		return
	}
}
