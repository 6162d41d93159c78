package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// request waits until so many requests for slices came, and returns the last.
func (n *near) request(many int) *wire.SliceRequest {
	n.t.Helper()
	m := wiretest.Decode[wire.SliceRequest](n.t, n.comes(wire.KindSliceRequest, many)[many-1])
	return m
}

// sliceAnswer is what a session gets that asks for a slice.
type sliceAnswer struct {
	number  uint64
	devices []int
	err     error
}

// ask asks for a slice, on a goroutine of its own.
func (n *near) ask(w placement.Want) chan sliceAnswer {
	answered := make(chan sliceAnswer, 1)
	go func() {
		a, err := n.cluster.Ask(w, grant.Terms{})
		if err != nil {
			answered <- sliceAnswer{err: err}
			return
		}
		devices, err := a.Wait(context.Background())
		answered <- sliceAnswer{a.Number, devices, err}
	}()
	return answered
}

// remap asks for other devices of slice 1, on a goroutine of its own.
func (n *near) remap(ctx context.Context) chan sliceAnswer {
	answered := make(chan sliceAnswer, 1)
	go func() {
		devices, err := n.cluster.Remap(ctx, 1)
		answered <- sliceAnswer{1, devices, err}
	}()
	return answered
}

func TestSlicesAreAskedForAndAnswered(t *testing.T) {
	n := connect(t)
	answered := n.ask(placement.Want{Devices: 2, Topology: []int{1, 2}, Island: "x", Kind: "k"})
	want := &wire.SliceRequest{Slice: 1, Devices: 2, Topology: []uint32{1, 2}, Island: "x", Kind: "k"}
	if got := n.request(1); !proto.Equal(got, want) {
		t.Errorf("the controller is asked %v, want %v", got, want)
	}
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{1, 0}})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1}) // no request waits for it
	if a := <-answered; a.err != nil || a.number != 1 || fmt.Sprint(a.devices) != "[1 0]" {
		t.Errorf("got %+v", a)
	}
	n.quiet() // both answers were heard, or the second would be that of what is asked next

	// What makes no sense is not asked, devices that are not there are not taken.
	statustest.Fails(t, "-1 devices", statustest.Of(n.cluster.Ask(placement.Want{Devices: -1}, grant.Terms{})),
		status.InvalidArgument)
	answered = n.ask(placement.Want{Devices: 1})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: n.request(2).Slice, Devices: []uint32{2}})
	statustest.Fails(t, "a device that is not there", (<-answered).err, status.Internal)
}

func TestSlicesAreRemappedOneAtATime(t *testing.T) {
	n := connect(t)
	answered := n.remap(context.Background())
	if got := n.request(1); !proto.Equal(got, &wire.SliceRequest{Slice: 1}) {
		t.Errorf("to remap the controller is asked %v", got)
	}
	statustest.Fails(t, "remapping what is being remapped",
		statustest.Of(n.cluster.Remap(context.Background(), 1)), status.FailedPrecondition)
	n.says(wire.KindSliceAnswer,
		&wire.SliceAnswer{Slice: 1, Status: wire.Of(status.New(status.ResourceExhausted, "too few"))})
	statustest.Fails(t, "remapping", (<-answered).err, status.ResourceExhausted, "too few")
}

// A request waits, is told of its place, and is cancelled; an answer that comes too late is not the next one's.
func TestRequestsThatWaitKnowTheirPlaceUntilTheyAreCancelled(t *testing.T) {
	n := connect(t)
	a, err := n.cluster.Ask(placement.Want{Devices: 1, Exclusive: true},
		grant.Terms{Wait: 1500 * time.Microsecond, Priority: -3})
	statustest.OK(t, err)
	want := &wire.SliceRequest{Slice: a.Number, Devices: 1, Exclusive: true, WaitMs: 2, Priority: -3}
	if got := n.request(1); !proto.Equal(got, want) {
		t.Errorf("the controller is asked %v, want %v", got, want)
	}
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: a.Number, Position: 3, Lacks: "they are gone"})
	n.quiet()
	if at, lacks := a.Position(); at != 3 || lacks != "they are gone" {
		t.Errorf("the request waits as number %d: %s", at, lacks)
	}
	short, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.Wait(short); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up got %v", err)
	}
	n.cluster.Release(a.Number)
	statustest.Fails(t, "a cancelled request", statustest.Of(a.Wait(context.Background())), status.Cancelled)
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: a.Number, Devices: []uint32{0}})
	n.cluster.Release(7)
	var released [][]uint64
	for _, payload := range n.came(wire.KindSliceRelease) {
		released = append(released, wiretest.Decode[wire.SliceRelease](t, payload).Slices)
	}
	statustest.Equal(t, fmt.Sprint(released), fmt.Sprintf("[[%d] [7]]", a.Number), "released")
}

func TestAnswersOfWhoGaveUpAreNotTheNextOnes(t *testing.T) {
	n := connect(t)
	short, cancel := context.WithCancel(context.Background())
	answered := n.remap(short)
	n.request(1)
	cancel()
	statustest.Fails(t, "who gave up", (<-answered).err, status.Cancelled)
	answered = n.remap(context.Background())
	n.request(2)
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{0}})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{1}})
	if a := <-answered; a.err != nil || fmt.Sprint(a.devices) != "[1]" {
		t.Errorf("after one that was given up: %+v, want device 1", a)
	}
}

// The session's end is the answer of who still waits, and of who comes later.
func TestSessionsEndAnswersRequestsForSlices(t *testing.T) {
	n := connect(t)
	answered := n.ask(placement.Want{Devices: 1})
	n.request(1)
	n.says(wire.KindGoodbye, &wire.Goodbye{})
	statustest.Fails(t, "after the session's end", (<-answered).err, status.Unavailable)
	statustest.Fails(t, "remapping after the session's end",
		statustest.Of(n.cluster.Remap(context.Background(), 1)), status.Unavailable)
}
