package schedule

import (
	"math"
	"testing"
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
