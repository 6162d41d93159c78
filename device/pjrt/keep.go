package pjrt

// #include "driver.h"
import "C"

import (
	"os"
	"sync"
	"time"
	"unsafe"
)

// keptFor is how long memory that a plugin has freed stays ready for its next blocks.
const keptFor = 10 * time.Second

// keepers returns to the system, in time, what keep.c keeps for the plugins of this process's clients.
var keepers struct {
	mu      sync.Mutex
	clients int
	timer   *time.Timer // of the first client; nil while there are none
}

// keepBlocks has large blocks of the plugin's memory kept when it frees them, until stop is called. It returns nil
// where that is not possible, or not wanted: PATHWAYS_KEEP_MEMORY=false is for tools that watch allocations.
func (p *Plugin) keepBlocks() (stop func()) {
	if os.Getenv("PATHWAYS_KEEP_MEMORY") == "false" || !C.pwdrv_keep_blocks_of(unsafe.Pointer(p.api.PJRT_Client_Create)) {
		return nil
	}
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	if keepers.clients++; keepers.clients == 1 {
		keepers.timer = time.AfterFunc(keptFor/2, tidyKept)
	}
	return stopKeeping
}

// Kept returns the bytes that are kept for the plugins of this process.
func (c *Client) Kept() int64 { return int64(C.pwdrv_keep_read().kept) }

func tidyKept() {
	C.pwdrv_keep_tidy(C.uint32_t(keptFor.Milliseconds()))
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	if keepers.timer != nil {
		keepers.timer.Reset(keptFor / 2)
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
		C.pwdrv_keep_tidy(0) // a client that begins meanwhile keeps what it frees from now on
	}
}
