package durable

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s := statustest.Value(Open(dir)).OK(t)
	return s
}

func facts(t *testing.T, s *Store, table string) map[string]string {
	t.Helper()
	all := map[string]string{}
	statustest.OK(t, s.Read(table, func(key string, value []byte) error {
		all[key] = string(value)
		return nil
	}))
	return all
}

// Each start is the same controller, with a higher term, and has the facts of the one before.
func TestNextStartHasWhatWasKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	first, err := s.Start()
	if err != nil || first.Starts != 1 || len(first.Key) != keySize || first.Cluster == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, entries := range [][]Entry{
		{{"a", "1", []byte("one")}, {"a", "2", []byte("two")}, {"b", "1", []byte("other")}},
		{{"a", "1", nil}, {"a", "3", []byte{}}, {"c", "1", nil}},
	} {
		statustest.OK(t, s.Write(entries))
	}
	statustest.OK(t, s.Close())
	s = open(t, dir)
	second, err := s.Start()
	if err != nil || second.Starts != 2 || second.Term <= first.Term || second.Cluster != first.Cluster ||
		!reflect.DeepEqual(second.Key, first.Key) {
		t.Errorf("%+v behind %+v, %v", second, first, err)
	}
	if got, want := facts(t, s, "a"), map[string]string{"2": "two", "3": ""}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := facts(t, s, "c"); len(got) > 0 {
		t.Errorf("got %v, want nothing", got)
	}
	statustest.Check(t, s.Remove())
	if _, err := os.Stat(filepath.Join(dir, File)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// What is not a store is refused with its path, and so is one of another format.
func TestOtherFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, File)
	statustest.OK(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
	statustest.Fails(t, "the error", statustest.Of(Open(dir)), status.DataLoss, path)
	os.Remove(path)
	s := open(t, dir)
	defer s.Close()
	statustest.OK(t, statustest.Of(s.Start()))
	statustest.OK(t, s.Write([]Entry{{string(identity), "format", number(format + 1)}}))
	statustest.Fails(t, "the error", statustest.Of(s.Start()), status.FailedPrecondition, path)
}
