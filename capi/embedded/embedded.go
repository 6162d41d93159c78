// Package embedded is PJRT's function table for the devices of this process: the core orders every run and counts every
// array, over the plugin that device/pjrt found. GetPjrtApi in capi/python returns this table or the one of
// capi/cluster.
//
// embedded.h says how it is built. In short: five kinds of handle are ours, and all others are the plugin's own and
// pass through; slots that only read answer in C; a run of several devices enters Go once, to get its turn, and the
// plugin is then called on the same thread with no Go frame around it. A run of one device needs no turn, and enters Go
// only if memory has a limit, or if a run that makes its inputs is not launched yet.
//
// # Guarantees
//
// A table slot works or returns UNIMPLEMENTED with its name. A run that has to wait for its turn returns its results at
// once, as buffers that the plugin fulfills after the run is launched. Errors keep code and text. After fork() every
// call in the child fails with one sentence.
//
// # Concurrency
//
// Any slot may be called from any thread, with or without Python's GIL. No lock is held while the plugin runs. Execute
// blocks only if a queue is full, or until the turn of a run whose results cannot be promised: see wait.c.
package embedded

//go:generate go run ../base/gen pw embedded.h forward

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -I${SRCDIR}/../ffi -I${SRCDIR}/../export -I${SRCDIR}/../partition -I${SRCDIR}/../capture -I${SRCDIR}/../profile -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include <stdlib.h>
#include "embedded.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	_ "github.com/openpathways/pathways/capi/capture"
	"github.com/openpathways/pathways/capi/drivers"
	_ "github.com/openpathways/pathways/capi/export" // C
	_ "github.com/openpathways/pathways/capi/partition"
	core "github.com/openpathways/pathways/core/embedded"
	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/device/host"
	"github.com/openpathways/pathways/device/pjrt"
)

// session is a client of the frontend, with the system below it.
type session struct {
	*core.Session
	under *pjrt.Client
	stop  chan struct{}
	moves sync.WaitGroup // arrays that are being moved between shardings
	times times
	begun time.Time
}

var (
	sessions base.Sessions[session]

	// Written by look, once.
	found   pjrt.Found
	plugin  *pjrt.Plugin
	failure error
	look    = sync.OnceFunc(func() {
		if found, failure = pjrt.Find(pjrt.FindOptions{Dirs: drivers.Dirs()}); failure == nil {
			plugin, failure = pjrt.Open(found.Path)
		}
	})
)

// Plugin finds and loads the plugin underneath, once a process.
func Plugin() (pjrt.Found, *pjrt.Plugin, error) {
	look()
	return found, plugin, failure
}

// get returns a session by its number, or nil. It takes no lock.
func get(id C.uint64_t) *session { return sessions.Get(uint64(id)) }

func closed() error {
	return status.New(status.Unavailable, "this session was shut down; call pathways.init() to begin a new one")
}

// pwGoPlugin loads the plugin. It sets profiled if JAX asks the plugin itself for its
// profiles, without our table.
//
//export pwGoPlugin
func pwGoPlugin(profiled *C.bool, code *C.int, message **C.char) (api *C.PJRT_Api) {
	defer base.Guard(code, message)
	f, p, err := Plugin()
	if err != nil {
		*code = C.int(base.Fail(err, message))
		return nil
	}
	*profiled = C.bool(f.RegisteredByJAX())
	return (*C.PJRT_Api)(p.API())
}

// pwGoForLoad returns bytes in C's memory, which the caller frees, if an executable must be changed before the plugin
// loads it; else NULL.
//
//export pwGoForLoad
func pwGoForLoad(serialized *C.char, size C.size_t, edited **C.char, editedSize *C.size_t) {
	*edited, *editedSize = nil, 0
	given := unsafe.Slice((*byte)(unsafe.Pointer(serialized)), size)
	if out := pjrt.ForLoad(given); len(out) != len(given) {
		*edited, *editedSize = (*C.char)(C.CBytes(out)), C.size_t(len(out))
	}
}

