// Package embedded is the system inside one process: sessions on devices that the
// process owns itself. It joins an order of gangs, an account of objects and slices
// by function calls, and never sees a shard: a run is a program and the gangs that it
// must come after, its results are one object an output whatever the number of devices.
//
// # Guarantees
//
// Submission blocks for nothing but a full queue. Everything that a session made
// ends with the session. IDs of programs and objects that are no more are refused
// with an error, and not taken for others.
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
	"github.com/openpathways/pathways/core/store"
)

// Embedded is what one process with devices of its own is made from.
type Embedded struct {
	Devices []string // their kinds, as people call them
	// Cells bound how many gangs of several devices are launched at once by
	// their own threads; see executor.Cell.
	Cells []*executor.Cell
	// Window bounds how many gangs of several devices may wait or be under way;
	// 0 is no bound.
	Window int
	// Threads is the pool that the devices share, where they are threads and not
	// queues; see schedule.Threads. 0: they are queues.
	Threads int
	// Limit bounds the bytes of a device's memory that runs may take; 0 is no
	// bound of ours.
	Limit int64
}

var sessions atomic.Uint32

// Open makes an island of the devices, with a session on it.
//
// Errors: INVALID_ARGUMENT for fields that make no sense.
func (e Embedded) Open() (*Session, error) {
	if len(e.Devices) < 1 {
		return nil, status.New(status.InvalidArgument, "an island needs at least one device, got none")
	}
	table := store.New()
	for d := range e.Devices {
		if err := table.SetLimit(d, e.Limit); err != nil {
			return nil, err
		}
	}
	id := sessions.Add(1)
	var config schedule.Config
	if e.Threads > 0 {
		config.Policy = &schedule.Threads{Pool: e.Threads}
	}
	island := executor.NewIsland(e.Cells, config)
	island.Bound(e.Window)
	return begin(id, fmt.Sprintf("session %d", id), e.Devices, island, table)
}
