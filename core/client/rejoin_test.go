package client

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/transport"
)

// lasting is a far that outlives its connections.
type lasting struct{ *far }

func (l lasting) Watch(func(error)) {}

func (l lasting) Dial(context.Context, string, *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return l, l.welcome, nil
}

// connectLasting connects to a controller that can start again.
func connectLasting(t *testing.T) *near {
	n := &near{t: t, far: newFar(), exchange: new(noExchange)}
	n.far.keep, n.far.welcome.Keeps = true, true
	var err error
	n.cluster, err = Connect(t.Context(), Config{Dialer: lasting{n.far}, Hello: &wire.Hello{},
		Exchange: func(*wire.Welcome) (transport.Exchange, error) { return n.exchange, nil }})
	statustest.OK(t, err)
	return n
}

// retold has the controller start again, and returns the messages that it is sent again.
func (n *near) retold() (all []message) {
	n.t.Helper()
	before := len(n.came(wire.KindRejoin))
	n.says(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
	synctest.Wait()
	m := wiretest.Decode[wire.Rejoin](n.t, n.came(wire.KindRejoin)[before])
	for frames := m.Frames; len(frames) > 0; {
		kind, payload, rest, err := wire.NextFrame(frames)
		statustest.OK(n.t, err)
		frames, all = rest, append(all, message{kind, payload})
	}
	return all
}

// Puts are under way when another worker takes the place of a lost one, and the controller starts again before they
// end. Each is sent again with the rows whose bytes went to where its devices are now, and cancelled if it has none; a
// put that was called behind the change has all of its rows, whenever its array got its number.
func TestPutsAcrossARebindAndAStartOfTheController(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connectLasting(t)
		defer n.cluster.Close()
		put := func(object uint64, devices ...uint32) {
			t.Helper()
			statustest.OK(t, n.cluster.Put(&PutSpec{Object: object, Shape: shape.Shape{DType: shape.F32, Dims: []int64{1 << 20}},
				Devices: devices, Fill: zeros}))
		}
		first := n.cluster.Objects(4)
		put(first, 0, 1)
		put(first+1, 1)
		lost := n.cluster.Devices()[1].Worker
		n.says(wire.KindPeers, &wire.Peers{Gone: []uint64{lost}, Why: wire.Of(errLost)})
		synctest.Wait()
		n.exchange.end(func(k transport.Key) bool { return k.Part == 1 }, errLost)
		n.says(wire.KindRebind, &wire.Rebind{Epoch: 2, Devices: []*wire.Device{{Number: 1, Worker: 7}},
			Workers: []*wire.Process{{Number: 7}}})
		synctest.Wait()
		put(first+2, 0, 1)

		var got []string
		for _, m := range n.retold() {
			switch put, abort := new(wire.Put), new(wire.Abort); m.kind {
			case wire.KindPut:
				statustest.OK(t, proto.Unmarshal(m.payload, put))
				got = append(got, fmt.Sprint(put.Op, put.Devices, status.CodeOf(put.Lost.Err())))
			case wire.KindAbort:
				statustest.OK(t, proto.Unmarshal(m.payload, abort))
				got = append(got, fmt.Sprint(abort.Gang, status.CodeOf(abort.Status.Err())))
			}
		}
		want := []string{"1 [0] UNAVAILABLE", "2 [1] OK", "3 [0 1] OK", "2 UNAVAILABLE"}
		statustest.EqualSlices(t, got, want, "the controller is sent")
	})
}

