package bulk

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

// A sender that was told to stop, or that is lost, may go on to write into the array that it had a part of. No other
// array lies there then.
func TestLateSendersWriteIntoNoOtherArray(t *testing.T) {
	for name, end := range map[string]func(x *Exchange){
		"failed": func(x *Exchange) { x.Fail(transport.Transfers(1), 1, status.New(status.Aborted, "given up")) },
		"lost":   func(x *Exchange) { x.Peers(nil, []uint64{1}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, "unix", 2, none)
			from, to := w.Exchanges[0].(*Exchange), w.Exchanges[1].(*Exchange)
			defer from.Close()
			defer to.Close()
			const size = 4 << 20
			room := func() transport.Block {
				b, ok := to.Room(transport.Transfers(1), size, []uint64{1})
				if !ok {
					t.Fatal("there is no room")
				}
				clear(b.Data)
				return b
			}
			array := room()
			key := transport.Key{Space: transport.Transfers(1), ID: 1}
			writes, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
			from.Push(2, key, size, func(dst []byte, written func(error)) {
				go func() {
					close(writes)
					<-goOn
					for i := range dst {
						dst[i] = 0xee
					}
					written(nil)
				}()
			}, func(err error) { ended <- err })
			to.ExpectPart(1, key, transport.Part{Data: array.Data, At: strided.Dense(size)}, func(err error) { ended <- err })
			<-writes
			end(to)
			if err := <-ended; err == nil {
				t.Fatal("the part has come")
			}
			array.Release()
			next := room()
			close(goOn)
			if err := <-ended; err == nil {
				t.Error("the push has succeeded")
			}
			if bytes.Contains(next.Data, []byte{0xee}) {
				t.Error("it wrote into the next array")
			}
			next.Release()
		})
	}
}

// A part of an array is copied once on its way, by its sender, into its place.
func TestPartsAreCopiedOnce(t *testing.T) {
	w := world(t, "unix", 2, none)
	from, to := w.Exchanges[0].(*Exchange), w.Exchanges[1].(*Exchange)
	defer from.Close()
	defer to.Close()
	dims := []int64{1 << 10, 1 << 10}
	at := strided.Of(dims, []int64{0, 512}, []int64{1 << 10, 512}, 1)
	room, ok := to.Room(transport.Transfers(1), 1<<20, []uint64{1})
	if !ok {
		t.Fatal("there is no room")
	}
	defer room.Release()
	ended := make(chan error, 2)
	before := Copied()
	key := transport.Key{Space: transport.Transfers(1), ID: 1}
	source := bytes.Repeat([]byte{7}, 1<<20)
	to.ExpectPart(1, key, transport.Part{Data: room.Data, At: at}, func(err error) { ended <- err })
	from.PushPart(2, key, transport.Part{Data: source, At: at}, func(err error) { ended <- err })
	for range 2 {
		statustest.OK(t, <-ended)
	}
	statustest.Equal(t, Copied()-before, at.Bytes(), "bytes were copied")
	statustest.Equal(t, bytes.Count(room.Data[:1<<10], []byte{7}), 512, "bytes of the first row came")
}
