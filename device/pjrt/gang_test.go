package pjrt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/compileoptions"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/spmd"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

// exchange carries the collectives of gangs whose devices are of several clients
// in this process: a plain left fold in group order.
type exchange struct {
	mu    sync.Mutex
	specs map[string]*spmd.Spec
	times map[visit]int
	meets map[meeting]*meet
	order map[visit][]int // sites by launch and rank, where it is not nil
}

type visit struct {
	launch     int32
	rank, site int
}

type meeting struct {
	launch            int32
	site, group, time int
}

type meet struct {
	calls   []*device.CollectiveCall
	arrived int
}

func newExchange() *exchange {
	return &exchange{specs: map[string]*spmd.Spec{}, times: map[visit]int{}, meets: map[meeting]*meet{}}
}

// serve has a client's devices take part as ranks.
func (x *exchange) serve(t testing.TB, c *Client, ranks ...int) {
	t.Helper()
	if err := c.ServeCollectives(func(call *device.CollectiveCall) { x.arrive(call, ranks[call.Local]) }); err != nil {
		t.Fatal(err)
	}
}

func (x *exchange) arrive(call *device.CollectiveCall, rank int) {
	x.mu.Lock()
	s := x.specs[call.Spec]
	if s == nil {
		var err error
		if s, err = spmd.ParseSpec(call.Spec); err != nil {
			x.mu.Unlock()
			call.Done(err)
			return
		}
		x.specs[call.Spec] = s
	}
	if s.Op == spmd.PartitionID || s.Op == spmd.ReplicaID {
		x.mu.Unlock()
		n := rank % s.Parts
		if s.Op == spmd.ReplicaID {
			n = rank / s.Parts
		}
		binary.NativeEndian.PutUint32(call.Results[0], uint32(n))
		call.Done(nil)
		return
	}
	group, place := s.GroupOf(rank)
	if s.Op == spmd.CollectivePermute {
		group, place = []int{0, 1, 2, 3}, rank
	}
	if group == nil {
		x.mu.Unlock()
		for _, r := range call.Results {
			clear(r)
		}
		call.Done(nil)
		return
	}
	v := visit{call.Launch, rank, s.Site}
	key := meeting{call.Launch, s.Site, group[0], x.times[v]}
	x.times[v]++
	if x.order != nil {
		by := visit{launch: call.Launch, rank: rank}
		x.order[by] = append(x.order[by], s.Site)
	}
	m := x.meets[key]
	if m == nil {
		m = &meet{calls: make([]*device.CollectiveCall, len(group))}
		x.meets[key] = m
	}
	m.calls[place] = call
	m.arrived++
	whole := m.arrived == len(group)
	if whole {
		delete(x.meets, key)
	}
	x.mu.Unlock()
	if !whole {
		return
	}
	err := carry(s, m.calls)
	for _, c := range m.calls {
		go c.Done(err)
	}
}

// carry does a collective of the members of one group, in group order.
func carry(s *spmd.Spec, calls []*device.CollectiveCall) error {
	for i := range s.Operands {
		ins, outs := make([][]byte, len(calls)), make([][]byte, len(calls))
		for j, c := range calls {
			ins[j] = c.Operands[i]
			outs[j] = c.Results[i]
		}
		switch s.Op {
		case spmd.AllReduce, spmd.ReduceScatter:
			sum := slices.Clone(ins[0])
			for _, in := range ins[1:] {
				if err := fold(s.DType, s.Reduction, sum, in); err != nil {
					return err
				}
			}
			for j, out := range outs {
				if s.Op == spmd.ReduceScatter {
					copyPart(out, sum, s.Results[i], s.Dim, 0, j*int(s.Results[i].Dims[s.Dim]), s.Operands[i])
				} else {
					copy(out, sum)
				}
			}
		case spmd.AllGather:
			for _, out := range outs {
				for j, in := range ins {
					copyInto(out, in, s.Results[i], s.Operands[i], s.Dim, j*int(s.Operands[i].Dims[s.Dim]))
				}
			}
		case spmd.AllToAll:
			if s.Dim < 0 {
				for j, out := range outs {
					copy(out, calls[i].Operands[j])
				}
				continue
			}
			part := s.Operands[i]
			part.Dims = slices.Clone(part.Dims)
			part.Dims[s.Dim] /= int64(len(calls))
			for j, out := range outs {
				for k, in := range ins {
					block := make([]byte, part.HostBytes())
					copyPart(block, in, part, s.Dim, 0, j*int(part.Dims[s.Dim]), s.Operands[i])
					copyInto(out, block, s.Results[i], part, s.Dim, k*int(part.Dims[s.Dim]))
				}
			}
		case spmd.CollectivePermute:
			for _, out := range outs {
				clear(out)
			}
			for _, p := range s.Pairs {
				copy(outs[p[1]], ins[p[0]])
			}
		case spmd.CollectiveBroadcast:
			for _, out := range outs {
				copy(out, ins[0])
			}
		default:
			return status.New(status.Unimplemented, "%s", s.Op)
		}
	}
	return nil
}

