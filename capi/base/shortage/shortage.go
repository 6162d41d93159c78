//go:build invariants

// Package shortage has tests walk through the allocations of C that a call makes, and each
// of them fail once.
//
// Only tests import it. With -asan as well, what a failed call leaves behind is found too.
package shortage

import (
	"bytes"
	"cmp"
	"runtime"
	"testing"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

// most bounds the allocations of a call; a walk beyond it has no end.
const most = 10000

// Walk calls a function with its first allocation failing, then with its second, and so on until none fails. Every call
// but the last has to fail with RESOURCE_EXHAUSTED. The function undoes what it has made; allocations on other threads
// do not fail. Walk returns how many allocations there were.
func Walk(t *testing.T, what string, call func() error) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range most {
		base.FailAllocation(n)
		err := call()
		if left := base.FailAllocation(-1); left >= 0 {
			if err != nil {
				t.Errorf("%s with all the memory that it asks for: %v", what, err)
			}
			t.Logf("%s: %d allocations", what, n)
			return n
		}
		if status.CodeOf(err) != status.ResourceExhausted {
			t.Errorf("%s, allocation %d failed: %v, want %v", what, n, err, status.ResourceExhausted)
		}
	}
	t.Fatalf("%s: after %d allocations that failed there are more", what, most)
	return most
}

// WalkProgram walks through what a client does with a program for its first two devices,
// which takes one array of a shape a device: Compile, BufferFromHostBuffer, CopyToDevice,
// ToHostBuffer and Execute.
func WalkProgram(t *testing.T, name string, c device.Driver, source devicetest.Source, s shape.Shape) {
	walk := func(what string, call func() error) {
		if n := Walk(t, name+": "+what, call); n == 0 {
			t.Errorf("%s: %s allocates nothing", name, what)
		}
	}
	var exe device.Executable
	walk("Compile", func() error {
		if exe != nil {
			exe.Close()
		}
		made, err := c.Compile(t.Context(), source.Program, source.Options)
		exe = nil
		if err == nil {
			exe = made
		}
		return err
	})
	defer exe.Close()
	data := bytes.Repeat([]byte{1}, int(s.HostBytes()))
	inputs := make([][]device.Buffer, 2)
	for local := range inputs {
		walk("BufferFromHostBuffer", func() error {
			b, err := c.FromHost(device.Host{Shape: s, Device: local, Data: data, Semantics: device.DuringCall})
			inputs[local] = []device.Buffer{b}
			return err
		})
		defer inputs[local][0].Close()
	}
	walk("CopyToDevice", func() error {
		b, err := inputs[0][0].CopyTo(1, "")
		if err == nil {
			b.Close()
		}
		return err
	})
	// Not every frontend allocates for it.
	Walk(t, name+": ToHostBuffer", func() error {
		done, err := inputs[0][0].ToHost(make([]byte, len(data)))
		if err == nil {
			err = done.Wait(t.Context())
		}
		return err
	})
	walk("Execute", func() error {
		results, err := exe.Execute(device.Run{Inputs: inputs, NotDonated: []int{0}, Only: -1})
		if err != nil {
			return err
		}
		for i, row := range results.Outputs {
			if failed := cmp.Or(row[0].Ready().Wait(t.Context()), results.Done[i].Wait(t.Context())); failed != nil {
				err = failed
			}
			row[0].Close()
		}
		return err
	})
}
