package arrowio

import (
	"context"
	"iter"
	"sync"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
)

// BatchOptions says how a stream of records is brought to devices.
type BatchOptions struct {
	Layout sharded.Layout // of each array of each record
	// Prefetch is how many records are read, and on their way to devices, before
	// they are asked for; 0 is 2, and the most is 1024.
	Prefetch int
}

const mostPrefetch = 1024

// Batches gives the records of a reader as arrays, while the next ones are on their
// way. The arrays are the caller's to free. What was brought ahead and not asked for
// is freed, and the reader is not used any more, when the loop ends. The reader stays
// the caller's.
//
//	for batch, err := range arrowio.Batches(ctx, session, reader, options) {
//		if err != nil { … }
//		…
//	}
//
// An error is the last that it gives: the reader's, those of PutRecord, and CANCELLED
// where ctx ends.
func Batches(ctx context.Context, s *sharded.Session, r array.RecordReader, o BatchOptions) iter.Seq2[[]Named, error] {
	return func(yield func([]Named, error) bool) {
		ahead := o.Prefetch
		if ahead == 0 {
			ahead = 2
		}
		if ahead < 1 || ahead > mostPrefetch {
			yield(nil, status.New(status.InvalidArgument, "%d records are to be brought ahead; expected 1 to %d", o.Prefetch, mostPrefetch))
			return
		}
		type batch struct {
			arrays []Named
			err    error
		}
		// A record that waits to be asked for, and the one that waits for a place, are
		// among those brought ahead.
		brought := make(chan batch, ahead-1)
		stop := make(chan struct{})
		var reading sync.WaitGroup
		reading.Go(func() {
			defer close(brought)
			for r.Next() {
				arrays, err := PutRecord(s, r.Record(), o.Layout)
				select {
				case brought <- batch{arrays, err}:
				case <-stop:
					free(arrays)
					return
				}
				if err != nil {
					return
				}
			}
			if err := r.Err(); err != nil {
				select {
				case brought <- batch{err: err}:
				case <-stop:
				}
			}
		})
		defer func() {
			close(stop)
			reading.Wait()
			for b := range brought {
				free(b.arrays)
			}
		}()
		for {
			select {
			case b, ok := <-brought:
				if !ok || !yield(b.arrays, b.err) || b.err != nil {
					return
				}
			case <-ctx.Done():
				yield(nil, status.New(status.Cancelled, "reading records was given up: %w", context.Cause(ctx)))
				return
			}
		}
	}
}
