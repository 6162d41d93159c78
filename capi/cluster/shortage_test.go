//go:build invariants

package cluster_test

import (
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

// Whichever allocation fails, the call returns an error and leaves nothing alive.
func TestFailedAllocationsAreErrors(t *testing.T) {
	options := func() sim.Options { return sim.Options{Devices: 2, Island: sim.NewIsland(sim.Instant, 1)} }
	c, _ := newFrontend(t, options()) // which names the cluster
	statustest.OK(t, c.Close())
	p := statustest.Value(pjrt.Wrap("the cluster's frontend", cluster.API())).OK(t)
	shortage.Walk(t, "Create", func() error {
		c, err := p.Create(pjrt.ClientOptions{})
		if err == nil {
			err = c.Close()
		}
		return err
	})
	c, _ = newFrontend(t, options())
	s := shape.Shape{DType: shape.F32, Dims: []int64{2, 3}}
	compiling := compileoptions.New(2, 1, []int{0, 1}, false)
	for _, p := range []devicetest.Program{devicetest.AddOne, devicetest.Donate} {
		shortage.WalkProgram(t, p.String(), c,
			devicetest.Source{Program: devicetest.Simulated(p, s).Source(), Options: compiling}, s)
	}
	statustest.Check(t, c.Close())
	nothingAlive(t)
}
