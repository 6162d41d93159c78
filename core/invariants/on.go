//go:build invariants

// Package invariants says whether this is a build with the tag invariants, in which state machines check themselves
// after every event.
package invariants

// Checked is set by the build tag invariants.
const Checked = true
