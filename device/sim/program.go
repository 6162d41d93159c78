package sim

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
)

// Program is a computation for simulated devices. Its JSON is program format
// "sim", such as
//
//	{"name": "add_one",
//	 "params": [{"dtype": "f32", "dims": [4], "donated": true}],
//	 "results": [{"op": "add", "args": [0], "value": 1}],
//	 "cost_ns": 250000, "temp_bytes": 4096, "devices": 8}
//
// It describes the work of one device; every device does the same. The first result of
// the same size in the same memory that does not reuse another parameter's memory reuses
// that of a donated parameter.
type Program struct {
	Name    string   `json:"name"`
	Params  []Param  `json:"params,omitempty"`
	Results []Result `json:"results,omitempty"`
	// Devices is the number of devices that the program runs on, if the compile options
	// do not specify it; if they do, it is 0 or the same number. 0 means 1.
	Devices int `json:"devices,omitempty"`
	// Cost is the time for which the computation occupies a device; nil means
	// Options.Cost.
	Cost *time.Duration `json:"cost_ns,omitempty"`
	// Temp is the number of bytes of the default memory that it needs while it runs.
	Temp int64 `json:"temp_bytes,omitempty"`
	// Code is the number of bytes of the default memory that its code takes of each device,
	// from the first run there until the executable is closed.
	Code int64 `json:"code_bytes,omitempty"`
	// Gang makes the devices wait for each other even if no result is an all-reduce.
	Gang bool `json:"gang,omitempty"`
	// Fail, if not nil, is the error with which every run ends.
	Fail *Failure `json:"fail,omitempty"`
	// Calls are the collectives of a part that Separate.Partition made, in place of those of its results.
	Calls []Call `json:"calls,omitempty"`
}

// Param is one argument.
type Param struct {
	DType   string  `json:"dtype"`
	Dims    []int64 `json:"dims"`
	Donated bool    `json:"donated,omitempty"`
}

// Result is one result and its computation:
//
//	copy        the argument
//	add, mul    of two arguments, or of one argument and the value
//	all-reduce  the sum of the argument over all devices, in their order
//	fill        the value in every element of dtype and dims
//	zeros       an array of dtype and dims that only uses accounted memory
//
// Arithmetic is on s32, s64, u32, u64, f32 and f64; the shape is that of the
// first argument.
type Result struct {
	Op     string  `json:"op"`
	Args   []int   `json:"args,omitempty"`
	Value  float64 `json:"value,omitempty"`
	DType  string  `json:"dtype,omitempty"`
	Dims   []int64 `json:"dims,omitempty"`
	Memory string  `json:"memory,omitempty"` // "" means "device"
}

// Failure is an error by the name of its code, such as "INTERNAL".
type Failure struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// Source returns the program in the form for Driver.Compile.
func (p Program) Source() device.Program {
	code, err := json.Marshal(p)
	if err != nil {
		panic(err) // a value that is not a number
	}
	return device.Program{Format: Format, Code: code}
}

// Format is the program format of simulated devices.
const Format = "sim"

var dtypeByName = func() map[string]shape.DType {
	m := map[string]shape.DType{}
	for t := shape.Pred; t.String() != "invalid" && t.Bits() > 0 || t == shape.Token; t++ {
		if t != shape.Token {
			m[t.String()] = t
		}
	}
	return m
}()

func parseShape(dtype string, dims []int64) (shape.Shape, error) {
	t, ok := dtypeByName[dtype]
	s := shape.Shape{DType: t, Dims: dims}
	if !ok || s.Bytes() < 0 || s.HostBytes() < 0 {
		return s, status.New(status.InvalidArgument,
			"array of dtype %q and dims %v: want a type such as \"f32\" and dimensions that are not negative and fit in memory",
			dtype, dims)
	}
	return s, nil
}

// parsed is a program that was checked.
type parsed struct {
	Program
	params  []shape.Shape
	results []device.Output
	out     []int64 // bytes of each result
	alias   []int   // by result: the parameter whose memory it reuses, or -1
	inPlace []bool  // by result: whether nothing else reads that parameter
	fail    error
	gang    bool         // whether its devices wait for each other
	specs   []*spmd.Spec // of Calls
	cost    time.Duration
}

// parse parses and checks a program.
func parse(code []byte, cost time.Duration) (*parsed, error) {
	p := &parsed{cost: cost}
	dec := json.NewDecoder(bytes.NewReader(code))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p.Program); err != nil {
		return nil, status.New(status.InvalidArgument, "program of format %q: want JSON: %w", Format, err)
	}
	if dec.More() {
		return nil, status.New(status.InvalidArgument, "program %q: more than one JSON value", p.Name)
	}
	if err := p.check(); err != nil {
		return nil, status.Wrap(err, "program %q", p.Name)
	}
	p.findAliases()
	return p, nil
}

