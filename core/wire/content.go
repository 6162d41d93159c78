package wire

import "crypto/sha256"

// ContentOf names bytes by their length and hash.
func ContentOf(data []byte) *Content {
	sum := sha256.Sum256(data)
	return &Content{Size: uint64(len(data)), Sha256: sum[:]}
}

// TracePart is the size of the parts of a trace: so short that the client's other messages pass between them.
const TracePart = 64 << 10
