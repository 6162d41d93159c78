// Package devicetest is the contract of package device as a test suite. Every
// driver passes it: a test calls Run with a Harness that says how to open the
// driver and writes the suite's few programs in the driver's own format.
//
// A check that needs what a driver has said it lacks is skipped by name, so that
// the output of go test shows what was not asked of it. Every check ends with
// all its buffers, executables and the driver closed twice, and with no
// goroutine left. Nothing is timed: a check that does not end fails after Hang.
//
// It may be imported by tests only.
package devicetest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// Hang is how long a check waits for what should happen before it calls it hung.
const Hang = 2 * time.Minute

// Source is a program as Driver.Compile takes it.
type Source struct {
	device.Program
	Options []byte
}

// Harness is what the suite must be told of a driver.
type Harness struct {
	// Open makes a driver with n devices. The suite closes it.
	Open func(t testing.TB, n int) device.Driver
	// Devices is how many devices the suite may ask Open for; 0 means 4.
	Devices int
	// Programs writes program p over arrays of shape s for devices, which are
	// local indices in the order of the executable's rows. The suite asks for f32
	// and s32 only, and for no Fail where Failure is nil.
	Programs func(p Program, s shape.Shape, devices []int) Source
	// Failure is what a run of program Fail fails with; nil where there is no such
	// program.
	Failure *Failure
	// TooBig is a program of no arguments for device 0 that needs more memory than
	// the device has, as far as the driver knows only when it runs; nil where there
	// is none.
	TooBig *Source

	Lacks Lacks
}

// Failure is an error that a harness expects.
type Failure struct {
	Code status.Code
	Text string // in the message, perhaps with more around it
}

// Lacks says what a driver legitimately does not do. Some absences need no flag,
// as the driver itself shows them: one memory kind only, or statistics of -1.
type Lacks struct {
	DTypes []shape.DType // types whose arrays it cannot hold
	// ArgumentTypes: an executable does not know its parameters' types; it refuses
	// arguments by their size in bytes only.
	ArgumentTypes bool
	// OneAtATime: a device may run several computations at once, so that they need
	// not finish in the order in which they started.
	OneAtATime bool
	Serialize  bool // Serialize and Load are UNIMPLEMENTED
	Only       bool // Run.Only is UNIMPLEMENTED
}

// check is one part of the suite.
type check struct {
	name    string
	devices int // how many the check needs, 0 for as many as the harness has
	run     func(*rig)
}

var checks = [][]check{devices, programs, transfers, executions, events, failures, lifetimes, parallel}

// Run runs the whole suite.
func Run(t *testing.T, h Harness) {
	if h.Devices == 0 {
		h.Devices = 4
	}
	for _, group := range checks {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				n := c.devices
				if n == 0 {
					n = h.Devices
				}
				if n > h.Devices {
					t.Skipf("needs %d devices, the harness has %d", n, h.Devices)
				}
				leaks := goleak.IgnoreCurrent()
				t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
				c.run(newRig(t, h, n))
			})
		}
	}
}
