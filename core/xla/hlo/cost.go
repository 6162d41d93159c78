package hlo

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// Names of costs.
const (
	Flops           = "flops"
	Transcendentals = "transcendentals" // functions such as exp, which are not among the flops
	BytesAccessed   = "bytes accessed"

	utilization = "utilization"
	seconds     = "optimal_seconds" // 0 except for custom calls, since the machine is not known
)

// Cost is the cost of a program, by name: the three above, and the bytes accessed and the
// utilization of operands by position, in XLA's spelling ("bytes accessed0{}",
// "utilization1{}", "bytes accessedout{}"), over all instructions. Figures that are 0 are
// omitted.
//
// The figures are those of XLA's own analysis (xla/service/hlo_cost_analysis.cc), with
// the same meaning: a loop counts as one iteration, a conditional counts the largest
// figure of its branches, instructions inside a fusion access no memory, and the work of a
// custom call is unknown and counts as -1.
type Cost map[string]float64

// ReadCost returns the cost of one run of a program of format "hlo" or
// "hlo_with_config", on one device.
func ReadCost(format string, code []byte) (Cost, error) {
	code, err := module(format, code)
	if err != nil {
		return nil, err
	}
	p, err := readProgram(code)
	if err != nil {
		return nil, err
	}
	a := analysis{program: p, costs: map[int64]Cost{}}
	cost, err := a.computation(p.entry)
	if err != nil {
		return nil, err
	}
	// A copy: if the program is just a call, cost is shared.
	cost = maps.Clone(cost)
	maps.DeleteFunc(cost, func(_ string, v float64) bool { return v == 0 })
	return cost, nil
}

// deepest bounds the nesting of calls, so that a cycle is detected.
const deepest = 1000

// analysis is a program while its cost is counted.
type analysis struct {
	*program
	costs map[int64]Cost // of computations counted so far
	depth int
}

// computation returns the cost of a computation, in which each instruction counts once.
// The result is shared.
func (a *analysis) computation(id int64) (Cost, error) {
	if cost, ok := a.costs[id]; ok {
		return cost, nil
	}
	c := a.computations[id]
	if c == nil {
		return nil, status.New(status.InvalidArgument, "there is no computation %d", id)
	}
	if a.depth++; a.depth > deepest {
		return nil, status.New(status.InvalidArgument, "computations call each other more than %d deep", deepest)
	}
	defer func() { a.depth-- }()
	sum := Cost{}
	for _, in := range c.instructions {
		cost, err := a.instruction(in)
		if err != nil {
			return nil, err
		}
		for k, v := range cost {
			sum[k] += v
		}
	}
	a.costs[id] = sum
	return sum, nil
}

// called returns the cost of the nth computation that an instruction calls.
func (a *analysis) called(in *instruction, n int) (Cost, error) {
	if n >= len(in.called) {
		return nil, status.New(status.InvalidArgument, "an instruction %s calls %d computations, want more than %d",
			in.opcode, len(in.called), n)
	}
	return a.computation(in.called[n])
}

// applies adds the work of a called computation, times the number of times that it is
// applied. It accesses no memory: its arguments are elements.
func (a *analysis) applies(cost Cost, in *instruction, n int, times float64) error {
	sub, err := a.called(in, n)
	for k, v := range sub {
		if !strings.HasPrefix(k, BytesAccessed) && !strings.HasPrefix(k, utilization) {
			cost[k] += v * times
		}
	}
	return err
}

func operandBytes(operand int, place []int) string {
	return fmt.Sprintf("%s%d%s", BytesAccessed, operand, placeText(place))
}

func operandUtilization(operand int) string { return fmt.Sprintf("%s%d{}", utilization, operand) }

func outputBytes(place []int) string { return BytesAccessed + "out" + placeText(place) }

func placeText(place []int) string {
	return "{" + strings.ReplaceAll(strings.Trim(fmt.Sprint(place), "[]"), " ", ",") + "}"
}

// touches sets the bytes that an instruction accesses: of its result, of its operands, and
// in total. Operands that are not passed are not accessed.
func (c Cost) touches(output float64, operands ...float64) {
	c[BytesAccessed] = output
	c[outputBytes(nil)] = output
	for i, b := range operands {
		c[BytesAccessed] += b
		c[operandBytes(i, nil)] = b
	}
}

const pointer = 8 // bytes

// bytes returns the memory of a value itself: for a tuple, its table of pointers; 0 if
// the layout is not given.
func (s Shape) bytes() float64 {
	switch {
	case s.Tuple != nil:
		return pointer * float64(len(s.Tuple))
	case s.opaque:
		return pointer
	case !s.layout:
		return 0
	}
	size := s.elementBits
	if size == 0 {
		size = int64(s.DType.Bits()+7) / 8 * 8
	}
	n := math.Ceil(s.elements() * float64(size) / 8)
	if s.Dynamic {
		n += 4 * float64(len(s.Dims)) // for the actual dimensions
	}
	return n
}

