package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
)

// The messages that every operation costs are written and read here by hand, all others by the generated code. By hand
// takes no reflection, and no allocation where the memory is used again.
//
// Append writes the bytes that the generated code writes: fields by number, zeros left out, lists of numbers packed.
// Parse reads what the generated code reads, into the memory of the message's own lists; byte fields of the message
// share the memory from which it was read. Fields that it does not know, or that have another type, it skips. Its
// errors are INVALID_ARGUMENT. Tests compare both with the generated code.

// Append appends the encoded message to b.
func (m *Run) Append(b []byte) []byte {
	b = appendNumber(b, 1, m.Op)
	b = appendNumber(b, 2, m.Program)
	b = appendNumber(b, 3, m.FirstOutput)
	b = appendNumbers(b, 4, m.Inputs)
	for _, mixed := range m.Mixed {
		b = appendMessage(b, 5, mixed)
	}
	b = appendNumbers(b, 6, m.NotDonated)
	b = appendNumber(b, 7, m.Only)
	return appendBytes(b, 8, m.Trace)
}

// Parse reads an encoded message. Trace is memory of b.
func (m *Run) Parse(b []byte) error {
	m.Op, m.Program, m.FirstOutput, m.Only = 0, 0, 0, 0
	m.Inputs, m.Mixed, m.NotDonated, m.Trace = m.Inputs[:0], nil, m.NotDonated[:0], nil
	for len(b) > 0 {
		f, rest, err := nextField(b)
		b = rest
		if err != nil {
			return malformed(KindRun, m, err)
		}
		switch {
		case f.number == 4:
			m.Inputs, err = parseNumbers(m.Inputs, f)
		case f.number == 6:
			m.NotDonated, err = parseNumbers(m.NotDonated, f)
		case f.bytes != nil && f.number == 5:
			mixed := new(Mixed)
			m.Mixed, err = append(m.Mixed, mixed), proto.Unmarshal(f.bytes, mixed)
		case f.bytes != nil && f.number == 8:
			m.Trace = f.bytes
		case f.kind != protowire.VarintType:
		case f.number == 1:
			m.Op = f.value
		case f.number == 2:
			m.Program = f.value
		case f.number == 3:
			m.FirstOutput = f.value
		case f.number == 7:
			m.Only = uint32(f.value)
		}
		if err != nil {
			return malformed(KindRun, m, err)
		}
	}
	return nil
}

// Append appends the encoded message to b.
func (m *Free) Append(b []byte) []byte {
	b = appendNumbers(b, 1, m.Objects)
	for _, rows := range m.Rows {
		b = appendMessage(b, 2, rows)
	}
	return b
}

// Append appends the encoded message to b.
func (m *Play) Append(b []byte) []byte {
	b = appendNumber(b, 1, m.Op)
	b = appendNumber(b, 2, m.Graph)
	b = appendNumber(b, 3, m.Nodes)
	b = appendNumber(b, 4, m.First)
	return appendNumbers(b, 5, m.Inputs)
}

// Append appends the encoded message to b.
func (m *Played) Append(b []byte) []byte {
	b = appendNumber(b, 1, m.Gang)
	b = appendNumber(b, 2, m.Session)
	b = appendNumber(b, 3, m.Graph)
	b = appendNumber(b, 4, m.Op)
	b = appendNumber(b, 5, m.From)
	b = appendNumber(b, 6, m.Count)
	b = appendNumber(b, 7, m.First)
	b = appendNumbers(b, 8, m.Inputs)
	return appendNumber(b, 9, m.Client)
}

// Parse reads an encoded message.
func (m *Played) Parse(b []byte) error {
	m.Gang, m.Session, m.Graph, m.Op, m.From, m.Count, m.First = 0, 0, 0, 0, 0, 0, 0
	m.Inputs, m.Client = m.Inputs[:0], 0
	for len(b) > 0 {
		f, rest, err := nextField(b)
		b = rest
		if err == nil && f.number == 8 {
			m.Inputs, err = parseNumbers(m.Inputs, f)
		}
		switch {
		case err != nil:
			return malformed(KindPlayed, m, err)
		case f.kind != protowire.VarintType:
		case f.number == 1:
			m.Gang = f.value
		case f.number == 2:
			m.Session = uint32(f.value)
		case f.number == 3:
			m.Graph = f.value
		case f.number == 4:
			m.Op = f.value
		case f.number == 5:
			m.From = uint32(f.value)
		case f.number == 6:
			m.Count = uint32(f.value)
		case f.number == 7:
			m.First = f.value
		case f.number == 9:
			m.Client = f.value
		}
	}
	return nil
}

