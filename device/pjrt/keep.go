package pjrt

// #include "driver.h"
import "C"

import (
	"os"
	"sync"
	"time"
	"unsafe"
)

const (
	// offeredAfter is how long memory that a plugin has freed stays the process's. From then on the system may take it,
	// which it does when it needs memory; else it is still there for the plugin's next blocks.
	offeredAfter = 10 * time.Second
	// keptFor is after how long it goes back to the system in any case, so that a process that does nothing for long is
	// also seen to need little: longer than a compilation or a checkpoint between steps.
	keptFor = 5 * time.Minute
	// sharedKeptFor is the same for memory that other processes may map, which cannot be offered.
	sharedKeptFor = time.Minute
)

// keepers returns to the system, in time, what keep.c keeps for the plugins of this process's clients.
var keepers struct {
	mu      sync.Mutex
	clients int
	timer   *time.Timer // of the first client; nil while there are none
}

// keepBlocks has large blocks of the plugin's memory kept when it frees them, until stop is called. It returns nil if
// that is not possible, or not wanted: PATHWAYS_KEEP_MEMORY=false is for tools that watch allocations.
//
// In a process that only computes, which is shared, other processes of the host may map the blocks. The first call
// decides that for all.
func (p *Plugin) keepBlocks(shared bool) (stop func()) {
	if os.Getenv("PATHWAYS_KEEP_MEMORY") == "false" ||
		!C.pwdrv_keep_blocks_of(unsafe.Pointer(p.api.PJRT_Client_Create), C.bool(shared)) {
		return nil
	}
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	if keepers.clients++; keepers.clients == 1 {
		keepers.timer = time.AfterFunc(offeredAfter/2, tidyKept)
	}
	return stopKeeping
}

// Kept returns the bytes that are kept for the plugins of this process, with those that the system may take.
func (c *Client) Kept() int64 { return int64(C.pwdrv_keep_read().kept) }

// Lent implements device.Lender.
func (c *Client) Lent() (file int, memory []byte) {
	r := C.pwdrv_keep_shared()
	if r.file < 0 || c.stopKeeping == nil {
		return -1, nil
	}
	return int(r.file), unsafe.Slice((*byte)(unsafe.Pointer(r.base)), int(r.span))
}

func tidyKept() {
	most := keptFor
	if C.pwdrv_keep_shared().file >= 0 {
		most = sharedKeptFor
	}
	C.pwdrv_keep_tidy(C.uint32_t(offeredAfter.Milliseconds()), C.uint32_t(most.Milliseconds()))
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	if keepers.timer != nil {
		keepers.timer.Reset(offeredAfter / 2)
	}
}

func stopKeeping() {
	keepers.mu.Lock()
	keepers.clients--
	last := keepers.clients == 0
	if last {
		keepers.timer.Stop()
		keepers.timer = nil
	}
	keepers.mu.Unlock()
	if last {
		C.pwdrv_keep_tidy(0, 0) // a client that begins meanwhile keeps what it frees from now on
	}
}
