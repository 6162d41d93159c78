package reshard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/reshard"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// sharding is a way to cut an array: parts of each dimension, and copies of the
// whole, on devices in some order.
func sharding(dims []int64, parts []int, copies int, devices []int) []reshard.Shard {
	n := 1
	for _, p := range parts {
		n *= p
	}
	var out []reshard.Shard
	for i := range n * copies {
		s := reshard.Shard{Device: devices[i], Start: make([]int64, len(dims)), Size: make([]int64, len(dims))}
		k := i % n
		for d := len(dims) - 1; d >= 0; d-- {
			size := dims[d] / int64(parts[d])
			s.Start[d], s.Size[d] = int64(k%parts[d])*size, size
			k /= parts[d]
		}
		out = append(out, s)
	}
	return out
}

// bytesOf returns a shard's bytes of an array, element by element.
func bytesOf(array []byte, dims []int64, s reshard.Shard, width int) []byte {
	var out []byte
	n := int64(1)
	for _, d := range s.Size {
		n *= d
	}
	for i := range n {
		at, step, k := int64(0), int64(1), i
		for d := len(dims) - 1; d >= 0; d-- {
			at += (s.Start[d] + k%s.Size[d]) * step
			k /= s.Size[d]
			step *= dims[d]
		}
		out = append(out, array[at*int64(width):(at+1)*int64(width)]...)
	}
	return out
}

func TestEqualSourcesTakeTurns(t *testing.T) {
	for _, copies := range []int{4, 64} {
		dims := []int64{8}
		var here, there []int
		for i := range copies {
			here, there = append(here, i), append(there, copies+i)
		}
		p, err := reshard.New(dims, sharding(dims, []int{1}, copies, here), sharding(dims, []int{1}, copies, there), nil)
		statustest.OK(t, err)
		times := make([]int, copies)
		for _, v := range p.Pieces {
			times[v.From]++
		}
		statustest.MustEqual(t, slices.Max(times), 1,
			"how often one of %d equal sources is taken for %d destinations", copies, copies)
	}
}

// If several devices of a host need the same region of another host's, it comes once to that host, and from there to
// each. Everything else takes one step.
func TestRegionsComeOnceToAHost(t *testing.T) {
	const all = 512 * 1024
	square := []int64{512, 1024}
	site := func(device int) reshard.Site {
		return reshard.Site{Worker: uint64(device / 2), Host: fmt.Sprint(device / 4)}
	}
	here, there, both := []int{0, 1, 2, 3}, []int{4, 5, 6, 7}, []int{4, 5, 6, 7, 0, 1, 2, 3}
	for _, c := range []struct {
		name           string
		dims           []int64
		from, to       []reshard.Shard
		steps, crosses int
	}{
		{"rows to copies on another host", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 1}, 4, there), 2, all},
		{"rows to two copies of columns there", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 2}, 2, there), 2, all},
		{"rows to copies on both hosts", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 1}, 8, both), 2, all},
		{"rows of both hosts to copies on both", square, sharding(square, []int{8, 1}, 1, both),
			sharding(square, []int{1, 1}, 8, both), 2, all},
		{"copies on both hosts to copies of columns", square, sharding(square, []int{1, 1}, 8, both),
			sharding(square, []int{1, 4}, 2, both), 1, 0},
		{"rows to columns on another host", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 4}, 1, there), 1, all},
		{"rows to copies on the same host", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 1}, 4, here), 1, 0},
		{"copies that cannot be cut alike", square, sharding(square, []int{4, 1}, 1, here),
			sharding(square, []int{1, 1}, 3, there), 1, 3 * all},
		{"short copies", []int64{64, 64}, sharding([]int64{64, 64}, []int{4, 1}, 1, here),
			sharding([]int64{64, 64}, []int{1, 1}, 4, there), 1, 4 * 64 * 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps := statustest.Value(reshard.Steps(c.dims, c.from, c.to, site)).OK(t)
			array := make([]byte, c.dims[0]*c.dims[1])
			r := rand.New(rand.NewPCG(1, 2))
			for i := range array {
				array[i] = byte(r.Uint32())
			}
			var shards [][]byte
			for _, s := range c.from {
				shards = append(shards, bytesOf(array, c.dims, s, 1))
			}
			crosses := 0
			for _, p := range steps {
				made := make([][]byte, len(p.To))
				for i, s := range p.To {
					made[i] = make([]byte, s.Size[0]*s.Size[1])
				}
				for _, v := range p.Pieces {
					from, to := p.From[v.From], p.To[v.To]
					reshard.Copy(made[v.To], to.Size, v.At, shards[v.From], from.Size, v.Start, v.Size, 1)
					if site(from.Device).Host != site(to.Device).Host {
						crosses += int(v.Size[0] * v.Size[1])
					}
				}
				shards = made
			}
			for i, s := range c.to {
				if !slices.Equal(shards[i], bytesOf(array, c.dims, s, 1)) {
					t.Errorf("shard %d has other bytes", i)
				}
			}
			if len(steps) != c.steps || crosses != c.crosses {
				t.Errorf("%d elements come from another host in %d steps, want %d in %d", crosses, len(steps), c.crosses,
					c.steps)
			}
		})
	}
}