func (s Shape) elements() float64 {
	if s.Tuple != nil || s.opaque {
		return 0
	}
	return float64(s.Elements())
}

// first returns the shape, or the first shape of a tuple.
func (s Shape) first() Shape {
	if len(s.Tuple) > 0 {
		return s.Tuple[0]
	}
	return s
}

// dim returns the size of a dimension, or 0 if there is no such dimension.
func (s Shape) dim(i int64) float64 {
	if i < 0 || i >= int64(len(s.Dims)) {
		return 0
	}
	return float64(s.Dims[i])
}

// work maps opcodes to the cost in which each element of a result counts as one.
var work = map[string]string{
	"exponential": Transcendentals, "exponential-minus-one": Transcendentals, "log": Transcendentals,
	"log-plus-one": Transcendentals, "logistic": Transcendentals, "power": Transcendentals, "sqrt": Transcendentals,
	"cbrt": Transcendentals, "rsqrt": Transcendentals, "tanh": Transcendentals, "sine": Transcendentals,
	"cosine": Transcendentals, "tan": Transcendentals, "atan2": Transcendentals, "erf": Transcendentals,
	"acos": Transcendentals, "acosh": Transcendentals, "asin": Transcendentals, "asinh": Transcendentals,
	"atanh": Transcendentals, "cosh": Transcendentals, "sinh": Transcendentals, "rng": Transcendentals,

	"abs": Flops, "add": Flops, "and": Flops, "bitcast-convert": Flops, "ceil": Flops, "clamp": Flops, "compare": Flops,
	"complex": Flops, "convert": Flops, "count-leading-zeros": Flops, "divide": Flops, "floor": Flops, "imag": Flops,
	"is-finite": Flops, "maximum": Flops, "minimum": Flops, "multiply": Flops, "negate": Flops, "not": Flops, "or": Flops,
	"popcnt": Flops, "real": Flops, "reduce-precision": Flops, "remainder": Flops, "round-nearest-afz": Flops,
	"round-nearest-even": Flops, "select": Flops, "shift-left": Flops, "shift-right-arithmetic": Flops,
	"shift-right-logical": Flops, "sign": Flops, "stochastic-convert": Flops, "subtract": Flops, "xor": Flops,
}

// instruction returns the cost of an instruction.
func (a *analysis) instruction(in *instruction) (Cost, error) {
	cost, out := Cost{}, in.shape
	operands := make([]float64, len(in.operands))
	for i, o := range in.operands {
		operands[i] = o.shape.bytes()
		cost[operandUtilization(i)] = 1
	}
	written := 0.0
	leaves(out, func(s Shape, _ []int) { written += s.bytes() })
	cost.touches(written, operands...)
	if name := work[in.opcode]; name != "" {
		cost[name] = out.elements()
		return cost, nil
	}
	if cost.moves(in) || cost.computes(in) || cost.crosses(in) {
		return cost, nil
	}
	return a.applied(cost, in)
}

// moves counts an instruction that only moves bytes, or none. It reports whether this is one.
func (cost Cost) moves(in *instruction) bool {
	out := in.shape
	switch in.opcode {
	case "parameter", "constant", "get-tuple-element", "bitcast", "after-all", "add-dependency", "domain":
		cost.touches(0, make([]float64, len(in.operands))...)
	case "transpose":
		if in.bitcasts() {
			cost.touches(0, 0)
		}
	case "tuple":
		cost.touches(out.bytes(), make([]float64, len(in.operands))...)
	case "slice":
		cost.touches(out.bytes(), out.bytes())
		cost[operandUtilization(0)] = out.elements() / in.operand(0).elements()
	case "dynamic-slice", "gather":
		cost.touches(out.bytes(), out.bytes(), in.operand(1).bytes())
		cost[operandUtilization(0)] = out.elements() / in.operand(0).elements()
	case "dynamic-update-slice":
		// The result replaces operand 0 in place.
		update := in.operand(1)
		cost.touches(update.bytes(), 0, update.bytes(), in.operand(2).bytes())
		cost[operandUtilization(0)] = (out.elements() - update.elements()) / out.elements()
	default:
		return false
	}
	return true
}