// rows gives how often, and how far apart, the bytes of one index of a dimension
// stand in an array.
func rows(s shape.Shape, dim int) (count, stride int) {
	count = 1
	for _, d := range s.Dims[:dim] {
		count *= int(d)
	}
	stride = int(s.HostBytes()) / max(count, 1)
	return count, stride
}

// copyInto puts a part into the whole at an offset along a dimension.
func copyInto(whole, part []byte, of, as shape.Shape, dim, at int) {
	count, stride := rows(of, dim)
	_, size := rows(as, dim)
	one := stride / int(of.Dims[dim])
	for i := range count {
		copy(whole[i*stride+at*one:], part[i*size:(i+1)*size])
	}
}

// copyPart takes a part out of the whole.
func copyPart(part, whole []byte, as shape.Shape, dim, _, at int, of shape.Shape) {
	count, stride := rows(of, dim)
	_, size := rows(as, dim)
	one := stride / int(of.Dims[dim])
	for i := range count {
		copy(part[i*size:(i+1)*size], whole[i*stride+at*one:])
	}
}

func fold(t shape.DType, r spmd.Reduction, to, from []byte) error {
	size := t.Bits() / 8
	for i := 0; i < len(to); i += size {
		a, b := to[i:i+size], from[i:i+size]
		switch t {
		case shape.F32:
			x, y := math.Float32frombits(binary.NativeEndian.Uint32(a)), math.Float32frombits(binary.NativeEndian.Uint32(b))
			binary.NativeEndian.PutUint32(a, math.Float32bits(combine(r, x, y)))
		case shape.F64:
			x, y := math.Float64frombits(binary.NativeEndian.Uint64(a)), math.Float64frombits(binary.NativeEndian.Uint64(b))
			binary.NativeEndian.PutUint64(a, math.Float64bits(combine(r, x, y)))
		case shape.C64:
			if err := fold(shape.F32, r, a, b); err != nil || r != spmd.Sum {
				return cmp.Or(err, status.New(status.Unimplemented, "%s of %s", r, t))
			}
		case shape.F16:
			x, y := halfToFloat(binary.NativeEndian.Uint16(a)), halfToFloat(binary.NativeEndian.Uint16(b))
			binary.NativeEndian.PutUint16(a, floatToHalf(combine(r, x, y)))
		case shape.S32:
			x, y := int32(binary.NativeEndian.Uint32(a)), int32(binary.NativeEndian.Uint32(b))
			binary.NativeEndian.PutUint32(a, uint32(combine(r, x, y)))
		case shape.U8:
			a[0] = combine(r, a[0], b[0])
		case shape.Pred:
			switch r {
			case spmd.And:
				a[0] &= b[0]
			case spmd.Or:
				a[0] |= b[0]
			case spmd.Xor:
				a[0] ^= b[0]
			}
		default:
			return status.New(status.Unimplemented, "%s of %s", r, t)
		}
	}
	return nil
}

// halfToFloat widens a normal number of f16 or zero.
func halfToFloat(h uint16) float32 {
	sign, rest := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	if rest == 0 {
		return math.Float32frombits(sign)
	}
	return math.Float32frombits(sign | rest<<13 + (127-15)<<23)
}

// floatToHalf rounds to the nearest f16, ties to even; the result is normal or
// zero.
func floatToHalf(f float32) uint16 {
	bits := math.Float32bits(f)
	sign, rest := uint16(bits>>16&0x8000), bits&0x7fffffff
	if rest == 0 {
		return sign
	}
	rest -= (127 - 15) << 23
	rest += 0xfff + rest>>13&1
	return sign | uint16(rest>>13)
}

func combine[T cmp.Ordered](r spmd.Reduction, a, b T) T {
	switch r {
	case spmd.Min:
		return min(a, b)
	case spmd.Max:
		return max(a, b)
	}
	return arithmetic(r, any(a), any(b)).(T)
}

func arithmetic(r spmd.Reduction, a, b any) any {
	switch a := a.(type) {
	case float32:
		return apply(r, a, b.(float32))
	case float64:
		return apply(r, a, b.(float64))
	case int32:
		return apply(r, a, b.(int32))
	case uint8:
		return apply(r, a, b.(uint8))
	}
	panic("no arithmetic")
}

