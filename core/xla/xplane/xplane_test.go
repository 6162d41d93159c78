package xplane_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/xplane"
)

// space is the descriptor of an XSpace, as far as it is written: made here, so that
// protobuf's own parser reads what Append writes.
func space(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	type field = descriptorpb.FieldDescriptorProto
	one := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, of string, many bool) *field {
		f := &field{Name: &name, Number: &number, Type: kind.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if many {
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		if of != "" {
			f.TypeName = proto.String(".x." + of)
		}
		return f
	}
	const number, text, message = descriptorpb.FieldDescriptorProto_TYPE_INT64,
		descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	messages := []*descriptorpb.DescriptorProto{
		{Name: proto.String("Space"),
			Field: []*field{one("planes", 1, message, "Plane", true), one("warnings", 3, text, "", true)}},
		{Name: proto.String("Plane"), Field: []*field{one("id", 1, number, "", false), one("name", 2, text, "", false),
			one("lines", 3, message, "Line", true),
			one("events", 4, message, "Entry", true), one("stat_names", 5, message, "Entry", true),
			one("stats", 6, message, "Stat", true)}},
		{Name: proto.String("Line"), Field: []*field{
			one("id", 1, number, "", false), one("name", 2, text, "", false), one("timestamp_ns", 3, number, "", false),
			one("events", 4, message, "Event", true), one("duration_ps", 9, number, "", false)}},
		{Name: proto.String("Event"),
			Field: []*field{one("metadata_id", 1, number, "", false), one("offset_ps", 2, number, "", false),
				one("duration_ps", 3, number, "", false), one("stats", 4, message, "Stat", true)}},
		{Name: proto.String("Stat"), Field: []*field{
			one("metadata_id", 1, number, "", false), one("int64", 4, number, "", false), one("str", 5, text, "", false)}},
		{Name: proto.String("Metadata"), Field: []*field{one("id", 1, number, "", false), one("name", 2, text, "", false)}},
		{Name: proto.String("Entry"),
			Field: []*field{one("key", 1, number, "", false), one("value", 2, message, "Metadata", false)}},
	}
	file := statustest.Value(protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("x.proto"), Package: proto.String("x"),
		Syntax: proto.String("proto3"), MessageType: messages}, nil)).OK(t)
	return file.Messages().ByName("Space")
}

// read turns a message into maps and lists.
func read(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) any {
			if f.Kind() == protoreflect.MessageKind {
				return read(v.Message())
			}
			return v.Interface()
		}
		if f.IsList() {
			var list []any
			for i := range v.List().Len() {
				list = append(list, one(v.List().Get(i)))
			}
			out[string(f.Name())] = list
		} else {
			out[string(f.Name())] = one(v)
		}
		return true
	})
	if len(m.GetUnknown()) > 0 {
		out["unknown"] = m.GetUnknown()
	}
	return out
}

func TestAppendIsWhatAParserReads(t *testing.T) {
	stats := []xplane.Stat{{Name: "hlo_op", Text: "jit_f"}, {Name: "run_id", Number: 7}, {Name: "less", Number: -1}}
	b := xplane.Append(nil, []xplane.Plane{
		{ID: 3, Name: "/device:X:3", Stats: []xplane.Stat{{Name: "worker", Text: "w0"}}, Lines: []xplane.Line{
			{ID: 1, Name: "XLA Ops", Begin: 1_700_000_000_000_000_000, Events: []xplane.Event{
				{Name: "jit_f", Begin: 1_700_000_000_000_000_000, End: 1_700_000_000_000_000_010, Stats: stats},
				{Name: "jit_g", Begin: 1_700_000_000_000_000_020, End: 1_700_000_000_000_000_050, Stats: stats[:1]},
				{Name: "jit_f", Begin: 1_700_000_000_000_000_060, End: 1_700_000_000_000_000_060},
			}},
		}}, {Name: "bad \xff name"}}, []string{"5 are dropped"})
	m := dynamicpb.NewMessage(space(t))
	statustest.OK(t, proto.Unmarshal(b, m))
	type o = map[string]any
	type l = []any
	op, run, less := o{"metadata_id": int64(1), "str": "jit_f"}, o{"metadata_id": int64(2), "int64": int64(7)},
		o{"metadata_id": int64(3), "int64": int64(-1)}
	entry := func(id int64, name string) o { return o{"key": id, "value": o{"id": id, "name": name}} }
	want := o{
		"planes": l{
			o{"id": int64(3), "name": "/device:X:3", "stats": l{o{"metadata_id": int64(4), "str": "w0"}},
				"lines": l{o{"id": int64(1), "name": "XLA Ops", "timestamp_ns": int64(1_700_000_000_000_000_000),
					"duration_ps": int64(60_000), "events": l{
						o{"metadata_id": int64(1), "duration_ps": int64(10_000), "stats": l{op, run, less}},
						o{"metadata_id": int64(2), "offset_ps": int64(20_000), "duration_ps": int64(30_000), "stats": l{op}},
						o{"metadata_id": int64(1), "offset_ps": int64(60_000)},
					}}},
				"events":     l{entry(1, "jit_f"), entry(2, "jit_g")},
				"stat_names": l{entry(1, "hlo_op"), entry(2, "run_id"), entry(3, "less"), entry(4, "worker")}},
			o{"name": "bad \ufffd name"},
		},
		"warnings": l{"5 are dropped"},
	}
	if got := read(m); !reflect.DeepEqual(want, got) {
		t.Errorf("%v\nexpected %v", got, want)
	}
}
