//go:build !invariants

package store

const checked = false
