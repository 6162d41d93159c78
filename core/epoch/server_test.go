package epoch

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// where is a server and the way to it.
type where struct {
	*Server
	dialer  transport.Dialer
	address string
}

// each runs a test with members over a unix socket and in the process.
func each(t *testing.T, l Limits, test func(t *testing.T, w where)) {
	serve := func(t *testing.T, l transport.Listener, s *Server) {
		var running sync.WaitGroup
		running.Go(func() {
			for in, err := l.Accept(); err == nil; in, err = l.Accept() {
				s.Take(in)
			}
		})
		t.Cleanup(func() {
			l.Close()
			running.Wait()
			s.Close()
			statustest.Check(t, s.Check())
		})
	}
	t.Run("inproc", func(t *testing.T) {
		n := inproc.NewNetwork(transport.Credentials{})
		listener := statustest.Value(n.Listen("controller")).OK(t)
		s := NewServer(l, nil)
		serve(t, listener, s)
		test(t, where{s, n, listener.Address()})
	})
	t.Run("unix", func(t *testing.T) {
		o := stream.Options{Config: stream.Config{Heartbeat: 100 * time.Millisecond}}
		listener := statustest.Value(stream.Listen("unix:"+filepath.Join(t.TempDir(), "s"), o, nil)).OK(t)
		s := NewServer(l, nil)
		serve(t, listener, s)
		test(t, where{s, o, listener.Address()})
	})
}

func (w where) dial(t *testing.T, name string, nodes int) (*Pending, error) {
	return Dial(t.Context(), Config{Dialer: w.dialer, Address: w.address, Name: name, Island: "i", Nodes: nodes})
}

// gather makes the members of an epoch.
func (w where) gather(t *testing.T, names ...string) []*Member {
	t.Helper()
	members := make([]*Member, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			p, err := w.dial(t, name, len(names))
			if err == nil {
				members[i], err = p.Wait(t.Context())
			}
			statustest.Check(t, err)
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, m := range members {
			m.Close()
		}
	})
	return members
}

// impatient is a Dialer whose user is told to stop when the question is about to leave.
type impatient struct {
	transport.Dialer
	stop context.CancelFunc
}

func (d impatient) Dial(ctx context.Context, address string, hello *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	d.stop()
	return d.Dialer.Dial(ctx, address, hello)
}

// A process that is told to stop while it asks to be a member is no member when the call has returned, and not
// in the way of one that asks for an epoch of another size.
func TestMemberIsToldToStopWhileItAsks(t *testing.T) {
	each(t, Limits{}, func(t *testing.T, w where) {
		for range 20 {
			ctx, stop := context.WithCancel(t.Context())
			p, err := Dial(ctx, Config{Dialer: impatient{w.dialer, stop}, Address: w.address, Name: "stops", Island: "i",
				Nodes: 2})
			if err == nil {
				_, err = p.Wait(ctx)
			}
			statustest.Fails(t, "who was told to stop", err, status.Cancelled)
			if p, err = w.dial(t, "comes", 3); err != nil {
				t.Fatal(err)
			}
			ended, end := context.WithCancel(t.Context())
			end()
			statustest.Fails(t, "who came next", statustest.Of(p.Wait(ended)), status.Cancelled)
		}
	})
}

