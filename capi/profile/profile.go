// Package profile is the profiler that PJRT clients find in the tables of this
// library, see profile.h. It asks those who know what devices do, the embedded
// devices and the sessions on clusters, for their planes and makes one profile of
// them.
//
// Sources may be called from any thread, with or without Python's GIL, and wait no
// longer than Patience for what still runs. Only packages of capi import it.
package profile

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../edge -std=gnu11 -O2 -Wall -Wextra -fvisibility=hidden
#include "profile.h"
*/
import "C"

import (
	"sync"
	"time"

	_ "github.com/openpathways/pathways/capi/edge" // forks
	"github.com/openpathways/pathways/capi/held"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xplane"
)

// Patience is how long the end of a profile waits for computations that were
// submitted before it.
const Patience = 5 * time.Second

// Source begins to record some devices and returns the function that ends it.
type Source func() (stop func() Profile, err error)

// Profile is what a source has recorded.
type Profile struct {
	Planes   []xplane.Plane
	Warnings []string // what is not in it, for people
}

// recording is a profile under way.
type recording struct {
	stops  []func() Profile
	errors []string
}

var (
	mu         sync.Mutex // guards the rest
	sources    []func() []Source
	recordings = map[uint64]*recording{}
	last       uint64
)

// Register adds devices to every profile: list returns the sources at its begin.
func Register(list func() []Source) {
	mu.Lock()
	defer mu.Unlock()
	sources = append(sources, list)
}

//export pwGoProfileStart
func pwGoProfileStart(number *C.uint64_t, message **C.char) (code C.int) {
	defer guard(&code, message)
	mu.Lock()
	// A client that has loaded the table twice makes two profilers for one profile;
	// the first has it all.
	if len(recordings) > 0 {
		mu.Unlock()
		return 0
	}
	last++
	id, r := last, new(recording)
	recordings[id] = r
	var list []Source
	for _, f := range sources {
		list = append(list, f()...)
	}
	mu.Unlock()
	for _, start := range list {
		if stop, err := start(); err != nil {
			r.errors = append(r.errors, err.Error())
		} else {
			r.stops = append(r.stops, stop)
		}
	}
	*number = C.uint64_t(id)
	return 0
}

//export pwGoProfileStop
func pwGoProfileStop(number C.uint64_t, bytes **C.uint8_t, size *C.size_t, message **C.char) (code C.int) {
	defer guard(&code, message)
	mu.Lock()
	r := recordings[uint64(number)]
	delete(recordings, uint64(number))
	mu.Unlock()
	if r == nil {
		return 0
	}
	profiles := make([]Profile, len(r.stops))
	var stopping sync.WaitGroup
	for i, stop := range r.stops {
		stopping.Go(func() { profiles[i] = stop() })
	}
	stopping.Wait()
	warnings := r.errors
	var planes []xplane.Plane
	for _, p := range profiles {
		planes, warnings = append(planes, p.Planes...), append(warnings, p.Warnings...)
	}
	space := xplane.Append(nil, planes, warnings)
	if len(space) > 0 {
		*bytes, *size = (*C.uint8_t)(C.CBytes(space)), C.size_t(len(space))
	}
	return 0
}

// guard turns a panic into an error: a panic never crosses into C.
func guard(code *C.int, message **C.char) {
	if p := recover(); p != nil {
		err := held.Bug(p)
		*code, *message = C.int(status.CodeOf(err)), C.CString(err.Error())
	}
}