//export pwGoPlace
func pwGoPlace(id C.uint64_t, device C.int32_t, bytes C.int64_t, freed *C.pw_name, n C.size_t, object *C.uint64_t,
	canWait *C.bool, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s := get(id)
	if s == nil {
		return C.int(base.Fail(closed(), message))
	}
	free(freed, n)
	o, err := s.Place(int(device), int64(bytes))
	if freeAll(err) {
		o, err = s.Place(int(device), int64(bytes))
	}
	*object = C.uint64_t(o)
	*canWait = C.bool(core.CanWait(err))
	return C.int(base.Fail(err, message))
}

// free tells the ledgers about arrays that have gone.
func free(objects *C.pw_name, n C.size_t) {
	for _, o := range unsafe.Slice(objects, n) {
		if s := get(o.session); s != nil {
			s.Free(uint64(o.number))
		}
	}
}

// freeAll frees arrays that have gone, after an error for want of memory, and reports whether there may be more memory
// now.
func freeAll(err error) bool {
	return status.CodeOf(err) == status.ResourceExhausted && drain()
}

//export pwGoEnter
func pwGoEnter(t *C.pw_turn) {
	if code := enter(t); code != 0 {
		t.verdict = C.int32_t(code)
	}
}

func enter(t *C.pw_turn) (code C.int) {
	defer base.Guard(&code, &t.message)
	s := get(t.session)
	if s == nil {
		return C.int(base.Fail(closed(), &t.message))
	}
	free(t.freed, t.num_freed)
	run := core.Run{
		Program: uint64(t.program),
		Only:    int(t.only),
		After:   unsafe.Slice((*uint64)(t.after), t.num_after),
		Reads:   unsafe.Slice((*uint64)(t.reads), t.num_reads),
		Nested:  bool(t.nested),
		Taken:   int64(t.taken),
	}
	out := core.Admitted{Objects: unsafe.Slice((*uint64)(t.objects), t.num_objects)}
	turn, err := s.Submit(run, &out)
	if freeAll(err) {
		turn, err = s.Submit(run, &out)
	}
	t.gang, t.computation = C.uint64_t(turn.Gang), C.uint64_t(out.Computation)
	t.can_wait = C.bool(err != nil && core.CanWait(err))
	switch {
	case err != nil:
		return C.int(base.Fail(err, &t.message))
	case !turn.Now:
		t.verdict = C.PW_QUEUED
	default:
		t.verdict = C.PW_NOW
		t.cell = (*C.pw_cell)(unsafe.Pointer(turn.Cell))
	}
	return 0
}

// waiting is a run of the frontend that did not get its turn at once.
type waiting struct{ run *C.pw_run }

func (w waiting) Launch(gang uint64) bool { return bool(C.pw_run_launch(w.run, C.uint64_t(gang))) }

func (w waiting) Fail(_ uint64, err error) {
	var message *C.char
	code := base.Fail(err, &message)
	C.pw_run_fail(w.run, C.PJRT_Error_Code(code), message)
	C.free(unsafe.Pointer(message))
}

//export pwGoArm
func pwGoArm(id, gang C.uint64_t, run *C.pw_run) {
	if s := get(id); s != nil {
		s.Island().Arm(uint64(gang), waiting{run})
	} else {
		waiting{run}.Fail(uint64(gang), closed())
	}
}

//export pwGoAwait
func pwGoAwait(id, gang C.uint64_t, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s := get(id)
	if s == nil {
		return C.int(base.Fail(closed(), message))
	}
	return C.int(base.Fail(s.Island().Await(uint64(gang)), message))
}

//export pwGoReport
func pwGoReport(id, gang C.uint64_t) {
	if s := get(id); s != nil {
		s.Island().Report(uint64(gang))
	}
}

//export pwGoLaunched
func pwGoLaunched(id, gang C.uint64_t) {
	if s := get(id); s != nil {
		s.Island().Launched(uint64(gang))
	}
}

