package hlo

// positions returns the number of positions in a window.
func positions(window []windowDimension) float64 {
	n := 1.0
	for _, d := range window {
		n *= float64(d.size)
	}
	return n
}

// reductions returns how often a reduce-window applies its function.
func (in *instruction) reductions() float64 {
	out := in.shape.first().elements()
	// If a window covers a whole dimension from each position, all positions have the same
	// result: a reduction and a broadcast.
	wide, padded, whole := 0, 0, -1
	for i, d := range in.window {
		if d.size != 1 {
			wide++
		}
		if d.low != 0 || d.high != 0 {
			padded++
		}
		if whole < 0 && d.size != 1 && d.low != 0 && d.low == d.high && d.size == 2*d.low+1 {
			whole = i
		}
	}
	if wide == 1 && padded == 1 && whole >= 0 && in.shape.Tuple == nil {
		if n := in.shape.dim(int64(whole)); n == float64(in.window[whole].low+1) {
			return float64(int64(out/n)) + n - 1
		}
	}
	return (positions(in.window) - 1) * out
}

// multiplications returns the number of multiplications of a convolution whose factors are
// inside both the input and the kernel.
func (in *instruction) multiplications() float64 {
	c, input, kernel, out := in.convolution, in.operand(0), in.operand(1), in.shape
	n := float64(int64(input.dim(c.inputFeature))/c.featureGroups) * out.dim(c.outputFeature) *
		float64(int64(input.dim(c.inputBatch))/c.batchGroups)
	at := func(dims []int64, i int, s Shape) int64 {
		if i >= len(dims) {
			return 0
		}
		return int64(s.dim(dims[i]))
	}
	for i, d := range in.window {
		n *= d.inside(at(c.inputSpatial, i, input), at(c.kernelSpatial, i, kernel), at(c.outputSpatial, i, out))
	}
	return n
}

// inside returns the number of pairs of positions in the kernel and in the result that
// meet an element of the input, along one dimension.
func (d windowDimension) inside(input, kernel, out int64) float64 {
	// These are the pairs (k, o) for which o·stride + k·dilation − low is in
	// [0, input·base) and a multiple of base. The longer side is counted by its period,
	// the shorter one position by position.
	base, short, long, step, stride := max(1, d.base), kernel, out, d.dilation, d.stride
	if short > long {
		short, long, step, stride = long, short, stride, step
	}
	const most = 1 << 20 // steps; above that, padding counts as input
	if stride <= 0 || step < 0 || overflows(d, input, kernel, out) || short*base > most {
		return float64(kernel) * float64(out) / float64(base)
	}
	n := int64(0)
	for i := range short {
		at := i*step - d.low
		// The positions of the long side that are inside: from first to before last.
		first, last := max(0, ceilDiv(-at, stride)), min(long, ceilDiv(input*base-at, stride))
		// Any base consecutive positions contain the same number of multiples.
		for o := first; o < min(last, first+base); o++ {
			if (at+o*stride)%base == 0 {
				n += (last - o + base - 1) / base
			}
		}
	}
	return float64(n)
}

// overflows reports whether numbers are too large to be multiplied.
func overflows(d windowDimension, sizes ...int64) bool {
	for _, v := range append(sizes, d.stride, d.low, d.dilation, d.base) {
		if v > 1<<30 || v < -1<<30 {
			return true
		}
	}
	return false
}

// ceilDiv divides by a positive number and rounds up.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
