package bulk

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// laid lays a block for peers, once they have the shelf.
func laid(t *testing.T, x *Exchange, size int64, peers ...uint64) (transport.Block, int64) {
	t.Helper()
	var b transport.Block
	var offset int64
	statustest.Soon(t, func() (ok bool) { b, offset, ok = x.Lay(peers, size); return ok }, true,
		"processes %v have the shelf", peers)
	return b, offset
}

// linked has a link made from the first process of a world to another one.
func linked(t *testing.T, w transporttest.World, to uint64) {
	t.Helper()
	k, came := transport.Key{Space: 1, ID: 1, Part: to}, make(chan error, 1)
	w.Exchanges[to-1].Expect(1, k, 1, make([]byte, 1), func(_ transport.Block, err error) { came <- err })
	w.Exchanges[0].PushBytes(to, k, []byte{1}, nil)
	statustest.OK(t, <-came)
}

// Several peers read a block where it lies, again and again, and no message is sent for it.
func TestPeersReadWhatIsLaid(t *testing.T) {
	w := world(t, "unix", 3, none)
	x := w.Exchanges[0].(*Exchange)
	linked(t, w, 2)
	linked(t, w, 3)
	for i := range byte(3) {
		b, offset := laid(t, x, 100, 2, 3)
		copy(b.Data, bytes.Repeat([]byte{i}, 100))
		for _, reader := range w.Exchanges[1:] {
			got := statustest.Value(reader.(*Exchange).Read(1, offset+10, 90)).OK(t)
			if !bytes.Equal(got.Data, b.Data[10:]) {
				t.Errorf("process %d reads %v", reader.Self(), got.Data)
			}
			got.Release()
		}
		b.Release()
	}
	statustest.Fails(t, "bytes that are not there",
		statustest.Of(w.Exchanges[1].(*Exchange).Read(1, 1<<40, 100)), status.InvalidArgument)
	statustest.Fails(t, "a peer without a shelf",
		statustest.Of(x.Read(2, 0, 100)), status.InvalidArgument, "no shelf")
	for _, x := range w.Exchanges {
		x.Close()
	}
	statustest.Equal(t, x.pool.Stats().Mapped, 0, "bytes that are left")
	statustest.Fails(t, "a peer that has gone", statustest.Of(w.Exchanges[1].(*Exchange).Read(1, 0, 100)),
		status.Cancelled)
}

// Nothing is laid for a process of another host, nor where there is no room.
func TestNothingIsLaid(t *testing.T) {
	for kind, size := range map[string]int64{"tcp": 100, "unix": 1 << 30} {
		w := world(t, kind, 2, none)
		x := w.Exchanges[0].(*Exchange)
		linked(t, w, 2)
		if kind == "unix" {
			b, _ := laid(t, x, 100, 2)
			b.Release()
		}
		statustest.Soon(t, func() bool { return x.shelved() != nil }, true, "there is a shelf")
		if _, _, ok := x.Lay([]uint64{2}, size); ok {
			t.Errorf("%s: a block of %d bytes is laid", kind, size)
		}
		for _, x := range w.Exchanges {
			x.Close()
		}
	}
}
