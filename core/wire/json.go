package wire

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// AppendJSON appends a message as JSON that programs can read easily: every field is there, under its name in the
// protocol, even if it is empty, and numbers are JSON numbers, while protojson writes 64-bit ones as texts.
// docs/guides/status.schema.json describes the result for a Report. The message's type must not contain itself, and has
// no oneofs; keys of maps are texts.
//
// It makes no values in between, and looks at a type once: the report of a cluster with some thousand workers has a
// hundred thousand numbers, and a page asks for it each second.
func AppendJSON(b []byte, m protoreflect.ProtoMessage) []byte {
	v := reflect.ValueOf(m)
	return formOf(v.Type().Elem()).append(b, v)
}

// form says how messages of a type are written.
type form struct {
	fields []formField
	empty  []byte // what is written of one without any field
}

type formField struct {
	begin  string // what comes before its value
	index  int    // in the struct
	list   bool
	write  func(b []byte, v reflect.Value) []byte // a value, or an element of a list
	absent []byte                                 // instead of the value of a message that is not there; nil of others
}

var forms sync.Map // *form, by reflect.Type

func formOf(t reflect.Type) *form {
	if f, found := forms.Load(t); found {
		return f.(*form)
	}
	f := &form{}
	for i := range t.NumField() {
		// Such as "varint,1,opt,name=session,proto3". The struct has its fields in the order of the protocol.
		tag := t.Field(i).Tag.Get("protobuf")
		at := strings.Index(tag, ",name=")
		if at < 0 {
			continue // of the protobuf library
		}
		name, _, _ := strings.Cut(tag[at+len(",name="):], ",")
		separator := ","
		if len(f.fields) == 0 {
			separator = "{"
		}
		field := formField{begin: separator + `"` + name + `":`, index: i}
		of := t.Field(i).Type
		if of.Kind() == reflect.Slice && of.Elem().Kind() != reflect.Uint8 {
			field.list, of = true, of.Elem()
		}
		field.write = writes(of)
		if of.Kind() == reflect.Pointer && !field.list {
			field.absent = formOf(of.Elem()).empty
		}
		f.fields = append(f.fields, field)
	}
	f.empty = f.append(nil, reflect.New(t))
	forms.Store(t, f)
	return f
}

// append appends a message, by its pointer.
func (f *form) append(b []byte, m reflect.Value) []byte {
	if len(f.fields) == 0 {
		return append(b, "{}"...)
	}
	m = m.Elem()
	for i := range f.fields {
		field := &f.fields[i]
		b = append(b, field.begin...)
		v := m.Field(field.index)
		switch {
		case field.list:
			b = append(b, '[')
			for k := range v.Len() {
				if k > 0 {
					b = append(b, ',')
				}
				b = field.write(b, v.Index(k))
			}
			b = append(b, ']')
		case field.absent != nil && v.IsNil():
			b = append(b, field.absent...)
		default:
			b = field.write(b, v)
		}
	}
	return append(b, '}')
}

// writes returns how values of a type are written.
func writes(t reflect.Type) func(b []byte, v reflect.Value) []byte {
	switch t.Kind() {
	case reflect.Pointer:
		return formOf(t.Elem()).append
	case reflect.Map:
		of := writes(t.Elem())
		return func(b []byte, v reflect.Value) []byte {
			begin := byte('{')
			for all := v.MapRange(); all.Next(); begin = ',' {
				b = of(append(appendText(append(b, begin), all.Key().String()), ':'), all.Value())
			}
			if begin == '{' {
				b = append(b, begin)
			}
			return append(b, '}')
		}
	case reflect.Bool:
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendBool(b, v.Bool()) }
	case reflect.String:
		return func(b []byte, v reflect.Value) []byte { return appendText(b, v.String()) }
	case reflect.Slice: // of bytes
		return func(b []byte, v reflect.Value) []byte {
			return append(base64.StdEncoding.AppendEncode(append(b, '"'), v.Bytes()), '"')
		}
	case reflect.Float32, reflect.Float64:
		return func(b []byte, v reflect.Value) []byte {
			if n := v.Float(); !math.IsNaN(n) && !math.IsInf(n, 0) {
				return strconv.AppendFloat(b, n, 'g', -1, 64)
			}
			return append(b, "null"...)
		}
	case reflect.Uint32, reflect.Uint64:
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendUint(b, v.Uint(), 10) }
	case reflect.Int32, reflect.Int64: // enums among them
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendInt(b, v.Int(), 10) }
	}
	panic("wire: a message has a field of type " + t.String() + ", which AppendJSON does not know")
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
