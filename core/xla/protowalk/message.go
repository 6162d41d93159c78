package protowalk

import "google.golang.org/protobuf/encoding/protowire"

// Message is a message that is being written, which may hold long values of other ones: they are not copied until
// Join, and there once. The zero Message is empty.
type Message struct {
	pieces [][]byte
	size   int
	own    bool // the last piece is this Message's, and ends where it may be appended to
}

const (
	aliased    = 4 << 10 // how long a value is that is not copied at once
	firstPiece = 256     // room of a piece for short values
)

// Raw appends fields as they stand in another message. They must not change until Join.
func (m *Message) Raw(fields []byte) {
	m.size += len(fields)
	switch {
	case len(fields) >= aliased:
		m.pieces, m.own = append(m.pieces, fields), false
	case m.own:
		last := &m.pieces[len(m.pieces)-1]
		*last = append(*last, fields...)
	case len(fields) > 0:
		m.pieces, m.own = append(m.pieces, append(make([]byte, 0, firstPiece), fields...)), true
	}
}

// Message appends a field that is a message. The inner one must not be appended to afterwards.
func (m *Message) Message(n Number, inner *Message) {
	var head [20]byte
	m.Raw(protowire.AppendVarint(protowire.AppendTag(head[:0], n, protowire.BytesType), uint64(inner.size)))
	for _, piece := range inner.pieces {
		m.Raw(piece)
	}
}

// Join returns the message.
func (m *Message) Join() []byte {
	if len(m.pieces) == 1 && m.own {
		return m.pieces[0]
	}
	out := make([]byte, 0, m.size)
	for _, piece := range m.pieces {
		out = append(out, piece...)
	}
	return out
}
