// Package cluster is the frontend of a cluster: a PJRT function table whose devices are those of many workers. It
// stands on core/client.Cluster, which takes whole objects; cluster.h says how the C side is built.
//
// # Guarantees
//
// A table slot works or returns UNIMPLEMENTED with its name. Execute returns before the run has begun; its results
// become ready, or fail with code and text, when the cluster reports it. Slots that only read answer in C; an operation
// is one entry into Go. A logical array is one object, freed once.
//
// # Concurrency
//
// Any slot may be called from any thread, with or without Python's GIL. Only Compile, Await and a submission without
// credit block. Callbacks of events run on one goroutine for each client, which holds no lock and on which the
// cluster's own work does not depend.
package cluster

//go:generate go run ../base/gen pr cluster.h

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -I${SRCDIR}/../ffi -I${SRCDIR}/../export -I${SRCDIR}/../capture -I${SRCDIR}/../profile -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include <stdlib.h>
#include "cluster.h"
*/
import "C"

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/capi/base"
	_ "github.com/openpathways/pathways/capi/capture"
	_ "github.com/openpathways/pathways/capi/export" // C
	_ "github.com/openpathways/pathways/capi/ffi"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Dial makes a session on the cluster at an address, with these devices. It reports ended operations to notify.
type Dial func(ctx context.Context, address string, want Want, notify client.Notify) (client.Cluster, error)

// Want says which devices a session is to have.
type Want struct {
	Devices int  // exactly so many; 0 means all that the cluster has
	Elastic bool // where the cluster has fewer, the others have no worker until one comes
	// Platforms are those of the devices, such as "cpu", in this order; with none, the cluster chooses one.
	Platforms []string
}

var (
	sessions base.Sessions[session]

	mu      sync.Mutex // guards what follows
	address string
	dial    Dial
)

// Use sets the cluster of clients that are made from now on.
func Use(where string, how Dial) {
	mu.Lock()
	defer mu.Unlock()
	address, dial = where, how
}

// API returns the function table, a const PJRT_Api* that is always valid.
func API() unsafe.Pointer { return unsafe.Pointer(C.pr_api()) }

// session is a client of the frontend, with its cluster.
type session struct {
	number   uint64
	named    int64 // by the process: see asked.family
	cluster  client.Cluster
	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	closed   atomic.Bool
	ends     *ends
	underWay atomic.Int64 // operations with a token
	handlers atomic.Bool  // a program calls handlers that this process has registered
	mu       sync.Mutex
	puts     map[uint64][]*put // by token: the rows; guarded by mu
	callers  callers
	plays    plays
	family   []*C.PJRT_Client // by platform; set before the session is known
	clients  int              // of the family, how many its users have; guarded by the package's mu
}

// get returns a session by its number, or nil. It takes no lock.
func get(id C.uint64_t) *session { return sessions.Get(uint64(id)) }

// of returns an open session.
func of(id C.uint64_t) (*session, error) {
	if s := get(id); s != nil && !s.closed.Load() {
		return s, nil
	}
	return nil, status.New(status.Unavailable, "this session was shut down; call pathways.init() to begin a new one")
}

