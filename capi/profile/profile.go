// Package profile reports what devices do: as the profiler that PJRT clients find in the function tables of this
// library, see profile.h, and as pathways.trace. It asks the embedded devices and the sessions on clusters for what
// they have recorded, and writes it in the requested format.
//
// Sources may be called from any thread, with or without Python's GIL, and wait no
// longer than Patience for what still runs. Only packages of capi import it.
package profile

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
#include "profile.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/openpathways/pathways/capi/base"
	_ "github.com/openpathways/pathways/capi/export" // C
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/xla/xplane"
)

// Patience is how long the end of a profile waits for computations that were
// submitted before it, and for workers.
const Patience = 5 * time.Second

// Source begins to record some devices, and returns the function that ends it.
type Source func() (stop func() Profile, err error)

// Profile is a recording of a source.
type Profile struct {
	Devices  []observe.Device
	Spans    []observe.Span
	Events   []observe.Event // pathways.trace shows them
	Dropped  uint64          // computations and events that are missing
	Warnings []string        // what else is missing, for people
	// Keep has others see a trace of it, of at most MaxTrace bytes compressed by gzip; nil: no one looks.
	Keep     func(name string, took time.Duration, trace []byte)
	MaxTrace int
}

var (
	mu      sync.Mutex // guards the rest
	sources []func() []Source
	clients = map[uint64]*recording{} // profiles of PJRT clients
	last    uint64
)

// Register adds devices to every profile: list returns their sources when a profile begins.
func Register(list func() []Source) {
	mu.Lock()
	defer mu.Unlock()
	sources = append(sources, list)
}

// recording is all sources of a profile under way.
type recording struct {
	began    int64 // ns since the Unix epoch
	stops    []func() Profile
	warnings []string // why sources are missing
}

// start starts all sources.
func start() *recording {
	mu.Lock()
	lists := sources
	mu.Unlock()
	r := &recording{began: time.Now().UnixNano()}
	for _, list := range lists {
		for _, source := range list() {
			if stop, err := source(); err != nil {
				r.warnings = append(r.warnings, err.Error())
			} else {
				r.stops = append(r.stops, stop)
			}
		}
	}
	return r
}

// stop stops all sources at once, and returns their profiles.
func (r *recording) stop() []Profile {
	profiles := make([]Profile, len(r.stops))
	var stopping sync.WaitGroup
	for i, stop := range r.stops {
		stopping.Go(func() { profiles[i] = stop() })
	}
	stopping.Wait()
	return append(profiles, Profile{Warnings: r.warnings})
}

// warningsLine is a line of the first device that lists what the profile lacks: clients take the planes out of a space,
// and drop the space's own warnings.
const warningsLine = "Warnings"

// space writes profiles as a serialized XSpace.
func space(began, ended int64, profiles []Profile) []byte {
	var planes []xplane.Plane
	for _, p := range profiles {
		planes = append(planes, observe.Planes(p.Devices, p.Spans)...)
	}
	warnings := missing(profiles)
	if len(warnings) > 0 && len(planes) > 0 {
		line := xplane.Line{ID: observe.DeviceLines, Name: warningsLine, Begin: began}
		for _, w := range warnings {
			line.Events = append(line.Events, xplane.Event{Name: w, Begin: began, End: ended})
		}
		planes[0].Lines = append(planes[0].Lines, line)
	}
	return xplane.Append(nil, planes, warnings)
}

// missing lists what profiles lack, and also writes it to the standard error, since most tools show it late or not at
// all.
func missing(profiles []Profile) (warnings []string) {
	for _, p := range profiles {
		warnings = append(warnings, p.Warnings...)
		if p.Dropped > 0 {
			warnings = append(warnings, fmt.Sprintf(
				"%d computations and other events did not fit, or had not ended %v after the end", p.Dropped, Patience))
		}
	}
	for i, w := range warnings {
		warnings[i] = "not in the profile: " + w
		fmt.Fprintln(os.Stderr, "pathways:", warnings[i])
	}
	return warnings
}

//export pwGoProfileStart
func pwGoProfileStart(number *C.uint64_t, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	mu.Lock()
	// A client that has loaded the table twice makes two profilers for one profile; the first gets everything.
	taken := len(clients) > 0
	last++
	id := last
	if !taken {
		clients[id] = nil
	}
	mu.Unlock()
	if taken {
		return 0
	}
	r := start()
	mu.Lock()
	defer mu.Unlock()
	clients[id] = r
	*number = C.uint64_t(id)
	return 0
}

//export pwGoProfileStop
func pwGoProfileStop(number C.uint64_t, bytes **C.uint8_t, size *C.size_t, message **C.char) (code C.int) {
	defer base.Guard(&code, message)
	mu.Lock()
	r := clients[uint64(number)]
	delete(clients, uint64(number))
	mu.Unlock()
	if r == nil {
		return 0
	}
	if b := space(r.began, time.Now().UnixNano(), r.stop()); len(b) > 0 {
		*bytes, *size = (*C.uint8_t)(C.CBytes(b)), C.size_t(len(b))
	}
	return 0
}
