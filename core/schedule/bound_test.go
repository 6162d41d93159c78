package schedule

import "testing"

// No order of runs, not even one that knows all of them before, keeps tenants of weights 8, 2 and 1 within one run of
// their shares over stretches of every length, if all runs take equally long: an order ends after a few. Two tenants,
// or several of equal weights, can be kept there.
func TestNoOrderKeepsEveryStretchWithinOneRun(t *testing.T) {
	const most = 100
	for _, c := range []struct {
		weights []int
		can     bool
	}{{[]int{8, 2, 1}, false}, {[]int{5, 4, 2}, false}, {[]int{8, 3}, true}, {[]int{1, 1, 1, 1}, true}} {
		sum := 0
		for _, w := range c.weights {
			sum += w
		}
		var order []int
		var extend func() bool
		extend = func() bool {
			if len(order) == most {
				return true
			}
			for next := range c.weights {
				order = append(order, next)
				runs, within := make([]int, len(c.weights)), true
				for n := 1; n <= len(order) && within; n++ { // each stretch that ends with it
					runs[order[len(order)-n]]++
					for i, w := range c.weights {
						off := runs[i]*sum - w*n // times the sum of the weights
						within = within && -sum <= off && off <= sum
					}
				}
				if within && extend() {
					return true
				}
				order = order[:len(order)-1]
			}
			return false
		}
		if can := extend(); can != c.can {
			t.Errorf("weights %v: there is an order of %d runs: %v, expected %v", c.weights, most, can, c.can)
		}
	}
}
