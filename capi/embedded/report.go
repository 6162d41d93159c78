package embedded

/*
#include "embedded.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/wire"
)

// measured is a program whose device time is measured, see devicetime.c.
type measured struct {
	name    string
	devices int
	time    *C.pw_program_time
}

// times are the programs of a session that are loaded.
type times struct {
	mu  sync.Mutex
	all map[uint64]measured // guarded by mu; C drops the time of a program after unmeasure
}

func (s *session) measure(program uint64, m measured) {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	if s.times.all == nil {
		s.times.all = map[uint64]measured{}
	}
	s.times.all[program] = m
}

func (s *session) unmeasure(program uint64) {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	delete(s.times.all, program)
}

// unmeasureAll forgets the times of programs when the session ends: C drops those that are left by itself.
func (s *session) unmeasureAll() {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	s.times.all = nil
}

// programs returns how many programs a session has, and adds those that have run to a report.
func (s *session) programs(r *wire.Report) int {
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	for _, m := range s.times.all {
		if runs := atomic.LoadInt64((*int64)(&m.time.runs)); runs > 0 {
			r.Programs = append(r.Programs, &wire.Report_Program{Name: m.name, Devices: uint64(max(1, m.devices)),
				Runs: uint64(runs), UsualNs: atomic.LoadInt64((*int64)(&m.time.usual)),
				DeviceNs: atomic.LoadInt64((*int64)(&m.time.spent))})
		}
	}
	return len(s.times.all)
}

// readDevices returns the device time of each device of a session, and the bytes of its arrays.
func readDevices(session uint64, devices int) (ns, bytes []int64) {
	ns, bytes = make([]int64, devices), make([]int64, devices)
	C.pw_device_read(C.uint64_t(session), (*C.int64_t)(unsafe.SliceData(ns)), (*C.int64_t)(unsafe.SliceData(bytes)),
		C.size_t(devices))
	return ns, bytes
}

// maxPrograms bounds the programs of a report, as on clusters.
const maxPrograms = 64

// Report describes the sessions of this process in the way that a controller describes a cluster: each session is an
// island of one worker, which is this process. What only clusters have is empty.
func Report() *wire.Report {
	st := ReadStats()
	r := &wire.Report{Gangs: uint64(st.Executes)}
	open := sessions.Numbered()
	for _, number := range slices.Sorted(maps.Keys(open)) {
		s := open[number]
		island := &wire.Report_Island{Name: fmt.Sprintf("session %d", number), Platform: s.under.Platform()}
		w := &wire.Report_Worker{Process: &wire.Process{Name: "this process"}, Last: &wire.Heartbeat{}}
		age := time.Since(s.begun).Milliseconds()
		rs := &wire.Report_SessionReport{Session: uint32(number), Name: island.Name, AgeMs: age,
			Platforms: []string{island.Platform},
			Programs:  uint64(s.programs(r)), Held: &wire.Report_Held{}}
		if rs.Objects = uint64(s.Objects()); st.Sessions == 1 { // otherwise only where memory is limited
			rs.Objects = uint64(st.Live["arrays"])
		}
		for i, d := range s.under.Devices() {
			use := s.Memory(i)
			w.Devices = append(w.Devices, &wire.LocalDevice{Local: uint32(i), Kind: d.Kind, MemoryLimit: use.Limit})
			if use.Limit > 0 { // otherwise nothing is counted
				w.ArrayBytes = append(w.ArrayBytes, use.InUse-use.Temp-s.Code(i))
				w.ProgramBytes, w.TempBytes = append(w.ProgramBytes, s.Code(i)), append(w.TempBytes, use.Temp)
			}
		}
		w.Last.DeviceNs, w.Last.MemoryInUse = readDevices(number, len(w.Devices))
		rs.Bytes = w.Last.MemoryInUse
		for _, ns := range w.Last.DeviceNs {
			rs.DeviceNs += ns
		}
		island.Workers = append(island.Workers, w)
		r.Islands, r.Sessions = append(r.Islands, island), append(r.Sessions, rs)
		r.DeviceNs += rs.DeviceNs
		r.UptimeMs = max(r.UptimeMs, age)
	}
	slices.SortFunc(r.Programs, func(a, b *wire.Report_Program) int {
		return cmp.Or(cmp.Compare(b.DeviceNs, a.DeviceNs), cmp.Compare(a.Name, b.Name))
	})
	r.Programs = r.Programs[:min(maxPrograms, len(r.Programs))]
	return r
}
