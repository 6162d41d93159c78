package wire

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// AppendJSON appends a message as JSON that programs can read easily: every field is there, under its name in the
// protocol, even if it is empty, and numbers are JSON numbers, while protojson writes 64-bit ones as texts.
// docs/guides/status.schema.json describes the result for a Report. The message's type must not contain itself.
//
// It makes no values in between: the report of a cluster with some thousand workers has a hundred thousand numbers, and
// a page asks for it each second.
func AppendJSON(b []byte, m protoreflect.Message) []byte {
	fields := m.Descriptor().Fields()
	b = append(b, '{')
	for i := range fields.Len() {
		f := fields.Get(i)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, f.Name()...)
		b = append(b, '"', ':')
		v := m.Get(f)
		switch {
		case f.IsMap():
			b = appendMap(b, f.MapValue(), v.Map())
		case f.IsList():
			b = append(b, '[')
			list := v.List()
			for j := range list.Len() {
				if j > 0 {
					b = append(b, ',')
				}
				b = appendValue(b, f, list.Get(j))
			}
			b = append(b, ']')
		default:
			b = appendValue(b, f, v)
		}
	}
	return append(b, '}')
}

func appendMap(b []byte, of protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	b = append(b, '{')
	first := true
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendText(b, k.String()), ':')
		b = appendValue(b, of, v)
		return true
	})
	return append(b, '}')
}

// appendValue appends a value of a field, or one element of a repeated field.
func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return AppendJSON(b, v.Message())
	case protoreflect.EnumKind:
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.StringKind:
		return appendText(b, v.String())
	case protoreflect.BytesKind:
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), v.Bytes()), '"')
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if n := v.Float(); !math.IsNaN(n) && !math.IsInf(n, 0) {
			return strconv.AppendFloat(b, n, 'g', -1, 64)
		}
		return append(b, "null"...)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(b, v.Uint(), 10)
	}
	return strconv.AppendInt(b, v.Int(), 10)
}

// appendText appends a text as JSON has it: most as they are.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(text) // which has no error for a text
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}