func apply[T float32 | float64 | int32 | uint8](r spmd.Reduction, a, b T) T {
	if r == spmd.Product {
		return a * b
	}
	return a + b
}

// program is a program for 4 devices that each run its body by themselves: %x is
// one shard of the argument, %y one of the result, both split along their first
// dimension by partitions.
type program struct {
	name                 string
	replicas, partitions int
	in, out              string // of one shard: "4x2xf32"
	body                 string
	specs                []string // of the collectives, after their sites
}

func (p program) source() device.Program {
	whole := func(shard string) string {
		first, rest, _ := strings.Cut(shard, "x")
		var n int
		fmt.Sscan(first, &n)
		return fmt.Sprintf("%dx%s", n*p.partitions, rest)
	}
	rank := func(shard string) string {
		return strings.Repeat(",1", strings.Count(strings.Replace(shard, "complex", "", 1), "x")-1)
	}
	return mlir(fmt.Sprintf("%s attributes {mhlo.num_replicas = %d : i32, mhlo.num_partitions = %d : i32}", p.name, p.replicas, p.partitions),
		strings.NewReplacer("IN", "tensor<"+whole(p.in)+">", "OUT", "tensor<"+whole(p.out)+">", "SHARD", "tensor<"+p.in+">",
			"RESULT", "tensor<"+p.out+">", "SPLITIN", fmt.Sprintf(`mhlo.sharding = "{devices=[%d%s]<=[%d]}"`, p.partitions, rank(p.in), p.partitions),
			"SPLITOUT", fmt.Sprintf(`mhlo.sharding = "{devices=[%d%s]<=[%d]}"`, p.partitions, rank(p.out), p.partitions), "BODY", p.body).Replace(`
  func.func public @main(%arg: IN {SPLITIN}) -> (OUT {SPLITOUT}) {
    %0 = stablehlo.custom_call @Sharding(%arg) {SPLITIN} : (IN) -> IN
    %x = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (IN) -> SHARD
    BODY
    %1 = stablehlo.custom_call @Sharding(%y) {mhlo.sharding = "{manual}"} : (RESULT) -> RESULT
    %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {SPLITOUT} : (RESULT) -> OUT
    return %2 : OUT
  }`))
}

func (p program) options() []byte {
	return compileoptions.New(p.replicas, p.partitions, []int{0, 1, 2, 3}, false)
}

const (
	channel = `channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>`
	all     = `replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>`
	global  = channel + `, use_global_device_ids`
)

// reduce is a collective that folds by an operation.
func reduce(to, op, from, operation, element, attributes, in, out string) string {
	return fmt.Sprintf(`%[1]s = "stablehlo.%[2]s"(%[3]s) ({
      ^bb0(%%a: tensor<%[5]s>, %%b: tensor<%[5]s>):
        %%s = stablehlo.%[4]s %%a, %%b : tensor<%[5]s>
        stablehlo.return %%s : tensor<%[5]s>
    }) {%[6]s} : (tensor<%[7]s>) -> tensor<%[8]s>
    `, to, op, from, operation, element, attributes, in, out)
}

func psum(attributes string) string {
	return reduce("%y", "all_reduce", "%x", "add", "f32", attributes, "4xf32", "4xf32")
}

