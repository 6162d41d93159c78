package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// With a lease, connections of a client and workers to the controller break again and again under load, and each
// operation ends well, once.
func TestOperationsEndOnceWhileConnectionsToTheControllerBreak(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		drivers := simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
		l := start(t, cluster.InProcess{Drivers: drivers, Heartbeat: silence / 4, Lease: 10 * time.Second,
			Network: &inproc.Conditions{Delay: func(string, string) time.Duration { return time.Millisecond },
				Silence: silence}})
		const rounds = 600
		s, ended := connectCollecting(t, l, 2*rounds)
		done := make(chan struct{})
		breaks := make(chan int)
		go func() {
			n := 0
			for ; ; n++ {
				select {
				case <-done:
					breaks <- n
					return
				case <-time.After(7 * time.Millisecond):
					l.Break([]string{"c", "worker-0", "worker-1"}[n%3])
				}
			}
		}()
		for i := range uint64(rounds) {
			if object := carry(t, s, i); i%10 == 0 {
				checkCarried(t, s, i, object)
			}
		}
		checkEnds(t, ended, 2*rounds)
		close(done)
		if n := <-breaks; n < 20 {
			t.Errorf("only %d connections were broken", n)
		}
		s.Close()
	})
}

// connectCollecting begins a session, and returns the ends of its operations, of so many at most.
func connectCollecting(t *testing.T, l *cluster.Local, operations int) (client.Cluster, <-chan client.Ended) {
	ended := make(chan client.Ended, operations)
	s := statustest.Value(l.Connect(t.Context(), "c", func(batch []client.Ended) {
		for _, e := range batch {
			ended <- e
		}
	})).OK(t)
	time.Sleep(time.Second) // all have heard of one another
	return s, ended
}

// checkEnds waits until so many operations have ended: each once, and well.
func checkEnds(t *testing.T, ended <-chan client.Ended, operations int) {
	t.Helper()
	seen := map[uint64]bool{}
	for range operations {
		e := <-ended
		if e.Err != nil || seen[e.Token] {
			t.Errorf("operation %d ended with %v, before: %v", e.Token, e.Err, seen[e.Token])
		}
		seen[e.Token] = true
	}
}

// A worker whose machine cannot be reached for longer than it may be silent keeps its place for the lease, and its
// arrays.
func TestWorkerThatIsCutOffKeepsItsPlaceForTheLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		drivers := simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
		l := start(t, cluster.InProcess{Drivers: drivers, Heartbeat: silence / 4, Silence: silence, Lease: 10 * time.Second,
			Patience: 10 * time.Second, Network: &inproc.Conditions{Silence: silence * 5 / 4, // as stream looks now and then
				Delay: func(string, string) time.Duration { return time.Millisecond }}})
		s := statustest.Value(l.Connect(t.Context(), "c", func([]client.Ended) {})).OK(t)
		object := carry(t, s, 0)
		for range 8 { // at several times between two heartbeats
			time.Sleep(silence / 32)
			l.Cut("worker-1")
			time.Sleep(4 * silence)
			l.Heal("worker-1")
			time.Sleep(2 * time.Second) // until it has dialed
			checkCarried(t, s, 0, object)
		}
		s.Close()
	})
}

// carry puts an array on the first device and moves it to the second, by operations with the tokens 1 + 2 i and
// 2 + 2 i. It returns the first of its two objects.
func carry(t *testing.T, s client.Cluster, i uint64) (object uint64) {
	t.Helper()
	f32 := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	from, to := s.Devices()[0].Number, s.Devices()[1].Number
	object = s.Objects(2)
	statustest.OK(t, s.Put(&client.PutSpec{Object: object, Shape: f32, Devices: []uint32{from}, Token: 1 + 2*i,
		Fill: func(_ uint32, dst []byte, written func(error)) {
			copy(dst, carried(i))
			written(nil)
		}}))
	m := &wire.Transfer{Object: object + 1, Array: &wire.Array{Dtype: uint32(f32.DType), Dims: f32.Dims},
		Moves: []*wire.Move{{Source: object, From: from, To: to}}}
	statustest.OK(t, s.Transfer(m, 2+2*i))
	return object
}

// carried is the bytes of carry's array.
func carried(i uint64) string { return fmt.Sprintf("sixteen by %05d", i) }

// checkCarried reads what carry has moved.
func checkCarried(t *testing.T, s client.Cluster, i, object uint64) {
	t.Helper()
	got, fetched := make([]byte, len(carried(i))), make(chan error, 1)
	statustest.OK(t, s.Fetch(object+1, s.Devices()[1].Number, got, func(err error) { fetched <- err }))
	if err := <-fetched; err != nil || string(got) != carried(i) {
		t.Fatalf("got %q, %v; want %q", got, err, carried(i))
	}
}
