//go:build invariants

package ffi_test

import (
	"crypto/sha256"
	"os"
	"regexp"
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/capi/ffi"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	_ "github.com/openpathways/pathways/device/pjrt" // whose C this calls
)

// symbol names something in this process's C library.
func symbol(t *testing.T, name string) *wire.Symbol {
	t.Helper()
	maps := statustest.Value(os.ReadFile("/proc/self/maps")).OK(t)
	library := string(regexp.MustCompile(`/\S*libc\.so\S*`).Find(maps))
	file := statustest.Value(os.ReadFile(library)).OK(t)
	sum := sha256.Sum256(file)
	return &wire.Symbol{Library: library, Name: name, Sha256: sum[:]}
}

// Whatever memory is not there, a handler is not registered, and the error says why: also where the error is another's,
// and only its text has no memory.
func TestFailedAllocationsAreErrors(t *testing.T) {
	load := func(target, function string) error {
		none := new(wire.Symbol)
		return ffi.Load(&wire.Handler{Target: target, Platform: "Host",
			Stages: []*wire.Symbol{none, none, none, symbol(t, function)}})
	}
	if n := shortage.Walk(t, "Load", func() error { return load("a_handler", "abs") }); n == 0 {
		t.Error("a handler is registered without memory")
	}
	n := shortage.Walk(t, "Load of what is not there", func() error {
		err := load("another_handler", "no_such_function")
		if status.CodeOf(err) == status.NotFound {
			err = nil // as it is with all the memory
		}
		return err
	})
	if n == 0 {
		t.Error("an error has a text without memory")
	}
}
