package arrowio

import (
	"context"
	"iter"
	"sync"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
)

// BatchOptions configures Batches.
type BatchOptions struct {
	Layout sharded.Layout // of each array of each record
	// Prefetch is the number of records that are read, and sent to devices, before they
	// are requested; 0 means 2, and the maximum is 1024.
	Prefetch int
}

// mostPrefetch is the largest BatchOptions.Prefetch.
const mostPrefetch = 1024

// Batches returns an iterator over the records of a reader as arrays, which sends the next
// records to the devices meanwhile. The caller frees the arrays. When the loop ends,
// Batches frees the arrays that were not requested and no longer uses the reader, which
// the caller still owns.
//
//	for batch, err := range arrowio.Batches(ctx, session, reader, options) {
//		if err != nil { … }
//		…
//	}
//
// The iterator ends after an error: the reader's, those of PutRecord, or CANCELLED if ctx
// ends.
func Batches(ctx context.Context, s *sharded.Session, r array.RecordReader, o BatchOptions) iter.Seq2[[]Named, error] {
	return func(yield func([]Named, error) bool) {
		ahead := o.Prefetch
		if ahead == 0 {
			ahead = 2
		}
		if ahead < 1 || ahead > mostPrefetch {
			yield(nil, status.New(status.InvalidArgument, "Prefetch is %d; expected 1 to %d", o.Prefetch, mostPrefetch))
			return
		}
		type batch struct {
			arrays []Named
			err    error
		}
		// The record that waits to be requested and the one that waits for room in the
		// channel count as read ahead.
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
				yield(nil, status.New(status.Cancelled, "reading records was cancelled: %w", context.Cause(ctx)))
				return
			}
		}
	}
}
