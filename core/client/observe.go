package client

import (
	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/wire"
)

// asksThread is Config.Thread by default.
func asksThread() int32 { return int32(unix.Gettid()) }

// called records a call of this thread that began at begun, which is of the recorder's clock.
func (r *remote) called(begun int64, name string, op uint64, bytes int64) {
	if begun != 0 {
		r.recorder.Note(0, &observe.Event{Kind: observe.Call, Name: name, Op: op, Thread: r.thread(),
			Bytes: bytes, Begin: begun, End: max(begun, r.recorder.Clock())})
	}
}

// events returns what a worker has recorded beside computations, by this process's clock. The
// worker's devices have the given numbers in the session.
func events(m *wire.Recorded, worker string, numbers map[uint32]int32, ahead int64) (all []observe.Event) {
	for _, e := range m.Events {
		kind := observe.Kind(min(e.Kind, 255))
		device, ok := numbers[e.Local]
		if kind != observe.Collective {
			device, ok = 0, true
		}
		if kind == observe.Call || kind > observe.Collective || uint64(e.Name) >= uint64(len(m.Programs)) || !ok {
			continue // of a newer worker, or of none that is sound
		}
		way := ""
		if e.Way > 0 && uint64(e.Way) <= uint64(len(m.Programs)) {
			way = m.Programs[e.Way-1]
		}
		at := int64(e.Begin) - ahead
		all = append(all, observe.Event{Kind: kind, Name: m.Programs[e.Name], Op: e.Op, Gang: e.Gang, Worker: worker,
			Device: device, Bytes: int64(e.Bytes), Way: way, Waited: int64(e.Waited), Begin: at, End: at + int64(e.End)})
	}
	return all
}
