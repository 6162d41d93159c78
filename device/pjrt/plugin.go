// Package pjrt drives any PJRT plugin: a shared library with a GetPjrtApi
// function, loaded by dlopen. It is the driver of real devices; package device
// is the contract it keeps, and says what may be called when.
//
// Find chooses the plugin for this machine, Open loads it, and Plugin.Create or NewKind make a driver of it. The
// frontends, which call the plugin themselves, get raw pointers: Plugin.API, Client.Raw, Executable.Raw, Buffer.Raw.
// They live as long as the object they came from.
//
// # Guarantees
//
// Any minor version of the PJRT C API is accepted, any other major version refused. A slot that the plugin lacks
// returns UNIMPLEMENTED with the slot's name; the plugin's own errors keep their code and text. The plugin keeps no Go
// memory, except the bytes that device.Host and Buffer.ToHost allow it to read.
//
// # Concurrency
//
// Everything may be called from any goroutine. Functions passed to Event.Then and Host.Done run on a thread of the
// plugin, or on the caller's if the event has already fired: they must not block, and must not start work that may
// (Compile, Execute), since the plugin may need the thread. No lock is held while the plugin or a function runs.
//
// Only package pjrt and packages of capi use cgo; core reaches this package through device alone.
package pjrt

// #cgo CFLAGS: -I${SRCDIR}/abi -Wall -Wshadow
// #cgo LDFLAGS: -ldl
// #include "driver.h"
import "C"

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device/pjrt/abi"
)

// Plugin is a loaded PJRT plugin. It stays loaded until the process ends, since
// XLA cannot be unloaded.
type Plugin struct {
	path         string
	api          *C.PJRT_Api
	major, minor int
	attributes   map[string]any
	collectives  registration
	hostCalls    registration
}

// opened has one plugin for each file, so that a file is loaded and initialized once.
var opened struct {
	mu     sync.Mutex
	byPath map[string]*opening
}

type opening struct {
	once   sync.Once
	plugin *Plugin
	err    error
}

// Open loads the plugin at path, once for each file and process, and initializes it.
//
// Errors: NOT_FOUND if there is no such file; FAILED_PRECONDITION, with the reason, if the file is not a plugin that
// this process can drive.
func Open(path string) (*Plugin, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, status.New(status.NotFound, "there is no PJRT plugin at %s: %w", path, err)
		}
		return nil, status.New(status.FailedPrecondition, "cannot read PJRT plugin %s: %w", path, err)
	}
	opened.mu.Lock()
	if opened.byPath == nil {
		opened.byPath = map[string]*opening{}
	}
	o := opened.byPath[resolved]
	if o == nil {
		o = &opening{}
		opened.byPath[resolved] = o
	}
	opened.mu.Unlock()
	o.once.Do(func() { o.plugin, o.err = load(resolved) })
	if o.err != nil {
		// A file that is repaired may be opened again.
		opened.mu.Lock()
		if opened.byPath[resolved] == o {
			delete(opened.byPath, resolved)
		}
		opened.mu.Unlock()
	}
	return o.plugin, o.err
}

