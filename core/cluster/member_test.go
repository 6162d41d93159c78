package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// served is a part of a cluster of sockets in this process.
type served struct {
	cancel context.CancelFunc
	ended  chan error
}

func serve(t *testing.T, f func(ctx context.Context) error) *served {
	ctx, cancel := context.WithCancel(context.Background())
	s := &served{cancel, make(chan error, 1)}
	go func() { s.ended <- f(ctx) }()
	t.Cleanup(cancel)
	return s
}

// end stops it and returns what it ended with.
func (s *served) end() error {
	s.cancel()
	return s.wait()
}

// wait waits for what it ends with.
func (s *served) wait() error {
	select {
	case err := <-s.ended:
		return err
	case <-time.After(time.Minute): // against a hang
		return status.New(status.DeadlineExceeded, "it has not ended")
	}
}

// sockets is a controller on a unix socket.
func sockets(t *testing.T) (address string, member func(name string, kind device.Kind, nodes int) *served) {
	t.Helper()
	dir := t.TempDir()
	address = "unix:" + filepath.Join(dir, "c")
	log := slog.New(slog.DiscardHandler)
	c := serve(t, func(ctx context.Context) error {
		return cluster.ServeController(ctx, cluster.ControllerConfig{
			Listen: []string{address}, Heartbeat: 100 * time.Millisecond, Log: log})
	})
	t.Cleanup(func() {
		statustest.Check(t, c.end())
	})
	return address, func(name string, kind device.Kind, nodes int) *served {
		return serve(t, func(ctx context.Context) error {
			return cluster.ServeMember(ctx, cluster.WorkerConfig{
				Address: address, Listen: []string{"unix:" + filepath.Join(dir, name)}, Name: name,
				Heartbeat: 100 * time.Millisecond, Wait: 20 * time.Second, Stuck: 20 * time.Millisecond, Log: log}, kind, nodes,
				func(bool, error) {
					if k, ok := kind.(*endless); ok {
						k.driver.Close() // as the end of a process does
					}
				})
		})
	}
}

// workers waits until so many are in the cluster.
func workers(t *testing.T, address string, n int) []*wire.Report_Worker {
	t.Helper()
	var all []*wire.Report_Worker
	statustest.Soon(t, func() string {
		r, err := cluster.Ask(t.Context(), address, cluster.Secret{}, nil)
		if err != nil || len(r.Islands) != 1 {
			return fmt.Sprint(r, err)
		}
		all = r.Islands[0].Workers
		return fmt.Sprint(len(all), " workers")
	}, fmt.Sprint(n, " workers"), "in the cluster")
	return all
}

// Workers whose drivers join through the controller's store run programs with collectives over all their devices. When
// one goes the others end, and the next epoch does as well, also for a session and its programs that were there.
func TestMembersOfEachEpochRunPrograms(t *testing.T) {
	address, member := sockets(t)
	island := sim.NewIsland(sim.Real, 1)
	kinds := []device.Kind{sim.Kind{Options: sim.Options{Devices: 1, Island: island}},
		sim.Kind{Options: sim.Options{Devices: 3, Island: island}}}
	var last uint64
	var s *session
	programs := map[int]*client.Remote{}
	rebound := make(chan client.Moment, 2) // of each worker
	for round := range 2 {
		// The second in the order of names comes first.
		b := member("w10", kinds[1], 2)
		a := member("w9", kinds[0], 2)
		for i, w := range workers(t, address, 2) {
			if p := w.Process; p.Epoch <= last || int(p.Node) != i || p.Name != []string{"w9", "w10"}[i] {
				t.Errorf("worker %d of the island is %v", i, p)
			}
		}
		last++
		if round == 0 {
			s = begin(t, func(n client.Notify) (client.Cluster, error) {
				return cluster.Connect(t.Context(), cluster.ClientConfig{
					Address: address, Name: "client", Heartbeat: 100 * time.Millisecond, Moment: func(m client.Moment) {
						if m.Kind == client.MomentRebound {
							rebound <- m
						}
					}}, n)
			})
		} else {
			for range 2 {
				<-rebound
			}
		}
		for i, devices := range [][]int{{0, 1, 2, 3}, {3, 0}, {1, 2}} {
			sum := programs[i]
			if sum == nil {
				sum = s.program(sumAll, devices...)
				programs[i] = sum
			}
			x := s.vector(devices, ramp)
			token, y := s.Start(sum, x)
			statustest.OKf(t, s.Wait(token), "round %d, devices %v", round, devices)
			want := make([]float32, 4)
			for _, d := range devices {
				for i, v := range ramp(d) {
					want[i] += v
				}
			}
			for _, d := range devices {
				if got, err := s.read(y, d); err != nil || !slices.Equal(got, want) {
					t.Errorf("round %d, device %d of %v: %v, %v, want %v", round, d, devices, got, err, want)
				}
			}
		}
		statustest.Checkf(t, a.end(), "a member that is told to stop")
		statustest.Fails(t, "the other member", b.wait(), status.Aborted, "w9 is gone")
	}
}

