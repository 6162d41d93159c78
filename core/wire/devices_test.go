package wire_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Devices are read as they were written, in any order, and those of meshes are few rows.
func TestDevicesAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.Uint32Range(0, 1<<20), 0, 40).Draw(t, "numbers")
		statustest.EqualSlices(t, wire.NumbersOf(wire.DevicesOf(numbers)), numbers, "devices")
	})
	const side = 64
	var inOrder, turned, back []uint32
	for i := range uint32(side * side) {
		inOrder = append(inOrder, i)
		turned = append(turned, i%side*side+i/side)
		back = append(back, side*side-1-i)
	}
	for name, c := range map[string]struct {
		numbers []uint32
		rows    int
	}{"in order": {inOrder, 1}, "a mesh that was transposed": {turned, side}, "the last one first": {back, 1}} {
		statustest.Equal(t, len(wire.DevicesOf(c.numbers)), c.rows, "rows of devices, %s", name)
	}
}

// A Session with devices that were appended is one that has them.
func TestSessionWithOwnDevices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &wire.Session{Session: 7, Client: &wire.Process{Name: "c"}, Settles: true}
		b := wire.Encode(nil, want)
		for range rapid.IntRange(0, 3).Draw(t, "devices") {
			d := &wire.OwnDevices{First: rapid.Uint32().Draw(t, "first"), Local: rapid.Uint32().Draw(t, "local"),
				Count: rapid.Uint32().Draw(t, "count")}
			want.Devices = append(want.Devices, d)
			before := len(b)
			b = wire.AppendOwnDevices(b, d.First, d.Local, d.Count)
			if n := len(b) - before; n > wire.MaxOwnDevices {
				t.Fatalf("devices take %d bytes, of at most %d", n, wire.MaxOwnDevices)
			}
		}
		got := new(wire.Session)
		statustest.OK(t, wire.Decode(wire.KindSession, b, got))
		if !proto.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