func (p *parsed) check() error {
	bad := func(format string, args ...any) error { return status.New(status.InvalidArgument, format, args...) }
	if p.Name == "" || p.Devices < 0 || p.Temp < 0 || p.Code < 0 || (p.Cost != nil && *p.Cost < 0) {
		return bad("want a name, and devices, cost_ns, temp_bytes and code_bytes that are not negative")
	}
	if p.Cost != nil {
		p.cost = *p.Cost
	}
	if p.Fail != nil {
		code := status.Cancelled
		for ; code <= status.Unauthenticated && code.String() != p.Fail.Code; code++ {
		}
		if code > status.Unauthenticated {
			return bad("fail: no error code is called %q", p.Fail.Code)
		}
		p.fail = status.New(code, "%s", p.Fail.Text)
	}
	for i, in := range p.Params {
		s, err := parseShape(in.DType, in.Dims)
		if err != nil {
			return status.Wrap(err, "parameter %d", i)
		}
		p.params = append(p.params, s)
	}
	p.gang = p.Gang
	for i, r := range p.Results {
		s, err := p.result(r)
		if err != nil {
			return status.Wrap(err, "result %d, %s", i, r.Op)
		}
		if r.Memory == "" {
			r.Memory = memoryKinds[0]
		}
		if !slices.Contains(memoryKinds, r.Memory) {
			return bad("result %d: no memory is called %s, want one of %q", i, status.Quote(r.Memory), memoryKinds)
		}
		p.results = append(p.results, device.Output{Shape: s, Memory: r.Memory})
		p.out = append(p.out, s.Bytes())
		p.gang = p.gang || r.Op == "all-reduce" && len(p.Calls) == 0
	}
	return p.checkCalls()
}

// result checks one result and returns its shape.
func (p *parsed) result(r Result) (shape.Shape, error) {
	bad := func(format string, args ...any) (shape.Shape, error) {
		return shape.Shape{}, status.New(status.InvalidArgument, format, args...)
	}
	for _, a := range r.Args {
		if a < 0 || a >= len(p.params) {
			return bad("there is no parameter %d, only %d of them", a, len(p.params))
		}
	}
	var least, most int
	switch r.Op {
	case "copy", "all-reduce":
		least, most = 1, 1
	case "add", "mul":
		least, most = 1, 2
	case "fill", "zeros":
	default:
		return bad("want copy, add, mul, all-reduce, fill or zeros")
	}
	if len(r.Args) < least || len(r.Args) > most {
		return bad("%d args, want %d to %d", len(r.Args), least, most)
	}
	s, err := parseShape(r.DType, r.Dims)
	if most > 0 {
		if s, err = p.params[r.Args[0]], nil; r.DType != "" || r.Dims != nil {
			return bad("dtype and dims are those of parameter %d", r.Args[0])
		}
	}
	if err != nil {
		return s, err
	}
	if _, ok := lanes[s.DType]; !ok && r.Op != "copy" && r.Op != "zeros" {
		return bad("no arithmetic on %s", s.DType)
	}
	if len(r.Args) == 2 && p.params[r.Args[1]].String() != s.String() {
		return bad("of %s and %s: want the same shapes", s, p.params[r.Args[1]])
	}
	if lane := lanes[s.DType]; lane.whole && r.Value != math.Trunc(r.Value) {
		return bad("the value %v is no %s", r.Value, s.DType)
	}
	return s, nil
}

// findAliases assigns donated parameters' memory to results.
func (p *parsed) findAliases() {
	taken := make([]bool, len(p.params))
	for i, out := range p.results {
		p.alias, p.inPlace = append(p.alias, -1), append(p.inPlace, false)
		for j, in := range p.params {
			if p.Params[j].Donated && !taken[j] && in.Bytes() == p.out[i] && out.Memory == memoryKinds[0] {
				p.alias[i], taken[j] = j, true
				p.inPlace[i] = in.HostBytes() == out.Shape.HostBytes() && p.Results[i].Op != "all-reduce" && !p.readElsewhere(j, i)
				break
			}
		}
	}
}

func (p *parsed) readElsewhere(param, result int) bool {
	for i, r := range p.Results {
		if i != result && slices.Contains(r.Args, param) {
			return true
		}
	}
	return false
}

// bytes returns the compiler's figures for the computation.
func (p *parsed) bytes() device.Cost {
	c := device.Cost{TempBytes: p.Temp, CodeBytes: p.Code}
	for _, s := range p.params {
		c.ArgumentBytes += s.Bytes()
	}
	for i, n := range p.out {
		c.OutputBytes += n
		if p.alias[i] >= 0 {
			c.AliasBytes += n
		}
	}
	return c
}
