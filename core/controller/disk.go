package controller

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/openpathways/pathways/core/status/system"
)

// cache keeps compiled programs in a folder, a file each: the SHA-256 of what
// follows, then a wire.Compiled. Controllers may share a folder.
type cache struct{ folder string }

// openCache makes the folder where it is not there.
//
// Errors: those of package system.
func openCache(folder string) (*cache, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, system.Error(err, "the cache of compiled programs cannot be made; name another folder")
	}
	return &cache{folder}, nil
}

func (c *cache) path(key string) string { return filepath.Join(c.folder, key+".program") }

// read gives what is kept under a key, or nil. A file that is damaged goes.
func (c *cache) read(key string) []byte {
	b, err := os.ReadFile(c.path(key))
	if err != nil {
		return nil
	}
	if len(b) >= sha256.Size {
		if sum := sha256.Sum256(b[sha256.Size:]); bytes.Equal(sum[:], b[:sha256.Size]) {
			return b[sha256.Size:]
		}
	}
	os.Remove(c.path(key))
	return nil
}

// write keeps a program. Readers see all of it or nothing.
//
// Errors: those of package system, with the file.
func (c *cache) write(key string, program []byte) error {
	f, err := os.CreateTemp(c.folder, "new-*")
	if err != nil {
		return system.Error(err, "cannot keep a compiled program")
	}
	sum := sha256.Sum256(program)
	_, err = f.Write(sum[:])
	if err == nil {
		_, err = f.Write(program)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), c.path(key))
	}
	if err != nil {
		if e := os.Remove(f.Name()); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return system.Error(err, "cannot keep a compiled program")
}
