package collective

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
)

// scene is a gang of three processes, the first with two devices, whose ranks come
// to an all-reduce when the test says so.
type scene struct {
	t    testing.TB
	w    *world
	g    Gang
	spec *spmd.Spec
	ends sync.WaitGroup
}

func newScene(t testing.TB, w *world, elements int64) *scene {
	s := &scene{t: t, w: w, g: Gang{ID: 9, Launch: 9, Ranks: []Place{{1, 0}, {2, 0}, {1, 1}, {3, 0}}},
		spec: allReduce(4, shape.Shape{DType: shape.F32, Dims: []int64{elements}})}
	s.spec.Site = 5
	w.begin(s.g)
	return s
}

func (s *scene) enter(rank int) {
	at := s.g.Ranks[rank]
	s.ends.Add(1)
	size := s.spec.Operands[0].Bytes()
	s.w.engines[at.Process].Enter(Call{Launch: s.g.Launch, Local: at.Local, Spec: s.spec, Operands: [][]byte{
		aligned(size)}, Results: [][]byte{aligned(size)}, Done: func(err error) {
		statustest.Checkf(s.t, err, "rank %d", rank)
		s.ends.Done()
	}})
}

// stands waits until a process tells of just this wait.
func (s *scene) stands(process uint64, want Wait) {
	s.t.Helper()
	want.Gang, want.Op, want.Site = 9, spmd.AllReduce, 5
	statustest.Soon(s.t, func() string {
		got := s.w.engines[process].Waits()
		for i := range got {
			slices.Sort(got[i].From)
			got[i].Since = want.Since
		}
		return fmt.Sprintf("%+v", got)
	}, fmt.Sprintf("%+v", []Wait{want}), "what process %d waits for", process)
}

// An engine tells which devices wait in a collective, and for whom, however the
// blocks come.
func TestWaitsNameWhomTheyWaitFor(t *testing.T) {
	for _, how := range []struct {
		name     string
		near     int
		elements int64
	}{{"exchange", 0, 1}, {"board", 3, 1}, {"board and exchange", 2, 1}, {"large, two rounds", 0, 1 << 16},
		{"large, with a board", 3, 1 << 16}} {
		t.Run(how.name, func(t *testing.T) {
			w := newWorld(t, 3, how.near)
			s := newScene(t, w, how.elements)
			if got := w.engines[1].Waits(); len(got) != 0 {
				t.Errorf("before anybody has come: %+v", got)
			}
			s.enter(2)
			s.stands(1, Wait{Came: []int{1}, Missing: []int{0}})
			s.enter(0)
			s.stands(1, Wait{Came: []int{0, 1}, From: []uint64{2, 3}})
			s.enter(3)
			s.stands(1, Wait{Came: []int{0, 1}, From: []uint64{2}})
			s.stands(3, Wait{Came: []int{0}, From: []uint64{2}})
			s.enter(1)
			s.ends.Wait()
			for p, e := range w.engines {
				if got := e.Waits(); len(got) != 0 {
					t.Errorf("process %d waits after the end: %+v", p, got)
				}
			}
			w.end(9)
			w.close()
			w.hub.clean()
		})
	}
}

// A wait is as old as the first look at it.
func TestWaitIsAsOldAsItsFirstLook(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 0)
		s := newScene(t, w, 1)
		age := func(want time.Duration) {
			t.Helper()
			if got := w.engines[1].Waits(); len(got) != 1 || got[0].Since != want {
				t.Errorf("it waits as %+v, want for %v", got, want)
			}
		}
		s.enter(0)
		time.Sleep(time.Hour)
		age(0)
		time.Sleep(7 * time.Second)
		age(7 * time.Second)
		s.enter(2) // the same, and now for others
		synctest.Wait()
		age(7 * time.Second)
		s.enter(1)
		s.enter(3)
		s.ends.Wait()
		w.end(9)
	})
}

// idle is an exchange whose peers take no blocks until they are let.
type idle struct {
	transport.Exchange
	let chan struct{}
}

func (x idle) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	if done == nil {
		x.Exchange.PushBytes(peer, key, data, nil)
		return
	}
	go func() {
		<-x.let
		x.Exchange.PushBytes(peer, key, data, done)
	}()
}

func (x idle) Push(peer uint64, key transport.Key, size int64, fill func([]byte, func(error)), done func(error)) {
	go func() {
		<-x.let
		x.Exchange.Push(peer, key, size, fill, done)
	}()
}

// A member that has all blocks of others waits while they do not take its own.
func TestWaitsForTaking(t *testing.T) {
	w := newWorld(t, 3, 0)
	let := make(chan struct{})
	w.engines[1] = New(idle{w.hub.nodes[1], let}, 7, nil)
	s := newScene(t, w, 1<<16)
	for rank := range s.g.Ranks {
		s.enter(rank)
	}
	s.stands(1, Wait{Came: []int{0, 1}, To: []uint64{2, 3}})
	s.stands(2, Wait{Came: []int{0}, From: []uint64{1}})
	close(let)
	s.ends.Wait()
	w.end(9)
	w.close()
	w.hub.clean()
}
