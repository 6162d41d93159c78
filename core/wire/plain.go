package wire

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Plain converts a message to values for encoding/json that programs can read easily: every field is there, under its
// name in the protocol, even if it is empty, and numbers are JSON numbers, while protojson writes 64-bit ones as texts.
// docs/guides/status.schema.json describes the result for a Report. The message's type must not contain itself.
func Plain(m protoreflect.Message) map[string]any {
	fields := m.Descriptor().Fields()
	out := make(map[string]any, fields.Len())
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		switch {
		case f.IsMap():
			all := map[string]any{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				all[k.String()] = plainOf(f.MapValue(), v)
				return true
			})
			out[string(f.Name())] = all
		case f.IsList():
			all := make([]any, v.List().Len())
			for j := range all {
				all[j] = plainOf(f, v.List().Get(j))
			}
			out[string(f.Name())] = all
		default:
			out[string(f.Name())] = plainOf(f, v)
		}
	}
	return out
}

// plainOf converts a value of a field, or one element of a repeated field.
func plainOf(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return Plain(v.Message())
	case protoreflect.EnumKind:
		return int32(v.Enum())
	default:
		return v.Interface()
	}
}
