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

func TestSlicesAreAskedForAnsweredAndRemapped(t *testing.T) {
	n := connect(t)
	type answer struct {
		number  uint64
		devices []int
		err     error
	}
	answers := make(chan answer, 1)
	ask := func(ctx context.Context, w placement.Want) {
		go func() {
			a, err := n.cluster.Ask(w, grant.Terms{})
			if err != nil {
				answers <- answer{err: err}
				return
			}
			devices, err := a.Wait(ctx)
			answers <- answer{a.Number, devices, err}
		}()
	}
	ctx := context.Background()
	ask(ctx, placement.Want{Devices: 2, Topology: []int{1, 2}, Island: "x", Kind: "k"})
	if got, want := n.request(1),
		(&wire.SliceRequest{Slice: 1, Devices: 2, Topology: []uint32{1, 2}, Island: "x", Kind: "k"}); !proto.Equal(got,
		want) {
		t.Errorf("the controller is asked %v, want %v", got, want)
	}
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{1, 0}})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1}) // no request waits for it
	if a := <-answers; a.err != nil || a.number != 1 || fmt.Sprint(a.devices) != "[1 0]" {
		t.Errorf("got %+v", a)
	}
	n.quiet() // both answers were heard, or the second would be that of what is asked next

	go func() {
		devices, err := n.cluster.Remap(ctx, 1)
		answers <- answer{1, devices, err}
	}()
	if got := n.request(2); !proto.Equal(got, &wire.SliceRequest{Slice: 1}) {
		t.Errorf("to remap the controller is asked %v", got)
	}
	statustest.Fails(t, "remapping what is being remapped", statustest.Of(n.cluster.Remap(ctx, 1)),
		status.FailedPrecondition)
	n.says(wire.KindSliceAnswer,
		&wire.SliceAnswer{Slice: 1, Status: wire.Of(status.New(status.ResourceExhausted, "too few"))})
	statustest.Fails(t, "remapping", (<-answers).err, status.ResourceExhausted, "too few")

	// What makes no sense is not asked, devices that are not there are not taken.
	statustest.Fails(t, "-1 devices", statustest.Of(n.cluster.Ask(placement.Want{Devices: -1}, grant.Terms{})),
		status.InvalidArgument)
	ask(ctx, placement.Want{Devices: 1})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: n.request(3).Slice, Devices: []uint32{2}})
	statustest.Fails(t, "a device that is not there", (<-answers).err, status.Internal)

	// A request waits, is told of its place, and is cancelled; an answer that comes too late is not the next one's.
	a, err := n.cluster.Ask(placement.Want{Devices: 1, Exclusive: true},
		grant.Terms{Wait: 1500 * time.Microsecond, Priority: -3})
	statustest.OK(t, err)
	if got, want := n.request(4), (&wire.SliceRequest{Slice: a.Number, Devices: 1, Exclusive: true, WaitMs: 2,
		Priority: -3}); !proto.Equal(got, want) {
		t.Errorf("the controller is asked %v, want %v", got, want)
	}
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: a.Number, Position: 3, Lacks: "they are gone"})
	n.quiet()
	if at, lacks := a.Position(); at != 3 || lacks != "they are gone" {
		t.Errorf("the request waits as number %d: %s", at, lacks)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := a.Wait(short); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up got %v", err)
	}
	n.cluster.Release(a.Number)
	statustest.Fails(t, "a cancelled request", statustest.Of(a.Wait(ctx)), status.Cancelled)
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: a.Number, Devices: []uint32{0}})
	n.cluster.Release(1)
	var m, last wire.SliceRelease
	all := n.came(wire.KindSliceRelease)
	if len(all) != 2 || proto.Unmarshal(all[0], &m) != nil || proto.Unmarshal(all[1], &last) != nil ||
		fmt.Sprint(m.Slices, last.Slices) != fmt.Sprintf("[%d] [1]", a.Number) {
		t.Errorf("released %v and %v", m.Slices, last.Slices)
	}

	// The answer of a request that was given up is not the next one's.
	short, cancel = context.WithCancel(ctx)
	remap := func(ctx context.Context) {
		devices, err := n.cluster.Remap(ctx, 1)
		answers <- answer{1, devices, err}
	}
	go remap(short)
	n.request(5)
	cancel()
	statustest.Fails(t, "who gave up", (<-answers).err, status.Cancelled)
	go remap(ctx)
	n.request(6)
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{0}})
	n.says(wire.KindSliceAnswer, &wire.SliceAnswer{Slice: 1, Devices: []uint32{1}})
	if a := <-answers; a.err != nil || fmt.Sprint(a.devices) != "[1]" {
		t.Errorf("after one that was given up: %+v, want device 1", a)
	}

	// The session's end is the answer of who still waits, and of who comes later.
	ask(ctx, placement.Want{Devices: 1})
	n.request(7)
	n.says(wire.KindGoodbye, &wire.Goodbye{})
	statustest.Fails(t, "after the session's end", (<-answers).err, status.Unavailable)
	statustest.Fails(t, "remapping after the session's end", statustest.Of(n.cluster.Remap(ctx, 1)), status.Unavailable)
}
