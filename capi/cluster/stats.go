package cluster

/*
#include "cluster.h"

// counters is pr_counters without its atomics, which cgo does not support.
typedef struct {
  int64_t clients, executables, buffers, objects, futures, puts, fetches, views;
  int64_t go_entries, executes, host_puts, host_fetches, moved, reshards, copied;
} counters;
_Static_assert(sizeof(counters) == sizeof(pr_counters), "the same counters");

static counters read_counters(void) {
  counters out;
  for (size_t i = 0; i < sizeof out / sizeof(int64_t); i++)
    ((int64_t*)&out)[i] = atomic_load_explicit((_Atomic int64_t*)&pr_count + i, memory_order_relaxed);
  return out;
}
*/
import "C"

import "github.com/openpathways/pathways/transport/bulk"

// Stats are the counters of the frontend.
type Stats struct {
	GoEntries int64            // calls from C into Go
	Executes  int64            // runs
	Puts      int64            // arrays copied from the host
	Fetches   int64            // shards read by the host
	Moved     int64            // shards copied to the device where a run needed them
	Reshards  int64            // arrays that moved from one sharding to another
	Copied    int64            // bytes of arrays that this process has copied, on their way to and from clusters
	Sessions  int64            // open now
	UnderWay  int64            // operations that have not ended
	Live      map[string]int64 // what is alive, by kind; kinds without any are left out
}

// ReadStats reads the counters, after it has freed all objects whose last shard has gone.
func ReadStats() Stats {
	drain()
	c := C.read_counters()
	st := Stats{GoEntries: int64(c.go_entries), Executes: int64(c.executes), Puts: int64(c.host_puts),
		Fetches: int64(c.host_fetches), Moved: int64(c.moved), Reshards: int64(c.reshards),
		Copied: int64(c.copied) + bulk.Copied(), Live: map[string]int64{}}
	for kind, n := range map[string]C.int64_t{"clients": c.clients, "executables": c.executables, "buffers": c.buffers,
		"objects": c.objects, "events": c.futures, "puts": c.puts, "fetches": c.fetches, "views": c.views} {
		if n != 0 {
			st.Live[kind] = int64(n)
		}
	}
	for _, s := range sessions.Open() {
		st.Sessions++
		st.UnderWay += s.underWay.Load()
	}
	return st
}
