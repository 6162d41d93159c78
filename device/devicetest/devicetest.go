// Package devicetest is a test suite for the contract of package device. Every driver
// passes it: a test calls Run with a Harness that opens the driver and writes the
// suite's few programs in the driver's own format.
//
// A check that needs a feature that the driver declares to lack is skipped by name, so
// that the output of go test shows what was not tested. At the end of each check all its
// buffers and executables and the driver are closed twice, and no goroutine remains.
// Nothing is timed: a check that does not end fails after Hang.
//
// Only tests may import it.
package devicetest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// Hang is how long a check waits for something that should happen before it fails.
const Hang = 2 * time.Minute

// Source is a program and options for Driver.Compile.
type Source struct {
	device.Program
	Options []byte
}

// Harness tells the suite what it needs to know about a driver.
type Harness struct {
	// Open makes a driver with n devices. The suite closes it.
	Open func(t testing.TB, n int) device.Driver
	// Devices is the largest number of devices that the suite may ask Open for; 0 means 4.
	Devices int
	// Programs returns program p over arrays of shape s for devices, which are local
	// indices in the order of the executable's rows. The suite asks only for f32 and s32,
	// and for Fail only if Failure is not nil.
	Programs func(p Program, s shape.Shape, devices []int) Source
	// Failure is the error of a run of program Fail; nil if there is no such program.
	Failure *Failure
	// TooBig is a program without arguments for device 0 that needs more memory than the
	// device has, which the driver knows only when it runs; nil if there is none.
	TooBig *Source

	Lacks Lacks
}

// Failure is an error that a harness expects.
type Failure struct {
	Code status.Code
	Text string // in the message, perhaps with more around it
}

// Lacks declares the features that a driver legitimately lacks. Some need no flag, since
// the driver itself shows them: a single memory kind, or statistics of -1.
type Lacks struct {
	DTypes []shape.DType // types whose arrays it cannot hold
	// ArgumentTypes means that an executable does not know its parameters' types, and
	// refuses arguments only by their size in bytes.
	ArgumentTypes bool
	// OneAtATime means that a device may run several computations at once, so that they
	// need not finish in the order in which they started.
	OneAtATime bool
	Serialize  bool // Serialize and Load are UNIMPLEMENTED
	Only       bool // Run.Only is UNIMPLEMENTED
}

// check is one part of the suite.
type check struct {
	name    string
	devices int // number that the check needs; 0 means as many as the harness has
	run     func(*rig)
}

var checks = [][]check{devices, programs, transfers, pieces, executions, events, failures, lifetimes, parallel}

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
