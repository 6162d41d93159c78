package controller

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// free has the client free arrays, and returns what workers are sent to free, by connection.
func (b *bed) free(m *wire.Free) map[uint64][][]byte {
	b.t.Helper()
	by := map[uint64][][]byte{}
	for _, a := range b.say(b.client, wire.KindFree, m) {
		if a.Kind != Send || a.Wire != wire.KindDispatch {
			continue
		}
		m := wiretest.Decode[wire.Dispatch](b.t, a.Payload)
		if wire.Kind(m.Kind) == wire.KindFree {
			for _, to := range a.To {
				by[to] = append(by[to], m.Operation)
			}
		}
	}
	return by
}

// A message that frees many arrays is taken a part at a time, and nothing of it twice or not at all.
func TestLongFreesAreTakenInParts(t *testing.T) {
	m := new(wire.Free)
	for i := range uint64(2*freesAtOnce + 1) {
		m.Objects = append(m.Objects, i)
	}
	for i := range uint64(4*shardsAtOnce + 1) {
		m.Rows = append(m.Rows, &wire.Rows{Object: i})
	}
	want := proto.CloneOf(m)
	all := new(wire.Free)
	for first := splitFree(m); first != nil; first = splitFree(m) {
		if len(first.Objects) > freesAtOnce || len(first.Rows) > shardsAtOnce {
			t.Fatalf("a part has %d arrays, and shards of %d", len(first.Objects), len(first.Rows))
		}
		all.Objects, all.Rows = append(all.Objects, first.Objects...), append(all.Rows, first.Rows...)
	}
	all.Objects, all.Rows = append(all.Objects, m.Objects...), append(all.Rows, m.Rows...)
	if !proto.Equal(all, want) {
		t.Errorf("%d arrays, and shards of %d, are freed", len(all.Objects), len(all.Rows))
	}
}

// Each worker of a put learns where the client has laid the rows, also where the put goes on without a lost worker.
func TestWorkersLearnWhereRowsOfAPutLie(t *testing.T) {
	b := newBed(t, Config{}, 3, 1)
	told := func(op uint64) (n int) {
		t.Helper()
		for _, a := range b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(1),
			Devices: []uint32{0, 1, 2}, Laid: &wire.Laid{Offset: 64}}) {
			if a.Kind != Send || a.Wire != wire.KindDispatch {
				continue
			}
			d, got := new(wire.Dispatch), new(wire.Put)
			statustest.OK(t, errors.Join(d.Parse(a.Payload), proto.Unmarshal(d.Operation, got)))
			if len(got.Devices) != 1 || got.Laid.GetOffset() != 64 {
				t.Errorf("a worker is sent %v", got)
			}
			n += len(a.To)
		}
		return n
	}
	statustest.Equal(t, told(1), 3, "workers are told")
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: io.EOF})
	statustest.Equal(t, told(2), 2, "workers are told")
}

// The parts of a put or a transfer are one action for all workers whose parts are of one length; very long ones are
// put together when they are sent.
func TestPartsOfManyWorkersAreOneAction(t *testing.T) {
	const workers, long = 100, 2 * spreadSize / 100
	b := newBed(t, Config{}, workers, 1)
	put := &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: onAll(b)}
	named := &wire.Array{Dtype: scalar.Dtype, Memory: strings.Repeat("m", lateSize)} // is in each part
	longPut := &wire.Put{Op: 4, Object: 4, Array: named, Devices: onAll(b)}
	short := &wire.Transfer{Op: 2, Object: 2, Array: scalar}
	for d := range uint32(workers) {
		short.Moves = append(short.Moves, &wire.Move{Source: 1, From: d, To: d ^ 1, Shard: scalar})
	}
	longer := &wire.Transfer{Op: 3, Object: 3, Array: scalar}
	for _, m := range short.Moves {
		for range long / 20 {
			longer.Moves = append(longer.Moves, m)
		}
	}
	for _, c := range []struct {
		kind wire.Kind
		m    proto.Message
		most int // actions
		late bool
	}{{wire.KindPut, put, 1, false}, {wire.KindTransfer, short, 4, false}, {wire.KindTransfer, longer, 4, false},
		{wire.KindPut, longPut, workers, true}} {
		actions, receivers := 0, 0
		for _, a := range b.st.Step(&Event{Kind: Message, Conn: b.client, Wire: c.kind, Message: c.m}, nil) {
			if a.Kind != Send || a.Wire != wire.KindDispatch {
				continue
			}
			actions, receivers = actions+1, receivers+len(a.To)
			for _, own := range apart([]Action{a}) {
				m := wiretest.Decode[wire.Dispatch](t, sent(own))
				if wire.Kind(m.Kind) != c.kind || len(m.Operation) == 0 || (a.Late != nil) != c.late {
					t.Fatalf("a worker is sent operation %d of %d bytes, late: %v", m.Kind, len(m.Operation), a.Late != nil)
				}
			}
		}
		statustest.Equal(t, receivers, workers, "workers are sent %T", c.m)
		if actions > c.most {
			t.Errorf("%T takes %d actions, want at most %d", c.m, actions, c.most)
		}
		b.reportAll()
	}
}

// A shard that is freed before its object is told to its own worker alone, once, and no longer counted.
func TestFreeOfShardsIsToldToTheirWorkers(t *testing.T) {
	b := newBed(t, Config{}, 2, 2)
	b.say(b.client, wire.KindPut, &wire.Put{Op: 1, Object: 7, Devices: []uint32{0, 1, 2, 3},
		Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{10}}})
	b.reportAll() // until then its bytes stay counted
	free := &wire.Free{Rows: []*wire.Rows{{Object: 7, Devices: []uint32{2, 9}}, {Object: 8, Devices: []uint32{0}}, {}}}
	got := b.free(free)
	m := new(wire.Free)
	if len(got) != 1 || len(got[b.workers[1]]) != 1 || proto.Unmarshal(got[b.workers[1]][0], m) != nil ||
		len(m.Objects) != 0 || len(m.Rows) != 1 || m.Rows[0].Object != 7 || !slices.Equal(m.Rows[0].Devices, []uint32{2}) {
		t.Errorf("the workers are sent %v: %v", got, m)
	}
	if again := b.free(free); len(again) != 0 {
		t.Errorf("a shard that is freed twice is told again: %v", again)
	}
	statustest.EqualSlices(t, b.st.Report().Sessions[0].Bytes, []int64{40, 40, 0, 40}, "bytes of the devices")
	rest := &wire.Free{Rows: []*wire.Rows{{Object: 7, Devices: []uint32{0, 1, 3}}}}
	if got = b.free(rest); len(got) != 2 {
		t.Errorf("the other shards are told to %d workers, want both", len(got))
	}
	statustest.Check(t, b.st.Check())
	got = b.free(&wire.Free{Objects: []uint64{7}})
	statustest.Equal(t, len(got), 2, "workers that are told of the end of the object")
	statustest.Equal(t, b.st.sessions[1].freeing, 0, "shards count as waiting to be freed")
}
