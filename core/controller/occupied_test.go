package controller

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// asksAlone has a connection ask for an exclusive slice, and returns how that was answered.
func (b *bed) asksAlone(conn, slice uint64, devices uint32) (answer *wire.SliceAnswer) {
	b.t.Helper()
	for _, a := range b.say(conn, wire.KindSliceRequest,
		&wire.SliceRequest{Slice: slice, Devices: devices, Exclusive: true}) {
		if a.Kind == Send && a.Wire == wire.KindSliceAnswer && a.To[0] == conn {
			answer = new(wire.SliceAnswer)
			statustest.OK(b.t, proto.Unmarshal(a.Payload, answer))
		}
	}
	if answer == nil {
		b.t.Fatalf("nothing was answered")
	}
	return answer
}

// An array occupies its device until it is freed, whatever memory it takes.
func TestArraysWithoutDeviceMemoryOccupyTheirDevices(t *testing.T) {
	for name, array := range map[string]*wire.Array{
		"on the device":  square,
		"of no elements": {Dtype: uint32(shape.F32), Dims: []int64{0}},
		"on the host":    {Dtype: uint32(shape.F32), Memory: "pinned_host"},
	} {
		b := newBed(t, Config{}, 1, 2)
		other := b.joinClient()
		b.say(b.client, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: array, Devices: []uint32{1}})
		b.reportAll()
		statustest.Fails(t, name+": another session", b.asksAlone(other, 1, 2).Status.Err(), status.ResourceExhausted)
		if got := b.asksAlone(b.client, 1, 2); got.Status.Err() != nil {
			t.Errorf("%s: its own session got %v", name, got.Status.Err())
		}
		b.say(b.client, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{1}})
		b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{1}})
		if got := b.asksAlone(other, 2, 2); got.Status.Err() != nil {
			t.Errorf("%s: once it is freed, another session got %v", name, got.Status.Err())
		}
		statustest.Check(t, b.st.Check())
	}
}

// A device that a request for an exclusive slice keeps is not taken by a session that begins meanwhile, whether it
// asked for devices or not; one that was there before goes on.
func TestSessionsThatBeginGetNoDeviceThatIsKept(t *testing.T) {
	b := newBed(t, Config{}, 1, 2)
	before := b.joinClient()
	asks := b.joinClient()
	b.puts([]uint32{0}) // by the first client
	b.say(asks, wire.KindSliceRequest, &wire.SliceRequest{Slice: 1, Devices: 2, Exclusive: true, WaitMs: 1 << 40})
	after := b.joinClient()
	ended := func(conn, op uint64) error {
		b.t.Helper()
		b.say(conn, wire.KindPut, &wire.Put{Op: op, Object: op, Array: scalar, Devices: []uint32{1}})
		b.reportAll()
		s := b.st.conns.Get(conn).s
		if o := s.objects[op]; o.err != nil {
			return o.err
		}
		b.say(conn, wire.KindFree, &wire.Free{Objects: []uint64{op}})
		return nil
	}
	statustest.Fails(t, "a session that began later", ended(after, 1), status.FailedPrecondition)
	statustest.Checkf(t, ended(before, 1), "a session that was there before")
	sized := func(want status.Code) {
		t.Helper()
		b.conns++
		got := status.OK
		for _, a := range b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT,
			Devices: 1}}) {
			if a.Kind == Refuse {
				got = status.CodeOf(a.Err)
			}
		}
		statustest.Equal(t, got, want, "a session of one device begins with")
	}
	sized(status.ResourceExhausted)
	b.now += placement.LookAgain // the request lets others have devices
	b.step(Event{Kind: Tick})
	statustest.Checkf(t, ended(after, 2), "once the request lets others have devices")
	sized(status.OK)
	statustest.Check(t, b.st.Check())
}