// Append appends the encoded message to b.
func (m *Dispatch) Append(b []byte) []byte { return m.AppendAround(b, m.Operation) }

// MaxDispatch bounds the bytes of a Dispatch without its operation.
const MaxDispatch = 64

// AppendAround is Append with an operation that is in several pieces, in the place of m.Operation.
func (m *Dispatch) AppendAround(b []byte, operation ...[]byte) []byte {
	b = appendNumber(b, 1, m.Gang)
	b = appendNumber(b, 2, m.Session)
	b = appendNumber(b, 3, m.Kind)
	size := 0
	for _, piece := range operation {
		size += len(piece)
	}
	if size > 0 {
		b = protowire.AppendVarint(append(b, tag(4, protowire.BytesType)), uint64(size))
		for _, piece := range operation {
			b = append(b, piece...)
		}
	}
	b = appendNumber(b, 5, m.Client)
	return appendNumber(b, 7, m.Waited)
}

// AppendBefore appends all of the message but its operation, of so many bytes, which is to follow.
func (m *Dispatch) AppendBefore(b []byte, size int) []byte {
	rest := Dispatch{Gang: m.Gang, Session: m.Session, Kind: m.Kind, Client: m.Client, Waited: m.Waited}
	b = rest.AppendAround(b)
	return protowire.AppendVarint(append(b, tag(4, protowire.BytesType)), uint64(size))
}

// Parse reads an encoded message. Operation is memory of b.
func (m *Dispatch) Parse(b []byte) error {
	m.Gang, m.Session, m.Kind, m.Operation, m.Client, m.Waited = 0, 0, 0, nil, 0, 0
	for len(b) > 0 {
		f, rest, err := nextField(b)
		b = rest
		switch {
		case err != nil:
			return malformed(KindDispatch, m, err)
		case f.bytes != nil && f.number == 4:
			m.Operation = f.bytes
		case f.kind != protowire.VarintType:
		case f.number == 1:
			m.Gang = f.value
		case f.number == 2:
			m.Session = uint32(f.value)
		case f.number == 3:
			m.Kind = uint32(f.value)
		case f.number == 5:
			m.Client = f.value
		case f.number == 7:
			m.Waited = f.value
		}
	}
	return nil
}

// Append appends the encoded message to b.
func (m *Completed) Append(b []byte) []byte {
	b = appendNumbers(b, 1, m.Ok)
	for _, f := range m.Failed {
		b = appendMessage(b, 2, f)
	}
	b = appendNumbers(appendNumber(b, 3, m.Credit), 4, m.Busy)
	return appendNumber(b, 5, uint64(m.HostMemory))
}

// Parse reads an encoded message.
func (m *Completed) Parse(b []byte) error {
	m.Ok, m.Failed, m.Credit, m.Busy, m.HostMemory = m.Ok[:0], nil, 0, m.Busy[:0], 0
	for len(b) > 0 {
		f, rest, err := nextField(b)
		b = rest
		if err != nil {
			return malformed(KindCompleted, m, err)
		}
		switch {
		case f.number == 1:
			m.Ok, err = parseNumbers(m.Ok, f)
		case f.number == 2 && f.bytes != nil:
			failure := new(Failure)
			m.Failed, err = append(m.Failed, failure), proto.Unmarshal(f.bytes, failure)
		case f.number == 3 && f.kind == protowire.VarintType:
			m.Credit = f.value
		case f.number == 4:
			m.Busy, err = parseNumbers(m.Busy, f)
		case f.number == 5 && f.kind == protowire.VarintType:
			m.HostMemory = int64(f.value)
		}
		if err != nil {
			return malformed(KindCompleted, m, err)
		}
	}
	return nil
}

// AppendDevices appends devices to an encoded Put without any.
func AppendDevices(b []byte, devices []uint32) []byte { return appendNumbers(b, 4, devices) }

// AppendMove appends a move to an encoded Transfer.
func AppendMove(b []byte, m *Move) []byte { return appendMessage(b, 4, m) }

// MaxOwnDevices is how many bytes AppendOwnDevices appends at most.
const MaxOwnDevices = 20

// AppendOwnDevices appends devices to an encoded Session.
func AppendOwnDevices(b []byte, first, local, count uint32) []byte {
	at := len(b) + 2
	b = append(b, tag(5, protowire.BytesType), 0) // the length, which takes one byte
	b = appendNumber(appendNumber(appendNumber(b, 1, first), 2, local), 3, count)
	b[at-1] = byte(len(b) - at)
	return b
}