//export prGoConnect
func prGoConnect(values *C.PJRT_NamedValue, n C.size_t, out **C.PJRT_Client, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	mu.Lock()
	where, how := address, dial
	mu.Unlock()
	asked, err := readOptions(values, n)
	if err != nil {
		return C.int(base.Fail(err, message))
	}
	if asked.beside != "" {
		*out, err = clientBeside(asked.family, asked.beside)
		return C.int(base.Fail(err, message))
	}
	if asked.address != "" {
		where = asked.address
	}
	if how == nil && asked.address != "" {
		how = func(ctx context.Context, address string, want Want, notify client.Notify) (client.Cluster, error) {
			return Connect(ctx, address, want, nil, notify)
		}
	}
	if how == nil {
		return C.int(base.Fail(status.New(status.FailedPrecondition,
			"no cluster was named; set PATHWAYS_ADDRESS or call pathways.init(address)"), message))
	}
	s := &session{named: asked.family, puts: map[uint64][]*put{}, ends: newEnds()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	cluster, err := how(s.ctx, where, asked.want, s.notify)
	if err != nil {
		s.cancel()
		s.ends.close()
		if !strings.Contains(err.Error(), where) {
			err = status.Wrap(err, "cannot use the cluster at %s", where)
		}
		return C.int(base.Fail(err, message))
	}
	s.cluster = cluster
	s.number = sessions.Add(s)
	if err := s.describe(); err != nil {
		if len(s.family) > 0 {
			C.pr_client_free(s.family[0])
		}
		sessions.Remove(s.number)
		s.close()
		s.ends.close()
		return C.int(base.Fail(err, message))
	}
	*out = s.family[0]
	mu.Lock()
	defer mu.Unlock()
	s.clients = 1
	return 0
}

// clientBeside returns the client of a family's session, the newest one, for its devices of a platform.
func clientBeside(family int64, platform string) (*C.PJRT_Client, error) {
	mu.Lock()
	defer mu.Unlock()
	s := sessions.Get(sessions.Latest(func(s *session) bool { return s.named == family && !s.closed.Load() }))
	if s == nil || s.clients == 0 {
		return nil, status.New(status.FailedPrecondition, "there is no session yet whose devices of platform %s could be "+
			"shown", platform)
	}
	at := slices.IndexFunc(s.cluster.Platforms(), func(p *wire.Platform) bool { return p.GetName() == platform })
	if at < 0 {
		return nil, status.New(status.FailedPrecondition, "the session has no devices of platform %s", platform)
	}
	s.clients++
	return s.family[at], nil
}

//export prGoLeaves
func prGoLeaves(id C.uint64_t) (last C.bool) {
	mu.Lock()
	defer mu.Unlock()
	s := get(id)
	if s == nil {
		return true
	}
	s.clients--
	return s.clients == 0
}

// describe makes the C side of a session's clients, one for each platform.
func (s *session) describe() error {
	devices := s.cluster.Devices()
	for i, platform := range s.cluster.Platforms() {
		if err := s.describeClient(platform, len(devices)); err != nil {
			return err
		}
		of := func(d *wire.Device) bool { return int(d.Platform) == i }
		first, shown := max(0, slices.IndexFunc(devices, of)), 0
		for first+shown < len(devices) && of(devices[first+shown]) {
			shown++
		}
		if !C.pr_client_shows(s.family[i], C.size_t(first), C.size_t(shown)) {
			return short("a client's devices")
		}
	}
	memories := 0 // of the devices before; numbers them as one process's
	tasks := map[uint64]int{}
	for i, d := range devices {
		if _, known := tasks[d.Worker]; !known {
			tasks[d.Worker] = len(tasks)
		}
		if !s.describeDevice(s.family[d.Platform], i, d, tasks[d.Worker], memories) {
			return short("a client's devices")
		}
		memories += len(d.Memories)
	}
	for _, c := range s.family {
		if !C.pr_client_done(c) {
			return short("a client's memories")
		}
	}
	if !describePlugin(pluginOf(s.cluster.Platforms())) {
		return short("what a cluster is like")
	}
	return nil
}

// describeClient adds a client to the session's family, of so many devices.
func (s *session) describeClient(platform *wire.Platform, devices int) error {
	name := C.CString(platform.GetName())
	// Old versions of JAX look for "PJRT C API" here; the rest keeps compiled
	// programs apart from those of other backends in JAX's cache.
	version := C.CString(fmt.Sprintf("PJRT C API\nOpen Pathways %s, cluster: %s", base.Version, platform.GetVersion()))
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(version))
	var c *C.PJRT_Client
	if len(s.family) == 0 {
		c = C.pr_client_new(C.uint64_t(s.number), name, version, C.size_t(devices))
	} else {
		c = C.pr_client_beside(s.family[0], name, version)
	}
	if c == nil {
		return short("a client")
	}
	s.family = append(s.family, c)
	return nil
}

// describeDevice makes the C side of a device, whose memories are numbered from first. Task numbers the session's
// workers from 0, in the order of their devices. It returns false if memory is short.
func (s *session) describeDevice(c *C.PJRT_Client, i int, d *wire.Device, task, first int) bool {
	kind, worker := C.CString(d.Kind), C.CString(s.cluster.WorkerName(d.Worker))
	made := C.pr_client_device(c, C.size_t(i), kind, worker, C.int64_t(d.Slice), C.int64_t(d.Local),
		C.size_t(len(d.Memories)), C.size_t(d.DefaultMemory),
		C.int64_t(d.MemoryLimit), C.int64_t(d.MemoryShare), C.bool(d.HostMemory))
	C.free(unsafe.Pointer(kind))
	C.free(unsafe.Pointer(worker))
	made = made && C.bool(s.describeKind(c, i, d))
	made = made && C.bool(named("virtual_task_index", func(name *C.char) C.bool {
		return C.pr_device_int(c, C.size_t(i), name, C.int64_t(task))
	}))
	for j, m := range d.Memories {
		words, debugs := s.cluster.Platforms()[d.Platform].MemoryText(m, first+j)
		kind, text, debug := C.CString(m), C.CString(words), C.CString(debugs)
		made = made && C.pr_client_memory(c, C.size_t(i), C.size_t(j), kind, text, debug)
		C.free(unsafe.Pointer(kind))
		C.free(unsafe.Pointer(text))
		C.free(unsafe.Pointer(debug))
	}
	return bool(made)
}

