// Package durable keeps on disk what a controller needs when it starts again: its identity, and the facts of its State,
// whose meaning it does not know.
//
// # What it guarantees
//
// A Store is one file of go.etcd.io/bbolt, which one process has open at a time. Start returns the same cluster and key
// each time, and a term above that of every start before; the term is on disk before Start returns. Write is one
// transaction: after a crash of the process or the machine, all of its entries are there, or none. Open refuses a file
// that is damaged, and leaves it as it is (check.go). If the file is damaged while it is open, the call that meets this
// and all later ones fail; the process goes on.
//
// Methods may be called from any goroutine. They wait for the disk, so the caller holds no lock that others need.
// core/controller and core/cluster import it.
package durable

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// File is the name of the file in a controller's directory of state.
const File = "controller.db"

const (
	// format is the version of the file's contents. A file of another one is refused.
	format = 2
	// openTime is how long Open waits for another process to close the file. A killed controller has closed it, and one
	// that ends will do so soon.
	openTime = 5 * time.Second
	openWait = 50 * time.Millisecond // between two attempts

	keySize     = 32
	clusterSize = 8
)

// identity is the table of the values that Start returns.
var identity = []byte("identity")

// Store is an open file.
type Store struct {
	path string
	db   *bbolt.DB

	mu     sync.Mutex // held by each use of db
	broken error      // after a panic in db, which may still have its locks: it is not used again, nor closed
}

// Entry is one fact. A nil Value removes it.
type Entry struct {
	Table, Key string
	Value      []byte
}

// Identity is who a controller is.
type Identity struct {
	Cluster string // the same for all starts
	Key     []byte // the same
	Term    uint64 // of this start
	Starts  uint64 // 1 for the first
}

// Open opens the store of a directory, which exists, and makes it if it is not there.
//
// Errors: UNAVAILABLE if another process has it open; DATA_LOSS if the file is damaged, or not one of this package.
func Open(directory string) (*Store, error) {
	path := filepath.Join(directory, File)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, system.Error(err, "the controller's state cannot be opened")
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, err
	}
	s := &Store{path: path}
	if err = s.failed(s.guarded(func() error { return s.open(f) })); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// open has bbolt use a file, if there is no damage to it.
func (s *Store) open(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		if err := check(f, info.Size()); err != nil {
			return damaged(err)
		}
	}
	s.db, err = bbolt.Open(s.path, 0o600, &bbolt.Options{OpenFile: func(string, int, os.FileMode) (*os.File, error) {
		return f, nil // bbolt locks it again, which it may
	}})
	return system.Error(err, "it cannot be opened")
}

// damaged says that what is kept cannot be used.
func damaged(why any) error {
	return status.New(status.DataLoss, "it is damaged: %v; restore it from a copy, or move it away to begin a new cluster",
		why)
}

// lock makes this the one process that uses the file, until it is closed.
func lock(f *os.File) error {
	for until := time.Now().Add(openTime); ; time.Sleep(openWait) {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return system.Error(err, "%s cannot be locked", f.Name())
		case time.Now().After(until):
			return status.New(status.Unavailable, "%s is in use by another controller; expected to be the only one: end "+
				"that one, or name another directory by --state", f.Name())
		}
	}
}

// guarded calls use, which uses the file. What bbolt reads is mapped, so a file that cannot be read, or was made
// shorter, is a fault of memory. That becomes an error here, and so does a panic of bbolt.
func (s *Store) guarded(use func() error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if why := recover(); why != nil {
			s.broken = damaged(why)
			err = s.broken
		}
	}()
	return use()
}

// Start begins a new term.
func (s *Store) Start() (who Identity, err error) {
	err = s.update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(identity)
		if err != nil {
			return err
		}
		put := func(name string, value []byte) {
			if err == nil {
				err = b.Put([]byte(name), sealed(identity, []byte(name), value))
			}
		}
		if b.Get([]byte("key")) == nil {
			var random [clusterSize + keySize]byte
			rand.Read(random[:])
			put("format", number(format))
			put("key", random[clusterSize:])
			put("cluster", []byte(hex.EncodeToString(random[:clusterSize])))
		}
		get := func(name string) []byte { return content(b.Get([]byte(name))) }
		if got := numberOf(get("format")); err == nil && got != format {
			return status.New(status.FailedPrecondition, "its format is %d, and this version of openpathways reads %d; move "+
				"it away to begin a new cluster", got, format)
		}
		who.Cluster, who.Key = string(get("cluster")), bytes.Clone(get("key"))
		who.Starts = numberOf(get("starts")) + 1
		// The clock makes terms rise even if the file was restored from a copy.
		who.Term = max(numberOf(get("term"))+1, uint64(time.Now().UnixNano()))
		put("starts", number(who.Starts))
		put("term", number(who.Term))
		return err
	})
	return who, err
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func numberOf(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Behind each value, the file has a sum of the value, its table and its key. So a fact that has changed on the disk is
// not taken for one that was kept.
const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealed returns a value with its sum.
func sealed(table, key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(slices.Clip(value), sum(table, key, value))
}

// isSealed reports whether a value has its sum.
func isSealed(table, key, value []byte) bool {
	n := len(value) - sumSize
	return n >= 0 && binary.BigEndian.Uint32(value[n:]) == sum(table, key, value[:n])
}

// content returns a sealed value without its sum, which Open has seen; nil of nil.
func content(sealed []byte) []byte {
	if sealed == nil {
		return nil
	}
	return sealed[:len(sealed)-sumSize]
}

func sum(table, key, value []byte) uint32 {
	all := uint32(0)
	for _, part := range [...][]byte{table, {0}, key, {0}, value} {
		all = crc32.Update(all, castagnoli, part)
	}
	return all
}

// Read calls each with the facts of a table, by key.
func (s *Store) Read(table string, each func(key string, value []byte) error) error {
	var all []Entry // so that nothing but the reading is guarded
	err := s.failed(s.guarded(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(table))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, v []byte) error {
				all = append(all, Entry{Key: string(k), Value: bytes.Clone(content(v))})
				return nil
			})
		})
	}))
	for i := 0; i < len(all) && err == nil; i++ {
		err = s.failed(each(all[i].Key, all[i].Value))
	}
	return err
}

// Write keeps entries, in their order.
func (s *Store) Write(entries []Entry) error {
	return s.update(func(tx *bbolt.Tx) error {
		for _, e := range entries {
			table, key := []byte(e.Table), []byte(e.Key)
			b, err := tx.CreateBucketIfNotExists(table)
			if err != nil {
				return err
			}
			if e.Value == nil {
				err = b.Delete(key)
			} else {
				err = b.Put(key, sealed(table, key, e.Value))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// update does one transaction.
func (s *Store) update(do func(tx *bbolt.Tx) error) error {
	return s.failed(s.guarded(func() error { return s.db.Update(do) }))
}

// failed says which file an error is about.
func (s *Store) failed(err error) error {
	if err == nil {
		return nil
	}
	if code := status.CodeOf(err); code != status.Unknown {
		return status.New(code, "the controller's state in %s: %w", s.path, err)
	}
	return status.New(status.Unavailable, "the controller's state in %s: %w", s.path, err)
}

// Close closes the file.
func (s *Store) Close() error {
	return s.failed(s.guarded(func() error { return s.db.Close() }))
}

// Remove closes the file and removes it: there is no cluster any more that a next start could restore.
func (s *Store) Remove() error {
	_ = s.Close() // what it says of the file does not matter any more
	if err := os.Remove(s.path); err != nil {
		return system.Error(err, "the controller's state cannot be removed")
	}
	return nil
}
