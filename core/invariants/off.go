//go:build !invariants

package invariants

// Checked is set by the build tag invariants.
const Checked = false
