// Package arrowio brings Arrow data to the devices of a session, and back, for Go
// programs that use arrow/go.
//
// Put and PutRecord make sharded arrays of numbers, booleans, fixed-size lists and
// arrow.fixed_shape_tensor; Shard, Read and Chunks give arrays back as Arrow's;
// Batches is a stream of records as a stream of arrays, with prefetch, and OpenIPC
// reads such a stream.
//
//	arrow                              array
//	numbers, booleans [n]              [n]
//	fixed-size lists of size elements  [n, size]
//	arrow.fixed_shape_tensor           [n, shape...]
//	record                             one array a column, by name
//
// # Copies
//
// In: none, where Arrow's buffers lie in memory that arrowmem has of the session's
// pool, shared; each shard's elements lie together and begin at a multiple of 64
// bytes; and the devices are on this host and have its memory. One otherwise, from
// where Arrow's buffers are straight into the memory of the worker, which its device
// may take over where it lies; between hosts the network's besides. PutShared makes a
// copy an error.
//
// Out: what Shard and Chunks give lies in the block that the worker has written, or,
// of an array that was shared, in the memory that it was put from. ShardShared makes
// a copy an error. Read copies once more where an array has several parts. Booleans
// are bits on one side and bytes on the other, which is a copy.
//
// # Guarantees
//
// Nothing that Arrow data says of itself is believed: lengths and offsets that lie
// are errors. Nulls, dictionary encoding and types that are no numbers are refused
// with what to do; texts and codes are those of the C API.
//
// # Ownership
//
// Arrow data that is put is retained until it has been read, and is not to be
// changed meanwhile: where it is shared, until the array is freed, devices are
// through with it and what Shard gave of it is released. Arrow data that is given is
// the caller's to release, also after the session has ended.
//
// # Concurrency
//
// Everything may be called from any goroutine.
//
// Programs that use Arrow import it. Nothing that is linked into libpathways.so
// does.
package arrowio

import (
	"github.com/apache/arrow/go/v15/arrow"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
)

// Put brings an Arrow array to devices, which share its memory if they can.
//
// Errors: INVALID_ARGUMENT for nulls, dictionary encoding, types that are no
// numbers, data that lies about itself, and a layout that does not fit; those of a
// session that is lost.
func Put(s *sharded.Session, a arrow.Array, l sharded.Layout) (*sharded.Array, error) {
	var c column
	if err := readArray(a.Data(), nil, &c); err != nil {
		return nil, err
	}
	return put(s, &c, a.Data(), l)
}

// PutShared is Put without a copy.
//
// Errors: those of Put; FAILED_PRECONDITION, which says why, where the array's memory
// cannot be shared with its devices.
func PutShared(s *sharded.Session, a arrow.Array, l sharded.Layout) (*sharded.Array, error) {
	var c column
	if err := readArray(a.Data(), nil, &c); err != nil {
		return nil, err
	}
	return share(s, &c, a.Data(), l)
}

// PutRecord brings the columns of a record to devices, each with the same layout.
// Arrays are in the order of columns.
//
// Errors: those of Put, with the name of the column; then nothing is left on
// devices.
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

// worthSharing is from how many bytes on Put shares memory: a message with the bytes
// in it is sooner there than one that says where they are and one that gives them back.
const worthSharing = 16 << 10

// put brings a column to devices.
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

// share makes an array of a column's memory.
func share(s *sharded.Session, c *column, data arrow.ArrayData, l sharded.Layout) (*sharded.Array, error) {
	if c.dtype == shape.Pred {
		return nil, c.fail(status.FailedPrecondition, "has booleans, which are bits in Arrow and bytes on devices: they can only be copied")
	}
	data.Retain()
	a, err := s.Lend(sharded.LendSpec{DType: c.dtype, Dims: c.dims(), Layout: l, At: c.at, Returned: data.Release})
	if err != nil {
		data.Release()
		err = c.wrap(err)
	}
	return a, err
}
