package server

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What a start makes of the facts that it finds is one transaction, behind that of its identity.
func TestStartWritesItsFactsAtOnce(t *testing.T) {
	dir := t.TempDir()
	store := statustest.Value(durable.Open(dir)).OK(t)
	var orphans []durable.Entry // sessions without a process: the start removes them, and there are enough to take a while
	for i := 1; i <= 5000; i++ {
		value := statustest.Value(proto.Marshal(&wire.KeptSession{Session: uint32(i)})).OK(t)
		orphans = append(orphans, durable.Entry{Table: "sessions", Key: fmt.Sprintf("%010d", i), Value: value})
	}
	statustest.OK(t, store.Write(orphans))
	before := transactions(t, dir, store)
	store = statustest.Value(durable.Open(dir)).OK(t)
	s := statustest.Value(New(Config{Store: store, Lease: time.Minute})).OK(t)
	s.keeper.wait()
	if got := transactions(t, dir, store) - before; got != 2 {
		t.Errorf("the start took %d transactions, want 2", got)
	}
	s.Close()
}

// transactions closes a store, and returns how many transactions have written to it.
func transactions(t *testing.T, dir string, s *durable.Store) (n int) {
	t.Helper()
	statustest.OK(t, s.Close())
	db := statustest.Value(bbolt.Open(filepath.Join(dir, durable.File), 0o600, nil)).OK(t)
	statustest.OK(t, db.View(func(tx *bbolt.Tx) error {
		n = tx.ID()
		return nil
	}))
	statustest.OK(t, db.Close())
	return n
}
