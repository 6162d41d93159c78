//go:build !invariants

package controller

const checked = false