func TestRefusesWhatIsNoSharding(t *testing.T) {
	region := func(start, size int64) reshard.Shard {
		return reshard.Shard{Start: []int64{start}, Size: []int64{size}}
	}
	all := []reshard.Shard{region(0, 8)}
	for _, c := range []struct {
		from, to []reshard.Shard
		want     string
	}{
		{nil, all, "no source shards"},
		{[]reshard.Shard{region(0, 4)}, all, "not a grid"},
		{[]reshard.Shard{region(4, 4)}, all, "do not cover the array"},
		{[]reshard.Shard{region(0, 4), region(4, 2), region(6, 2), region(2, 2)}, all, "not a grid"},
		{[]reshard.Shard{region(0, 9)}, all, "source shard 0: the region of size [9]"},
		{all, []reshard.Shard{region(0, 8), region(7, 2)}, "destination shard 1: the region of size [2]"},
		{all, []reshard.Shard{{Start: []int64{0, 0}, Size: []int64{1, 1}}}, "each of 1 dimensions"},
	} {
		_, err := reshard.New([]int64{8}, c.from, c.to, nil)
		statustest.Fails(t, fmt.Sprintf("from %v to %v", c.from, c.to), err, status.InvalidArgument, c.want)
	}
	square := []int64{2, 2}
	corner := func(i, j int64) reshard.Shard {
		return reshard.Shard{Start: []int64{i, j}, Size: []int64{1, 1}}
	}
	_, err := reshard.New(square, []reshard.Shard{corner(0, 0), corner(0, 1), corner(1, 0), corner(0, 0)}, nil, nil)
	statustest.Fails(t, "three of four corners", err, status.InvalidArgument, "one of 4 regions")
}

func FuzzCopy(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		n, width := r.IntN(11), 1+r.IntN(9)
		var from, to, start, at, size []int64
		in, out := width, width
		for range n {
			a, b := int64(1+r.IntN(3)), int64(1+r.IntN(3))
			k := r.Int64N(min(a, b) + 1)
			from, to, size = append(from, a), append(to, b), append(size, k)
			start, at = append(start, r.Int64N(a-k+1)), append(at, r.Int64N(b-k+1))
			in, out = in*int(a), out*int(b)
		}
		src, dst := make([]byte, in), make([]byte, out)
		for i := range src {
			src[i] = byte(1 + i%255)
		}
		reshard.Copy(dst, to, at, src, from, start, size, int64(width))
		got := bytesOf(dst, to, reshard.Shard{Start: at, Size: size}, width)
		statustest.MustEqualSlices(t, got, bytesOf(src, from, reshard.Shard{Start: start, Size: size}, width),
			"a region of %v at %v of %v, to %v of %v", size, start, from, at, to)
		if written, zeros := len(got), len(dst)-len(got); slices.ContainsFunc(got, func(b byte) bool { return b == 0 }) ||
			count(dst, 0) != zeros {
			t.Fatalf("%d of %d bytes were to be written, %d are not zero", written, len(dst), len(dst)-count(dst, 0))
		}
	})
}

func count(b []byte, v byte) (n int) {
	for _, x := range b {
		if x == v {
			n++
		}
	}
	return n
}

// BenchmarkNew plans the way of a matrix: from rows to rows elsewhere (one region a
// shard), and from rows to tiles of a square mesh (as many regions as its side).
func BenchmarkNew(b *testing.B) {
	site := func(d int) reshard.Site { return reshard.Site{Worker: uint64(d / 4)} }
	for side := 1; side <= 64; side *= 2 {
		n := side * side
		dims := []int64{8192, 8192}
		devices := make([]int, 2*n)
		for i := range devices {
			devices[i] = i
		}
		rows := sharding(dims, []int{n, 1}, 1, devices)
		for name, to := range map[string][]reshard.Shard{
			"rows":  sharding(dims, []int{n, 1}, 1, devices[n:]),
			"tiles": sharding(dims, []int{side, side}, 1, devices[n:]),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					p := statustest.Value(reshard.New(dims, rows, to, site)).OK(b)
					b.ReportMetric(float64(len(p.Pieces)), "regions")
				}
			})
		}
	}
}

// BenchmarkCopy copies regions of 16 MiB, whose rows are so long, as memory goes.
func BenchmarkCopy(b *testing.B) {
	const total = 16 << 20
	src, dst := make([]byte, 2*total), make([]byte, total)
	for _, run := range []int64{4, 8, 64, 4096, total} {
		b.Run(fmt.Sprint(run), func(b *testing.B) {
			b.SetBytes(total)
			n := total / run
			for range b.N {
				reshard.Copy(dst, []int64{n, run}, []int64{0, 0}, src, []int64{n, 2 * run}, []int64{0, run}, []int64{n, run}, 1)
			}
		})
	}
}
