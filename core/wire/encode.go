package wire

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Encode appends an encoded message to b. It cannot fail, so a peer that waits for the message always receives one.
// Protobuf rejects text that is not valid UTF-8; Encode replaces each invalid part by "?", which never makes the
// message longer.
func Encode(b []byte, m proto.Message) []byte { return encode(proto.MarshalOptions{}, b, m) }

// EncodeSized is Encode of a message whose size the caller has just asked for by proto.Size.
func EncodeSized(b []byte, m proto.Message) []byte {
	return encode(proto.MarshalOptions{UseCachedSize: true}, b, m)
}

func encode(o proto.MarshalOptions, b []byte, m proto.Message) []byte {
	out, err := o.MarshalAppend(b, m)
	if err != nil { // no other reason: fields are required by none
		m = proto.Clone(m) // which others may read
		makeText(m.ProtoReflect())
		out, _ = proto.MarshalOptions{}.MarshalAppend(b, m)
	}
	return out
}

// makeText makes all text of a message UTF-8.
func makeText(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			makeMapText(v.Map())
		case f.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, textOf(v.List().Get(i)))
			}
		default:
			m.Set(f, textOf(v))
		}
		return true
	})
}

func makeMapText(m protoreflect.Map) {
	var keys []protoreflect.MapKey
	m.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	for _, key := range keys {
		of := m.Get(key)
		m.Clear(key)
		m.Set(textOf(key.Value()).MapKey(), textOf(of))
	}
}

// textOf returns v with all of its text made UTF-8.
func textOf(v protoreflect.Value) protoreflect.Value {
	switch of := v.Interface().(type) {
	case string:
		return protoreflect.ValueOfString(strings.ToValidUTF8(of, "?"))
	case protoreflect.Message:
		makeText(of)
	}
	return v
}
