package devicetest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// Program identifies a program that the suite runs. Arguments and results of each are
// arrays of one shape, on each of its devices.
type Program int

// The programs of the suite.
const (
	AddOne    Program = iota // (x) → x+1
	Copy                     // (x) → x
	Add                      // (x, y) → x+y
	Two                      // (x) → x, x+1
	Donate                   // (x, donated) → x+1
	AllReduce                // (x) → the sum of all devices' x
	Slow                     // (x) → x, after a tenth of a second or so
	Fail                     // (x) → x; every run of it fails
)

// String returns the program's name, which Executable.Name contains.
func (p Program) String() string {
	return [...]string{"add_one", "copy", "add", "two", "donate", "all_reduce", "slow", "fail"}[p]
}

// arguments returns the program's number of arguments.
func (p Program) arguments() int {
	if p == Add {
		return 2
	}
	return 1
}

// Simulated returns program p over arrays of shape s, for simulated devices.
func Simulated(p Program, s shape.Shape) sim.Program {
	in := sim.Param{DType: s.DType.String(), Dims: s.Dims}
	addOne := sim.Result{Op: "add", Args: []int{0}, Value: 1}
	prog := sim.Program{Name: p.String(), Params: []sim.Param{in}, Results: []sim.Result{{Op: "copy", Args: []int{0}}}}
	switch p {
	case AddOne:
		prog.Results[0] = addOne
	case Add:
		prog.Params = append(prog.Params, in)
		prog.Results[0] = sim.Result{Op: "add", Args: []int{0, 1}}
	case Two:
		prog.Results = append(prog.Results, addOne)
	case Donate:
		prog.Params[0].Donated = true
		prog.Results[0] = addOne
	case AllReduce:
		prog.Results[0].Op = "all-reduce"
	case Slow:
		cost := 20 * time.Millisecond
		prog.Cost = &cost
	case Fail:
		prog.Fail = &sim.Failure{Code: "DATA_LOSS", Text: "the simulated disk ate it"}
	}
	return prog
}

// StableHLO returns program p over arrays of shape s for n replicas, as MLIR text.
// Elements are f32 or s32, and there is no Fail. The compile options must ask for n
// replicas and one partition.
func StableHLO(p Program, s shape.Shape, n int) device.Program {
	array, scalar := mlirType(s), mlirType(shape.Shape{DType: s.DType})
	params := "%x: " + array
	results := array
	one := fmt.Sprintf("    %%one = stablehlo.constant dense<%s> : %s\n", mlirOne(s.DType), array)
	plus := one + fmt.Sprintf("    %%r = stablehlo.add %%x, %%one : %s\n", array)
	var body string
	switch p {
	case AddOne:
		body = plus + fmt.Sprintf("    return %%r : %s\n", array)
	case Copy:
		body = fmt.Sprintf("    return %%x : %s\n", array)
	case Add:
		params += ", %y: " + array
		body = fmt.Sprintf("    %%r = stablehlo.add %%x, %%y : %s\n    return %%r : %s\n", array, array)
	case Two:
		results = "(" + array + ", " + array + ")"
		body = plus + fmt.Sprintf("    return %%x, %%r : %s, %s\n", array, array)
	case Donate:
		params += " {tf.aliasing_output = 0 : i32}"
		body = plus + fmt.Sprintf("    return %%r : %s\n", array)
	case AllReduce:
		group := make([]string, n)
		for i := range group {
			group[i] = strconv.Itoa(i)
		}
		body = fmt.Sprintf(`    %%r = "stablehlo.all_reduce"(%%x) ({
    ^bb0(%%a: %[2]s, %%b: %[2]s):
      %%s = stablehlo.add %%a, %%b : %[2]s
      stablehlo.return %%s : %[2]s
    }) {replica_groups = dense<[[%[3]s]]> : tensor<1x%[4]dxi64>} : (%[1]s) -> %[1]s
    return %%r : %[1]s
`, array, scalar, strings.Join(group, ", "), n)
	case Slow:
		// An even number of negations: nothing folds it away before it runs.
		body = fmt.Sprintf(`    %%i0 = stablehlo.constant dense<0> : tensor<i32>
    %%w:2 = stablehlo.while(%%i = %%i0, %%v = %%x) : tensor<i32>, %[1]s
    cond {
      %%end = stablehlo.constant dense<2000000> : tensor<i32>
      %%c = stablehlo.compare LT, %%i, %%end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %%c : tensor<i1>
    } do {
      %%d = stablehlo.constant dense<1> : tensor<i32>
      %%j = stablehlo.add %%i, %%d : tensor<i32>
      %%n = stablehlo.negate %%v : %[1]s
      stablehlo.return %%j, %%n : tensor<i32>, %[1]s
    }
    return %%w#1 : %[1]s
`, array)
	default:
		panic("devicetest: StableHLO has no program " + p.String())
	}
	return device.Program{Format: "mlir", Code: fmt.Appendf(nil,
		"module @%s attributes {mhlo.num_replicas = %d : i32, mhlo.num_partitions = 1 : i32} {\n"+
			"  func.func public @main(%s) -> %s {\n%s  }\n}\n", p, n, params, results, body)}
}

// mlirType formats a shape as MLIR does, such as tensor<4x8xf32>.
func mlirType(s shape.Shape) string {
	var b strings.Builder
	b.WriteString("tensor<")
	for _, d := range s.Dims {
		fmt.Fprintf(&b, "%dx", d)
	}
	name := s.DType.String()
	if strings.HasPrefix(name, "s") {
		name = "i" + name[1:]
	}
	b.WriteString(name)
	b.WriteByte('>')
	return b.String()
}

// mlirOne formats the constant 1 of a type.
func mlirOne(t shape.DType) string {
	if t == shape.S32 {
		return "1"
	}
	return "1.0"
}