//export pwGoCompleted
func pwGoCompleted(id, gang C.uint64_t) {
	if s := get(id); s != nil {
		s.Island().Completed(uint64(gang))
	}
}

//export pwGoProgram
func pwGoProgram(id C.uint64_t, name *C.char, collective C.bool, devices *C.int32_t, numDevices C.size_t,
	bytes *C.int64_t, numOutputs C.size_t, temp, codeBytes C.int64_t,
	compiled *C.char, compiledSize C.size_t, compiledFormat *C.char, compiledFormatSize C.size_t,
	time *C.pw_program_time, params **C.int64_t, program *C.uint64_t, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	s := get(id)
	if s == nil {
		return C.int(base.Fail(closed(), message))
	}
	p := core.Program{Name: C.GoString(name), Collective: bool(collective), Temp: int64(temp), CodeBytes: int64(codeBytes)}
	for _, d := range unsafe.Slice(devices, numDevices) {
		p.Devices = append(p.Devices, int(d))
	}
	for _, b := range unsafe.Slice(bytes, numOutputs) {
		p.Outputs = append(p.Outputs, int64(b))
	}
	number, err := s.AddProgram(p)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	s.measure(number, measured{p.Name, len(p.Devices), time})
	*program = C.uint64_t(number)
	*params = signature(C.GoStringN(compiledFormat, C.int(compiledFormatSize)),
		unsafe.Slice((*byte)(unsafe.Pointer(compiled)), compiledSize))
	return 0
}

// signature writes a compiled program's description of its arguments into C's memory: their number; for each the type,
// the rank and the dimensions; the number of donated arguments, and which; the number of results, and for each the kind
// of its memory, as text of a length, "" for the default one. It returns nil if the program does not describe them.
func signature(format string, code []byte) *C.int64_t {
	sig, err := hlo.ReadSignature(format, code)
	if err != nil {
		return nil
	}
	list := []int64{int64(len(sig.Params))}
	for _, s := range sig.Params {
		list = append(append(list, int64(s.DType), int64(len(s.Dims))), s.Dims...)
	}
	list = append(list, int64(len(sig.Donated)))
	for _, i := range sig.Donated {
		list = append(list, int64(i))
	}
	list = append(list, int64(len(sig.ResultMemories)))
	for _, kind := range sig.ResultMemories {
		list = append(list, int64(len(kind)))
		for _, letter := range []byte(kind) {
			list = append(list, int64(letter))
		}
	}
	out := (*C.int64_t)(C.malloc(C.size_t(8 * len(list))))
	copy(unsafe.Slice((*int64)(out), len(list)), list)
	return out
}

//export pwGoForget
func pwGoForget(id, program C.uint64_t) {
	if s := get(id); s != nil {
		s.unmeasure(uint64(program))
		s.Forget(uint64(program))
	}
}

//export pwGoMemory
func pwGoMemory(id C.uint64_t, device C.int32_t, limit, share *C.int64_t, onHost *C.bool) {
	s := get(id)
	if s == nil {
		return
	}
	most := s.Memory(int(device)).Limit
	part := most
	if s.under.Platform() == "cpu" {
		*onHost = true
		if all := host.Memory(); all > 0 {
			most = cmp.Or(most, all)
			part = min(most, all/int64(len(s.under.Devices())))
		}
	}
	*limit, *share = C.int64_t(most), C.int64_t(part)
}

// cells are made once a session, in C's memory, where the frontend writes them. They are never freed: a thread of an
// ended session may still write one.
func cells(n int) ([]*executor.Cell, error) {
	memory := C.calloc(C.size_t(n), 4)
	if memory == nil {
		return nil, status.New(status.ResourceExhausted, "this process has no memory left for a session (%d bytes)", 4*n)
	}
	block := unsafe.Slice((*executor.Cell)(memory), n)
	out := make([]*executor.Cell, n)
	for i := range block {
		out[i] = &block[i]
	}
	return out, nil
}

// cpuWindow bounds the gangs under way on XLA's CPU client, which deadlocks, and
// then ends the process, when more than 32 computations with collectives wait on
// its threads; stock JAX does too. Half of that keeps every device busy.
const cpuWindow = 16

