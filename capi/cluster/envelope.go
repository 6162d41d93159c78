package cluster

import (
	"bytes"
	"encoding/binary"

	"github.com/openpathways/pathways/core/status"
)

// program is what is compiled, and what an executable is serialized as: its
// source, since the cluster compiles by content and has it still or compiles it
// again.
type program struct {
	version string // PlatformVersion of the client that serialized it
	format  string
	code    []byte
	options []byte
}

// magic begins a serialized program; a later form has another number.
const magic = "pathways program 1\n"

func (p program) pack() []byte {
	out := []byte(magic)
	for _, part := range [][]byte{[]byte(p.version), []byte(p.format), p.code, p.options} {
		out = binary.AppendUvarint(out, uint64(len(part)))
		out = append(out, part...)
	}
	return out
}

// unpack reads what pack wrote.
//
// Errors: INVALID_ARGUMENT.
func unpack(data []byte) (program, error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return program{}, status.New(status.InvalidArgument, "these %d bytes are no executable that a cluster's client of this version serialized; compile the program again", len(data))
	}
	var parts [4][]byte
	for i := range parts {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return program{}, status.New(status.InvalidArgument, "a serialized executable is cut short: part %d of %d is not whole; compile the program again", i+1, len(parts))
		}
		parts[i], rest = rest[size:][:n], rest[size:][n:]
	}
	if len(rest) > 0 {
		return program{}, status.New(status.InvalidArgument, "a serialized executable has %d bytes too many; compile the program again", len(rest))
	}
	return program{string(parts[0]), string(parts[1]), parts[2], parts[3]}, nil
}
