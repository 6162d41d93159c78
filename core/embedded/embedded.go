// Package embedded is the system inside one process: sessions on devices that the
// process itself owns. It connects the order of gangs, the accounting of objects and
// the slices by function calls. It never sees a shard: a run is a program and the gangs
// that it must come after, and each of its outputs is one object, however many devices
// it has.
//
// # What it guarantees
//
// Submission blocks only on a full queue. Everything that a session made is freed with
// the session. IDs are never reused, so the ID of a program or object that was freed is
// refused with an error.
//
// # Concurrency
//
// Every method may be called from any goroutine.
package embedded

import (
	"fmt"
	"sync/atomic"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// Embedded configures a process with devices of its own.
type Embedded struct {
	Devices []string // the kind of each device
	// Cells bounds how many gangs of several devices the submitting threads launch at
	// the same time; see executor.Cell.
	Cells []*executor.Cell
	// Window bounds how many gangs of several devices may be queued or in flight; 0
	// means no bound.
	Window int
	// Threads is the size of the thread pool that the devices share, if they are threads
	// and not queues; see schedule.Threads. 0 means that they are queues.
	Threads int
	// Limit bounds the bytes of each device's memory that runs may use; 0 means no bound
	// other than the plugin's, and then arrays are not counted.
	Limit int64
	// Pass is where the session says that a run needs no Submit, and an array no Place: see executor.Island.ShowPass. It
	// stays 0 if a limit is set. May be nil.
	Pass *executor.Pass
}

var sessions atomic.Uint32

// Open creates an island of the devices and returns a session on it.
//
// Errors: INVALID_ARGUMENT for invalid fields.
func (e Embedded) Open() (*Session, error) {
	if len(e.Devices) < 1 {
		return nil, status.New(status.InvalidArgument, "an island needs at least one device, got none")
	}
	memory, err := newAccount(len(e.Devices), e.Limit)
	if err != nil {
		return nil, err
	}
	id := sessions.Add(1)
	var config schedule.Config
	if e.Threads > 0 {
		config.Policy = &schedule.Threads{Pool: e.Threads}
	}
	island := executor.NewIsland(e.Cells, config)
	island.Bound(e.Window)
	if e.Pass != nil && e.Limit == 0 {
		island.ShowPass(id, e.Pass)
	}
	return begin(id, fmt.Sprintf("session %d", id), e.Devices, island, memory)
}
