package client

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// lasting is a far that outlives its connections.
type lasting struct{ *far }

func (l lasting) Watch(func(error)) {}

func (l lasting) Dial(context.Context, string, *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return l, l.welcome, nil
}

// Puts are under way when another worker takes the place of a lost one, and the controller starts again before they
// end. Each is sent again with the rows whose bytes went to where its devices are now, and cancelled if it has none; a
// put that was called behind the change has all of its rows, whenever its array got its number.
func TestPutsAcrossARebindAndAStartOfTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &near{t: t, far: newFar(), exchange: new(noExchange)}
		n.far.keep, n.far.welcome.Keeps = true, true
		var err error
		if n.cluster, err = Connect(t.Context(), Config{Dialer: lasting{n.far}, Hello: &wire.Hello{},
			Exchange: func(*wire.Welcome) (transport.Exchange, error) { return n.exchange, nil }}); err != nil {
			t.Fatal(err)
		}
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
		n.says(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
		synctest.Wait()

		var got []string
		m := new(wire.Rejoin)
		statustest.OK(t, proto.Unmarshal(n.came(wire.KindRejoin)[0], m))
		for frames := m.Frames; len(frames) > 0; {
			kind, payload, rest, err := wire.NextFrame(frames)
			statustest.OK(t, err)
			frames = rest
			switch put, abort := new(wire.Put), new(wire.Abort); kind {
			case wire.KindPut:
				statustest.OK(t, proto.Unmarshal(payload, put))
				got = append(got, fmt.Sprint(put.Op, put.Devices, status.CodeOf(put.Lost.Err())))
			case wire.KindAbort:
				statustest.OK(t, proto.Unmarshal(payload, abort))
				got = append(got, fmt.Sprint(abort.Gang, status.CodeOf(abort.Status.Err())))
			}
		}
		want := []string{"1 [0] UNAVAILABLE", "2 [1] OK", "3 [0 1] OK", "2 UNAVAILABLE"}
		if !slices.Equal(got, want) {
			t.Errorf("the controller is sent %q, want %q", got, want)
		}
	})
}
