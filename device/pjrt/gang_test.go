package pjrt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

// gang runs a program for 4 devices on 2 clients, each device by itself.
type gang struct {
	clients     [2]*Client
	executables [2]device.Executable
	exchange    *exchange
	launch      int32
	constants   []hlo.Literal // that each run takes behind its arguments
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
	module := statustest.Value(g.clients[0].partitioned(t.Context(), source, options, 4)).OK(t)
	t.Cleanup(module.Release)
	program := statustest.Value(spmd.Rewrite(module.Data)).OK(t)
	one := statustest.Value(program.OneDevice(options)).OK(t)
	g.constants = program.Constants
	for i, c := range g.clients {
		g.executables[i] = compile(t, c, device.Program{Format: "hlo", Code: program.Module, Partitioned: true}, one)
	}
	return g, program
}

// run returns the bytes of all results, by rank.
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
		for _, l := range g.constants {
			h := device.Host{Shape: l.Shape, Data: make([]byte, l.Shape.HostBytes()), Device: local}
			l.CopyTo(h.Data)
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
			statustest.MustEqual(t, len(got[r]), len(want.Outputs[r]), "rank %d: results", r)
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

func TestPartitionedProgramsHaveTheirCollectives(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		for _, one := range programs {
			t.Run(one.name, func(t *testing.T) {
				g, program := makeGang(t, p, one.source(), one.options())
				var specs []string
				for i := range program.Collectives {
					text := program.Collectives[i].String()
					specs = append(specs, strings.Replace(text, fmt.Sprintf(" site=%d", i), "", 1))
				}
				statustest.EqualSlices(t, specs, one.specs, "got")
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

func TestGangHasTheResultsOfOneNativeProgram(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		source, options := everything()
		g, program := makeGang(t, p, source, options)
		has := map[spmd.Op]bool{}
		for _, s := range program.Collectives {
			has[s.Op] = true
		}
		for _, op := range []spmd.Op{spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll,
			spmd.CollectivePermute} {
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
		serialized := statustest.Value(g.executables[0].Serialize()).OK(t)
		t.Cleanup(serialized.Release)
		for i, c := range g.clients {
			loaded := statustest.Value(c.Load(t.Context(), serialized.Data)).OK(t)
			t.Cleanup(loaded.Close)
			g.executables[i] = loaded
		}
		g.compare(t, x, native, 3)
	})
}

// Long constants are arguments of what each device runs. The results are those of the program that has them: where a
// constant is read twice, where it is a result, where a loop changes it, and where a loop only reads it.
func TestLongConstantsAreArguments(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		const n = 64 << 10
		var floats, ints strings.Builder
		for i := range uint32(n) {
			fmt.Fprintf(&floats, "%08X", bits.ReverseBytes32(math.Float32bits(float32(i%1000)/7-50)))
			fmt.Fprintf(&ints, "%08X", i*2654435761)
		}
		source := mlir("constants attributes {mhlo.num_replicas = 1 : i32, mhlo.num_partitions = 4 : i32}",
			strings.NewReplacer("FLOATS", floats.String(), "INTS", ints.String(),
				"SPLIT", `mhlo.sharding = "{devices=[4]<=[4]}"`, "ALL", `mhlo.sharding = "{replicated}"`).Replace(`
  func.func public @main(%x: tensor<65536xf32> {SPLIT, tf.aliasing_output = 0 : i32}) -> (tensor<65536xf32> {SPLIT},
      tensor<65536xf32> {ALL}, tensor<65536xi32> {SPLIT}, tensor<65536xf32> {ALL}, tensor<65536xf32> {SPLIT}) {
    %f = stablehlo.constant dense<"0xFLOATS"> : tensor<65536xf32>
    %i = stablehlo.constant dense<"0xINTS"> : tensor<65536xi32>
    %a = stablehlo.add %x, %f : tensor<65536xf32>
    %b = stablehlo.multiply %a, %f : tensor<65536xf32>
    %c = stablehlo.convert %i : (tensor<65536xi32>) -> tensor<65536xf32>
    %d = stablehlo.add %c, %x : tensor<65536xf32>
    %e = stablehlo.convert %d : (tensor<65536xf32>) -> tensor<65536xi32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %w:3 = stablehlo.while(%k = %zero, %z = %f, %y = %x) : tensor<i32>, tensor<65536xf32>, tensor<65536xf32>
      cond {
        %three = stablehlo.constant dense<3> : tensor<i32>
        %lt = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %lt : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %k, %one : tensor<i32>
        %t = stablehlo.tanh %z : tensor<65536xf32>
        %u = stablehlo.add %y, %f : tensor<65536xf32>
        stablehlo.return %j, %t, %u : tensor<i32>, tensor<65536xf32>, tensor<65536xf32>
      }
    return %b, %f, %e, %w#1, %w#2 : tensor<65536xf32>, tensor<65536xf32>, tensor<65536xi32>, tensor<65536xf32>,
        tensor<65536xf32>
  }`))
		options := compileoptions.New(1, 4, []int{0, 1, 2, 3}, false)
		g, _ := makeGang(t, p, source, options)
		if len(g.constants) < 2 {
			t.Errorf("%d constants are arguments, want the two that are not read in the loop alone", len(g.constants))
		}
		native := client(t, p, 4)
		g.compare(t, compile(t, native, source, options), native, 3)
	})
}

// TestDevicesComeToCollectivesInOneOrder checks that devices come to collectives that do not need each
// other in one order.
func TestDevicesComeToCollectivesInOneOrder(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		var body strings.Builder
		sum := "%x"
		for i := range 12 {
			// Different amounts of work before each, and results that meet at the end.
			fmt.Fprintf(&body, "%%e%d = stablehlo.exponential %%x : tensor<4xf32>\n", i)
			pairs := fmt.Sprintf("dense<[[0, %d], [%d, 0]]> : tensor<2x2xi64>", i%3+1, i%3+1)
			fmt.Fprintf(&body, "%%c%d = \"stablehlo.collective_permute\"(%%e%d) {source_target_pairs = %s, %s} : "+
				"(tensor<4xf32>) -> tensor<4xf32>\n", i, i, pairs, channel)
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
			statustest.MustEqualSlices(t, sites, want, "launch %d, rank %d: sites", v.launch, v.rank)
		}
		statustest.Equal(t, len(g.exchange.order), 80, "visits")
	})
}

