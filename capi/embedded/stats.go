package embedded

/*
#include "embedded.h"

// counters is pw_counters without its atomics, which cgo does not support.
typedef struct {
  int64_t clients, executables, runs, provenances, buffers, arrays;
  int64_t go_entries, reports, executes, puts, fetches, queued, moved, reshards;
} counters;
_Static_assert(sizeof(counters) == sizeof(pw_counters), "the same counters");

static int64_t errors_alive(void) { return atomic_load_explicit(&pw_errors_alive, memory_order_relaxed); }

static counters read_counters(void) {
  counters out;
  pw_count_slots();
  for (size_t i = 0; i < sizeof out / sizeof(int64_t); i++)
    ((int64_t*)&out)[i] = atomic_load_explicit((_Atomic int64_t*)&pw_count + i, memory_order_relaxed);
  return out;
}
*/
import "C"

import (
	"bytes"
	"runtime"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
)

// Stats are the counters of the frontend and of its sessions.
type Stats struct {
	// GoEntries counts calls from C into Go: those that make and end clients and executables, and one for each run of
	// several devices; where memory has a limit, one for each run or new buffer.
	GoEntries int64 `json:"go_entries"`
	// Reports counts C's reports to Go on gangs that something waits for.
	Reports  int64 `json:"reports"`
	Executes int64 `json:"executes"`
	Puts     int64 `json:"puts"`
	Fetches  int64 `json:"fetches"`  // reads of arrays by the host: copies, and views of their memory
	Reshards int64 `json:"reshards"` // arrays that moved from one sharding to another
	Queued   int64 `json:"queued"`   // runs that had to wait for their turn
	Moved    int64 `json:"moved"`    // arguments copied to the device that needed them
	// Live counts handles that are alive, by kind.
	Live map[string]int64 `json:"live"`
	// BytesInUse is the bytes of arrays, by device, over all sessions.
	BytesInUse []int64 `json:"bytes_in_use"`
	Sessions   int     `json:"sessions"`
	// Goroutines counts those that the library has started. C threads that are, or once were, in Go are not counted.
	Goroutines int `json:"goroutines"`
}

// ReadStats returns the current counters.
func ReadStats() Stats {
	c := C.read_counters()
	st := Stats{
		GoEntries: int64(c.go_entries),
		Reports:   int64(c.reports),
		Executes:  int64(c.executes),
		Puts:      int64(c.puts),
		Fetches:   int64(c.fetches),
		Reshards:  int64(c.reshards),
		Queued:    int64(c.queued),
		Moved:     int64(c.moved),
		Live:      map[string]int64{},
	}
	var objects int64
	drain()
	for _, s := range sessions.Open() {
		st.Sessions++
		objects += int64(s.Objects())
	}
	st.BytesInUse = bytesInUse()
	c = C.read_counters() // once more: freed arrays have gone meanwhile
	st.Live["clients"] = int64(c.clients)
	st.Live["executables"] = int64(c.executables)
	st.Live["buffers"] = int64(c.buffers)
	st.Live["arrays"] = int64(c.arrays)
	st.Live["errors"] = int64(C.errors_alive())
	st.Live["runs"] = int64(c.runs)
	st.Live["provenances"] = int64(c.provenances)
	st.Live["objects"] = objects
	st.Goroutines = started()
	return st
}

func bytesInUse() []int64 {
	out := make([]C.int64_t, C.pw_in_use(nil, 0))
	n := min(len(out), int(C.pw_in_use(unsafe.SliceData(out), C.size_t(len(out)))))
	bytes := make([]int64, n)
	for d := range bytes {
		bytes[d] = int64(out[d])
	}
	return bytes
}

// started counts the goroutines that a go statement began. The runtime also counts every thread that has called Go, for
// as long as the thread lives.
func started() int {
	stacks := make([]byte, 1<<16)
	for {
		n := runtime.Stack(stacks, true)
		if n < len(stacks) {
			return bytes.Count(stacks[:n], []byte("\ncreated by "))
		}
		stacks = make([]byte, 2*len(stacks))
	}
}

// Shutdown ends submission on every session: runs that wait fail with CANCELLED, and it waits for those that are being
// launched. It returns DEADLINE_EXCEEDED if that takes longer than timeout.
func Shutdown(timeout time.Duration) error {
	done := make(chan struct{})
	go func() {
		for _, s := range sessions.Open() {
			s.Stop()
		}
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(timeout):
		return status.New(status.DeadlineExceeded,
			"computations are still being launched after %v; shutdown does not wait for them any longer", timeout)
	}
}
