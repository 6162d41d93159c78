package schedule

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestDevicesTimeIsDividedByClassesWeightsAndBounds(t *testing.T) {
	w := func(weight float64, class int, least, most float64) *Tenant {
		return &Tenant{Weight: weight, Class: class, AtLeast: least, AtMost: most}
	}
	for _, c := range []struct {
		name string
		of   []*Tenant
		want []float64
	}{
		{"nobody", nil, nil},
		{"one alone", []*Tenant{w(3, -1, 0, 0)}, []float64{1}},
		{"by weight", []*Tenant{w(1, 0, 0, 0), w(3, 0, 0, 0)}, []float64{0.25, 0.75}},
		{"at least", []*Tenant{w(1, 0, 0.5, 0), w(1, 0, 0, 0), w(3, 0, 0, 0)}, []float64{0.5, 0.125, 0.375}},
		{"at least less than its weight gives", []*Tenant{w(3, 0, 0.5, 0), w(1, 0, 0, 0)}, []float64{0.75, 0.25}},
		{"at most", []*Tenant{w(3, 0, 0, 0.4), w(1, 0, 0, 0), w(1, 0, 0, 0)}, []float64{0.4, 0.3, 0.3}},
		{"at most alone leaves devices idle", []*Tenant{w(3, 0, 0, 0.4)}, []float64{0.4}},
		{"at least and at most", []*Tenant{w(1, 0, 0.5, 0), w(1, 0, 0, 0.1), w(1, 0, 0, 0)}, []float64{0.5, 0.1, 0.4}},
		{"a higher class leaves the floor", []*Tenant{w(1, 1, 0, 0), w(7, 0, 0, 0), w(1, -1, 0, 0)},
			[]float64{0.9, 0.05, 0.05}},
		{"the floor is shared by weight", []*Tenant{w(1, 1, 0, 0), w(1, 0, 0, 0), w(3, 0, 0, 0)},
			[]float64{0.95, 0.0125, 0.0375}},
		{"a lower class has what it has at least", []*Tenant{w(1, 1, 0, 0), w(1, 0, 0.3, 0), w(1, 0, 0, 0)},
			[]float64{0.65, 0.3, 0.05}},
		{"where much is guaranteed, each class has a part of the rest", []*Tenant{w(1, 1, 0, 0), w(1, 0, 0.4, 0),
			w(1, 0, 0, 0), w(1, -1, 0.5, 0)}, []float64{0.1 / 3, 0.4, 0.1 / 3, 0.5 + 0.1/3}},
		{"what a higher class may not have goes to the next", []*Tenant{w(1, 1, 0, 0.2), w(1, 0, 0, 0.3), w(1, -1, 0, 0)},
			[]float64{0.2, 0.3, 0.5}},
	} {
		got := Shares(c.of)
		for i := range c.want {
			if math.Abs(got[i]-c.want[i]) > 1e-9 {
				t.Errorf("%s: got %v, expected %v", c.name, got, c.want)
				break
			}
		}
	}
}

// Each tenant has a part, however its weight and class stand to those of others: what waits is divided by parts.
func TestNoTenantHasNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var of []*Tenant
		left := 0.9 // of what may be guaranteed, see core/tenant
		for range rapid.IntRange(1, 12).Draw(t, "tenants") {
			x := &Tenant{Weight: math.Pow(10, rapid.Float64Range(-6, 6).Draw(t, "log weight")),
				Class: rapid.IntRange(-1, 1).Draw(t, "class")}
			if rapid.Bool().Draw(t, "is guaranteed") {
				x.AtLeast = min(left, rapid.Float64Range(0, 0.9).Draw(t, "at least"))
				left -= x.AtLeast
			}
			if rapid.Bool().Draw(t, "is bounded") {
				x.AtMost = max(x.AtLeast, rapid.Float64Range(1e-3, 1).Draw(t, "at most"))
			}
			of = append(of, x)
		}
		all := 0.0
		for i, part := range Shares(of) {
			if all += part; !(part > 0) {
				t.Fatalf("tenant %d has %v", i, part)
			}
		}
		if all > 1+1e-9 {
			t.Fatalf("all together have %v", all)
		}
	})
}
