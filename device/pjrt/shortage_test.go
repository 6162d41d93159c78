//go:build invariants

package pjrt

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

// walk calls a function with its first allocation of C failing, then with its second, and
// so on until none fails. All calls but the last have to say what is wrong.
func walk(t *testing.T, what string, call func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range 1000 {
		failAllocation(n)
		err := call()
		if failAllocation(-1) >= 0 {
			if err != nil || n == 0 {
				t.Errorf("%s, with all the memory that it asks for: %v, after %d allocations", what, err, n)
			}
			return
		}
		statustest.Fails(t, fmt.Sprintf("%s, allocation %d failed", what, n), err, status.ResourceExhausted)
	}
	t.Errorf("%s: there is no end of allocations", what)
}

func TestFailedAllocationsAreErrors(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		walk(t, "Create", func() error {
			c, err := p.Create(ClientOptions{Devices: 2, Values: map[string]any{"asynchronous": false}})
			if status.CodeOf(err) == status.InvalidArgument {
				return nil // a plugin that does not know the option has been asked
			}
			if err == nil {
				err = c.Close()
			}
			return err
		})
		c := client(t, p, 2)
		s := shape.Shape{DType: shape.F32, Dims: []int64{4}}
		var x device.Executable
		walk(t, "Compile", func() error {
			if x != nil {
				x.Close()
				x = nil
			}
			made, err := c.Compile(t.Context(), devicetest.StableHLO(devicetest.AddOne, s, 1),
				compileoptions.New(1, 1, []int{0}, false))
			if err == nil {
				x = made
			}
			return err
		})
		defer x.Close()
		b := put(t, c, device.Host{Shape: s, Data: floats(1, 2, 3, 4), Device: 0})
		walk(t, "Execute", func() error {
			results, err := x.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: -1})
			if err == nil {
				results.Outputs[0][0].Close()
			}
			return err
		})
	})
}