// AppendNode appends a node to an encoded Graph.
func AppendNode(b []byte, n *Node) []byte { return appendMessage(b, 3, n) }

// AppendGraph appends a client's encoded Graph to b as a worker is sent it: with its session.
func AppendGraph(b, graph []byte, session uint32) []byte {
	return appendNumber(append(b, graph...), 5, session)
}

// TokenIn returns the token of an encoded Hello, of which the beginning is enough: encoders write fields by number, and
// it is the fourth. It is nil where the Hello ends within it. Found reports whether there is one.
func TokenIn(hello []byte) (token []byte, found bool) {
	const field = 4
	for len(hello) > 0 {
		number, kind, n := protowire.ConsumeTag(hello)
		if n < 0 || number > field {
			break
		}
		hello = hello[n:]
		if number == field && kind == protowire.BytesType {
			token, _ := protowire.ConsumeBytes(hello)
			return token, true
		}
		if n = protowire.ConsumeFieldValue(number, kind, hello); n < 0 {
			break
		}
		hello = hello[n:]
	}
	return nil, false
}

func malformed(kind Kind, m proto.Message, err error) error {
	return status.New(status.InvalidArgument, "a message of kind %v does not decode as %s: %w", kind,
		m.ProtoReflect().Descriptor().Name(), err)
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a varint
	bytes  []byte // of bytes, a list that is packed, or a message; else nil
}

// nextField reads the first field of a message, and returns what follows it.
func nextField(b []byte) (f field, rest []byte, err error) {
	if len(b) >= 2 && b[0]&7 == byte(protowire.BytesType) && b[0]>>3-1 < 15 && b[1] < 1<<7 && int(b[1]) <= len(b)-2 {
		// As most are: tag and length take a byte each.
		end := 2 + int(b[1])
		return field{number: protowire.Number(b[0] >> 3), kind: protowire.BytesType, bytes: b[2:end:end]}, b[end:], nil
	}
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, nil, protowire.ParseError(n)
	}
	if f.number, f.kind = number, kind; number > protowire.MaxValidNumber {
		return f, nil, status.New(status.InvalidArgument, "there are no fields with the number %d", f.number)
	}
	size := 0
	switch f.kind {
	case protowire.VarintType:
		f.value, size = protowire.ConsumeVarint(b[n:])
	case protowire.BytesType:
		if f.bytes, size = protowire.ConsumeBytes(b[n:]); f.bytes == nil {
			f.bytes = []byte{}
		}
	default:
		size = protowire.ConsumeFieldValue(f.number, f.kind, b[n:])
	}
	if size < 0 {
		return f, nil, protowire.ParseError(size)
	}
	return f, b[n+size:], nil
}

// parseNumbers appends what a field holds of a list: one number, or many that are packed.
func parseNumbers[T uint32 | uint64](to []T, f field) ([]T, error) {
	if f.bytes == nil {
		if f.kind == protowire.VarintType {
			to = append(to, T(f.value))
		}
		return to, nil
	}
	return parsePacked(to, f.bytes)
}

func parsePacked[T uint32 | uint64](to []T, packed []byte) ([]T, error) {
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return to, protowire.ParseError(n)
		}
		to, packed = append(to, T(v)), packed[n:]
	}
	return to, nil
}

// tag is the tag of a field: one byte, since the messages here have no fields above 15.
func tag(n protowire.Number, kind protowire.Type) byte { return byte(n)<<3 | byte(kind) }

func appendNumber[T uint32 | uint64](b []byte, n protowire.Number, v T) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, tag(n, protowire.VarintType)), uint64(v))
}

func appendNumbers[T uint32 | uint64](b []byte, n protowire.Number, values []T) []byte {
	if len(values) == 0 {
		return b
	}
	size := 0
	for _, v := range values {
		size += protowire.SizeVarint(uint64(v))
	}
	b = protowire.AppendVarint(append(b, tag(n, protowire.BytesType)), uint64(size))
	for _, v := range values {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(append(b, tag(n, protowire.BytesType)), v)
}

// appendMessage appends a message within another by the generated code, also where it is empty.
func appendMessage(b []byte, n protowire.Number, m proto.Message) []byte {
	b = protowire.AppendVarint(append(b, tag(n, protowire.BytesType)), uint64(proto.Size(m)))
	b, _ = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m) // its text is UTF-8, see Of
	return b
}
