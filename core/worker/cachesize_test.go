package worker

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/content"
)

// What was used least recently goes until the rest has room, and what a worker that has crashed was writing. Files that
// are not the cache's stay.
func TestCacheIsBounded(t *testing.T) {
	folder, now := t.TempDir(), time.Now()
	oldest, older, joined := strings.Repeat("0a", 32), strings.Repeat("0b", 32), strings.Repeat("0c", 32)+joinedFile
	for name, age := range map[string]time.Duration{
		oldest + programFile: 5 * time.Minute, older + programFile: 4 * time.Minute, joined + programFile: 3 * time.Minute,
		"new-12": time.Hour + time.Second, "new-34": time.Hour - time.Second, "new-notes": 2 * time.Hour,
		"notes.program": 2 * time.Hour,
	} {
		path := filepath.Join(folder, name)
		statustest.OK(t, os.WriteFile(path, make([]byte, 100), 0o600))
		statustest.OK(t, os.Chtimes(path, now, now.Add(-age)))
	}
	left := func(most int64) (names []string) {
		statustest.OK(t, tidyCache(folder, most, now))
		files := statustest.Value(os.ReadDir(folder)).OK(t)
		for _, f := range files {
			names = append(names, f.Name())
		}
		return names
	}
	others := []string{"new-34", "new-notes", "notes.program"}
	oldest, older, joined = oldest+programFile, older+programFile, joined+programFile
	for _, c := range []struct {
		most int64
		want []string
	}{{0, []string{oldest, older, joined}}, {300, []string{oldest, older, joined}}, {299, []string{older, joined}},
		{150, []string{joined}}, {1, nil}} {
		statustest.EqualSlices(t, left(c.most), slices.Concat(c.want, others), "bytes that are left of %d", c.most)
	}
}

// A program that is found was used just now, and one that is larger than the whole cache takes no other's place.
func TestCacheKeepsWhatIsUsed(t *testing.T) {
	said := &wire.Compiled{Info: &wire.ProgramInfo{Name: "f"}, Loadable: &wire.Loadable{Serialized: make([]byte, 1000)}}
	header := statustest.Value(proto.Marshal(said)).OK(t)
	w := &Worker{config: Config{Cache: t.TempDir(), CacheBytes: 5 << 9}, log: slog.New(slog.DiscardHandler)} // for two
	ask := func(key string) *wire.Compile { return &wire.Compile{Key: strings.Repeat(key, 32), Inline: 1} }
	has := func(key string) bool {
		_, err := os.Stat(w.cachePath(ask(key)))
		return err == nil
	}
	for i, key := range []string{"0a", "0b"} {
		statustest.OK(t, writeCached(w.cachePath(ask(key)), header, nil))
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		statustest.OK(t, os.Chtimes(w.cachePath(ask(key)), at, at))
	}
	if !w.fromCache(ask("0a"), new(wire.Compiled)) {
		t.Fatal("a program is not found")
	}
	w.toCache(ask("0c"), said, nil)
	if !has("0a") || has("0b") || !has("0c") {
		t.Errorf("the one used last is there: %v, the other: %v, the new one: %v", has("0a"), has("0b"), has("0c"))
	}
	w.toCache(ask("0d"), said, []*content.Memory{content.Bytes(bytes.Repeat([]byte("x"), 3000))})
	if !has("0a") || has("0d") || !has("0c") {
		t.Error("a program that does not fit has taken the place of others, or is kept")
	}
}
