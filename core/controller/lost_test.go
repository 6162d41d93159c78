package controller

import (
	"fmt"
	"testing"

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
		if got := fmt.Sprint(b.work(b.startAgain(c.gangs, client()))); got != c.want {
			t.Errorf("the workers are sent %s, want %s", got, c.want)
		}
	}
}
