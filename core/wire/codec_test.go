package wire_test

import (
	"bytes"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// appender is a message that is written by hand.
type appender interface {
	proto.Message
	Append(b []byte) []byte
}

// parser is a message that is read by hand.
type parser interface {
	proto.Message
	Parse(b []byte) error
}

// parsers returns an empty message of each kind that is read by hand.
func parsers() []parser {
	return []parser{new(wire.Run), new(wire.Played), new(wire.Dispatch), new(wire.Completed)}
}

func drawMessages(t *rapid.T) []appender {
	number := rapid.OneOf(rapid.SampledFrom([]uint64{0, 1, 127, 128, 1 << 50, 1<<64 - 1}), rapid.Uint64())
	small := rapid.Uint32()
	list := func(name string) []uint64 { return rapid.SliceOfN(number, 0, 20).Draw(t, name) }
	draw := func(name string) uint64 { return number.Draw(t, name) }
	run := &wire.Run{Op: draw("op"), Program: draw("program"), FirstOutput: draw("first"), Inputs: list("inputs"),
		NotDonated: rapid.SliceOfN(small, 0, 3).Draw(t, "kept"),
		Only:       small.Draw(t, "only"), Trace: rapid.SliceOf(rapid.Byte()).Draw(t, "trace")}
	for range rapid.IntRange(0, 3).Draw(t, "mixed") {
		m := &wire.Mixed{Argument: small.Draw(t, "argument")}
		for range rapid.IntRange(0, 3).Draw(t, "pieces") {
			m.Pieces = append(m.Pieces, &wire.Piece{Object: draw("object"), Rows: small.Draw(t, "rows")})
		}
		run.Mixed = append(run.Mixed, m)
	}
	ends := &wire.Completed{Ok: list("ok"), Credit: draw("credit"), HostMemory: int64(draw("host memory"))}
	for _, n := range list("failed") {
		ends.Failed = append(ends.Failed, &wire.Failure{Number: n,
			Status: &wire.Status{Code: uint32(n % 17), Message: rapid.String().Draw(t, "message")}})
	}
	free := &wire.Free{Objects: list("objects")}
	for range rapid.IntRange(0, 3).Draw(t, "rows") {
		free.Rows = append(free.Rows, &wire.Rows{Object: draw("object"),
			Devices: rapid.SliceOfN(small, 0, 3).Draw(t, "devices")})
	}
	return []appender{
		run,
		free,
		&wire.Play{Op: draw("op"), Graph: draw("graph"), Nodes: small.Draw(t, "nodes"),
			First: draw("first"), Inputs: list("inputs")},
		&wire.Played{Gang: draw("gang"), Session: small.Draw(t, "session"), Graph: draw("graph"), Op: draw("op"),
			From:  small.Draw(t, "from"),
			Count: small.Draw(t, "count"), First: draw("first"), Inputs: list("inputs"),
			Client: draw("client")},
		&wire.Dispatch{Gang: draw("gang"), Session: small.Draw(t, "session"), Kind: small.Draw(t, "kind"),
			Operation: rapid.SliceOf(rapid.Byte()).Draw(t, "operation"), Client: draw("client")},
		ends,
	}
}

func TestAppendWritesWhatTheGeneratedCodeWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, m := range drawMessages(t) {
			want := statustest.Value(proto.Marshal(m)).OK(t)
			if got := m.Append([]byte("before")); string(got) != "before"+string(want) {
				t.Errorf("%T: %x, want %x behind what was there", m, got, want)
			}
		}
	})
}

// Messages are read into ones that were used before: nothing of what these held is left.
func TestParseReadsWhatAppendWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		into := parsers()
		for range 2 {
			for _, m := range drawMessages(t) {
				for _, p := range into {
					if reflect.TypeOf(p) != reflect.TypeOf(m) {
						continue
					}
					if err := p.Parse(m.Append(nil)); err != nil || !proto.Equal(p, m) {
						t.Errorf("%T: %v, %v, want %v", m, p, err, m)
					}
					if d, is := m.(*wire.Dispatch); is && len(d.Operation) > 0 {
						whole := append(d.AppendBefore(nil, len(d.Operation)), d.Operation...)
						if err := p.Parse(whole); err != nil || !proto.Equal(p, m) {
							t.Errorf("behind the rest: %v, %v, want %v", p, err, m)
						}
					}
				}
			}
		}
	})
}

func TestParseRefusesWhatIsNoMessage(t *testing.T) {
	for _, m := range parsers() {
		name := string(m.ProtoReflect().Descriptor().Name())
		err := m.Parse([]byte{0xff})
		statustest.Fails(t, name, err, status.InvalidArgument, name)
	}
}

func TestAppendGraphAddsTheSession(t *testing.T) {
	m := wire.GraphOf(9, example(2))
	b := statustest.Value(proto.Marshal(m)).OK(t)
	m.Session = 300
	got := new(wire.Graph)
	if err := proto.Unmarshal(wire.AppendGraph(nil, b, 300), got); err != nil || !proto.Equal(got, m) {
		t.Errorf("%v, %v, want %v", got, err, m)
	}
}