// computes counts an instruction with arithmetic of its own. It reports whether this is one.
func (cost Cost) computes(in *instruction) bool {
	const fma = 2 // a multiplication and an addition
	out := in.shape
	switch in.opcode {
	case "dot":
		width := 1.0
		for _, d := range in.contracting {
			width *= in.operand(0).dim(d)
		}
		cost[Flops] = fma * out.elements() * width
	case "convolution":
		cost[Flops] = fma * in.multiplications()
	case "fft":
		const complexMultiplication = 4
		steps := 1.0
		for _, n := range in.fftLength {
			steps *= float64(max(0, bits.Len64(uint64(n))-1))
		}
		cost[Flops] = fma * complexMultiplication * steps * in.operand(0).first().elements()
	case "triangular-solve":
		of := in.operand(0)
		cost.touches(out.bytes(), of.bytes()/2, in.operand(1).bytes())
		cost[Flops] = fma * of.dim(int64(len(of.Dims))-1) * in.operand(1).elements()
	case "cholesky":
		of := in.operand(0)
		cost.touches(of.bytes()/2, of.bytes()/2)
		cost[Flops] = math.Floor(of.dim(int64(len(of.Dims))-1) * of.elements() / 3)
	case "sort":
		n := in.operand(0).elements()
		cost[Flops] = n * math.Ceil(math.Log2(max(1, n)))
	case "rng-bit-generator":
		leaves(out, func(s Shape, _ []int) { cost[Transcendentals] += s.elements() })
	case "all-reduce", "all-reduce-start":
		// As with two members: one addition per element.
		leaves(out, func(s Shape, _ []int) { cost[Flops] += s.elements() })
	default:
		return false
	}
	return true
}

// crosses counts an instruction whose bytes come from outside of the program, or leave it. It
// reports whether this is one.
func (cost Cost) crosses(in *instruction) bool {
	switch in.opcode {
	case "infeed":
		cost.touches(0)
		leaves(in.shape, func(s Shape, place []int) {
			cost[outputBytes(place)] = s.bytes()
			cost[BytesAccessed] += s.bytes()
		})
		cost[outputBytes(nil)] = cost[BytesAccessed]
	case "outfeed":
		cost[BytesAccessed] = 0
		for i, o := range in.operands {
			all := 0.0
			leaves(o.shape, func(s Shape, place []int) {
				cost[operandBytes(i, place)] = s.bytes()
				all += s.bytes()
			})
			cost[operandBytes(i, nil)] = all
			cost[BytesAccessed] += all
		}
	case "custom-call":
		unknown := make([]float64, len(in.operands))
		for i := range unknown {
			unknown[i] = -1
		}
		cost.touches(-1, unknown...)
		cost[BytesAccessed], cost[Flops], cost[seconds] = -1, -1, -1
	default:
		return false
	}
	return true
}

// applied returns the cost of an instruction that has computations of its own, to which cost
// is that of its bytes; and of one that is not known, which costs no more than these.
func (a *analysis) applied(cost Cost, in *instruction) (Cost, error) {
	switch in.opcode {
	case "scatter":
		return cost, a.scatter(cost, in)
	case "map":
		return cost, a.applies(cost, in, 0, in.shape.elements())
	case "reduce":
		return cost, a.applies(cost, in, 0, in.operand(0).elements()-in.shape.first().elements())
	case "reduce-window":
		return cost, a.applies(cost, in, 0, in.reductions())
	case "select-and-scatter":
		source, window := in.operand(1).elements(), positions(in.window)
		if err := a.applies(cost, in, 0, source*(window-1)); err != nil {
			return nil, err
		}
		return cost, a.applies(cost, in, 1, source)
	case "fusion":
		return a.fusion(in)
	case "call", "async-start":
		return a.called(in, 0)
	case "while":
		return a.while(in)
	case "conditional":
		return a.conditional(in)
	}
	return cost, nil
}

// while counts one iteration, since the number of iterations is not known.
func (a *analysis) while(in *instruction) (Cost, error) {
	body, err := a.called(in, 0)
	if err != nil {
		return nil, err
	}
	condition, err := a.called(in, 1)
	cost := maps.Clone(body)
	for k, v := range condition {
		cost[k] += v
	}
	return cost, err
}

func (a *analysis) conditional(in *instruction) (Cost, error) {
	cost := Cost{}
	for n := range in.called {
		branch, err := a.called(in, n)
		if err != nil {
			return nil, err
		}
		for k, v := range branch {
			if have, ok := cost[k]; !ok || v > have {
				cost[k] = v
			}
		}
	}
	return cost, nil
}

// scatter reads and writes as many bytes as the updates have, and reads the indices. Its
// operands are arrays, indices, and one update per array.
func (a *analysis) scatter(cost Cost, in *instruction) error {
	n := len(in.operands) / 2
	operands := make([]float64, len(in.operands))
	all := 0.0
	for i := range n {
		size := in.operand(n + 1 + i).bytes()
		operands[i], operands[n+1+i] = size, size
		all += size
	}
	operands[n] = in.operand(n).bytes()
	cost.touches(all, operands...)
	return a.applies(cost, in, 0, in.operand(n+1).elements())
}
