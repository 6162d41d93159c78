// Package durable keeps on disk what a controller needs when it starts again: its identity, and the facts of its State,
// whose meaning it does not know.
//
// # What it guarantees
//
// A Store is one file of go.etcd.io/bbolt, which one process has open at a time. Start returns the same cluster and key
// each time, and a term above that of every start before; the term is on disk before Start returns. Write is one
// transaction: after a crash of the process or the machine, all of its entries are there, or none.
//
// Methods may be called from any goroutine. They wait for the disk, so the caller holds no lock that others need.
// core/controller and core/cluster import it.
package durable

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// File is the name of the file in a controller's directory of state.
const File = "controller.db"

const (
	// format is the version of the file's contents. A file of another one is refused.
	format = 1
	// openTime is how long Open waits for another process to close the file. A killed controller has closed it, and one
	// that ends will do so soon.
	openTime = 5 * time.Second

	keySize     = 32
	clusterSize = 8
)

// identity is the table of the values that Start returns.
var identity = []byte("identity")

// Store is an open file.
type Store struct {
	db *bbolt.DB
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
// Errors: UNAVAILABLE if another process has it open; DATA_LOSS if the file is not one of this package.
func Open(directory string) (*Store, error) {
	path := filepath.Join(directory, File)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTime})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, status.New(status.Unavailable, "%s is in use by another controller; expected to be the only one: end "+
			"that one, or name another directory by --state", path)
	case err != nil:
		return nil, status.New(status.DataLoss, "%s cannot be read: %w; move it away to begin a new cluster", path, err)
	}
	return &Store{db: db}, nil
}

// Start begins a new term.
func (s *Store) Start() (who Identity, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(identity)
		if err != nil {
			return err
		}
		if b.Get([]byte("key")) == nil {
			var random [clusterSize + keySize]byte
			rand.Read(random[:])
			for name, value := range map[string][]byte{"format": number(format), "key": random[clusterSize:],
				"cluster": []byte(hex.EncodeToString(random[:clusterSize]))} {
				if err := b.Put([]byte(name), value); err != nil {
					return err
				}
			}
		}
		if got := numberOf(b.Get([]byte("format"))); got != format {
			return status.New(status.FailedPrecondition, "its format is %d, and this version of openpathways reads %d; move "+
				"it away to begin a new cluster", got, format)
		}
		who.Cluster, who.Key = string(b.Get([]byte("cluster"))), append([]byte(nil), b.Get([]byte("key"))...)
		who.Starts = numberOf(b.Get([]byte("starts"))) + 1
		// The clock makes terms rise even if the file was restored from a copy.
		who.Term = max(numberOf(b.Get([]byte("term")))+1, uint64(time.Now().UnixNano()))
		if err := b.Put([]byte("starts"), number(who.Starts)); err != nil {
			return err
		}
		return b.Put([]byte("term"), number(who.Term))
	})
	return who, s.failed(err)
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func numberOf(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Read calls each with the facts of a table, by key. The value is good during the call.
func (s *Store) Read(table string, each func(key string, value []byte) error) error {
	return s.failed(s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(table))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error { return each(string(k), v) })
	}))
}

// Write keeps entries, in their order.
func (s *Store) Write(entries []Entry) error {
	return s.failed(s.db.Update(func(tx *bbolt.Tx) error {
		for _, e := range entries {
			b, err := tx.CreateBucketIfNotExists([]byte(e.Table))
			if err != nil {
				return err
			}
			if e.Value == nil {
				err = b.Delete([]byte(e.Key))
			} else {
				err = b.Put([]byte(e.Key), e.Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// failed says which file an error is about.
func (s *Store) failed(err error) error {
	if err == nil {
		return nil
	}
	if code := status.CodeOf(err); code != status.Unknown {
		return status.New(code, "the controller's state in %s: %w", s.db.Path(), err)
	}
	return status.New(status.Unavailable, "the controller's state in %s: %w", s.db.Path(), err)
}

// Close closes the file.
func (s *Store) Close() error { return s.failed(s.db.Close()) }

// Remove closes the file and removes it: there is no cluster any more that a next start could restore.
func (s *Store) Remove() error {
	path := s.db.Path()
	if err := s.Close(); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return system.Error(err, "the controller's state cannot be removed")
	}
	return nil
}
