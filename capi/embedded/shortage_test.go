//go:build invariants

package embedded_test

import (
	"bytes"
	"cmp"
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
)

// Whatever memory is not there, a call says so and leaves nothing behind.
func TestFailedAllocationsAreErrors(t *testing.T) {
	p := table(t)
	clean(t)
	shortage.Walk(t, "Create", func() error {
		c, err := p.Create(pjrt.ClientOptions{Devices: 2})
		if err == nil {
			err = c.Close()
		}
		return err
	})
	c, err := p.Create(pjrt.ClientOptions{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := shape.Shape{DType: shape.F32, Dims: []int64{2, 3}}
	for _, program := range []devicetest.Program{devicetest.AddOne, devicetest.AllReduce, devicetest.Donate} {
		walkProgram(t, c, program, s)
	}
}

func walkProgram(t *testing.T, c *pjrt.Client, program devicetest.Program, s shape.Shape) {
	devices := []int{0, 1}
	options := compileoptions.New(len(devices), 1, devices, false)
	var exe device.Executable
	walk := func(what string, call func() error) {
		if n := shortage.Walk(t, program.String()+": "+what, call); n == 0 {
			t.Errorf("%v: %s allocates nothing", program, what)
		}
	}
	walk("Compile", func() error {
		if exe != nil {
			exe.Close()
		}
		var err error
		exe, err = c.Compile(t.Context(), devicetest.StableHLO(program, s, len(devices)), options)
		if err != nil {
			exe = nil
		}
		return err
	})
	defer exe.Close()
	data := bytes.Repeat([]byte{0, 0, 128, 63}, 6)
	inputs := make([][]device.Buffer, len(devices))
	put := func(local int) error {
		b, err := c.FromHost(device.Host{Shape: s, Device: local, Data: data, Semantics: device.DuringCall})
		if err == nil {
			inputs[local] = []device.Buffer{b}
		}
		return err
	}
	walk("BufferFromHostBuffer", func() error {
		if inputs[0] != nil {
			inputs[0][0].Close()
		}
		return put(0)
	})
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	walk("CopyToDevice", func() error {
		b, err := inputs[0][0].CopyTo(1, "")
		if err == nil {
			b.Close()
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
	for _, row := range inputs {
		row[0].Close()
	}
}