// programs have every collective, in every form of groups.
var programs = []program{
	{"all_reduce", 1, 4, "4xf32", "4xf32", psum(all + ", " + global), []string{
		"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_reduce_order", 1, 4, "4xf32", "4xf32", psum(`replica_groups = dense<[[3, 1, 0, 2]]> : tensor<1x4xi64>, ` + global), []string{
		"all-reduce groups=3,1,0,2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_reduce_pairs", 1, 4, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 2], [3, 1]]> : tensor<2x2xi64>, ` + global), []string{
		"all-reduce groups=0,2/3,1 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_reduce_replicas", 4, 1, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`), []string{
		"all-reduce groups=0:2/2:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"cross_replica", 2, 2, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>`), []string{
		"all-reduce groups=0,2/1,3 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"cross_replica_and_partition", 2, 2, "4xf32", "4xf32", psum(`replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>, ` + channel), []string{
		"all-reduce groups=2:2,0:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"flattened", 2, 2, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>, ` + global), []string{
		"all-reduce groups=0,3/1:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_gather", 1, 4, "2x3xf32", "2x12xf32", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 1 : i64, ` + all + ", " + global +
		`} : (tensor<2x3xf32>) -> tensor<2x12xf32>`, []string{
		"all-gather groups=0:4 in=f32[3,2] out=f32[12,2]"}},
	{"all_gather_first", 1, 4, "2x3xf32", "8x3xf32", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, ` + all + ", " + global +
		`} : (tensor<2x3xf32>) -> tensor<8x3xf32>`, []string{
		"all-gather groups=0:4 in=f32[2,3] out=f32[8,3]"}},
	{"reduce_scatter", 1, 4, "3x8xf32", "3x2xf32", reduce("%y", "reduce_scatter", "%x", "add", "f32",
		"scatter_dimension = 1 : i64, "+all+", "+global, "3x8xf32", "3x2xf32"), []string{
		"reduce-scatter groups=0:4 reduction=sum type=f32 in=f32[8,3] out=f32[2,3]"}},
	{"all_to_all", 1, 4, "3x8xf32", "12x2xf32", `%y = "stablehlo.all_to_all"(%x) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, ` +
		all + ", " + channel + `} : (tensor<3x8xf32>) -> tensor<12x2xf32>`, []string{
		"all-to-all groups=0:4 dim=-1 in=f32[3,2]/f32[3,2]/f32[3,2]/f32[3,2] out=f32[3,2]/f32[3,2]/f32[3,2]/f32[3,2]"}},
	{"collective_permute", 1, 4, "4xf32", "4xf32", `%y = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 2], [3, 0]]> : tensor<3x2xi64>, ` +
		channel + `} : (tensor<4xf32>) -> tensor<4xf32>`, []string{
		"collective-permute pairs=0>1:2,3>0 in=f32[4] out=f32[4]"}},
	{"collective_permute_replicas", 2, 2, "4xf32", "4xf32", `%y = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>`, []string{
		"collective-permute pairs=0>2:2,2>0:2 in=f32[4] out=f32[4]"}},
	{"partition_id", 2, 2, "4xui32", "4xui32", `%p = stablehlo.partition_id : tensor<ui32>
    %r = stablehlo.replica_id : tensor<ui32>
    %t = stablehlo.constant dense<10> : tensor<ui32>
    %rt = stablehlo.multiply %r, %t : tensor<ui32>
    %s = stablehlo.add %p, %rt : tensor<ui32>
    %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<ui32>) -> tensor<4xui32>
    %y = stablehlo.add %x, %b : tensor<4xui32>`, []string{}},
	{"maximum", 1, 4, "4xi32", "4xi32", reduce("%y", "all_reduce", "%x", "maximum", "i32", all+", "+global, "4xi32", "4xi32"), []string{
		"all-reduce groups=0:4 reduction=max type=s32 in=s32[4] out=s32[4]"}},
	{"minimum", 1, 4, "4xf64", "4xf64", reduce("%y", "all_reduce", "%x", "minimum", "f64", all+", "+global, "4xf64", "4xf64"), []string{
		"all-reduce groups=0:4 reduction=min type=f64 in=f64[4] out=f64[4]"}},
	{"multiply", 1, 4, "4xui8", "4xui8", reduce("%y", "all_reduce", "%x", "multiply", "ui8", all+", "+global, "4xui8", "4xui8"), []string{
		"all-reduce groups=0:4 reduction=product type=u8 in=u8[4] out=u8[4]"}},
	{"or", 1, 4, "4xi1", "4xi1", reduce("%y", "all_reduce", "%x", "or", "i1", all+", "+global, "4xi1", "4xi1"), []string{
		"all-reduce groups=0:4 reduction=or type=pred in=pred[4] out=pred[4]"}},
	{"and", 1, 4, "4xi1", "4xi1", reduce("%y", "all_reduce", "%x", "and", "i1", all+", "+global, "4xi1", "4xi1"), []string{
		"all-reduce groups=0:4 reduction=and type=pred in=pred[4] out=pred[4]"}},
	{"complex", 1, 4, "4xcomplex<f32>", "4xcomplex<f32>", reduce("%y", "all_reduce", "%x", "add", "complex<f32>", all+", "+global, "4xcomplex<f32>", "4xcomplex<f32>"), []string{
		"all-reduce groups=0:4 reduction=sum type=c64 in=c64[4] out=c64[4]"}},
	{"bf16", 1, 4, "4xbf16", "4xbf16", reduce("%y", "all_reduce", "%x", "add", "bf16", all+", "+global, "4xbf16", "4xbf16"), []string{
		"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"f16", 1, 4, "4xf16", "4xf16", reduce("%y", "all_reduce", "%x", "add", "f16", all+", "+global, "4xf16", "4xf16"), []string{
		"all-reduce groups=0:4 reduction=sum type=f16 in=f16[4] out=f16[4]"}},
	{"narrow", 1, 4, "2x3xi4", "8x3xi4", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, ` + all + ", " + global +
		`} : (tensor<2x3xi4>) -> tensor<8x3xi4>`, []string{
		"all-gather groups=0:4 in=s8[2,3] out=s8[8,3]"}},
	{"variadic", 1, 4, "4xf32", "4xf32", `%e = stablehlo.exponential %x : tensor<4xf32>
    ` + reduce("%u", "all_reduce", "%x", "add", "f32", all+", "+global, "4xf32", "4xf32") +
		reduce("%v", "all_reduce", "%e", "add", "f32", all+", "+global, "4xf32", "4xf32") + `
    %y = stablehlo.multiply %u, %v : tensor<4xf32>`, []string{
		"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4]/f32[4] out=f32[4]/f32[4]"}},
	{"loop", 1, 4, "4xf32", "4xf32", `%n = stablehlo.constant dense<0> : tensor<i32>
    %r:2 = stablehlo.while(%i = %n, %z = %x) : tensor<i32>, tensor<4xf32>
      cond {
        %c = stablehlo.constant dense<5> : tensor<i32>
        %lt = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %lt : tensor<i1>
      } do {
        ` + reduce("%w", "all_reduce", "%z", "add", "f32", all+", "+global, "4xf32", "4xf32") + `
        %q = stablehlo.constant dense<0.3> : tensor<4xf32>
        %d = stablehlo.multiply %w, %q : tensor<4xf32>
        %sh = "stablehlo.collective_permute"(%d) {source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>, ` + channel + `} : (tensor<4xf32>) -> tensor<4xf32>
        %k = stablehlo.add %sh, %x : tensor<4xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j, %k : tensor<i32>, tensor<4xf32>
      }
    %y = stablehlo.add %r#1, %x : tensor<4xf32>`, []string{
		"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4] out=f32[4]", "collective-permute pairs=0>1:3,3>0 in=f32[4] out=f32[4]"}},
}

