package worker

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A box is copied as its elements are, one by one.
func TestBox(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rank := rapid.IntRange(0, 4).Draw(t, "rank")
		width := rapid.SampledFrom([]int64{1, 2, 4, 8}).Draw(t, "width")
		var b box
		var to []int64
		n, m, count := width, width, int64(1)
		for range rank {
			size := rapid.Int64Range(0, 4).Draw(t, "size")
			start := rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "start")
			at := rapid.SampledFrom([]int64{0, 0, 1, 2}).Draw(t, "at")
			from := start + size + rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "rest")
			into := at + size + rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "rest")
			b.from, b.start, b.size, b.at, to = append(b.from, from), append(b.start, start), append(b.size, size), append(b.at, at), append(to, into)
			n, m, count = n*from, m*into, count*size
		}
		if err := b.check(); err != nil {
			t.Fatal(err)
		}
		src, got, want := make([]byte, n), make([]byte, m), make([]byte, m)
		for i := range src {
			src[i] = byte(1 + i)
		}
		b.copy(got, to, src, width)
		for k := range count {
			i, o, rest := int64(0), int64(0), k
			at := make([]int64, rank)
			for d := rank - 1; d >= 0; d-- {
				at[d], rest = rest%b.size[d], rest/b.size[d]
			}
			for d := range rank {
				i, o = i*b.from[d]+b.start[d]+at[d], o*to[d]+b.at[d]+at[d]
			}
			copy(want[o*width:(o+1)*width], src[i*width:])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%+v into %v of %d bytes: %v, want %v", b, to, width, got, want)
		}
	})
}

// A box outside its array is refused before anything is copied.
func TestBoxRefuses(t *testing.T) {
	for _, b := range []box{
		{from: []int64{4}, start: []int64{3}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{-1}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{0}, size: []int64{-2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{1 << 62}, size: []int64{4}, at: []int64{0}},
		{from: []int64{4, 4}, start: []int64{0}, size: []int64{1}, at: []int64{0}},
	} {
		if err := b.check(); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("%+v: %v, want INVALID_ARGUMENT", b, err)
		}
	}
}

// Run and Dispatch are read as the generated code reads them.
func FuzzDecode(f *testing.F) {
	seed := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return b
	}
	f.Add(seed(&wire.Run{Op: 1, Program: 2, FirstOutput: 3, Inputs: []uint64{4, 0}, NotDonated: []uint32{1}, Only: 3, Trace: []byte("x.py:1"),
		Mixed: []*wire.Mixed{{Argument: 1, Pieces: []*wire.Piece{{Object: 9, Rows: 2}}}}}))
	f.Add(seed(&wire.Dispatch{Gang: 1, Session: 2, Kind: 20, Operation: []byte{1}, Client: 5, Term: 6}))
	f.Add([]byte{0x20, 0x05, 0x20, 0x06}) // inputs that are not packed
	f.Fuzz(func(t *testing.T, b []byte) {
		var want wire.Run
		var g gang
		var r run
		if err := r.decode(&g, b); err == nil && proto.Unmarshal(b, &want) == nil {
			got := &wire.Run{Op: g.op, Program: r.name, FirstOutput: r.first, Inputs: r.inputs, Mixed: r.mixed, Only: r.only, Trace: r.trace}
			for _, k := range r.kept {
				got.NotDonated = append(got.NotDonated, uint32(k))
			}
			known := func(m *wire.Run) *wire.Run {
				out := new(wire.Run)
				if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(seed(m), out); err != nil {
					t.Fatal(err)
				}
				return out
			}
			if !proto.Equal(known(got), known(&want)) {
				t.Errorf("got %v, want %v", got, &want)
			}
		}
		var d dispatch
		var whole wire.Dispatch
		if err := d.decode(b); err == nil && proto.Unmarshal(b, &whole) == nil {
			if d.gang != whole.Gang || d.session != whole.Session || d.kind != whole.Kind || !bytes.Equal(d.operation, whole.Operation) || d.client != whole.Client || d.term != whole.Term {
				t.Errorf("got %+v, want %v", d, &whole)
			}
		}
	})
}

// Completed is written as the generated code reads it.
func TestAppendCompleted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &wire.Completed{Ok: rapid.SliceOf(rapid.Uint64()).Draw(t, "ok")}
		for _, n := range rapid.SliceOf(rapid.Uint64()).Draw(t, "failed") {
			want.Failed = append(want.Failed, &wire.Failure{Number: n, Status: &wire.Status{Code: uint32(n%16 + 1), Message: rapid.String().Draw(t, "message")}})
		}
		got := new(wire.Completed)
		if err := proto.Unmarshal(appendCompleted(nil, want.Ok, want.Failed), got); err != nil || !proto.Equal(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	})
}
