package command

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// plain turns a message into what encoding/json writes for programs: each field is there, by its name in the protocol,
// also where it is empty, and numbers are numbers, which those of 64 bits are not as protojson writes them.
// docs/guides/status.schema.json describes it for a Report. The message's type does not contain itself.
func plain(m protoreflect.Message) map[string]any {
	fields := m.Descriptor().Fields()
	out := make(map[string]any, fields.Len())
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		switch {
		case f.IsMap():
			all := map[string]any{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				all[k.String()] = plainValue(f.MapValue(), v)
				return true
			})
			out[string(f.Name())] = all
		case f.IsList():
			all := make([]any, v.List().Len())
			for j := range all {
				all[j] = plainValue(f, v.List().Get(j))
			}
			out[string(f.Name())] = all
		default:
			out[string(f.Name())] = plainValue(f, v)
		}
	}
	return out
}

// plainValue turns a value of a field, or one of many.
func plainValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return plain(v.Message())
	case protoreflect.EnumKind:
		return int32(v.Enum())
	default:
		return v.Interface()
	}
}
