package observe_test

import (
	"testing"

	"github.com/openpathways/pathways/core/observe"
)

// What recording costs a computation, on a worker: a span, a collective, and the event of its arrival. Recordings are
// of 50,000 computations each.
func BenchmarkRecording(b *testing.B) {
	const each = 50_000
	var r observe.Recorder
	var rec *observe.Recording
	b.ReportAllocs()
	for i := range b.N {
		if i%each == 0 {
			if rec != nil {
				rec.Stop(0)
			}
			rec = r.Start(1, observe.MaxSpans)
		}
		at := int64(i + 1)
		running := r.Begin(1, observe.Span{Program: "p", Gang: uint64(i), Submitted: at, Launched: at})
		r.Note(1, &observe.Event{Kind: observe.Collective, Name: "all-reduce", Op: uint64(i), Begin: at, End: at})
		r.Note(1, &observe.Event{Kind: observe.Arrival, Op: uint64(i), Begin: at, End: at})
		running.End(0, at)
	}
	rec.Stop(0)
}