func load(path string) (*Plugin, error) {
	if err := inspect(path); err != nil {
		return nil, err
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var reason [1024]C.char
	library := C.pwdrv_open(name, &reason[0], C.size_t(len(reason)))
	if library == nil {
		return nil, status.New(status.FailedPrecondition, "cannot load PJRT plugin %s: %s", path, C.GoString(&reason[0]))
	}
	api := C.pwdrv_table(library, &reason[0], C.size_t(len(reason)))
	if api == nil {
		return nil, status.New(status.FailedPrecondition, "%s is not a PJRT plugin: %s", path, C.GoString(&reason[0]))
	}
	return plugin(path, api)
}

// Wrap drives a plugin that is already part of this process, through its function table, a PJRT_Api*. Errors use name
// for it.
func Wrap(name string, table unsafe.Pointer) (*Plugin, error) {
	return plugin(name, (*C.PJRT_Api)(table))
}

func plugin(path string, api *C.PJRT_Api) (*Plugin, error) {
	p := &Plugin{path: path, api: api, major: int(api.pjrt_api_version.major_version),
		minor: int(api.pjrt_api_version.minor_version)}
	if p.major != abi.Major {
		return nil, status.New(status.FailedPrecondition,
			"plugin %s speaks PJRT %d.%d, this build speaks %d.x (%d.%d): install a plugin of PJRT %d.x, or an openpathways "+
				"that speaks %d.x",
			path, p.major, p.minor, abi.Major, abi.Major, abi.Minor, abi.Major, p.major)
	}
	if err := p.check(C.pwdrv_initialize(p.api)); err != nil && status.CodeOf(err) != status.Unimplemented {
		return nil, status.Wrap(err, "cannot initialize PJRT plugin %s", path)
	}
	var values *C.PJRT_NamedValue
	var count C.size_t
	if err := p.check(C.pwdrv_attributes(p.api, &values, &count)); err == nil {
		p.attributes = namedValues(values, count)
	} else if status.CodeOf(err) != status.Unimplemented {
		return nil, status.Wrap(err, "cannot read the attributes of PJRT plugin %s", path)
	}
	return p, nil
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// inspect refuses files whose loading would fail in a way that cannot be read,
// or end the process: a file that is shorter than its headers say is mapped, and
// reading it raises SIGBUS.
func inspect(path string) error {
	bad := func(format string, args ...any) error {
		return status.Wrap(status.New(status.FailedPrecondition, format, args...), "%s is not a PJRT plugin", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return bad("%w", err)
	}
	if !info.Mode().IsRegular() {
		return bad("it is not a file but a %s", kindOfFile(info.Mode()))
	}
	if self := C.pwdrv_self(); self != nil {
		if me, err := os.Stat(C.GoString(self)); err == nil && os.SameFile(me, info) {
			return bad("it is Open Pathways itself, which needs a plugin underneath: name that one")
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		return bad("it is not a whole shared library (ELF): %w", err)
	}
	defer f.Close()
	if want, ok := machines[runtime.GOARCH]; ok && (f.Machine != want || f.Class != elf.ELFCLASS64) {
		return bad("it is built for %s (%s), this machine is %s: install the build for this machine", f.Machine, f.Class,
			want)
	}
	if f.Type != elf.ET_DYN {
		return bad("it is not a shared library (ELF type %s)", f.Type)
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && s.Off+s.Filesz > uint64(info.Size()) {
			return bad("the file is cut short: it has %d bytes, its headers ask for %d; install it again", info.Size(),
				s.Off+s.Filesz)
		}
	}
	return nil
}

func kindOfFile(m fs.FileMode) string {
	if m.IsDir() {
		return "directory"
	}
	return "special file (" + m.Type().String() + ")"
}

// API returns the plugin's function table, a const PJRT_Api* that is always valid.
func (p *Plugin) API() unsafe.Pointer { return unsafe.Pointer(p.api) }

// Path returns the file that was loaded, with symbolic links resolved.
func (p *Plugin) Path() string { return p.path }

// Version returns the version of the PJRT C API that the plugin implements.
func (p *Plugin) Version() (major, minor int) { return p.major, p.minor }

// Attributes returns what the plugin reports about itself, such as "xla_version" (int64) and
// "stablehlo_current_version" ([]int64). Values are string, int64, []int64, float32 or bool. The map is shared and must
// not be changed.
func (p *Plugin) Attributes() map[string]any { return p.attributes }

// Kind returns the kind of device that the plugin drives: "cpu", "cuda" or "tpu". It follows from the plugin's
// extensions, and is known before a client is made.
func (p *Plugin) Kind() string {
	switch {
	case p.has(C.PJRT_Extension_Type_TpuTopology), p.has(C.PJRT_Extension_Type_TpuExecutable):
		return "tpu"
	case p.has(C.PJRT_Extension_Type_Gpu_Custom_Call):
		return "cuda"
	}
	return "cpu"
}

func (p *Plugin) has(extension C.int) bool { return C.pwdrv_has_extension(p.api, extension) != 0 }

// namedValues copies an array of values that the plugin owns.
func namedValues(values *C.PJRT_NamedValue, count C.size_t) map[string]any {
	m := make(map[string]any, count)
	for i := range count {
		v := C.pwdrv_named_at(values, i)
		name := C.GoStringN(v.name, C.int(v.name_size))
		switch v._type {
		case C.PJRT_NamedValue_kString:
			m[name] = goString(C.pwdrv_named_string(v))
		case C.PJRT_NamedValue_kInt64:
			m[name] = int64(C.pwdrv_named_int(v))
		case C.PJRT_NamedValue_kInt64List:
			list := make([]int64, v.value_size)
			copy(list, unsafe.Slice((*int64)(unsafe.Pointer(C.pwdrv_named_ints(v))), v.value_size))
			m[name] = list
		case C.PJRT_NamedValue_kFloat:
			m[name] = float32(C.pwdrv_named_float(v))
		case C.PJRT_NamedValue_kBool:
			m[name] = bool(C.pwdrv_named_bool(v))
		}
	}
	return m
}
