//go:build !invariants

package ledger

const checked = false