// gang runs a program for 4 devices on 2 clients, each device by itself.
type gang struct {
	clients     [2]*Client
	executables [2]device.Executable
	exchange    *exchange
	launch      int32
}

// makeGang partitions a program on one client, and compiles what each device
// runs.
func makeGang(t testing.TB, p *Plugin, source device.Program, options []byte) (*gang, *spmd.Program) {
	t.Helper()
	g := &gang{exchange: newExchange()}
	for i := range g.clients {
		g.clients[i] = client(t, p, 2)
		g.exchange.serve(t, g.clients[i], 2*i, 2*i+1)
	}
	module, err := g.clients[0].Partition(t.Context(), source, options, 4)
	if err != nil {
		t.Fatal(err)
	}
	program, err := spmd.Rewrite(module)
	if err != nil {
		t.Fatal(err)
	}
	one, err := program.OneDevice(options)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range g.clients {
		g.executables[i] = compile(t, c, device.Program{Format: "hlo", Code: program.Module}, one)
	}
	return g, program
}

// run gives the bytes of all results, by rank.
func (g *gang) run(t testing.TB, inputs [][]device.Host) (out [4][][]byte) {
	t.Helper()
	g.launch++
	var wait sync.WaitGroup
	for rank := range 4 {
		c, x, local := g.clients[rank/2], g.executables[rank/2], rank%2
		var row []device.Buffer
		for _, h := range inputs[rank] {
			h.Device = local
			row = append(row, put(t, c, h))
		}
		wait.Go(func() {
			r, err := x.Execute(device.Run{LaunchID: g.launch, Inputs: [][]device.Buffer{row}, Only: local})
			if err == nil {
				err = r.Done[0].Wait(t.Context())
			}
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			for _, b := range r.Outputs[0] {
				out[rank] = append(out[rank], get(t, b))
				b.Close()
			}
		})
	}
	wait.Wait()
	return out
}

// inputs makes rows of arguments for 4 ranks that no two rounds have in common.
func gangInputs(shapes []shape.Shape, seed uint64) [][]device.Host {
	random := rand.New(rand.NewPCG(seed, 1))
	rows := make([][]device.Host, 4)
	for r := range rows {
		for _, s := range shapes {
			data := make([]byte, s.HostBytes())
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			size := max(1, s.DType.Bits()/8)
			for i := 0; i < len(data); i += size {
				v := random.Float64()*2 - 1
				switch s.DType {
				case shape.Pred:
					data[i] &= 1
				case shape.S4:
					data[i] &= 7
				case shape.F64:
					binary.NativeEndian.PutUint64(data[i:], math.Float64bits(v))
				case shape.F32, shape.C64:
					for j := i; j < i+size; j += 4 {
						binary.NativeEndian.PutUint32(data[j:], math.Float32bits(float32(random.Float64()-0.5)))
					}
				case shape.BF16:
					binary.NativeEndian.PutUint16(data[i:], uint16(math.Float32bits(float32(v))>>16))
				case shape.F16:
					binary.NativeEndian.PutUint16(data[i:], uint16(random.Uint32())&0xbbff|0x2000)
				}
			}
			rows[r] = append(rows[r], device.Host{Shape: s, Data: data})
		}
	}
	return rows
}

