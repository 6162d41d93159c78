package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts the pages of its file. A damaged page can send it around a loop without end, make it panic, or have it
// read outside of its memory. Its own check does the same, and panics on a goroutine of its own, which ends the
// process. So check reads the file before bbolt does, and finds all damage that could harm bbolt or the reader of
// facts:
//
//   - every page below the end that the file's newest meta page gives is in use once, or free once;
//   - a page's elements are in order, are within the bounds that the page above sets, and fill the page from its
//     element table on without a gap, as bbolt writes them;
//   - every fact has its sum (see sealed).
//
// What stays unseen does no harm: bytes that nothing reads, and damage to the newest meta page, in whose place bbolt
// takes the one of the transaction before, as it does after a crash.

// Sizes and values of bbolt's format, whose numbers have the machine's byte order.
const (
	headerSize  = 16 // of a page: number (8), kind (2), elements (2), further pages (4)
	elementSize = 16 // of a branch: position (4), key's size (4), page (8); of a leaf: flags, position, sizes (4 each)
	bucketSize  = 16 // root page (8), sequence (8); if there is no root page, a page without a number follows
	// Magic, version, page size, flags (4 each), root bucket (16), list of free pages, end, transaction, sum (8 each).
	metaSize = 64

	branchPage, leafPage, freePage = 1, 2, 16

	magic, version = 0xED0CDAED, 2
	longestPage    = 16 << 20
)

var order = binary.NativeEndian

// checker walks a file's pages.
type checker struct {
	file io.ReaderAt
	size uint64 // of a page
	used []bool // by page, those that were met
}

// check returns what is damaged in a file, or nil.
func check(f io.ReaderAt, length int64) error {
	meta := newestMeta(f)
	if meta == nil {
		return errors.New("it has no valid meta page")
	}
	c := &checker{file: f, size: uint64(order.Uint32(meta[8:]))}
	root, free, end := order.Uint64(meta[16:]), order.Uint64(meta[32:]), order.Uint64(meta[40:])
	if end > uint64(length)/c.size {
		return fmt.Errorf("it is cut short: it has %d bytes, expected %d pages of %d", length, end, c.size)
	}
	c.used = make([]bool, end)
	for i := range min(end, 2) { // the meta pages
		c.used[i] = true
	}
	if err := c.tree(root, nil, nil, nil); err != nil {
		return err
	}
	if err := c.free(free); err != nil {
		return err
	}
	for i, used := range c.used {
		if !used {
			return fmt.Errorf("page %d is neither in use nor free", i)
		}
	}
	return nil
}

// newestMeta returns the valid meta page of the later transaction, behind its header. There are two, on the first two
// pages; nil if neither is valid.
func newestMeta(f io.ReaderAt) (newest []byte) {
	for at := int64(0); at <= longestPage; at = max(1024, 2*at) {
		m := make([]byte, metaSize)
		if n, _ := f.ReadAt(m, at+headerSize); n < metaSize {
			break
		}
		sum := fnv.New64a()
		sum.Write(m[:metaSize-8])
		if order.Uint32(m) != magic || order.Uint32(m[4:]) != version || order.Uint64(m[metaSize-8:]) != sum.Sum64() {
			continue
		}
		if size := int64(order.Uint32(m[8:])); size < 1024 || at != 0 && at != size {
			continue
		}
		if newest == nil || order.Uint64(m[48:]) > order.Uint64(newest[48:]) {
			newest = m
		}
	}
	return newest
}

// page reads a page, and those that continue it.
func (c *checker) page(id uint64) ([]byte, error) {
	if id >= uint64(len(c.used)) {
		return nil, fmt.Errorf("it would be behind the last page, %d", len(c.used)-1)
	}
	var header [headerSize]byte
	if _, err := c.file.ReadAt(header[:], int64(id*c.size)); err != nil {
		return nil, err
	}
	pages := 1 + uint64(order.Uint32(header[12:]))
	if order.Uint64(header[:]) != id || pages > uint64(len(c.used))-id {
		return nil, errors.New("it has another's header")
	}
	for i := range pages {
		if err := c.use(id + i); err != nil {
			return nil, err
		}
	}
	p := make([]byte, pages*c.size)
	_, err := c.file.ReadAt(p, int64(id*c.size))
	return p, err
}

