// Package sim is a driver of simulated devices: they hold real bytes and compute real
// sums, but a test determines time and memory. With it, a scheduler, an executor or a
// whole cluster can be tested with thousands of devices on one machine, and with faults
// that hardware does not produce on demand.
//
// # What is simulated
//
// A device is one queue. Computations run on it one at a time, in the order of
// Execute, each for a fixed cost. As on an accelerator, a computation at the head
// of the queue occupies the device until its inputs are ready and, if it has a
// collective, until all of its devices have reached it. So two gangs that were
// enqueued in opposite order on two devices deadlock: Island.Hang reports that, and
// Driver.Close ends them with ABORTED. Copies to, from and between devices take their
// own time and do not occupy the queue.
//
// Each memory of a device has a limit. Arrays are charged when the call that
// makes them returns, and the temporary bytes of a computation while it runs, both
// by the packed size of their shape. The bytes of a donated argument become those of
// the result that replaces it. Code is charged from a program's first run on the device
// until the executable is closed.
//
// # Islands and time
//
// Drivers on one Island share a clock and an interconnect: a computation may
// have a collective over the devices of several of them (see Kind.Join). The
// clock is real, or virtual: Instant time jumps to whatever comes next, Manual
// time is moved by Island.Advance. On a Manual clock that one goroutine drives,
// and with the same seed, everything happens in the same order each time.
//
// The devices of a Separate driver have an interconnect among themselves alone, as those of
// a CPU client have. What spans several such drivers is partitioned, and the client carries
// its collectives.
//
// # Concurrency
//
// Every method may be called from any goroutine. An idle island has no
// goroutine; a busy one has at most one, whatever the number of devices, and one for each
// device that is in a collective which the client carries.
// Functions given to Event.Then run on it, or on the goroutine of the call that
// made the event fire, never under a lock.
//
// The package is pure Go.
package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// Version changes when the driver no longer accepts older programs or serialized
// executables.
const Version = 1

// Options configures a driver. The zero value of a field means its default, which the
// field's comment states.
type Options struct {
	Platform string // its name; "sim"
	Devices  int    // of this driver; 1
	// Memory and HostMemory are the limits in bytes of each device's memories
	// "device" (16 GiB) and "pinned_host" (64 GiB).
	Memory, HostMemory int64
	// Cost is the time of a computation whose program names no cost; 0.
	Cost time.Duration
	// Jitter bounds a random time that is added to each computation's cost; 0. It is
	// drawn once per gang, from the island's seed.
	Jitter time.Duration
	// Latency and Bandwidth, in bytes a second, make up the time of a copy to,
	// from or between devices; 0 and infinite.
	Latency   time.Duration
	Bandwidth int64
	// Island is the devices' island; nil means a new one with Instant time.
	Island *Island
	// Launch is called by Execute, without a lock, before the computation joins
	// the queue of each of its devices in turn. It lets a test interleave
	// concurrent calls, device by device, as threads of a real host do. Without it,
	// Execute joins all queues in one step, and only gangs over several drivers can be
	// in opposite order.
	Launch func(launch int32, device int)
}

// normal fills in the defaults and refuses invalid options.
func (o Options) normal() (Options, error) {
	if o.Platform == "" {
		o.Platform = platform
	}
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Memory == 0 {
		o.Memory = 16 << 30
	}
	if o.HostMemory == 0 {
		o.HostMemory = 64 << 30
	}
	if o.Devices < 0 || o.Memory < 0 || o.HostMemory < 0 || o.Cost < 0 || o.Jitter < 0 || o.Latency < 0 ||
		o.Bandwidth < 0 {
		return o, status.New(status.InvalidArgument, "simulated devices: an option is negative: %+v", o)
	}
	if o.Island == nil {
		o.Island = NewIsland(Instant, 0)
	}
	return o, nil
}

// Open makes a driver by itself.
func Open(o Options) (*Driver, error) {
	o, err := o.normal()
	if err != nil {
		return nil, err
	}
	return newDriver(o, device.Membership{Nodes: 1}, 0, o.Devices), nil
}

// Kind implements device.Kind for simulated devices.
type Kind struct{ Options }

// card is a member's entry in the rendezvous store.
type card struct {
	Island  string // unique among processes
	Devices int
}

// Join makes a driver that is one of several members. They find each other
// through m.Store and number their devices consecutively, by node. The members'
// kinds must name the same Island, and so must be in one process:
// simulated devices have no interconnect between processes. A program compiled
// for devices of several members is one gang on all of them; each member
// executes its part under the same Run.LaunchID, used once in an epoch.
func (k Kind) Join(ctx context.Context, m device.Membership) (device.Driver, error) {
	if m.Nodes <= 1 {
		return Open(k.Options)
	}
	if m.Node < 0 || m.Node >= m.Nodes || m.Store == nil {
		return nil, status.New(status.InvalidArgument, "member %d of %d: want a member from 0 to %d and a rendezvous store",
			m.Node, m.Nodes, m.Nodes-1)
	}
	o, err := k.normal()
	if err != nil {
		return nil, err
	}
	mine := card{Island: o.Island.id, Devices: o.Devices}
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	key := func(node int) string { return fmt.Sprintf("sim/%d/member/%d", m.Epoch, node) }
	if err := m.Store.Put(ctx, key(m.Node), value); err != nil {
		return nil, status.Wrap(err, "member %d of %d makes itself known", m.Node, m.Nodes)
	}
	base, total := 0, 0
	for node := range m.Nodes {
		value, err := m.Store.Get(ctx, key(node))
		if err != nil {
			return nil, status.Wrap(err, "member %d of %d waits for member %d", m.Node, m.Nodes, node)
		}
		var c card
		if err := json.Unmarshal(value, &c); err != nil || c.Devices < 1 {
			return nil, status.New(status.InvalidArgument, "member %d of %d put %q into the store, want its devices as JSON",
				node, m.Nodes, value)
		}
		if c.Island != mine.Island {
			return nil, status.New(status.Unimplemented,
				"member %d is on simulated island %s, member %d on %s: members share one Island, in one process", node, c.Island,
				m.Node, mine.Island)
		}
		if node == m.Node {
			base = total
		}
		total += c.Devices
	}
	return newDriver(o, m, base, total), nil
}
