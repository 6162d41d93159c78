//go:build !invariants

package devicequeue

const checked = false
