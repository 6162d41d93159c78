package client

import (
	"context"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/transport"
)

// BenchmarkRun is the submission of a run, with the end of it.
func BenchmarkRun(b *testing.B) {
	for _, inputs := range []int{1, 8, 64} {
		b.Run("inputs="+strconv.Itoa(inputs), func(b *testing.B) {
			far := newFar()
			c, err := Connect(context.Background(), Config{Dialer: far, Hello: &wire.Hello{}, Notify: func([]Ended) {},
				Exchange: func(*wire.Welcome) (transport.Exchange, error) { return new(noExchange), nil }})
			statustest.OK(b, err)
			defer c.Close()
			r := c.(*remote)
			spec := &RunSpec{Program: 7, Inputs: make([]uint64, inputs), Only: -1}
			for i := range spec.Inputs {
				spec.Inputs[i] = uint64(1000 + i)
			}
			op := uint64(0)
			done := &wire.Completed{Ok: make([]uint64, 64)}
			payload := []byte(nil)
			var batch []Ended
			b.ReportAllocs()
			for b.Loop() {
				op++
				spec.Token = op
				spec.FirstOutput = c.Objects(1)
				statustest.OK(b, c.Run(spec))
				c.Free(spec.Inputs[:1])
				if op%64 == 0 { // the reader's part
					for i := range done.Ok {
						done.Ok[i] = op - uint64(i)
					}
					payload, _ = proto.MarshalOptions{}.MarshalAppend(payload[:0], done)
					m := wiretest.Decode[wire.Completed](b, payload)
					if batch = r.completed(m, batch[:0]); len(batch) != 64 {
						b.Fatalf("%d operations ended, want 64", len(batch))
					}
				}
			}
		})
	}
}

// BenchmarkCalled is what a call costs while calls are recorded. Recordings are of 50,000 calls each.
func BenchmarkCalled(b *testing.B) {
	const each = 50_000
	known := func() int32 { return 1 }
	for name, thread := range map[string]func() int32{"thread=asked": asksThread, "thread=known": known} {
		b.Run(name, func(b *testing.B) {
			r := &remote{thread: thread}
			rec := r.recorder.Start(0, observe.MaxSpans)
			b.ReportAllocs()
			for op := range uint64(b.N) {
				if op%each == each-1 {
					rec.Stop(0)
					rec = r.recorder.Start(0, observe.MaxSpans)
				}
				r.called(r.recorder.Clock(), "run", op, 0)
			}
			rec.Stop(0)
		})
	}
}