// Attributes that a session's devices get from the cluster, not from their plugin.
var ofCluster = []string{"slice_index", "worker", "local_index", "virtual_task_index"}

// describeKind sets the attributes that a device has by its kind. It returns false if memory is short.
func (s *session) describeKind(c *C.PJRT_Client, i int, d *wire.Device) bool {
	kinds := s.cluster.Platforms()[d.Platform].GetKinds()
	at := slices.IndexFunc(kinds, func(k *wire.DeviceKind) bool { return k.GetKind() == d.Kind })
	if at < 0 {
		return true
	}
	made := true
	strings, ints := kinds[at].GetStrings(), kinds[at].GetInts()
	for _, k := range slices.Sorted(maps.Keys(strings)) {
		if !slices.Contains(ofCluster, k) {
			value := C.CString(strings[k])
			made = made && named(k, func(name *C.char) C.bool { return C.pr_device_string(c, C.size_t(i), name, value) })
			C.free(unsafe.Pointer(value))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(ints)) {
		if !slices.Contains(ofCluster, k) {
			made = made && named(k, func(name *C.char) C.bool {
				return C.pr_device_int(c, C.size_t(i), name, C.int64_t(ints[k]))
			})
		}
	}
	return made
}

// named calls set with a name in C's memory, which it frees.
func named(k string, set func(name *C.char) C.bool) bool {
	name := C.CString(k)
	defer C.free(unsafe.Pointer(name))
	return bool(set(name))
}

// pluginOf returns what a session's clients say of their plugin, which PJRT asks of the library and not of a client:
// what the first platform's does, but for the version of StableHLO in which JAX writes programs. That is the oldest of
// all.
func pluginOf(platforms []*wire.Platform) *wire.Platform {
	const version = "stablehlo_current_version"
	of := func(p *wire.Platform) *wire.IntList {
		at := slices.IndexFunc(p.GetLists(), func(l *wire.IntList) bool { return l.Name == version })
		if at < 0 {
			return nil
		}
		return p.Lists[at]
	}
	all := proto.CloneOf(platforms[0])
	for _, p := range platforms[1:] {
		if mine, its := of(all), of(p); mine != nil && its != nil && slices.Compare(its.Values, mine.Values) < 0 {
			mine.Values = its.Values
		}
	}
	return all
}

// describePlugin sets the plugin's attributes. It returns false if memory is short.
func describePlugin(platform *wire.Platform) bool {
	C.pr_attributes_new()
	all := true
	for _, k := range slices.Sorted(maps.Keys(platform.GetStrings())) { // sorted, so that equal entries stay
		value := C.CString(platform.GetStrings()[k])
		all = all && named(k, func(name *C.char) C.bool { return C.pr_attribute_string(name, value) })
		C.free(unsafe.Pointer(value))
	}
	ints := func(k string, v []int64, list bool) {
		all = all && named(k, func(name *C.char) C.bool {
			return C.pr_attribute_ints(name, (*C.int64_t)(unsafe.SliceData(v)), C.size_t(len(v)), C.bool(list))
		})
	}
	for _, k := range slices.Sorted(maps.Keys(platform.GetInts())) {
		ints(k, []int64{platform.GetInts()[k]}, false)
	}
	for _, l := range platform.GetLists() {
		ints(l.Name, l.Values, true)
	}
	return all
}

//export prGoDisconnect
func prGoDisconnect(id C.uint64_t) {
	s := sessions.Remove(uint64(id))
	if s == nil {
		return
	}
	s.close()
	s.ends.close()
}

// close ends the session on the cluster: operations under way fail.
func (s *session) close() {
	if s.closed.Swap(true) {
		return
	}
	s.cancel()
	if err := s.cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "pathways:", err)
	}
}

// Latest returns the newest open session of those that the process has named, which are the script's; else the newest
// one, or 0.
func Latest() uint64 {
	isOpen := func(s *session) bool { return !s.closed.Load() }
	if n := sessions.Latest(func(s *session) bool { return isOpen(s) && s.named != 0 }); n > 0 {
		return n
	}
	return sessions.Latest(isOpen)
}

// Lost returns why the session that Latest names is lost; nil if it is not, or if there is none.
func Lost() error {
	if s := sessions.Get(Latest()); s != nil {
		return s.cluster.Lost()
	}
	return nil
}

// Slices returns the interface that grants a session's slices.
//
// Errors: UNAVAILABLE after the session's end.
func Slices(id uint64) (grant.Slices, error) {
	s, err := of(C.uint64_t(id))
	if err != nil {
		return nil, err
	}
	return s.cluster, nil
}
