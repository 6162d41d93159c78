package wire

import "crypto/sha256"

// ContentOf names the bytes of a program by their length and hash.
func ContentOf(data []byte) *Content {
	sum := sha256.Sum256(data)
	return &Content{Size: uint64(len(data)), Sha256: sum[:]}
}