func TestMembersMeet(t *testing.T) {
	each(t, Limits{}, func(t *testing.T, w where) {
		members := w.gather(t, "w2", "w0", "w10")
		for i, node := range []int{1, 0, 2} {
			m := members[i].Membership()
			if m.Node != node || m.Nodes != 3 || m.Epoch != members[0].epoch.Number || m.Store == nil {
				t.Errorf("member %d joins with %+v", i, m)
			}
		}
		var all sync.WaitGroup
		for i, m := range members {
			all.Go(func() {
				statustest.Check(t, m.Put(t.Context(), fmt.Sprint("of ", i), []byte{byte(i), 0}))
				for k := range members {
					if v, err := m.Get(t.Context(), fmt.Sprint("of ", k)); err != nil || string(v) != string([]byte{byte(k), 0}) {
						t.Errorf("member %d of %d: %q, %v", k, i, v, err)
					}
				}
			})
		}
		all.Wait()
		m := members[0]
		if v, ok, err := m.TryGet(t.Context(), "of 1"); err != nil || !ok || len(v) != 2 {
			t.Errorf("a key that is there: %q, %v, %v", v, ok, err)
		}
		if v, ok, err := m.TryGet(t.Context(), "\xff"); err != nil || ok {
			t.Errorf("a key that is not there: %q, %v, %v", v, ok, err)
		}
		statustest.Fails(t, "another value", m.Put(t.Context(), "of 1", nil), status.AlreadyExists)
		// A wait that ended leaves nothing behind.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		statustest.Fails(t, "a wait that is bounded", statustest.Of(m.Get(ctx, "never")), status.DeadlineExceeded)
		if _, _, err := m.TryGet(t.Context(), "x"); err != nil { // after the request that drops it
			t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, m := range w.state.members {
			if len(m.waits) > 0 || len(m.epoch.waiting) > 0 {
				t.Errorf("%v waits for %v", m.name, m.waits)
			}
		}
	})
}

// A member that leaves, by its own wish or not, ends the epoch for all, and they
// can be in the next.
func TestMemberThatLeavesEndsTheEpochForAll(t *testing.T) {
	each(t, Limits{}, func(t *testing.T, w where) {
		for name, leave := range map[string]func(*Member){
			"it said goodbye": (*Member).Close,
			"connection":      func(m *Member) { m.conn.Close() },
			"a member sent":   func(m *Member) { _ = m.conn.Send(wire.KindRun, nil) },
			"act NONE":        func(m *Member) { _ = m.send(&wire.KeyRequest{Id: 1}) },
		} {
			members := w.gather(t, "a", "b", "c")
			failed := make(chan error, 2)
			for _, m := range members[1:] {
				go func() {
					_, err := m.Get(t.Context(), "of a")
					failed <- err
				}()
			}
			leave(members[0])
			for range 2 {
				statustest.Fails(t, fmt.Sprintf("%s: a wait", name), <-failed, status.Aborted, "worker a is gone")
			}
			for _, m := range members[1:] {
				<-m.Done()
				over, err := m.Err()
				if !over || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: over is %v, for %v", name, over, err)
				}
				statustest.Fails(t, fmt.Sprintf("%s: put afterwards", name), m.Put(t.Context(), "k", nil),
					status.Aborted)
			}
		}
	})
}

func TestNotAMember(t *testing.T) {
	each(t, Limits{}, func(t *testing.T, w where) {
		p, err := w.dial(t, "a", 2)
		statustest.OK(t, err)
		statustest.Fails(t, "another number of nodes", statustest.Of(w.dial(t, "b", 3)), status.FailedPrecondition,
			"--nodes")
		statustest.Fails(t, "a member of nothing", statustest.Of2(w.dialer.Dial(t.Context(), w.address,
			&wire.Hello{Role: wire.Role_ROLE_MEMBER})), status.InvalidArgument)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for nodes := 3; nodes < 20; nodes++ {
			statustest.Fails(t, "who does not wait", statustest.Of(p.Wait(ctx)), status.Cancelled)
			// It has left, so that another number can be.
			if p, err = w.dial(t, "b", nodes); err != nil {
				t.Fatal(err)
			}
		}
		go w.Close()
		statustest.Fails(t, "a controller that stops", statustest.Of(p.Wait(t.Context())), status.Unavailable,
			"the controller stops")
	})
}

// A member that asks and does not read is dropped, and others are served.
func TestMemberDoesNotRead(t *testing.T) {
	each(t, Limits{Waits: 8}, func(t *testing.T, w where) {
		conn, _, err := w.dialer.Dial(t.Context(), w.address,
			&wire.Hello{Role: wire.Role_ROLE_MEMBER, Name: "deaf", Member: &wire.MemberOffer{Island: "deaf", Nodes: 1}})
		statustest.OK(t, err)
		defer conn.Close()
		ask := func(r *wire.KeyRequest) error {
			payload := statustest.Value(proto.Marshal(r)).OK(t)
			return conn.Send(wire.KindKeyRequest, payload)
		}
		statustest.OK(t, ask(&wire.KeyRequest{Act: wire.KeyRequest_PUT, Key: []byte("k"), Value: make([]byte, 1<<20)}))
		for ; err == nil; err = ask(&wire.KeyRequest{Act: wire.KeyRequest_TRY, Key: []byte("k")}) {
		}
		w.gather(t, "a", "b")
	})
}