// compare runs a gang and the plugin's own executable for 4 devices with the same
// inputs.
func (g *gang) compare(t *testing.T, x *Executable, native *Client, rounds int) {
	t.Helper()
	shapes, _, known := x.Parameters()
	if !known {
		t.Fatal("no parameters")
	}
	for round := range rounds {
		inputs, rows := gangInputs(shapes, uint64(round)), make([][]device.Buffer, 4)
		for r, row := range inputs {
			for _, h := range row {
				h.Device = x.Devices()[r]
				rows[r] = append(rows[r], put(t, native, h))
			}
		}
		want := run(t, x, rows...)
		got := g.run(t, inputs)
		for r := range 4 {
			if len(got[r]) != len(want.Outputs[r]) {
				t.Fatalf("rank %d: %d results, want %d", r, len(got[r]), len(want.Outputs[r]))
			}
			for i, b := range want.Outputs[r] {
				if w := get(t, b); !bytes.Equal(got[r][i], w) {
					t.Fatalf("round %d, rank %d, result %d:\ngot  %v\nwant %v", round, r, i, got[r][i], w)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}

func TestCollectives(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		for _, one := range programs {
			t.Run(one.name, func(t *testing.T) {
				g, program := makeGang(t, p, one.source(), one.options())
				var specs []string
				for i := range program.Collectives {
					text := program.Collectives[i].String()
					specs = append(specs, strings.Replace(text, fmt.Sprintf(" site=%d", i), "", 1))
				}
				if !slices.Equal(specs, one.specs) {
					t.Errorf("got %q, want %q", specs, one.specs)
				}
				native := client(t, p, 4)
				g.compare(t, compile(t, native, one.source(), one.options()), native, 3)
			})
		}
	})
}

// everything has each kind of collective, products of matrices that the
// partitioner splits, a loop and a branch. Its first argument is donated.
func everything() (source device.Program, options []byte) {
	collectives := `%g = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, ` + all + ", " + global + `} : (tensor<2x16xf32>) -> tensor<8x16xf32>
        ` + reduce("%r", "all_reduce", "%g", "add", "f32", all+", "+global, "8x16xf32", "8x16xf32") +
		reduce("%sc", "reduce_scatter", "%r", "add", "f32", "scatter_dimension = 0 : i64, "+all+", "+global, "8x16xf32", "2x16xf32") + `
        %tt = "stablehlo.all_to_all"(%sc) {split_dimension = 1 : i64, concat_dimension = 1 : i64, split_count = 4 : i64, ` + all + ", " + channel + `} : (tensor<2x16xf32>) -> tensor<2x16xf32>
        %y = "stablehlo.collective_permute"(%tt) {source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>, ` + channel + `} : (tensor<2x16xf32>) -> tensor<2x16xf32>`
	const split = `mhlo.sharding = "{devices=[4,1]<=[4]}"`
	return mlir("everything attributes {mhlo.num_replicas = 1 : i32, mhlo.num_partitions = 4 : i32}", strings.NewReplacer("SPLIT", split, "COLLECTIVES", collectives).Replace(`
  func.func public @main(%in: tensor<8x16xf32> {SPLIT, tf.aliasing_output = 0 : i32}, %m: tensor<16x16xf32> {SPLIT})
      -> (tensor<8x16xf32> {SPLIT}, tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %p = stablehlo.dot_general %in, %m, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %n = stablehlo.constant dense<0> : tensor<i32>
    %w:2 = stablehlo.while(%i = %n, %z = %p) : tensor<i32>, tensor<8x16xf32>
      cond {
        %c = stablehlo.constant dense<3> : tensor<i32>
        %lt = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %lt : tensor<i1>
      } do {
        %0 = stablehlo.custom_call @Sharding(%z) {SPLIT} : (tensor<8x16xf32>) -> tensor<8x16xf32>
        %x = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x16xf32>) -> tensor<2x16xf32>
        COLLECTIVES
        %1 = stablehlo.custom_call @Sharding(%y) {mhlo.sharding = "{manual}"} : (tensor<2x16xf32>) -> tensor<2x16xf32>
        %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {SPLIT} : (tensor<2x16xf32>) -> tensor<8x16xf32>
        %d = stablehlo.dot_general %2, %m, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
        %q = stablehlo.constant dense<0.01> : tensor<8x16xf32>
        %h = stablehlo.multiply %d, %q : tensor<8x16xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j, %h : tensor<i32>, tensor<8x16xf32>
      }
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %l = stablehlo.reduce(%w#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %pos = stablehlo.compare GT, %l, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %br = "stablehlo.if"(%pos) ({
        %t = stablehlo.dot_general %w#1, %m, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
        stablehlo.return %t : tensor<8x16xf32>
      }, {
        stablehlo.return %in : tensor<8x16xf32>
      }) : (tensor<i1>) -> tensor<8x16xf32>
    return %br, %l : tensor<8x16xf32>, tensor<f32>
  }`)), compileoptions.New(1, 4, []int{0, 1, 2, 3}, false)
}

func TestGang(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		source, options := everything()
		g, program := makeGang(t, p, source, options)
		has := map[spmd.Op]bool{}
		for _, s := range program.Collectives {
			has[s.Op] = true
		}
		for _, op := range []spmd.Op{spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll, spmd.CollectivePermute} {
			if !has[op] {
				t.Errorf("the program has no %s", op)
			}
		}
		if _, donated, _ := g.executables[0].Parameters(); !slices.Equal(donated, []int{0}) {
			t.Errorf("donated %v, want [0]", donated)
		}
		native := client(t, p, 4)
		x := compile(t, native, source, options)
		g.compare(t, x, native, 50)

		// What was compiled for one device serves another client.
		serialized, err := g.executables[0].Serialize()
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range g.clients {
			loaded, err := c.Load(t.Context(), serialized)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(loaded.Close)
			g.executables[i] = loaded
		}
		g.compare(t, x, native, 3)
	})
}

