package client

import (
	"context"
	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/transport"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// profiles is a session of two workers, whose connection is the test's.
func profiles(t *testing.T) *near {
	n := &near{t: t, far: newFar(), exchange: new(noExchange)}
	n.far.keep = true
	n.far.welcome.Platform = &wire.Platform{Name: "sim"}
	n.far.welcome.Workers = []*wire.Process{{Number: 1, Name: "a"}, {Number: 2, Name: "b"}}
	var err error
	n.cluster, err = Connect(context.Background(), Config{Dialer: n.far, Hello: &wire.Hello{},
		Exchange: func(*wire.Welcome) (transport.Exchange, error) { return n.exchange, nil }})
	statustest.OK(t, err)
	return n
}

// answer has a worker answer to the question that was asked last.
func (n *near) answer(worker uint64, bytes int64) {
	synctest.Wait()
	asked := n.came(wire.KindProfile)
	m := wiretest.Decode[wire.Profile](n.t, asked[len(asked)-1])
	n.says(wire.KindProfiled, &wire.Profiled{
		Id: m.Id, Stop: m.Stop, Session: 3, Worker: worker, NowNs: time.Now().UnixNano(), Bytes: bytes})
	synctest.Wait()
}

// begin starts a profile that both workers answer to after a while.
func (n *near) begin() StopProfile {
	started := make(chan StopProfile, 1)
	go func() {
		stop, err := n.cluster.StartProfile(context.Background())
		statustest.Check(n.t, err)
		started <- stop
	}()
	synctest.Wait()
	time.Sleep(time.Millisecond)
	n.answer(1, 0)
	n.answer(2, 0)
	return <-started
}

func (n *near) stop(stop StopProfile) <-chan Profile {
	ended := make(chan Profile, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ended <- stop(ctx)
	}()
	synctest.Wait()
	return ended
}

func TestProfileNamesWorkersThatDoNotAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := profiles(t)
		defer n.cluster.Close()
		ended := n.stop(n.begin())
		n.answer(1, 0)
		begun := time.Now()
		p := <-ended
		if time.Since(begun) > 5*time.Second || len(p.Missing) != 1 || !strings.HasPrefix(p.Missing[0], "worker b: ") {
			t.Errorf("%q after %v", p.Missing, time.Since(begun))
		}
		if want := []observe.Device{
			{Number: 0, Platform: "sim", Worker: "a"}, {Number: 1, Platform: "sim", Worker: "b"}}; !reflect.DeepEqual(want,
			p.Devices) {
			t.Errorf("devices are %v", p.Devices)
		}
		// A late answer is dropped, and does not count for the next profile.
		n.says(wire.KindProfiled, &wire.Profiled{Id: 1, Stop: true, Session: 3, Worker: 2, Bytes: 5})
		stop := n.begin()
		ended = n.stop(stop)
		n.answer(1, 0)
		n.answer(2, 0)
		if p := <-ended; len(p.Missing) != 0 {
			t.Error(p.Missing)
		}
	})
}

func TestProfileDoesNotWaitForWorkersThatAreLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := profiles(t)
		defer n.cluster.Close()
		ended := n.stop(n.begin())
		n.answer(1, 7) // and its bytes do not come
		n.says(wire.KindPeers, &wire.Peers{Gone: []uint64{2}, Why: wire.Of(errLost)})
		synctest.Wait()
		n.exchange.end(func(k transport.Key) bool { return k.ID == wire.ProfileKey(1) && k.Part == 1 }, errLost)
		begun := time.Now()
		p := <-ended
		if time.Since(begun) > 0 || len(p.Missing) != 2 || !strings.Contains(p.Missing[0], "worker b: "+errLost.Error()) ||
			!strings.Contains(p.Missing[1], "worker a: ") {
			t.Errorf("%q after %v", p.Missing, time.Since(begun))
		}
	})
}

func TestProfileEndsWithItsSession(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := profiles(t)
		ended := n.stop(n.begin())
		n.cluster.Close()
		if p := <-ended; len(p.Missing) != 1 || !strings.Contains(p.Missing[0], "closed") {
			t.Error(p.Missing)
		}
		statustest.Fails(t, "the error", statustest.Of(n.cluster.StartProfile(context.Background())),
			status.Unavailable)
	})
}

func TestSpansAreOnTheClientsClock(t *testing.T) {
	sent := time.Unix(1_700_000_000, 0)
	came := sent.Add(4 * time.Millisecond)
	for _, c := range []struct {
		theirs time.Duration // their clock after sent
		want   clock
	}{
		{time.Millisecond, clock{0, 2e6}}, // they may be the same
		{5 * time.Millisecond, clock{3e6, 2e6}},
		{-time.Second, clock{-1_002e6, 2e6}},
	} {
		statustest.Equal(t, measure(sent, came, sent.Add(c.theirs).UnixNano()), c.want,
			"their clock said %v after the question", c.theirs)
	}

	r := &remote{platforms: []*wire.Platform{{Name: "sim"}}}
	r.view.Store(&view{devices: []*wire.Device{{Number: 0, Worker: 1, Local: 1}, {Number: 1, Worker: 2, Local: 0}}})
	spans := func(local uint32, at uint64) *wire.Recorded {
		return &wire.Recorded{Programs: []string{"f"}, Spans: []*wire.Executed{
			{Number: 4, Gang: 7, Local: local, Submitted: at, Launched: 1, End: 5}}, Dropped: 2}
	}
	begun := &round{clocks: map[uint64]clock{1: {100, 10}, 2: {0, 30}}}
	ended := &round{clocks: map[uint64]clock{1: {120, 30}, 2: {-50, 20}}, recorded: map[uint64]*wire.Recorded{
		1: spans(1, 1100), 2: spans(0, 950), // device 9 is unknown
	}}
	ended.recorded[2].Spans = append(ended.recorded[2].Spans, &wire.Executed{Local: 9}, &wire.Executed{Program: 3})
	p := r.gather(begun, ended)
	want := map[int32]observe.Span{
		0: {Program: "f", ProgramID: 4, Gang: 7, Device: 0, Submitted: 1000, Launched: 1001, End: 1005},
		1: {Program: "f", ProgramID: 4, Gang: 7, Device: 1, Submitted: 1000, Launched: 1001, End: 1005},
	}
	got := map[int32]observe.Span{}
	for _, s := range p.Spans {
		got[s.Device] = s
	}
	if !reflect.DeepEqual(want, got) || len(p.Spans) != 2 || p.Dropped != 4 {
		t.Errorf("%+v, %d dropped", p.Spans, p.Dropped)
	}
}
