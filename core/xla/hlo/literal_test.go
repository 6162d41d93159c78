package hlo_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// shaped is a serialized xla.ShapeProto of an xla.PrimitiveType, with a layout.
func shaped(kind int64, dims []int64, order ...int64) []byte {
	b := protowalk.AppendInts(protowalk.AppendInt(nil, 2, kind), 3, dims...)
	return protowalk.AppendBytes(b, 5, protowalk.AppendInts(nil, 1, order...))
}

// literal is a serialized xla.LiteralProto, with values in this field.
func literal(of []byte, field protowalk.Number, values []byte) []byte {
	return protowalk.AppendBytes(protowalk.AppendBytes(nil, 1, of), field, values)
}

func varints(values ...int64) (b []byte) {
	for _, v := range values {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

func TestLiteralsAreReadAsTheyAreInMemory(t *testing.T) {
	same := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
		29, 30, 31, 32}
	as32 := func(values ...int32) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		return b
	}
	as64 := func(values ...int64) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		return b
	}
	for _, c := range []struct {
		kind         int64
		field        protowalk.Number
		dtype        shape.DType
		values, want []byte
	}{
		{1, 2, shape.Pred, varints(1, 0), []byte{1, 0}},
		{2, 15, shape.S8, same[:2], same[:2]},
		{3, 17, shape.S16, same[:4], same[:4]},
		{4, 4, shape.S32, varints(math.MinInt32, 5), as32(math.MinInt32, 5)},
		{5, 5, shape.S64, varints(-1, math.MaxInt64), as64(-1, math.MaxInt64)},
		{6, 3, shape.U8, same[:2], same[:2]},
		{7, 16, shape.U16, same[:4], same[:4]},
		{8, 6, shape.U32, varints(0, math.MaxUint32), as32(0, -1)},
		{9, 7, shape.U64, varints(-1, 300), as64(-1, 300)},
		{10, 11, shape.F16, same[:4], same[:4]},
		{11, 8, shape.F32, same[:8], same[:8]},
		{12, 9, shape.F64, same[:16], same[:16]},
		{15, 12, shape.C64, same[:16], same[:16]},
		{16, 13, shape.BF16, same[:4], same[:4]},
		{18, 18, shape.C128, same, same},
	} {
		of := shaped(c.kind, []int64{1, 2}, 1, 0)
		l := statustest.Value(hlo.ReadLiteral(literal(of, c.field, c.values), of)).OK(t)
		got := make([]byte, l.Shape.HostBytes())
		if l.CopyTo(got); l.Shape.DType != c.dtype || !bytes.Equal(got, c.want) {
			t.Errorf("%s, want %v: got %x, want %x", l.Shape, c.dtype, got, c.want)
		}
	}
}

func TestOtherLiteralsAreRefused(t *testing.T) {
	rows := shaped(11, []int64{1, 2}, 1, 0)
	columns := shaped(11, []int64{1, 2}, 0, 1)
	eight := make([]byte, 8)
	ints, half, cut := shaped(4, []int64{2}, 0), shaped(21, []int64{2}, 0), shaped(11, []int64{2, 1}, 1)
	host := protowalk.AppendBytes(protowalk.AppendInts(protowalk.AppendInt(nil, 2, 11), 3, 2), 5,
		protowalk.AppendInt(protowalk.AppendInts(nil, 1, 0), 8, 5))
	for name, c := range map[string]struct {
		literal, shape []byte
		want           status.Code
	}{
		"columns":             {literal(columns, 8, eight), columns, status.Unimplemented},
		"another layout":      {literal(columns, 8, eight), rows, status.InvalidArgument},
		"another memory":      {literal(host, 8, eight), host, status.Unimplemented},
		"other dimensions":    {literal(shaped(11, []int64{2}, 0), 8, eight), rows, status.InvalidArgument},
		"no shape":            {protowalk.AppendBytes(nil, 8, eight), rows, status.InvalidArgument},
		"too short":           {literal(rows, 8, eight[:7]), rows, status.InvalidArgument},
		"another type":        {literal(rows, 9, eight), rows, status.InvalidArgument},
		"two pieces":          {append(literal(rows, 8, eight), literal(rows, 8, eight)...), rows, status.Unimplemented},
		"half bytes":          {literal(half, 21, eight[:1]), half, status.Unimplemented},
		"a tuple":             {literal(shaped(13, nil), 10, eight), shaped(13, nil), status.Unimplemented},
		"a number cut off":    {literal(ints, 4, []byte{1, 0x80}), ints, status.InvalidArgument},
		"too many numbers":    {literal(ints, 4, varints(1, 2, 3)), ints, status.InvalidArgument},
		"a layout cut off":    {literal(cut, 8, eight), cut, status.Unimplemented},
		"malformed":           {[]byte{255}, rows, status.InvalidArgument},
		"of a malformed type": {literal(rows, 8, eight), []byte{255}, status.InvalidArgument},
	} {
		statustest.Fails(t, name, statustest.Of(hlo.ReadLiteral(c.literal, c.shape)), c.want)
	}
}

// FuzzReadLiteral checks that garbage ends in an error or in as many bytes as its shape has.
func FuzzReadLiteral(f *testing.F) {
	for _, kind := range []int64{1, 4, 5, 11} {
		of := shaped(kind, []int64{2}, 0)
		f.Add(literal(of, 8, make([]byte, 8)), of)
		f.Add(literal(of, protowalk.Number(kind), varints(-1, 1)), of)
	}
	f.Fuzz(func(t *testing.T, literal, of []byte) {
		l, err := hlo.ReadLiteral(literal, of)
		if err == nil && l.Shape.HostBytes() > int64(8*len(literal)) {
			t.Fatalf("%d bytes are read as %s", len(literal), l.Shape)
		}
		if err == nil {
			l.CopyTo(make([]byte, l.Shape.HostBytes()))
		}
	})
}