// TestGangOrder checks that devices come to collectives that do not need each
// other in one order.
func TestGangOrder(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		var body strings.Builder
		sum := "%x"
		for i := range 12 {
			// Different amounts of work before each, and results that meet at the end.
			fmt.Fprintf(&body, "%%e%d = stablehlo.exponential %%x : tensor<4xf32>\n", i)
			pairs := fmt.Sprintf("dense<[[0, %d], [%d, 0]]> : tensor<2x2xi64>", i%3+1, i%3+1)
			fmt.Fprintf(&body, "%%c%d = \"stablehlo.collective_permute\"(%%e%d) {source_target_pairs = %s, %s} : (tensor<4xf32>) -> tensor<4xf32>\n", i, i, pairs, channel)
			fmt.Fprintf(&body, "%%s%d = stablehlo.add %s, %%c%d : tensor<4xf32>\n", i, sum, i)
			sum = fmt.Sprintf("%%s%d", i)
		}
		fmt.Fprintf(&body, "%%y = stablehlo.add %s, %s : tensor<4xf32>", sum, sum)
		one := program{name: "order", replicas: 1, partitions: 4, in: "4xf32", out: "4xf32", body: body.String()}
		g, program := makeGang(t, p, one.source(), one.options())
		g.exchange.order = map[visit][]int{}
		want := make([]int, len(program.Collectives))
		for i := range want {
			want[i] = i
		}
		for round := range 20 {
			g.run(t, gangInputs([]shape.Shape{f32(4)}, uint64(round)))
		}
		for v, sites := range g.exchange.order {
			if !slices.Equal(sites, want) {
				t.Fatalf("launch %d, rank %d: sites %v, want %v", v.launch, v.rank, sites, want)
			}
		}
		if len(g.exchange.order) != 80 {
			t.Errorf("%d visits, want 80", len(g.exchange.order))
		}
	})
}

// TestLayouts checks that arguments and results of an unusual layout stay so.
func TestLayouts(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		source := mlir("layouts attributes {mhlo.num_replicas = 1 : i32, mhlo.num_partitions = 4 : i32}", `
  func.func public @main(%a: tensor<8x6xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}", mhlo.layout_mode = "{0,1}"})
      -> (tensor<8x6xf32> {mhlo.sharding = "{replicated}", mhlo.layout_mode = "{0,1}"}) {
    %e = stablehlo.exponential %a : tensor<8x6xf32>
    return %e : tensor<8x6xf32>
  }`)
		g, _ := makeGang(t, p, source, compileoptions.New(1, 4, []int{0, 1, 2, 3}, false))
		native := client(t, p, 4)
		g.compare(t, compile(t, native, source, compileoptions.New(1, 4, []int{0, 1, 2, 3}, false)), native, 3)
	})
}

