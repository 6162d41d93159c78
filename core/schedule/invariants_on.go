//go:build invariants

package schedule

const checked = true