// numCells bounds how many gangs of several devices are launched by their own threads and not yet done; further ones
// wait for their turn.
const numCells = 256

//export pwGoClientCreate
func pwGoClientCreate(args *C.PJRT_Client_Create_Args, under *unsafe.Pointer, id *C.uint64_t, pass **C.pw_pass,
	version **C.char, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	_, p, err := Plugin()
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	o, err := options(args)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	if err := o.check(p.Kind()); err != nil {
		return C.int(base.Fail(err, message))
	}
	c, err := p.Create(o.ClientOptions)
	if err != nil {
		return C.int(base.Fail(o.explain(err), message))
	}
	const line = 16 // words of a cache line: the first is read by every run, and the cells are written
	shared, err := cells(line + numCells)
	if err != nil {
		c.Close()
		return C.int(base.Fail(err, message))
	}
	system := core.Embedded{Pass: shared[0], Cells: shared[line:], Limit: o.limit}
	for _, d := range c.Devices() {
		system.Devices = append(system.Devices, d.Kind)
	}
	if c.Platform() == "cpu" {
		system.Window = cpuWindow
		system.Threads = max(runtime.NumCPU(), len(system.Devices)) // as XLA sizes the pool
	}
	inner, err := system.Open()
	if err != nil {
		c.Close()
		return C.int(base.Fail(err, message))
	}
	s := &session{Session: inner, under: c, stop: make(chan struct{}), begun: time.Now()}
	*id = C.uint64_t(sessions.Add(s))
	go s.flush()
	*under, *pass = c.Raw(), (*C.pw_pass)(unsafe.Pointer(shared[0]))
	(*pass).limited, (*pass).memory_wait = o.limit > 0, C.int64_t(o.memoryWait)
	major, minor := p.Version()
	// Old versions of JAX look for "PJRT C API" here; the rest keeps compiled
	// programs apart from those of other backends in JAX's cache.
	*version = C.CString(fmt.Sprintf("PJRT C API\nOpen Pathways %s, embedded, over PJRT %d.%d: %s", base.Version, major,
		minor, c.PlatformVersion()))
	return 0
}

// flushEvery is how soon the ledger hears of arrays that have gone, and how long gangs make no progress before they are
// checked.
const flushEvery = 200 * time.Millisecond

// flush tells the ledger about arrays that have gone while nothing else enters Go, and has gangs that make no progress
// checked.
func (s *session) flush() {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for last := ^C.uint64_t(0); ; {
		select {
		case <-s.stop:
			return
		case <-t.C:
			drain()
			var ended C.uint64_t
			if waiting := C.pw_waiting(&ended); bool(waiting) && ended == last {
				s.under.Stir()
			}
			last = ended
		}
	}
}

// drain tells the ledgers about all arrays that have gone, and reports whether there were any.
func drain() (were bool) {
	var objects [C.PW_FREED]C.pw_name
	for {
		n := C.pw_freed(&objects[0], C.PW_FREED, true)
		if n == 0 {
			return were
		}
		free(&objects[0], n)
		C.pw_tell_end(true)
		were = true
	}
}

//export pwGoClientDestroy
func pwGoClientDestroy(id C.uint64_t) {
	s := sessions.Remove(uint64(id))
	if s == nil {
		return
	}
	s.unmeasureAll()
	close(s.stop)
	drain()
	s.Close() // so everything that moves has its bytes, or an error
	s.moves.Wait()
	drain()
	if err := s.under.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "pathways:", err)
	}
}

// Latest returns the newest open session, or 0.
func Latest() uint64 { return sessions.Latest(func(*session) bool { return true }) }

// Slices returns the interface that grants a session's slices.
//
// Errors: UNAVAILABLE after the session's end.
func Slices(id uint64) (grant.Slices, error) {
	if s := get(C.uint64_t(id)); s != nil {
		return s, nil
	}
	return nil, closed()
}
