package pjrt

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
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
	statustest.OK(t, c.ServeCollectives(func(call *device.CollectiveCall) { x.arrive(call, ranks[call.Local]) }))
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
	group, place := groupOf(s, rank)
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

// rows returns how often, and how far apart, the bytes of one index of a dimension
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

// groupOf returns the group a rank is in, and its place there; nil if it is in none.
func groupOf(s *spmd.Spec, rank int) (group []int, place int) {
	for _, g := range s.Groups {
		if i := slices.Index(g, rank); i >= 0 {
			return g, i
		}
	}
	return nil, -1
}
