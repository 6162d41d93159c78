// Package arrowio copies Arrow data to the devices of a session, and back, for Go
// programs that use arrow/go.
//
// Put and PutRecord make sharded arrays from numbers, booleans, fixed-size lists and
// arrow.fixed_shape_tensor. Shard, Read and Chunks return arrays as Arrow data. Batches
// converts a stream of records to a stream of arrays, with prefetch, and OpenIPC reads
// such a stream.
//
//	arrow                              array
//	numbers, booleans [n]              [n]
//	fixed-size lists of size elements  [n, size]
//	arrow.fixed_shape_tensor           [n, shape...]
//	record                             one array per column, by name
//
// # Copies
//
// To devices: there is no copy if Arrow's buffers are in shared memory that arrowmem
// allocated from the session's pool, each shard's elements are contiguous and begin at a
// multiple of 64 bytes, and the devices are on this host and use its memory. Otherwise
// there is one copy, from Arrow's buffers straight into the memory of the worker, which
// its device may use in place; between hosts there is also the network's. PutShared makes
// a copy an error.
//
// From devices: Shard and Chunks return the block that the worker has written or, for an
// array that was shared, the memory that it was shared from. ShardShared makes a copy an
// error. Read copies once more if an array has several parts. Booleans are bits on one
// side and bytes on the other, so they are always copied.
//
// # What it guarantees
//
// The package checks everything that Arrow data says about itself: wrong lengths and
// offsets are errors. Nulls, dictionary encoding and types other than numbers are refused,
// and the error says what to do; texts and codes are those of the C API.
//
// # Ownership
//
// Put retains Arrow data until it has been read, and the data must not change before
// that. Shared data must not change until the array is freed, the devices have finished
// with it, and everything that Shard returned of it is released. The caller must release
// the Arrow data that it receives, even after the session has ended.
//
// # Concurrency
//
// Everything may be called from any goroutine.
//
// libpathways.so does not contain this package.
package arrowio

import (
	"github.com/apache/arrow/go/v15/arrow"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
)

// Put copies an Arrow array to devices, or shares its memory with them if possible.
//
// Errors: INVALID_ARGUMENT for nulls, dictionary encoding, types other than numbers,
// inconsistent data, and a layout that does not fit the array; the session's error if it
// is lost.
func Put(s *sharded.Session, a arrow.Array, l sharded.Layout) (*sharded.Array, error) {
	var c column
	if err := readArray(a.Data(), nil, &c); err != nil {
		return nil, err
	}
	return put(s, &c, a.Data(), l)
}

// PutShared is like Put, but never copies.
//
// Errors: those of Put; FAILED_PRECONDITION, with the reason, if the array's memory cannot
// be shared with its devices.
func PutShared(s *sharded.Session, a arrow.Array, l sharded.Layout) (*sharded.Array, error) {
	var c column
	if err := readArray(a.Data(), nil, &c); err != nil {
		return nil, err
	}
	return share(s, &c, a.Data(), l)
}

// PutRecord copies the columns of a record to devices, each with the same layout, and
// returns the arrays in the order of columns.
//
// Errors: those of Put, with the name of the column; nothing remains on devices then.
func PutRecord(s *sharded.Session, r arrow.Record, l sharded.Layout) ([]Named, error) {
	columns := make([]column, r.NumCols())
	for i := range columns {
		field, data := r.Schema().Field(i), r.Column(i).Data()
		c := &columns[i]
		c.batch, c.name = true, field.Name
		if int64(data.Len()) != r.NumRows() {
			return nil, c.refuse("has %d elements, and its record batch %d", data.Len(), r.NumRows())
		}
		if err := readArray(data, &field, c); err != nil {
			return nil, err
		}
	}
	var out []Named
	for i := range columns {
		a, err := put(s, &columns[i], r.Column(i).Data(), l)
		if err != nil {
			free(out)
			return nil, columns[i].wrap(err)
		}
		out = append(out, Named{columns[i].name, a})
	}
	return out, nil
}

// Named is an array with the name of its column.
type Named struct {
	Name  string
	Array *sharded.Array
}

func free(arrays []Named) {
	for _, a := range arrays {
		a.Array.Free()
	}
}

// worthSharing is the size in bytes from which Put shares memory. Below that, a message
// that contains the bytes is faster than one that says where they are and one that
// returns them.
const worthSharing = 16 << 10

// put copies a column to devices, or shares it with them.
func put(s *sharded.Session, c *column, data arrow.ArrayData, l sharded.Layout) (*sharded.Array, error) {
	if len(c.data) > worthSharing {
		if a, err := share(s, c, data, l); status.CodeOf(err) != status.FailedPrecondition {
			return a, err
		}
	}
	data.Retain()
	a, err := s.Put(sharded.PutSpec{DType: c.dtype, Dims: c.dims(), Layout: l, Fill: c.fill, Done: data.Release})
	if err != nil {
		data.Release()
	}
	return a, err
}

// share makes an array that uses a column's memory.
func share(s *sharded.Session, c *column, data arrow.ArrayData, l sharded.Layout) (*sharded.Array, error) {
	if c.dtype == shape.Pred {
		return nil, c.fail(status.FailedPrecondition,
			"has booleans, which are bits in Arrow and bytes on devices: they can only be copied")
	}
	data.Retain()
	a, err := s.Lend(sharded.LendSpec{DType: c.dtype, Dims: c.dims(), Layout: l, At: c.at, Returned: data.Release})
	if err != nil {
		data.Release()
		err = c.wrap(err)
	}
	return a, err
}
