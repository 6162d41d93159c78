package pjrt

import (
	"os"
	"runtime"
	"sync"
)

// maxRoom is how many of Go's processors a client's devices get at most.
const maxRoom = 64

// usual is how many there are without devices: as the machine, or the process's share
// of it, has.
var usual = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

var room sync.Mutex

// makeRoom gives Go a processor (GOMAXPROCS) more for each device, unless the user has
// said how many.
//
// A goroutine that waits in the plugin, as one for a device does in a collective,
// keeps its processor until the runtime's monitor takes it, after 70 µs at best. What
// the other devices and the connections have to do would wait for that where the
// processors are no more than those of a small machine.
func makeRoom(devices int) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	room.Lock()
	defer room.Unlock()
	if want := usual() + min(devices, maxRoom); want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
}
