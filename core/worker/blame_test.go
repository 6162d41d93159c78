package worker_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// Who reads the result of a computation that fails has its error, though the driver tells of its end last.
func TestReaderHasTheErrorOfWhatItReadsThoughThatIsToldLater(t *testing.T) {
	for _, how := range []string{"a run", "a run that the driver refuses", "a fetch", "a transfer", "regions",
		"regions, read in place"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, d := newInline(t)
				d[0].view = how == "regions, read in place"
				one := s.dispatch(1, wire.KindRun,
					&wire.Run{Op: 1, Program: slowProgram, FirstOutput: 1, Trace: []byte("train.py:3")}, 0)
				shard := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
				m := &wire.Move{Source: 1, From: 0, To: 1}
				var two uint64
				readers := []int{0}
				why := status.New(status.Internal, "no luck")
				result := &d[0].slow.ends(one).result
				if how == "a run that the driver refuses" {
					result.fire(why)
				}
				switch how {
				case "a run", "a run that the driver refuses":
					two = s.dispatch(1, wire.KindRun,
						&wire.Run{Op: 2, Program: slowProgram, FirstOutput: 2, Inputs: []uint64{1}}, 0)
				case "a fetch":
					s.client.Expect(firstWorker, transport.Key{Space: transport.Transfers(1), ID: 2}, 16, nil,
						func(transport.Block, error) {})
					two = s.dispatch(1, wire.KindFetch, &wire.Fetch{Op: 2, Object: 1}, 0)
				default:
					if how != "a transfer" {
						m.Shard, m.Start, m.Size, m.At = shard, []int64{0}, []int64{4}, []int64{0}
					}
					two = s.dispatch(1, wire.KindTransfer,
						&wire.Transfer{Op: 2, Object: 2, Array: shard, Moves: []*wire.Move{m}}, 0, 1)
					readers = append(readers, 1)
				}
				synctest.Wait()
				result.fire(why)
				if how == "a run" {
					d[0].slow.end(two, why)
				}
				synctest.Wait()
				d[0].slow.end(one, why)
				const want = "no luck [slow, called at train.py:3, on device 0 of worker w0]"
				statustest.Fails(t, "the run that failed", s.wait(one, 0), status.Internal, want)
				err := s.wait(two, readers...)
				statustest.Fails(t, "who reads its result", err, status.Internal, want)
				if !strings.HasSuffix(err.Error(), want) {
					t.Errorf("who reads its result says more: %v", err)
				}
			})
		})
	}
}