// What the arguments of runs under way are assembled of is sent again behind the operations that make its members, also
// if these are freed since, and for a program that is there still. What no run under way reads is assembled anew.
func TestAssembledArgumentsAcrossAStartOfTheController(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connectLasting(t)
		defer n.cluster.Close()
		r := n.cluster.(*remote)
		r.mu.Lock()
		for program := range uint64(2) {
			r.keepDevices(program+1, []uint32{0, 1})
		}
		r.mu.Unlock()
		o := n.cluster.Objects(10)
		n.reads(o, o+1) // operation 1
		n.reads(o, o+1) // operation 2, of an object o+10
		n.reads(o+2, o+3)
		n.reads(o+2, o+3) // operation 4, of an object o+11
		n.cluster.Forget(1)
		moved := o + 4
		statustest.OK(t, n.cluster.Transfer(&wire.Transfer{Object: moved, Array: &wire.Array{},
			Moves: []*wire.Move{{Source: o + 2, To: 1}}}, 0)) // operation 5
		n.runReads(2, o, o+1)
		n.runReads(2, o, moved)
		n.runReads(2, o, moved) // operation 8, of an object o+12
		n.cluster.Free([]uint64{moved})
		time.Sleep(2 * freeAfter)
		n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1, 2, 3, 4}})
		synctest.Wait()
		var got []string
		for _, m := range n.retold() {
			got = append(got, cmp.Or(strings.Join(m.words(), ""), fmt.Sprint(m.kind)))
		}
		want := []string{fmt.Sprint(wire.KindTransfer),
			fmt.Sprintf("assemble %d for program 2 of 2 pieces", o+10), fmt.Sprintf("run of [5 %d], 0 mixed", o+10),
			"run of [5 0], 1 mixed",
			fmt.Sprintf("assemble %d for program 2 of 2 pieces", o+12), fmt.Sprintf("run of [5 %d], 0 mixed", o+12),
			fmt.Sprint(wire.KindForget), fmt.Sprintf("free [%d %d]", moved, o+12)}
		statustest.EqualSlices(t, got, want, "the controller is sent")
		before := len(n.heard())
		n.runReads(2, o, o+1)
		n.runReads(2, o+2, o+3)
		synctest.Wait()
		want = []string{fmt.Sprintf("run of [5 %d], 0 mixed", o+10),
			fmt.Sprintf("assemble %d for program 2 of 2 pieces", o+13), fmt.Sprintf("run of [5 %d], 0 mixed", o+13)}
		statustest.EqualSlices(t, n.heard()[before:], want, "then it got")
	})
}

// A controller that starts again is told which line of the user's code called each program first.
func TestFirstCallsAcrossAStartOfTheController(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connectLasting(t)
		defer n.cluster.Close()
		r := n.cluster.(*remote)
		r.mu.Lock()
		for program := range uint64(3) {
			r.keepDevices(program+1, []uint32{0})
		}
		r.mu.Unlock()
		for _, run := range []struct {
			program uint64
			line    string
		}{{2, "train.py:3"}, {2, ""}, {2, "train.py:4"}, {1, ""}, {3, "train.py:5"}} {
			statustest.OK(t, n.cluster.Run(&RunSpec{Program: run.program, FirstOutput: n.cluster.Objects(1), Only: -1,
				Trace: []byte(run.line)}))
		}
		n.cluster.Forget(3)
		n.retold()
		m := wiretest.Decode[wire.Rejoin](t, n.came(wire.KindRejoin)[0])
		statustest.Equal(t, fmt.Sprintf("%v %q", m.Programs, m.FirstCalls), `[2 1] ["train.py:3"]`, "it is told")
		statustest.Equal(t, len(r.lines), 1, "lines that are kept")
	})
}

// A controller that starts again is told of an operation with the longest message that there can be, and the session
// goes on; what is longer fails with a sentence.
func TestRejoinWithALongMessage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := connectLasting(t)
		defer n.cluster.Close()
		run := func(line int) error {
			return n.cluster.Run(&RunSpec{Program: 1, FirstOutput: n.cluster.Objects(1), Only: -1, Trace: make([]byte, line)})
		}
		statustest.Fails(t, "a run with a longer one", run(wire.MaxMessage), status.InvalidArgument, "a message has at most")
		statustest.OK(t, run(wire.MaxMessage-64))
		statustest.OK(t, run(1))
		n.says(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
		synctest.Wait()
		runs := 0
		for _, payload := range n.came(wire.KindRejoin) {
			m := wiretest.Decode[wire.Rejoin](t, payload)
			if len(payload) > wire.MaxFrame || m.More != (runs < 1) {
				t.Errorf("a message of %d bytes says that another one follows: %v", len(payload), m.More)
			}
			for rest := m.Frames; len(rest) > 0; runs++ {
				var err error
				_, _, rest, err = wire.NextFrame(rest)
				statustest.OK(t, err)
			}
		}
		statustest.Equal(t, runs, 2, "runs that it is told of")
	})
}

// A break is reported together with how long the session is kept.
func TestBreakIsToldWithTheLease(t *testing.T) {
	var got Moment
	r := &remote{welcome: &wire.Welcome{Link: &wire.Link{LeaseMs: 10_000}}, moments: func(m Moment) { got = m }}
	r.moment(MomentDisconnected, "", nil, nil)
	statustest.Equal(t, got.Lease, 10*time.Second, "lease")
}