func TestTokenIsFoundAtTheBeginningOfAHello(t *testing.T) {
	whole := statustest.Value(proto.Marshal(&wire.Hello{
		ProtocolMin: 1, ProtocolMax: 5, Role: wire.Role_ROLE_CLIENT, Token: "secret", Name: "n", Host: "h",
	})).OK(t)
	at := bytes.Index(whole, []byte("secret"))
	for n := range len(whole) + 1 {
		token, found := wire.TokenIn(whole[:n])
		want := ""
		if n >= at+len("secret") {
			want = "secret"
		}
		if string(token) != want || found != (n >= at-1) {
			t.Errorf("%d bytes: %q, %t, want %q, %t", n, token, found, want, n >= at-1)
		}
	}
	none := statustest.Value(proto.Marshal(&wire.Hello{ProtocolMin: 1, Name: "n"})).OK(t)
	if token, found := wire.TokenIn(none); found {
		t.Errorf("a hello without a token has %q", token)
	}
}

// FuzzParse compares Parse with the generated code, which reads the same messages and sees the same in them.
func FuzzParse(f *testing.F) {
	add := func(m proto.Message) {
		b := statustest.Value(proto.Marshal(m)).OK(f)
		f.Add(b)
	}
	add(&wire.Run{Op: 1, Program: 2, FirstOutput: 3, Inputs: []uint64{4, 0}, NotDonated: []uint32{1}, Only: 3,
		Trace: []byte("x.py:1"),
		Mixed: []*wire.Mixed{{Argument: 1, Pieces: []*wire.Piece{{Object: 9, Rows: 2}}}}})
	add(&wire.Dispatch{Gang: 1, Session: 2, Kind: 20, Operation: []byte{1}, Client: 5})
	add(&wire.Played{Gang: 1, Session: 2, Graph: 3, Op: 4, From: 5, Count: 6, First: 7,
		Inputs: []uint64{8, 300}, Client: 9})
	add(&wire.Completed{Ok: []uint64{1, 300},
		Failed: []*wire.Failure{{Number: 3, Status: &wire.Status{Code: 14, Message: "lost"}}}, Credit: 5, HostMemory: 6})
	f.Add([]byte{0x20, 0x05, 0x20, 0x06})       // numbers of a list that are not packed
	f.Add([]byte{0x0d, 1, 2, 3, 4, 0x22, 0x00}) // another type than that of the field, and an empty list
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range parsers() {
			want := m.ProtoReflect().New().Interface()
			failed := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, want)
			err := m.Parse(b)
			if (err == nil) != (failed == nil) {
				t.Errorf("%T: %v, where the generated code says %v", m, err, failed)
			}
			if err != nil {
				continue
			}
			// What is written by the generated code within the message keeps what it does not know.
			known := m.ProtoReflect().New().Interface()
			again, e := proto.Marshal(m)
			if e != nil || (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(again, known) != nil {
				t.Fatalf("%T: %v", m, e)
			}
			if !proto.Equal(known, want) {
				t.Errorf("%T: %v, want %v", m, known, want)
			}
		}
	})
}

// written are messages as they are in the middle of work.
func written() []appender {
	return []appender{
		&wire.Run{Op: 1000, Program: 7, FirstOutput: 2000, Inputs: []uint64{1000, 1001, 1002}, Trace: []byte("train.py:12")},
		&wire.Free{Objects: []uint64{1000, 1001, 1002, 1003}},
		&wire.Play{Op: 1000, Graph: 3, Nodes: 128, First: 2000, Inputs: []uint64{1000, 1001}},
		&wire.Played{Gang: 5000, Session: 3, Graph: 3, Op: 1000, From: 10, Count: 20, First: 2000,
			Inputs: []uint64{1000, 1001}, Client: 9},
		&wire.Dispatch{Gang: 5000, Session: 3, Kind: uint32(wire.KindRun), Operation: make([]byte, 30), Client: 9},
		&wire.Completed{Ok: []uint64{5000, 5001, 5002, 5003, 5004}},
	}
}

func TestCodecDoesNotAllocate(t *testing.T) {
	var b []byte
	for _, m := range written() {
		b = m.Append(b[:0])
		statustest.Equal(t, testing.AllocsPerRun(100, func() { b = m.Append(b[:0]) }), 0,
			"how often %T: Append allocates", m)
		p, ok := m.(parser)
		if !ok {
			continue
		}
		statustest.Equal(t, testing.AllocsPerRun(100, func() { _ = p.Parse(b) }), 0, "how often %T: Parse allocates", m)
	}
}

func BenchmarkAppend(b *testing.B) {
	var buffer []byte
	for _, m := range written() {
		b.Run(string(m.ProtoReflect().Descriptor().Name()), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buffer = m.Append(buffer[:0])
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, m := range written() {
		if p, ok := m.(parser); ok {
			payload := m.Append(nil)
			b.Run(string(m.ProtoReflect().Descriptor().Name()), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					statustest.OK(b, p.Parse(payload))
				}
			})
		}
	}
}
