package pjrt

// #include "driver.h"
import "C"

// handles counts the objects that plugins have made for this package and that it has not returned, of all clients, by
// kind. Kinds without any are left out. Tests end with none.
func handles() map[string]int64 {
	var counts [C.PWDRV_KINDS]C.int64_t
	C.pwdrv_counts_read(&counts[0])
	left := map[string]int64{}
	for i, kind := range [...]string{"clients", "executables", "loaded executables", "buffers", "events", "contexts",
		"errors", "incoming arrays"} {
		if counts[i] != 0 {
			left[kind] = int64(counts[i])
		}
	}
	return left
}