// unable is a kind that cannot join.
type unable struct{ device.Kind }

func (unable) Join(context.Context, device.Membership) (device.Driver, error) {
	return nil, status.New(status.NotFound, "no such hardware")
}

// A driver that cannot be made is its worker's end, and the others do not wait for
// it.
func TestMemberCannotJoin(t *testing.T) {
	address, member := sockets(t)
	kind := sim.Kind{Options: sim.Options{Island: sim.NewIsland(sim.Real, 1)}}
	well, bad := member("well", kind, 2), member("bad", unable{kind}, 2)
	statustest.Fails(t, "who cannot", bad.wait(), status.NotFound)
	statustest.Fails(t, "who can", well.wait(), status.Aborted, "bad is gone")
	// A process that waits for members can be told to stop, and is not in the way afterwards.
	statustest.Checkf(t, member("waits", kind, 2).end(), "who waits")
	one := member("one", kind, 1)
	workers(t, address, 1)
	statustest.Check(t, one.end())
	statustest.Fails(t, "in one process",
		statustest.Of2(cluster.Join(t.Context(), []device.Kind{kind, unable{kind}, kind})), status.NotFound)
	elsewhere := sim.Kind{Options: sim.Options{Island: sim.NewIsland(sim.Real, 1)}}
	statustest.Fails(t, "on two islands", statustest.Of2(cluster.Join(t.Context(), []device.Kind{kind, elsewhere})),
		status.Unimplemented)
}

// endless is a kind whose drivers cannot end what they have launched.
type endless struct {
	sim.Kind
	driver *sim.Driver
}

func (k *endless) Join(ctx context.Context, m device.Membership) (device.Driver, error) {
	d, err := k.Kind.Join(ctx, m)
	if err != nil {
		return nil, err
	}
	k.driver = d.(*sim.Driver)
	return struct{ device.Driver }{d}, nil
}

// busy reports whether a worker has a run that has not ended.
func busy(t *testing.T, address, name string) bool {
	t.Helper()
	r := statustest.Value(cluster.Ask(t.Context(), address, cluster.Secret{}, nil)).OK(t)
	for _, i := range r.Islands {
		for _, w := range i.Workers {
			if w.Process.Name == name {
				return w.Gangs > 0
			}
		}
	}
	return true // it ends, or has
}

// A run that fails on one member before it has begun there leaves the others in its
// collective. They give the epoch up.
func TestMembersGiveUpAnEpochThatIsStuck(t *testing.T) {
	address, member := sockets(t)
	kind := sim.Kind{Options: sim.Options{Island: sim.NewIsland(sim.Real, 1)}}
	a, b := &endless{Kind: kind}, &endless{Kind: kind}
	members := []*served{member("a", a, 2), member("b", b, 2)}
	workers(t, address, 2)
	s := begin(t, func(n client.Notify) (client.Cluster, error) {
		return cluster.Connect(t.Context(), cluster.ClientConfig{
			Address: address, Name: "client", Heartbeat: 100 * time.Millisecond}, n)
	})
	sum := s.program(sumAll, 0, 1)
	x := s.vector(clustertest.UpTo(2), ramp)
	for d := range 2 { // it is there, and what fails next is the room for the sum
		statustest.OK(t, statustest.Of(s.read(x, d)))
	}
	// If a learns of the failure before it has begun either, nothing is stuck.
	for i := 0; len(members[0].ended) == 0; i++ {
		statustest.OK(t, b.driver.FailAlloc(0, 1, status.New(status.ResourceExhausted, "no room")))
		token, _ := s.Start(sum, x)
		err := s.Wait(token)
		// A worker that leaves is no longer busy. So this run may find that it goes, or that x has gone with it.
		if code := status.CodeOf(err); i > 0 && (code == status.Unavailable || code == status.DataLoss) {
			t.Logf("run %d found the epoch being given up, for the one before: %v", i, err)
			break
		}
		statustest.Fails(t, fmt.Sprintf("run %d", i), err, status.ResourceExhausted)
		statustest.Soon(t, func() bool { return len(members[0].ended) > 0 || !busy(t, address, "a") }, true,
			"the end of the epoch with a run that does not end")
	}
	for i, m := range members {
		statustest.Fails(t, fmt.Sprintf("member %d", i), m.wait(), status.Aborted, "does not end on worker a")
	}
}
