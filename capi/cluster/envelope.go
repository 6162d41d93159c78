package cluster

import (
	"bytes"
	"encoding/binary"

	"github.com/openpathways/pathways/core/status"
)

// program is a program to be compiled, and the serialized form of an executable: its source, since the cluster compiles
// by content, and either still has the result or compiles it again.
type program struct {
	version string // PlatformVersion of the client that serialized it
	format  string
	code    []byte
	options []byte
	manual  bool // options are those of compileoptions.Manual: each instruction has its sharding
}

// magic begins a serialized program; a later form has another number.
const magic = "pathways program 2\n"

func (p program) pack() []byte {
	out := append([]byte(magic), 0)
	if p.manual {
		out[len(magic)] = 1
	}
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
	if !ok || len(rest) == 0 || rest[0] > 1 {
		return program{}, status.New(status.InvalidArgument,
			"these %d bytes are not an executable that this version serialized on a cluster; compile the program again",
			len(data))
	}
	manual, rest := rest[0] == 1, rest[1:]
	var parts [4][]byte
	for i := range parts {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return program{}, status.New(status.InvalidArgument,
				"a serialized executable is cut short: part %d of %d is not whole; compile the program again", i+1, len(parts))
		}
		parts[i], rest = rest[size:][:n], rest[size:][n:]
	}
	if len(rest) > 0 {
		return program{}, status.New(status.InvalidArgument,
			"a serialized executable has %d bytes too many; compile the program again", len(rest))
	}
	return program{string(parts[0]), string(parts[1]), parts[2], parts[3], manual}, nil
}
