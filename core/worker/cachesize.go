package worker

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/status/system"
)

// The cache of compiled programs has a bound. A file's time of change says when it was written or found last, and the
// oldest go when a worker starts, or has written one. Workers that share a folder each do so, and choose the same
// files; what one has found in the meantime goes at worst, and is compiled again. A worker that reads a file goes on
// reading.

const (
	programFile = ".program" // ends the name of a file
	newFile     = "new-"     // begins that of one that is being written
	// staleAfter is how old a file is that is not written any more, since its worker has ended before it was complete.
	staleAfter = time.Hour
)

// isProgramFile reports whether a name is one that cachePath makes. Others in the folder are not the cache's.
func isProgramFile(name string) bool {
	key, found := strings.CutSuffix(name, programFile)
	key = strings.TrimSuffix(key, joinedFile)
	return found && isKey(key)
}

// isKey reports whether a controller's name of a program is hexadecimal: it names no file elsewhere.
func isKey(key string) bool {
	return len(key) == 2*sha256.Size && strings.Trim(key, "0123456789abcdef") == ""
}

func isNewFile(name string) bool {
	number, found := strings.CutPrefix(name, newFile)
	return found && number != "" && strings.Trim(number, "0123456789") == ""
}

// tidyCache removes what is stale from a folder of compiled programs, and of the rest what was used least recently,
// until it has at most so many bytes; 0 is no bound.
//
// Errors: those of package system.
func tidyCache(folder string, most int64, now time.Time) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return system.Error(err, "cannot bound the cache of compiled programs")
	}
	var kept []fs.FileInfo
	var bytes int64
	var failed []error
	remove := func(name string) {
		if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	for _, e := range entries {
		program, unfinished := isProgramFile(e.Name()), isNewFile(e.Name())
		if !program && !unfinished {
			continue
		}
		info, err := e.Info()
		switch {
		case err != nil || !info.Mode().IsRegular(): // another worker has removed it
		case unfinished && now.Sub(info.ModTime()) > staleAfter:
			remove(e.Name())
		case program:
			kept = append(kept, info)
			bytes += info.Size()
		}
	}
	slices.SortFunc(kept, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for i := 0; most > 0 && bytes > most && i < len(kept); i++ {
		remove(kept[i].Name())
		bytes -= kept[i].Size()
	}
	return system.Error(errors.Join(failed...), "cannot bound the cache of compiled programs")
}

// boundCache tidies the worker's cache.
func (w *Worker) boundCache() {
	if w.config.Cache == "" {
		return
	}
	if err := tidyCache(w.config.Cache, w.config.CacheBytes, time.Now()); err != nil {
		w.log.Warn("the cache of compiled programs may take more than its bound", "error", err)
	}
}
