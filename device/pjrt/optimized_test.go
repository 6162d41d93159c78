package pjrt

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/hlo"
)

// What an executable says of its program lacks the values of long constants, which are 600 KiB here; each call says the
// same. What it is serialized to has them.
func TestOptimizedProgramLacksLongConstants(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		r, values := rand.New(rand.NewPCG(1, 1)), []byte{}
		for range 600 << 10 / 8 {
			values = fmt.Appendf(values, "%016X", r.Uint64()&0x3fffffff3fffffff) // no NaN
		}
		x := compile(t, c, mlir("table", fmt.Sprintf(`
  func.func public @main(%%i: tensor<i32>) -> tensor<8xf32> {
    %%t = stablehlo.constant dense<"0x%s"> : tensor<153600xf32>
    %%y = stablehlo.dynamic_slice %%t, %%i, sizes = [8] : (tensor<153600xf32>, tensor<i32>) -> tensor<8xf32>
    return %%y : tensor<8xf32>
  }`, values)), nil)
		first := statustest.Value(x.Optimized()).OK(t)
		again, err := x.Optimized()
		if err != nil || len(first) != len(again) || len(first) > 64<<10 {
			t.Errorf("the program has %d bytes, and when asked again %d, %v; want the same few", len(first), len(again), err)
		}
		if s, err := hlo.ReadSignature(withConfig, first); err != nil || len(s.Params) != 1 {
			t.Errorf("it reads as %+v, %v, want one parameter", s, err)
		}
		serialized, err := x.Serialize()
		if err != nil || len(serialized.Data) < 600<<10 {
			t.Fatalf("it is serialized to %d bytes, %v, want more than its constant has", len(serialized.Data), err)
		}
		loaded, err := c.Load(t.Context(), serialized.Data)
		serialized.Release()
		statustest.OK(t, err)
		defer loaded.Close()
		if shapes, _, known := loaded.Parameters(); !known || len(shapes) != 1 {
			t.Errorf("loaded again it takes %v, %v, want one parameter", shapes, known)
		}
	})
}
