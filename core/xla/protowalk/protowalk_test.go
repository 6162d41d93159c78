package protowalk_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// all reads a message, and the messages it could hold as bytes, to the end.
func all(t *testing.T, message []byte) []protowalk.Field {
	t.Helper()
	var fields []protowalk.Field
	for f, err := range protowalk.Fields(message) {
		statustest.OK(t, err)
		fields = append(fields, f)
	}
	return fields
}

func TestFieldsOfEveryKindAreRead(t *testing.T) {
	m := protowalk.AppendInt(nil, 1, -2)
	m = protowire.AppendFixed32(protowire.AppendTag(m, 2, protowire.Fixed32Type), 7)
	m = protowalk.AppendBytes(m, 3, "text")
	m = protowire.AppendTag(protowire.AppendTag(m, 4, protowire.StartGroupType), 4, protowire.EndGroupType)
	m = protowalk.AppendBytes(m, 5, []byte(nil))
	m = protowalk.AppendInts(m, 6, 1, 300, -1)
	m = protowire.AppendFixed64(protowire.AppendTag(m, 1<<20, protowire.Fixed64Type), 7)
	fields := all(t, m)
	var numbers []protowalk.Number
	var raw []byte
	for _, f := range fields {
		numbers = append(numbers, f.Number)
		raw = append(raw, f.Raw...)
		if isBytes := f.Number == 3 || f.Number == 5 || f.Number == 6; isBytes != (f.Bytes != nil) {
			t.Errorf("field %d: bytes %q", f.Number, f.Bytes)
		}
	}
	statustest.EqualSlices(t, numbers, []protowalk.Number{1, 2, 3, 4, 5, 6, 1 << 20}, "fields")
	if !bytes.Equal(raw, m) {
		t.Errorf("the raw fields are %x, want the message %x", raw, m)
	}
	if int64(fields[0].Value) != -2 || string(fields[2].Bytes) != "text" {
		t.Errorf("got %d and %q", int64(fields[0].Value), fields[2].Bytes)
	}
	for _, f := range fields[5:6] {
		statustest.EqualSlices(t, statustest.Value(f.AppendInts([]int64{5})).OK(t), []int64{5, 1, 300, -1}, "packed")
	}
	statustest.EqualSlices(t, statustest.Value(fields[0].AppendInts(nil)).OK(t), []int64{-2}, "unpacked")
	// A caller that keeps a raw field may append to it.
	_ = append(fields[0].Raw, 0xff)
	if again := all(t, m); again[1].Number != 2 {
		t.Error("appending to a field's bytes wrote into the next one")
	}
}

// A field that is replaced leaves the others as they are, also those that the
// message's own declaration does not know.
func TestReplacedFieldLeavesTheOthers(t *testing.T) {
	m := protowalk.AppendInt(protowalk.AppendBytes(protowalk.AppendInt(nil, 9, 1), 2, "old"), 7, 3)
	var out []byte
	for _, f := range all(t, m) {
		if f.Number == 2 {
			out = protowalk.AppendBytes(out, 2, "new")
		} else {
			out = append(out, f.Raw...)
		}
	}
	if want := protowalk.AppendInt(protowalk.AppendBytes(protowalk.AppendInt(nil, 9, 1), 2, "new"), 7,
		3); !bytes.Equal(out, want) {
		t.Errorf("got %x, want %x", out, want)
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	good := protowalk.AppendBytes(protowalk.AppendInt(nil, 1, 1<<40), 2, "text")
	for name, m := range map[string][]byte{
		"a number cut off":        good[:3],
		"bytes cut off":           good[:len(good)-1],
		"a tag cut off":           {0x80},
		"field zero":              {0, 1},
		"a wire type that is not": {7},
		"a group without an end":  {0x0b},
		"an end without a group":  {0x0c},
		"a fixed number cut off":  {0x0d, 1},
		"a number too large":      {0x80, 0x80, 0x80, 0x80, 0x30, 1},
		"more than 64 bits":       {8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2},
	} {
		var last error
		n := 0
		for _, err := range protowalk.Fields(m) {
			if n++; last != nil {
				t.Fatalf("%s: more after an error", name)
			}
			last = err
		}
		statustest.Fails(t, name, last, status.InvalidArgument)
	}
	statustest.Fails(t, "packed integers cut off",
		statustest.Of((protowalk.Field{Bytes: []byte{1, 0x80}}).AppendInts(nil)), status.InvalidArgument)
	for range protowalk.Fields(good) {
		break // who has enough may leave
	}
}

// What is read is what protobuf's own decoder takes for a message, and its fields
// one after the other are the message.
func FuzzFields(f *testing.F) {
	f.Add(protowalk.AppendInts(protowalk.AppendBytes(protowalk.AppendInt(nil, 1, -2), 2, "text"), 3, 1, 2, 300))
	f.Add([]byte{0x0b, 0x0c})
	f.Fuzz(func(t *testing.T, m []byte) {
		var raw []byte
		var failed error
		for field, err := range protowalk.Fields(m) {
			if failed = err; err != nil {
				break
			}
			raw = append(raw, field.Raw...)
			ints, err := field.AppendInts(nil)
			if err == nil && len(ints) > max(1, len(field.Bytes)) {
				t.Fatalf("%d integers in %d bytes", len(ints), len(field.Bytes))
			}
		}
		if known := proto.Unmarshal(m, &emptypb.Empty{}); (known == nil) != (failed == nil) {
			t.Fatalf("got %v, protobuf says %v", failed, known)
		}
		if failed == nil && !bytes.Equal(raw, m) {
			t.Fatalf("the fields of %x are %x", m, raw)
		}
	})
}

// A message that is written of pieces has the bytes of one that is written at once, and what it holds may change after.
func TestMessageOfPieces(t *testing.T) {
	for _, size := range []int{0, 1, 4 << 10, 1 << 20} {
		long := protowalk.AppendBytes(nil, 8, bytes.Repeat([]byte{7}, size))
		inner := append(protowalk.AppendInt(nil, 1, 3), long...)
		inner = append(protowalk.AppendInt(inner, 2, 5), long...)
		want := protowalk.AppendInt(protowalk.AppendBytes(protowalk.AppendBytes(nil, 3, inner), 3, inner), 4, 1)
		var m protowalk.Message
		for range 2 {
			var in protowalk.Message
			in.Raw(protowalk.AppendInt(nil, 1, 3))
			in.Raw(long)
			in.Raw(protowalk.AppendInt(nil, 2, 5))
			in.Raw(long)
			m.Message(3, &in)
		}
		m.Raw(protowalk.AppendInt(nil, 4, 1))
		got := m.Join()
		if clear(long); !bytes.Equal(got, want) {
			t.Errorf("with values of %d bytes it has %d bytes, want other %d", size, len(got), len(want))
		}
	}
}
