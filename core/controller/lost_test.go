package controller

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// An operation that no worker has is sent before a later one on its device that was dispatched, unless its worker has
// that one: then it was not dispatched before.
func TestOperationsWhoseMessagesWereLostKeepTheirPlace(t *testing.T) {
	scalar := floats(1)
	client := func() *wire.Rejoin {
		return &wire.Rejoin{Last: 3, Frames: append(
			frames(t, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}}),
			frames(t, wire.KindTransfer, &wire.Transfer{Op: 3, Object: 3, Array: scalar,
				Moves: []*wire.Move{{Source: 2, From: 0, To: 1}}})...)}
	}
	transfer := []*wire.HeldGang{{Gang: 70, Op: 3}}
	for _, c := range []struct {
		gangs [2][]*wire.HeldGang
		want  string
	}{
		{[2][]*wire.HeldGang{nil, transfer}, "[[69 70] []]"},
		{[2][]*wire.HeldGang{transfer, nil}, "[[71] [70]]"},
		{[2][]*wire.HeldGang{nil, nil}, "[[1 2] [2]]"},
	} {
		b := newBedThatKeeps(t)
		statustest.Equal(t, fmt.Sprint(b.work(b.startAgain(c.gangs, client()))), c.want, "the workers are sent")
	}
}

// A put to a device that has yet to get a worker fails, also where others of its devices have one.
func TestPutToADeviceWithoutAWorkerFails(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.conns++
	b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "elastic", Devices: 2,
		Elastic: true}})
	b.say(b.conns, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: floats(1), Devices: []uint32{0, 1}})
	var ends wire.Completed
	for _, a := range b.step(Event{Kind: Flush}) {
		if a.Kind == Send && a.Wire == wire.KindCompleted {
			statustest.OK(t, ends.Parse(a.Payload))
		}
	}
	if len(ends.Failed) != 1 || status.CodeOf(ends.Failed[0].Status.Err()) != status.NotFound {
		t.Errorf("the put ends with %v", &ends)
	}
}
