package ffi

// #include <stdlib.h>
// #include "ffi.h"
import "C"

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Named returns the handlers of this process whose targets occur in a program's code, for the workers that run it. It
// leaves out those of jaxlib and of this library, which every worker has.
func Named(code []byte) []*wire.Handler {
	var all []*wire.Handler
	types := map[string][]*wire.HandlerType{} // by library
	var e C.pw_ffi_entry
	for i := C.size_t(0); bool(C.pw_ffi_entry_at(i, &e)); i++ {
		name := C.GoString(e.name)
		if e.platform == nil {
			if id := symbolOf(e.stages[0]); !common(id.Library) {
				types[id.Library] = append(types[id.Library], &wire.HandlerType{Name: name, Id: id, Info: symbolOf(e.stages[1])})
			}
			continue
		}
		// jaxlib has more than a hundred: the code, which may be long, is searched for the others alone.
		if name == "" || common(C.GoString(C.pw_ffi_symbol_of(e.stages[3]).library)) || !bytes.Contains(code, []byte(name)) {
			continue
		}
		h := &wire.Handler{Target: name, Platform: C.GoString(e.platform), Traits: uint32(e.traits)}
		for _, stage := range e.stages {
			h.Stages = append(h.Stages, symbolOf(stage))
		}
		all = append(all, h)
	}
	for _, h := range all {
		h.Types = types[h.Stages[len(h.Stages)-1].Library]
	}
	return all
}

// common reports whether a library is on every worker.
func common(library string) bool {
	return library != "" && (library == C.GoString(C.pw_ffi_own_library()) ||
		filepath.Base(filepath.Dir(library)) == "jaxlib" ||
		strings.Contains(library, string(filepath.Separator)+"jaxlib"+string(filepath.Separator)))
}

func symbolOf(address unsafe.Pointer) *wire.Symbol {
	if address == nil {
		return new(wire.Symbol)
	}
	s := C.pw_ffi_symbol_of(address)
	if s.library == nil {
		return &wire.Symbol{Library: inMemory}
	}
	out := &wire.Symbol{Library: C.GoString(s.library)}
	if path, err := filepath.Abs(out.Library); err == nil {
		out.Library = path
	}
	if s.name != nil {
		out.Name = C.GoString(s.name)
		out.Sha256, _ = files.sum(out.Library) // the process that loads it reports what is wrong with it
	}
	return out
}

// inMemory is the library of handlers that were made at run time.
const inMemory = "(memory)"

// loaded are the handlers that Load has registered, by target and platform. Its lock is held while a library is opened
// and its handler registered, so that a target is registered once: that happens when a worker first meets the target,
// and nothing else takes the lock.
var loaded struct {
	sync.Mutex
	all map[[2]string]*wire.Handler
}

// Load registers a client's handler with this process's plugin, from the same library. It keeps a handler that a module
// of `pathways worker --import` has registered for the target.
//
// Errors name the target and the library: NOT_FOUND if the library or the symbol does not exist, FAILED_PRECONDITION if
// the library is not the client's file, ALREADY_EXISTS if the target has another handler, UNIMPLEMENTED for a handler
// that no library names.
// library names.
func Load(h *wire.Handler) error {
	if len(h.Stages) != 4 {
		return status.New(status.InvalidArgument, "FFI target %q has %d stages, expected 4", h.Target, len(h.Stages))
	}
	library := h.Stages[3].GetLibrary()
	if err := load(h); err != nil {
		return status.New(status.CodeOf(err), "FFI target %q, whose handler is in %s, cannot be used here: %w. Start the "+
			"workers with `pathways worker --import module`, a Python module that registers the target", h.Target, library, err)
	}
	return nil
}

func load(h *wire.Handler) error {
	loaded.Lock()
	defer loaded.Unlock()
	key := [2]string{h.Target, h.Platform}
	if was := loaded.all[key]; was != nil {
		if proto.Equal(was, h) {
			return nil
		}
		return status.New(status.AlreadyExists,
			"the target has the handler of %s, and cannot be replaced; use another name, or start the workers again",
			was.Stages[3].Library)
	}
	name, platform := C.CString(h.Target), C.CString(h.Platform)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(platform))
	if bool(C.pw_ffi_has(name, platform)) {
		return nil
	}
	for _, t := range h.Types {
		if err := loadType(t); err != nil {
			return err
		}
	}
	var stages [4]C.pw_ffi_symbol
	for i, s := range h.Stages {
		c, free, err := check(s, i == 3)
		if err != nil {
			return err
		}
		defer free()
		stages[i] = c
	}
	var message *C.char
	code := C.pw_ffi_load(name, platform, &stages[0], C.uint32_t(h.Traits), &message)
	if err := base.Failure(code, message); err != nil {
		return err
	}
	if loaded.all == nil {
		loaded.all = map[[2]string]*wire.Handler{}
	}
	loaded.all[key] = h
	return nil
}

func loadType(t *wire.HandlerType) error {
	name := C.CString(t.Name)
	defer C.free(unsafe.Pointer(name))
	id, free, err := check(t.Id, true)
	if err != nil {
		return status.Wrap(err, "the type %s of its state", t.Name)
	}
	defer free()
	info, free, err := check(t.Info, false)
	if err != nil {
		return status.Wrap(err, "the type %s of its state", t.Name)
	}
	defer free()
	var message *C.char
	code := C.pw_ffi_load_type(name, id, info, &message)
	return base.Failure(code, message)
}

// check returns a symbol that can be looked up, if its library is here and is the client's.
func check(s *wire.Symbol, needed bool) (C.pw_ffi_symbol, func(), error) {
	switch {
	case s.GetLibrary() == "" && !needed:
		return C.pw_ffi_symbol{}, func() {}, nil
	case s.GetLibrary() == "" || s.Library == inMemory:
		return C.pw_ffi_symbol{}, nil, status.New(status.Unimplemented, "it was made at run time and is in no library")
	case s.Name == "":
		return C.pw_ffi_symbol{}, nil,
			status.New(status.Unimplemented, "it has no name in %s, as static functions and variables have none", s.Library)
	}
	sum, err := files.sum(s.Library)
	if err != nil {
		return C.pw_ffi_symbol{}, nil, status.New(status.NotFound, "the library cannot be read: %w", err)
	}
	if !bytes.Equal(sum, s.Sha256) {
		return C.pw_ffi_symbol{}, nil,
			status.New(status.FailedPrecondition, "the file %s differs from the client's, or has changed", s.Library)
	}
	c := C.pw_ffi_symbol{library: C.CString(s.Library), name: C.CString(s.Name)}
	return c, func() {
		C.free(unsafe.Pointer(c.library))
		C.free(unsafe.Pointer(c.name))
	}, nil
}

// files are the hashes of libraries, valid as long as the files do not change.
var files sums

type sums struct {
	mu  sync.Mutex
	all map[string]sum // guarded by mu
}

type sum struct {
	size int64
	time time.Time
	hash []byte
}

func (f *sums) sum(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	s, known := f.all[path]
	f.mu.Unlock()
	if known && s.size == info.Size() && s.time.Equal(info.ModTime()) {
		return s.hash, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return nil, err
	}
	s = sum{info.Size(), info.ModTime(), h.Sum(nil)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]sum{}
	}
	f.all[path] = s
	return s.hash, nil
}
