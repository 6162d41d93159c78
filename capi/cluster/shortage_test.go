//go:build invariants

package cluster_test

import (
	"bytes"
	"cmp"
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

// Whatever memory is not there, a call says so and leaves nothing behind.
func TestFailedAllocationsAreErrors(t *testing.T) {
	options := func() sim.Options { return sim.Options{Devices: 2, Island: sim.NewIsland(sim.Instant, 1)} }
	c, _ := door(t, options()) // which names the cluster
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := pjrt.Wrap("the cluster's door", cluster.API())
	if err != nil {
		t.Fatal(err)
	}
	shortage.Walk(t, "Create", func() error {
		c, err := p.Create(pjrt.ClientOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	})
	c, _ = door(t, options())
	s := shape.Shape{DType: shape.F32, Dims: []int64{2, 3}}
	for _, program := range []devicetest.Program{devicetest.AddOne, devicetest.Donate} {
		walkProgram(t, c, program, s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	nothingAlive(t)
}

func walkProgram(t *testing.T, c *pjrt.Client, program devicetest.Program, s shape.Shape) {
	devices := []int{0, 1}
	options := compileoptions.New(len(devices), 1, devices, false)
	walk := func(what string, call func() error) {
		if n := shortage.Walk(t, program.String()+": "+what, call); n == 0 {
			t.Errorf("%v: %s allocates nothing", program, what)
		}
	}
	var exe device.Executable
	walk("Compile", func() error {
		if exe != nil {
			exe.Close()
		}
		var err error
		exe, err = c.Compile(t.Context(), suiteProgram(program, s).Source(), options)
		if err != nil {
			exe = nil
		}
		return err
	})
	data := bytes.Repeat([]byte{0, 0, 128, 63}, 6)
	inputs := make([][]device.Buffer, len(devices))
	for local := range devices {
		walk("BufferFromHostBuffer", func() error {
			b, err := c.FromHost(device.Host{Shape: s, Device: local, Data: data, Semantics: device.DuringCall})
			inputs[local] = []device.Buffer{b}
			return err
		})
	}
	walk("CopyToDevice", func() error {
		b, err := inputs[0][0].CopyTo(1, "")
		if err == nil {
			b.Close()
		}
		return err
	})
	walk("ToHostBuffer", func() error {
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
	for _, row := range inputs {
		row[0].Close()
	}
	exe.Close()
}
