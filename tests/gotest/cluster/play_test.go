package cluster

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status/statustest"
)

// drawing is a graph of runs that is being made.
type drawing struct {
	graphs.Graph
	last uint64
}

func (d *drawing) run(r *client.Remote, input uint64) uint64 {
	d.Programs[r.ID] = r.Program()
	d.Nodes = append(d.Nodes, graphs.Node{Run: &graphs.Run{Program: r.ID, Inputs: []uint64{input}, Only: -1}})
	d.last += uint64(len(r.Info.Outputs))
	return d.last
}

// A play of collectives, calls of the client and transfers makes the bits of its
// operations one by one, and leaves nothing.
func TestPlayHasTheBitsOfItsOperations(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			r := open(t, workers, 4/workers)
			s := r.connect(t, "client")
			sine, sum, calls := s.compile(programs(4)[0]), s.compile(programs(4)[1]), s.compile(calling(4))
			steps := []*client.Remote{sine, sum, sine, calls, sum, sine, sum}
			x := s.Array(input, clustertest.UpTo(4), values)
			y := x
			for _, p := range steps {
				token, z := s.startCalling(p, negate, y)
				statustest.OK(t, s.Wait(token))
				if y != x {
					s.Free([]uint64{y})
				}
				y = z
			}
			d := &drawing{Graph: graphs.Graph{Inputs: 1, Programs: map[uint64]*graphs.Program{}}, last: 1}
			functions := make([]func(*client.HostCall), len(steps)+1)
			var called atomic.Int64
			last := uint64(1)
			for i, p := range steps {
				last = d.run(p, last)
				if p == calls {
					functions[i] = func(h *client.HostCall) { called.Add(1); go negate(h) }
				}
			}
			turn := &graphs.Transfer{Shape: input}
			for k := range uint32(4) {
				turn.Moves = append(turn.Moves, graphs.Move{Source: last, From: k, To: (k + 1) % 4})
			}
			d.Nodes = append(d.Nodes, graphs.Node{Transfer: turn})
			d.last++
			d.Outputs = []uint64{last, d.last}
			id := statustest.Value(s.Define(&d.Graph)).OK(t)
			for range 3 {
				p := &client.PlaySpec{Graph: id, Inputs: []uint64{x}, First: s.Objects(d.Made()), Calls: functions}
				p.Token = s.Tokens(len(d.Nodes))
				statustest.OK(t, s.Play(p))
				for i := range d.Nodes {
					statustest.OKf(t, s.Wait(p.Token+uint64(i)), "node %d, %s", i, d.Name(i))
				}
				straight, turned := p.First+last-2, p.First+d.last-2
				for k := range 4 {
					want := statustest.Value(s.Read(y, k, 4*length)).OK(t)
					if got, err := s.Read(straight, k, 4*length); err != nil || !bytes.Equal(got, want) {
						t.Errorf("device %d has %x, want %x, %v", k, got[:8], want[:8], err)
					}
					if got, err := s.Read(turned, (k+1)%4, 4*length); err != nil || !bytes.Equal(got, want) {
						t.Errorf("device %d has %x, want %x, %v", (k+1)%4, got[:8], want[:8], err)
					}
				}
				s.Free([]uint64{straight, turned})
			}
			statustest.Equal(t, called.Load(), 12, "calls")
			s.Free([]uint64{x, y})
			r.free()
		})
	}
}
