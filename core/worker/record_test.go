//go:build !race && !invariants

package worker

import (
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

// What was recorded arrives, of whatever size it is.
func TestRecordingsOfAllSizes(t *testing.T) {
	const self, client = 1, 2
	hub := inproc.NewHub(shm.NewPool(shm.Config{}))
	ours := statustest.Value(hub.Join(self, "")).OK(t)
	defer ours.Close()
	theirs := statustest.Value(hub.Join(client, "")).OK(t)
	defer theirs.Close()
	near, remote := inproc.Pair("controller", "worker")
	w := &Worker{conn: remote, self: self, config: Config{Exchange: ours}}
	for _, mib := range []int{0, 63, 64, 65, 200} {
		id := uint64(mib + 1)
		go w.tellRecorded(&wire.Profiled{Id: id, Stop: true, Session: 3, Worker: self}, client,
			observe.Recorded{Spans: []observe.Span{{Program: strings.Repeat("p", mib<<20)}}})
		kind, payload, err := near.Recv()
		statustest.OK(t, err)
		told := new(wire.Profiled)
		statustest.OK(t, wire.Decode(kind, payload, told))
		got := make(chan int, 1)
		key := transport.Key{Space: transport.Transfers(3), ID: wire.ProfileKey(id), Part: self}
		theirs.Expect(self, key, told.Bytes, nil, func(b transport.Block, err error) {
			m := new(wire.Recorded)
			if err == nil {
				err = wire.Decode(kind, b.Data, m)
				b.Release()
			}
			statustest.Checkf(t, err, "%d MiB", mib)
			got <- len(strings.Join(m.Programs, ""))
		})
		statustest.Equal(t, <-got, mib<<20, "bytes that arrive of a name of %d MiB", mib)
	}
}