func (c *checker) use(id uint64) error {
	if id >= uint64(len(c.used)) || c.used[id] {
		return fmt.Errorf("page %d is in use twice, or behind the last page, %d", id, len(c.used)-1)
	}
	c.used[id] = true
	return nil
}

// tree checks a page and those below it. Keys are at least from and less than to, if these are not nil. Elements of the
// root bucket are tables, whose elements are facts; table is nil for the former.
func (c *checker) tree(id uint64, table, from, to []byte) error {
	p, err := c.page(id)
	if err == nil {
		err = c.elements(p, table, from, to)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements checks the elements of a page, and what they refer to.
func (c *checker) elements(p, table, from, to []byte) error {
	kind, n := order.Uint16(p[8:]), int(order.Uint16(p[10:]))
	if kind != branchPage && kind != leafPage || kind == branchPage && n == 0 {
		return fmt.Errorf("it is of kind %d, with %d elements", kind, n)
	}
	at := headerSize + n*elementSize // where the next element's key is
	if at > len(p) {
		return fmt.Errorf("it is too short for %d elements", n)
	}
	keys, values := make([][]byte, n), make([][]byte, n)
	for i := range n {
		e := p[headerSize+i*elementSize:]
		position, key, value := order.Uint32(e), order.Uint32(e[4:]), uint32(0)
		if kind == leafPage {
			position, key, value = order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
		}
		if int(position) != at-headerSize-i*elementSize || key == 0 || uint64(key)+uint64(value) > uint64(len(p)-at) {
			return fmt.Errorf("element %d is elsewhere", i)
		}
		keys[i], values[i] = p[at:at+int(key)], p[at+int(key):at+int(key)+int(value)]
		at += int(key) + int(value)
		if i > 0 && bytes.Compare(keys[i], keys[i-1]) <= 0 || bytes.Compare(keys[i], from) < 0 ||
			to != nil && bytes.Compare(keys[i], to) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
	}
	for i, key := range keys {
		e := p[headerSize+i*elementSize:]
		var err error
		switch flags := order.Uint32(e); {
		case kind == branchPage:
			next := to
			if i+1 < n {
				next = keys[i+1]
			}
			err = c.tree(order.Uint64(e[8:]), table, key, next)
		case table == nil && flags == 1:
			err = c.bucket(key, values[i])
		case table != nil && flags == 0:
			if !isSealed(table, key, values[i]) {
				err = fmt.Errorf("%s %q is not what was written", table, key)
			}
		default:
			err = fmt.Errorf("element %d has flags %d", i, flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a table, by the value that the root bucket has for it.
func (c *checker) bucket(table, value []byte) error {
	switch {
	case len(value) < bucketSize:
		return fmt.Errorf("table %q is too short", table)
	case order.Uint64(value) != 0:
		return c.tree(order.Uint64(value), table, nil, nil)
	case len(value) < bucketSize+headerSize:
		return fmt.Errorf("table %q is too short", table)
	case order.Uint16(value[bucketSize+8:]) != leafPage:
		return fmt.Errorf("table %q is no leaf", table)
	}
	return c.elements(value[bucketSize:], table, nil, nil)
}

// free checks the list of free pages.
func (c *checker) free(id uint64) error {
	p, err := c.page(id)
	if err != nil {
		return fmt.Errorf("the list of free pages, page %d: %w", id, err)
	}
	kind, n, all := order.Uint16(p[8:]), uint64(order.Uint16(p[10:])), p[headerSize:]
	if n == 0xFFFF { // they are more
		n, all = order.Uint64(all), all[8:]
	}
	if kind != freePage || n > uint64(len(all)/8) {
		return fmt.Errorf("the list of free pages, page %d, is of kind %d, with %d pages", id, kind, n)
	}
	for i := range n {
		if err := c.use(order.Uint64(all[8*i:])); err != nil {
			return fmt.Errorf("the list of free pages: %w", err)
		}
	}
	return nil
}
