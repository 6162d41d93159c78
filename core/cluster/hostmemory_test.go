package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// The report says how much of its machine's memory each worker has, for what, and for which session: exactly the bytes
// of puts under way and of arrays that devices read where they came or were put together; nothing when all is freed.
func TestHostMemoryIsCountedByKindAndSession(t *testing.T) {
	address, _ := sockets(t)
	dir := t.TempDir()
	for i, d := range simulatedOn(t, 2, sim.Options{Devices: 2, Island: sim.NewIsland(sim.Real, 1)}) {
		name := fmt.Sprint("w", i)
		w := serve(t, func(ctx context.Context) error {
			return cluster.ServeWorker(ctx, cluster.WorkerConfig{
				Address: address, Listen: []string{"unix:" + filepath.Join(dir, name)}, Name: name, Driver: d,
				Heartbeat: 20 * time.Millisecond, Wait: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
		})
		t.Cleanup(func() { statustest.Check(t, w.end()) })
		workers(t, address, i+1)
	}
	join := func(name string) *session {
		return begin(t, func(n client.Notify) (client.Cluster, error) {
			return cluster.Connect(t.Context(), cluster.ClientConfig{
				Address: address, Name: name, Heartbeat: 100 * time.Millisecond}, n)
		})
	}
	one, two := join("one"), join("two")
	const mib = 1 << 20
	array := shape.Shape{DType: shape.F32, Dims: []int64{mib / 4}}

	// begin starts a put whose bytes come when write is called.
	begin := func(s *session, device uint32) (object uint64, end func()) {
		let := make(chan func(error), 1)
		p := &client.PutSpec{Object: s.Objects(1), Shape: array, Devices: []uint32{device}, Token: s.Tokens(1),
			Fill: func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
		statustest.OK(t, s.Put(p))
		written := <-let
		return p.Object, func() {
			t.Helper()
			written(nil)
			statustest.OK(t, s.Wait(p.Token))
		}
	}
	// counted waits until each worker has so much in blocks and in what is being assembled, and each session so much.
	counted := func(what string, blocks, assembling [2]int64, sessions [2]int64) {
		t.Helper()
		statustest.Soon(t, func() string {
			r := statustest.Value(cluster.Ask(t.Context(), address, cluster.Secret{}, nil)).OK(t)
			var has, puts [2]int64
			var of [2]int64
			for _, w := range r.Islands[0].Workers {
				i, m := int(w.Process.Name[1]-'0'), w.Last.GetHost()
				has[i], puts[i] = m.GetBlocks(), m.GetAssembling()
				if sum := m.GetBlocks() + m.GetAssembling() + m.GetCollectives() + m.GetPrograms(); sum != w.Last.GetHostBytes() {
					t.Errorf("%s: the kinds add up to %d, not %d", w.Process.Name, sum, w.Last.GetHostBytes())
				}
				if m.GetFree() < 0 || m.GetLimit() < m.GetBlocks()+m.GetCollectives()+m.GetFree() {
					t.Errorf("%s: %v is not within the limit", w.Process.Name, m)
				}
			}
			for i, s := range r.Sessions {
				of[i] = s.HostBytes
			}
			return fmt.Sprint(has, puts, of)
		}, fmt.Sprint(blocks, assembling, sessions), "%s", what)
	}
	counted("nothing", [2]int64{}, [2]int64{}, [2]int64{})
	object, end := begin(one, 0)
	other, endOther := begin(two, 3)
	third, endThird := begin(two, 2)
	counted("three puts", [2]int64{mib, 2 * mib}, [2]int64{}, [2]int64{mib, 2 * mib})
	endOther()
	endThird()
	// The driver of simulated devices reads arrays where they came, as XLA's of CPUs does.
	counted("one put and two arrays", [2]int64{mib, 2 * mib}, [2]int64{}, [2]int64{mib, 2 * mib})
	two.Free([]uint64{other, third})
	counted("one put", [2]int64{mib, 0}, [2]int64{}, [2]int64{mib, 0})

	// A transfer onto w1: one half is there, the other comes from what the put makes on w0.
	there := one.Array(array, []int{2}, func(int) []byte { return make([]byte, mib) })
	m := &wire.Transfer{Object: one.Objects(1), Array: &wire.Array{Dtype: uint32(array.DType), Dims: array.Dims}}
	half := array.Dims[0] / 2
	for i, source := range []uint64{there, object} {
		m.Moves = append(m.Moves, &wire.Move{Source: source, From: []uint32{2, 0}[i], To: 3, Start: []int64{0},
			Size: []int64{half}, At: []int64{int64(i) * half}, Shard: m.Array})
	}
	token := one.Tokens(1)
	statustest.OK(t, one.Transfer(m, token))
	end()
	statustest.OK(t, one.Wait(token))
	counted("two arrays, and one that a transfer has put together", [2]int64{mib, 2 * mib}, [2]int64{},
		[2]int64{3 * mib, 0})
	one.Free([]uint64{object, there})
	counted("that one alone", [2]int64{0, mib}, [2]int64{}, [2]int64{mib, 0})
	one.Free([]uint64{m.Object})
	counted("all has ended", [2]int64{}, [2]int64{}, [2]int64{})
}