// TestLayoutsOfArgumentsAndResultsAreKept checks that arguments and results of an unusual layout stay so.
func TestLayoutsOfArgumentsAndResultsAreKept(t *testing.T) {
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

// TestFailedCollectiveFailsOnlyItsRuns checks that an error of one collective is that of the runs
// of its devices, and harms no later one.
func TestFailedCollectiveFailsOnlyItsRuns(t *testing.T) {
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
			module := statustest.Value(c.partitioned(t.Context(), one.source(), one.options(), 4)).OK(t)
			t.Cleanup(module.Release)
			program := statustest.Value(spmd.Rewrite(module.Data)).OK(t)
			options := statustest.Value(program.OneDevice(one.options())).OK(t)
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

// TestProgramFailsWhereItsClientCarriesNoCollectives checks what a program gets whose client carries no collectives.
func TestProgramFailsWhereItsClientCarriesNoCollectives(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		_, program := makeGang(t, p, programs[0].source(), programs[0].options())
		other := client(t, p, 1)
		options := statustest.Value(program.OneDevice(nil)).OK(t)
		x := compile(t, other, device.Program{Format: "hlo", Code: program.Module}, options)
		b := put(t, other, device.Host{Shape: f32(4), Data: floats(1, 2, 3, 4)})
		r, err := x.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: 0})
		if err == nil {
			t.Cleanup(r.Outputs[0][0].Close)
			err = r.Done[0].Wait(t.Context())
		}
		refused(t, err, status.FailedPrecondition, "names no client")
	})
}

// What a partitioned program says of itself is what the plugin says of it when it is compiled, and when that is loaded.
func TestDescriptionsOfPartitionedPrograms(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		for _, one := range programs {
			g, made := makeGang(t, p, one.source(), one.options())
			options := statustest.Value(made.OneDevice(one.options())).OK(t)
			x := g.executables[0]
			asked := compile(t, g.clients[0], device.Program{Format: "hlo", Code: made.Module}, options)
			serialized := statustest.Value(x.Serialize()).OK(t)
			loaded, err := g.clients[0].Load(t.Context(), serialized.Data)
			serialized.Release()
			statustest.OK(t, err)
			t.Cleanup(loaded.Close)
			shapes, donated, known := asked.Parameters()
			for name, other := range map[string]device.Executable{"from its program": x, "when loaded": loaded} {
				s, d, k := other.Parameters()
				if !reflect.DeepEqual(s, shapes) || !slices.Equal(d, donated) || !k || !known {
					t.Errorf("%s, %s: %v, donated %v; the plugin says %v, donated %v", one.name, name, s, d, shapes, donated)
				}
			}
			want := statustest.Value(asked.Optimized()).OK(t)
			got := statustest.Value(x.Optimized()).OK(t)
			if s := signature(withConfig, got); !reflect.DeepEqual(s, signature(withConfig, want)) {
				t.Errorf("%s: its program says %+v, the plugin %+v", one.name, s, signature(withConfig, want))
			}
		}
	})
}

func TestBadPartitionsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		one := programs[0]
		_, err := c.partitioned(t.Context(), one.source(), one.options(), 0)
		refused(t, err, status.InvalidArgument, "0 devices")
		_, err = c.partitioned(t.Context(), device.Program{Format: "mlir", Code: []byte("module {")}, one.options(), 4)
		refused(t, err, status.InvalidArgument)
		reducer := program{"mean", 1, 4, "4xf32", "4xf32",
			strings.Replace(psum(all+", "+global), "stablehlo.add", "stablehlo.subtract", 1), nil}
		if module, err := c.partitioned(t.Context(), reducer.source(), reducer.options(), 4); err == nil {
			_, err = spmd.Rewrite(module.Data)
			module.Release()
			refused(t, err, status.Unimplemented, "all-reduce", "subtract")
		} else {
			refused(t, err, status.Unimplemented)
		}
		// What the plugin's compiler has no code for cannot be partitioned by it.
		broadcast := program{"broadcast", 1, 4, "4xf32", "4xf32",
			`%y = "stablehlo.collective_broadcast"(%x) {replica_groups = dense<[[2, 0, 1]]> : tensor<1x3xi64>, ` +
				channel + `} : (tensor<4xf32>) -> tensor<4xf32>`, nil}
		_, err = c.partitioned(t.Context(), broadcast.source(), broadcast.options(), 4)
		refused(t, err, status.Unimplemented, "collective-broadcast")
		for n := range 4 { // more sizes than are kept
			one.partitions = n + 1
			source := devicetest.StableHLO(devicetest.AddOne, f32(4), n+1)
			devices := []int{0, 1, 2, 3}[:n+1]
			module, err := c.partitioned(t.Context(), source, compileoptions.New(n+1, 1, devices, false), n+1)
			statustest.Check(t, err)
			module.Release()
		}
	})
}