// TestCollectiveFails checks that an error of one collective is that of the runs
// of its devices, and harms no later one.
func TestCollectiveFails(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		for _, late := range []bool{false, true} {
			c := client(t, p, 1)
			fail := true
			if err := c.ServeCollectives(func(call *device.CollectiveCall) {
				err := status.New(status.Unavailable, "worker 3 is gone")
				if !fail {
					copy(call.Results[0], call.Operands[0])
					err = nil
				}
				end := func() {
					call.Done(err)
					call.Done(nil) // has no effect
				}
				if late {
					go end()
				} else {
					end()
				}
			}); err != nil {
				t.Fatal(err)
			}
			refused(t, c.ServeCollectives(func(*device.CollectiveCall) {}), status.FailedPrecondition, "served already")
			one := programs[0]
			module, err := c.Partition(t.Context(), one.source(), one.options(), 4)
			if err != nil {
				t.Fatal(err)
			}
			program, err := spmd.Rewrite(module)
			if err != nil {
				t.Fatal(err)
			}
			options, err := program.OneDevice(one.options())
			if err != nil {
				t.Fatal(err)
			}
			x := compile(t, c, device.Program{Format: "hlo", Code: program.Module}, options)
			b := put(t, c, device.Host{Shape: f32(4), Data: floats(1, 2, 3, 4)})
			r, err := x.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: 0})
			if err == nil {
				t.Cleanup(r.Outputs[0][0].Close)
				err = r.Outputs[0][0].Ready().Wait(t.Context())
			}
			refused(t, err, status.Unavailable, "worker 3 is gone")
			fail = false
			if got := get(t, run(t, x, []device.Buffer{b}).Outputs[0][0]); !bytes.Equal(got, floats(1, 2, 3, 4)) {
				t.Errorf("got %v", got)
			}
		}
	})
}

// TestNotServed checks what a program gets whose client carries no collectives.
func TestNotServed(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		_, program := makeGang(t, p, programs[0].source(), programs[0].options())
		other := client(t, p, 1)
		options, err := program.OneDevice(nil)
		if err != nil {
			t.Fatal(err)
		}
		x := compile(t, other, device.Program{Format: "hlo", Code: program.Module}, options)
		in, err := other.NewContext()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		b := put(t, other, device.Host{Shape: f32(4), Data: floats(1, 2, 3, 4)})
		for _, in := range []*ExecuteContext{nil, in} {
			r, err := x.ExecuteIn(device.Run{Inputs: [][]device.Buffer{{b}}, Only: 0}, in)
			if err == nil {
				t.Cleanup(r.Outputs[0][0].Close)
				err = r.Done[0].Wait(t.Context())
			}
			refused(t, err, status.FailedPrecondition, "names no client")
		}
	})
}

func TestPartitionRefused(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		one := programs[0]
		_, err := c.Partition(t.Context(), one.source(), one.options(), 0)
		refused(t, err, status.InvalidArgument, "0 devices")
		_, err = c.Partition(t.Context(), device.Program{Format: "mlir", Code: []byte("module {")}, one.options(), 4)
		refused(t, err, status.InvalidArgument)
		reducer := program{"mean", 1, 4, "4xf32", "4xf32", strings.Replace(psum(all+", "+global), "stablehlo.add", "stablehlo.subtract", 1), nil}
		if module, err := c.Partition(t.Context(), reducer.source(), reducer.options(), 4); err == nil {
			_, err = spmd.Rewrite(module)
			refused(t, err, status.Unimplemented, "all-reduce", "subtract")
		} else {
			refused(t, err, status.Unimplemented)
		}
		// What the plugin's compiler has no code for cannot be partitioned by it.
		broadcast := program{"broadcast", 1, 4, "4xf32", "4xf32", `%y = "stablehlo.collective_broadcast"(%x) {replica_groups = dense<[[2, 0, 1]]> : tensor<1x3xi64>, ` +
			channel + `} : (tensor<4xf32>) -> tensor<4xf32>`, nil}
		_, err = c.Partition(t.Context(), broadcast.source(), broadcast.options(), 4)
		refused(t, err, status.Unimplemented, "collective-broadcast")
		for n := range 4 { // more sizes than are kept
			one.partitions = n + 1
			source := devicetest.StableHLO(devicetest.AddOne, f32(4), n+1)
			devices := []int{0, 1, 2, 3}[:n+1]
			if _, err := c.Partition(t.Context(), source, compileoptions.New(n+1, 1, devices, false), n+1); err != nil {
				t.Error(err)
			}
		}
	})
}
