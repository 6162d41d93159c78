// Package abi holds the PJRT C ABI as this project declares it: pjrt_abi.h for
// the C side and constants for the Go side, both generated from pjrt_abi.json.
//
// The data describes ABI 0.114 on 64-bit little-endian Linux: field order,
// offsets and sizes. It is a list of facts about a public interface; the
// declarations made from it are ours, and their offsets are asserted when they
// are compiled.
package abi

//go:generate go run ./gen

// The ABI version that the data describes. A plugin of another major version
// is refused; any minor version is accepted, and fields beyond a peer's
// struct_size are neither read nor written.
const (
	Major = 0
	Minor = 114
)
