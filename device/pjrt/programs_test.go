package pjrt

import (
	"fmt"
	"strings"

	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
)

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
	return mlir(fmt.Sprintf("%s attributes {mhlo.num_replicas = %d : i32, mhlo.num_partitions = %d : i32}", p.name,
		p.replicas, p.partitions),
		strings.NewReplacer("IN", "tensor<"+whole(p.in)+">", "OUT", "tensor<"+whole(p.out)+">", "SHARD", "tensor<"+p.in+">",
			"RESULT", "tensor<"+p.out+">", "SPLITIN",
			fmt.Sprintf(`mhlo.sharding = "{devices=[%d%s]<=[%d]}"`, p.partitions, rank(p.in), p.partitions),
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
	{"all_reduce_order", 1, 4, "4xf32", "4xf32",
		psum(`replica_groups = dense<[[3, 1, 0, 2]]> : tensor<1x4xi64>, ` + global), []string{
			"all-reduce groups=3,1,0,2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_reduce_pairs", 1, 4, "4xf32", "4xf32",
		psum(`replica_groups = dense<[[0, 2], [3, 1]]> : tensor<2x2xi64>, ` + global), []string{
			"all-reduce groups=0,2/3,1 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_reduce_replicas", 4, 1, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`),
		[]string{
			"all-reduce groups=0:2/2:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"cross_replica", 2, 2, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>`), []string{
		"all-reduce groups=0,2/1,3 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"cross_replica_and_partition", 2, 2, "4xf32", "4xf32",
		psum(`replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>, ` + channel), []string{
			"all-reduce groups=2:2,0:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"flattened", 2, 2, "4xf32", "4xf32", psum(`replica_groups = dense<[[0, 3], [1, 2]]> : tensor<2x2xi64>, ` + global),
		[]string{
			"all-reduce groups=0,3/1:2 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"all_gather", 1, 4, "2x3xf32", "2x12xf32", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 1 : i64, ` + all +
		", " + global +
		`} : (tensor<2x3xf32>) -> tensor<2x12xf32>`, []string{
		"all-gather groups=0:4 in=f32[3,2] out=f32[12,2]"}},
	{"all_gather_first", 1, 4, "2x3xf32", "8x3xf32", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, ` + all +
		", " + global +
		`} : (tensor<2x3xf32>) -> tensor<8x3xf32>`, []string{
		"all-gather groups=0:4 in=f32[2,3] out=f32[8,3]"}},
	{"reduce_scatter", 1, 4, "3x8xf32", "3x2xf32", reduce("%y", "reduce_scatter", "%x", "add", "f32",
		"scatter_dimension = 1 : i64, "+all+", "+global, "3x8xf32", "3x2xf32"), []string{
		"reduce-scatter groups=0:4 reduction=sum type=f32 in=f32[8,3] out=f32[2,3]"}},
	{"all_to_all", 1, 4, "3x8xf32", "12x2xf32",
		`%y = "stablehlo.all_to_all"(%x) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, ` +
			all + ", " + channel + `} : (tensor<3x8xf32>) -> tensor<12x2xf32>`, []string{
			"all-to-all groups=0:4 dim=-1 in=f32[3,2]/f32[3,2]/f32[3,2]/f32[3,2] out=f32[3,2]/f32[3,2]/f32[3,2]/f32[3,2]"}},
	{"collective_permute", 1, 4, "4xf32", "4xf32",
		`%y = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 2], [3, 0]]> : tensor<3x2xi64>, ` +
			channel + `} : (tensor<4xf32>) -> tensor<4xf32>`, []string{
			"collective-permute pairs=0>1:2,3>0 in=f32[4] out=f32[4]"}},
	{"collective_permute_replicas", 2, 2, "4xf32", "4xf32",
		`%y = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>`, []string{
			"collective-permute pairs=0>2:2,2>0:2 in=f32[4] out=f32[4]"}},
	{"partition_id", 2, 2, "4xui32", "4xui32", `%p = stablehlo.partition_id : tensor<ui32>
    %r = stablehlo.replica_id : tensor<ui32>
    %t = stablehlo.constant dense<10> : tensor<ui32>
    %rt = stablehlo.multiply %r, %t : tensor<ui32>
    %s = stablehlo.add %p, %rt : tensor<ui32>
    %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<ui32>) -> tensor<4xui32>
    %y = stablehlo.add %x, %b : tensor<4xui32>`, []string{}},
	{"maximum", 1, 4, "4xi32", "4xi32",
		reduce("%y", "all_reduce", "%x", "maximum", "i32", all+", "+global, "4xi32", "4xi32"), []string{
			"all-reduce groups=0:4 reduction=max type=s32 in=s32[4] out=s32[4]"}},
	{"minimum", 1, 4, "4xf64", "4xf64",
		reduce("%y", "all_reduce", "%x", "minimum", "f64", all+", "+global, "4xf64", "4xf64"), []string{
			"all-reduce groups=0:4 reduction=min type=f64 in=f64[4] out=f64[4]"}},
	{"multiply", 1, 4, "4xui8", "4xui8",
		reduce("%y", "all_reduce", "%x", "multiply", "ui8", all+", "+global, "4xui8", "4xui8"), []string{
			"all-reduce groups=0:4 reduction=product type=u8 in=u8[4] out=u8[4]"}},
	{"or", 1, 4, "4xi1", "4xi1", reduce("%y", "all_reduce", "%x", "or", "i1", all+", "+global, "4xi1", "4xi1"), []string{
		"all-reduce groups=0:4 reduction=or type=pred in=pred[4] out=pred[4]"}},
	{"and", 1, 4, "4xi1", "4xi1", reduce("%y", "all_reduce", "%x", "and", "i1", all+", "+global, "4xi1", "4xi1"), []string{
		"all-reduce groups=0:4 reduction=and type=pred in=pred[4] out=pred[4]"}},
	{"complex", 1, 4, "4xcomplex<f32>", "4xcomplex<f32>",
		reduce("%y", "all_reduce", "%x", "add", "complex<f32>", all+", "+global, "4xcomplex<f32>", "4xcomplex<f32>"),
		[]string{
			"all-reduce groups=0:4 reduction=sum type=c64 in=c64[4] out=c64[4]"}},
	{"bf16", 1, 4, "4xbf16", "4xbf16",
		reduce("%y", "all_reduce", "%x", "add", "bf16", all+", "+global, "4xbf16", "4xbf16"), []string{
			"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4] out=f32[4]"}},
	{"f16", 1, 4, "4xf16", "4xf16", reduce("%y", "all_reduce", "%x", "add", "f16", all+", "+global, "4xf16", "4xf16"),
		[]string{
			"all-reduce groups=0:4 reduction=sum type=f16 in=f16[4] out=f16[4]"}},
	{"narrow", 1, 4, "2x3xi4", "8x3xi4", `%y = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, ` + all + ", " +
		global +
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
		"all-reduce groups=0:4 reduction=sum type=f32 in=f32[4] out=f32[4]",
		"collective-permute pairs=0>1:3,3>0 in=f32[4] out=f32[4]"}},
}
