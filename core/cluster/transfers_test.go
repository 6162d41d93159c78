package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// A hundred concurrent transfers between two workers take the host memory that the pages state, and give it back. For
// devices whose memory is not the host's, these are four pieces of each: by TCP on either worker, on one host on the
// receiver. For CPU devices, the receiver has the results alone, which devices read where they came; the sender has by
// TCP a copy of each array until it has been taken, and on one host nothing. Memory that was in use is kept for ten
// seconds, so afterwards its sum is the most that there was, in segments that may be twice as long.
func TestTransfersTakeBoundedMemory(t *testing.T) {
	const transfers, size, piece, segment = 100, 1 << 20, 32 << 10, 2 << 20
	const pieces, arrays = transfers * 4 * piece, transfers * size
	for name, c := range map[string]struct {
		platform, listen string
		most             [2]int64 // of the sender and the receiver
		results          int64
	}{
		"sim by TCP":           {"sim", "tcp:127.0.0.1:0", [2]int64{pieces, pieces}, 0},
		"cpu by TCP":           {"cpu", "tcp:127.0.0.1:0", [2]int64{arrays, arrays}, arrays},
		"sim by shared memory": {"sim", "unix:", [2]int64{0, pieces}, 0},
		"cpu by shared memory": {"cpu", "unix:", [2]int64{0, arrays}, arrays},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := sockets(t)
			dir := t.TempDir()
			drivers := separateOn(t, 2, sim.Options{Platform: c.platform})
			for i, d := range drivers {
				member, listen := fmt.Sprint("w", i), c.listen
				if listen == "unix:" {
					listen += filepath.Join(dir, member)
				}
				w := serve(t, func(ctx context.Context) error {
					return cluster.ServeWorker(ctx, cluster.WorkerConfig{
						Address: address, Listen: []string{listen}, Name: member, Driver: d, Piece: piece,
						Heartbeat: 20 * time.Millisecond, Wait: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
				})
				t.Cleanup(func() { statustest.Check(t, w.end()) })
				workers(t, address, i+1)
			}
			s := begin(t, func(n client.Notify) (client.Cluster, error) {
				return cluster.Connect(t.Context(), cluster.ClientConfig{
					Address: address, Name: "c", Heartbeat: 100 * time.Millisecond}, n)
			})

			// The source comes when all transfers have been sent, so they are under way at once.
			array := shape.Shape{DType: shape.U8, Dims: []int64{size >> 10, 1 << 10}}
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i * i >> 8)
			}
			let := make(chan func(error), 1)
			put := &client.PutSpec{Object: s.Objects(1), Shape: array, Devices: []uint32{0}, Token: s.Tokens(1),
				Fill: func(_ uint32, dst []byte, written func(error)) {
					copy(dst, data)
					let <- written
				}}
			statustest.OK(t, s.Put(put))
			written := <-let
			var tokens []uint64
			objects := []uint64{put.Object}
			for range transfers {
				m := &wire.Transfer{Object: s.Objects(1), Array: &wire.Array{Dtype: uint32(array.DType), Dims: array.Dims},
					Moves: []*wire.Move{{Source: put.Object, From: 0, To: 1}}}
				tokens, objects = append(tokens, s.Tokens(1)), append(objects, m.Object)
				statustest.OK(t, s.Transfer(m, tokens[len(tokens)-1]))
			}
			written(nil)
			for _, token := range append(tokens, put.Token) {
				statustest.OK(t, s.Wait(token))
			}

			// The source is read where the put has left it.
			settles(t, address, [2]int64{size, c.results})
			for _, object := range objects[1:3] {
				got, err := s.Read(object, 1, size)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("other bytes came, %v", err)
				}
			}
			s.Free(objects)
			for i, h := range settles(t, address, [2]int64{}) {
				if has, bound := h.Blocks+h.Assembling+h.Free, size+2*c.most[i]+segment; has > bound {
					t.Errorf("worker %d has had %d bytes, want at most %d: %v", i, has, bound, h)
				}
			}
			clustertest.Free(t, drivers)
		})
	}
}

// settles waits until each of two workers has so many bytes of arrays on the host, and returns what it says of them.
func settles(t *testing.T, address string, want [2]int64) (hosts [2]*wire.HostMemory) {
	t.Helper()
	statustest.Soon(t, func() [2]int64 {
		r := statustest.Value(cluster.Ask(t.Context(), address, cluster.Secret{}, nil)).OK(t)
		var has [2]int64
		for _, i := range r.Islands {
			for _, w := range i.Workers {
				k := w.Process.Name[1] - '0'
				hosts[k] = w.Last.GetHost()
				has[k] = hosts[k].GetBlocks() + hosts[k].GetAssembling()
				if hosts[k].GetFree() == 0 && k == 1 { // it has not said anything since
					has[k] = -1
				}
			}
		}
		return has
	}, want, "bytes of arrays")
	return hosts
}
