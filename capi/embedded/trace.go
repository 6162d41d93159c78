package embedded

/*
#include <stdlib.h>
#include "embedded.h"

static inline void pw_set_tracing(bool on) { atomic_store(&pw_tracing, on); }
*/
import "C"

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/capi/profile"
	"github.com/openpathways/pathways/core/observe"
)

// The work of this process's devices is recorded for pathways.trace and for profiles, each in a recording of its own.
// The frontend checks pw_tracing before each launch, and calls this file only while there is a recording.
var recorder observe.Recorder

// everySession is the session under which embedded spans are recorded: a trace shows everything that this process does.
const everySession = 0

var tracing struct {
	sync.Mutex // guards the rest, and pw_tracing
	recordings int
	launches   map[uint64]*launched
	last       uint64 // number of a launch
}

// launched is a run that has not completed on all its devices.
type launched struct {
	devices []observe.Running
	left    int
}

// record begins a recording.
func record() *observe.Recording {
	tracing.Lock()
	defer tracing.Unlock()
	tracing.recordings++
	r := recorder.Start(everySession, observe.MaxSpans)
	C.pw_set_tracing(true)
	return r
}

// recorded ends a recording.
func recorded(r *observe.Recording) observe.Recorded {
	tracing.Lock()
	if tracing.recordings--; tracing.recordings == 0 {
		C.pw_set_tracing(false)
	}
	tracing.Unlock()
	return r.Stop(profile.Patience)
}

//export pwGoTraceRun
func pwGoTraceRun(name *C.char, program, gang C.uint64_t, devices **C.PJRT_Device, n C.size_t,
	begin, end C.int64_t) C.uint64_t {
	l := &launched{make([]observe.Running, n), int(n)}
	text := C.GoString(name)
	for i, d := range unsafe.Slice(devices, n) {
		l.devices[i] = recorder.Begin(everySession,
			observe.Span{Program: text, ProgramID: uint64(program), Gang: uint64(gang),
				Device: int32(d.id), Submitted: int64(begin), Launched: int64(end)})
	}
	tracing.Lock()
	defer tracing.Unlock()
	if tracing.launches == nil {
		tracing.launches = map[uint64]*launched{}
	}
	tracing.last++
	tracing.launches[tracing.last] = l
	return C.uint64_t(tracing.last)
}

//export pwGoTraceEnd
func pwGoTraceEnd(launch C.uint64_t, device C.size_t, came, at C.int64_t) {
	tracing.Lock()
	l := tracing.launches[uint64(launch)]
	if l.left--; l.left == 0 {
		delete(tracing.launches, uint64(launch))
	}
	tracing.Unlock()
	l.devices[device].End(int64(came), int64(at))
}

func init() {
	profile.Register(func() []profile.Source {
		if !sessions.Any() {
			return nil
		}
		return []profile.Source{startProfile}
	})
}

// startProfile is the source of this process's devices.
func startProfile() (func() profile.Profile, error) {
	r := record()
	return func() profile.Profile {
		got := recorded(r)
		return profile.Profile{Devices: shown(), Spans: got.Spans, Dropped: got.Dropped}
	}, nil
}

// shown returns the devices of all sessions, each once.
func shown() (devices []observe.Device) {
	for _, s := range sessions.Open() {
		for _, d := range s.under.Devices() {
			device := observe.Device{Number: int32(d.ID), Platform: s.under.Platform()}
			if !slices.Contains(devices, device) {
				devices = append(devices, device)
			}
		}
	}
	return devices
}
