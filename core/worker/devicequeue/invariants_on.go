//go:build invariants

package devicequeue

const checked = true
