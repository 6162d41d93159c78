//go:build invariants

package embedded_test

import (
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
)

// Whichever allocation fails, the call returns an error and leaves nothing alive.
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
	c := statustest.Value(p.Create(pjrt.ClientOptions{Devices: 2})).OK(t)
	defer c.Close()
	s := shape.Shape{DType: shape.F32, Dims: []int64{2, 3}}
	options := compileoptions.New(2, 1, []int{0, 1}, false)
	for _, p := range []devicetest.Program{devicetest.AddOne, devicetest.AllReduce, devicetest.Donate} {
		shortage.WalkProgram(t, p.String(), c, devicetest.Source{Program: devicetest.StableHLO(p, s, 2), Options: options}, s)
	}
}
