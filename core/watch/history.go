package watch

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// remembers is the number of samples in a history: ten minutes of them.
const remembers = 600

// History is what a cluster did in the last ten minutes. Its methods may be called from any goroutine.
type History struct {
	mu      sync.Mutex
	samples []sample               // oldest first
	names   map[uint32]SessionPast // of those that are in a sample
	last    *wire.Report
}

// sample is what happened between one look at the cluster and the next.
type sample struct {
	at      float64            // seconds since 1970
	passed  float64            // seconds since the look before
	gangs   float64            // a second
	use     map[uint32]float64 // devices that each session kept busy, such as 1.5
	devices int
	memory  int64 // bytes in use on all devices
}

// SessionPast is the history of a session: how many devices it kept busy, such as 1.5.
type SessionPast struct {
	Session uint32    `json:"session"`
	Tenant  string    `json:"tenant"` // "" is none
	Client  string    `json:"client"`
	User    string    `json:"user"`
	Host    string    `json:"host"`
	Use     []float64 `json:"use"`
}

// NewHistory returns an empty history.
func NewHistory() *History { return &History{names: map[uint32]SessionPast{}} }

// Add takes a look at the cluster. Rates are by the controller's clock, since a report may be older than the look.
func (h *History) Add(now time.Time, r *wire.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.last
	h.last = r
	if last == nil || last.Cluster != r.Cluster || last.UptimeMs >= r.UptimeMs || last.Waits != "" || r.Waits != "" {
		return // the first of a controller, or of one that has its cluster back; or a report that is known
	}
	passed := float64(r.UptimeMs-last.UptimeMs) / 1e3
	s := sample{at: float64(now.UnixMilli()) / 1e3, passed: passed, gangs: float64(r.Gangs-last.Gangs) / passed,
		use: map[uint32]float64{}}
	for _, w := range r.EachWorker() {
		s.devices += len(w.Devices)
		for _, bytes := range w.Last.GetMemoryInUse() {
			s.memory += max(bytes, 0)
		}
	}
	before := map[uint32]int64{}
	for _, one := range last.Sessions {
		before[one.Session] = one.DeviceNs
	}
	for _, one := range r.Sessions {
		h.names[one.Session] = SessionPast{Session: one.Session, Tenant: one.Tenant, Client: one.Name, User: one.User,
			Host: one.Host}
		if busy := one.DeviceNs - before[one.Session]; busy > 0 {
			s.use[one.Session] = float64(busy) / 1e9 / passed
		}
	}
	h.samples = append(h.samples, s)
	h.spread()
	if len(h.samples) > remembers {
		h.samples = slices.Delete(h.samples, 0, 1)
		h.forget(r)
	}
}

// spread moves use beyond what the devices can have done in a sample's time to the samples before, beginning with the
// session that has the most: the controller learns of a computation when it has ended, so a long one counts at its end.
func (h *History) spread() {
	for i := len(h.samples) - 1; i >= 0; i-- {
		s, beyond := &h.samples[i], -float64(h.samples[i].devices)
		for _, use := range s.use {
			beyond += use
		}
		if beyond <= 0 {
			return
		}
		for _, id := range slices.SortedFunc(maps.Keys(s.use), func(a, b uint32) int {
			return cmp.Or(cmp.Compare(s.use[b], s.use[a]), cmp.Compare(a, b))
		}) {
			moved := max(0, min(beyond, s.use[id]))
			s.use[id] -= moved
			beyond -= moved
			if i > 0 { // otherwise it was before the first look
				h.samples[i-1].use[id] += moved * s.passed / h.samples[i-1].passed
			}
		}
	}
}

// forget drops the names of sessions that no sample shows any more.
func (h *History) forget(r *wire.Report) {
	shown := map[uint32]bool{}
	for _, one := range r.Sessions {
		shown[one.Session] = true
	}
	for _, s := range h.samples {
		for id := range s.use {
			shown[id] = true
		}
	}
	for id := range h.names {
		if !shown[id] {
			delete(h.names, id)
		}
	}
}

// Past is a history as columns of equal length, a sample each, oldest first.
type Past struct {
	At       []float64     `json:"at"`
	Gangs    []float64     `json:"gangs_per_second"`
	Devices  []int         `json:"devices"`
	Memory   []int64       `json:"memory"`
	Sessions []SessionPast `json:"sessions"`
}

// Past returns the history.
func (h *History) Past() Past {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.samples)
	p := Past{At: make([]float64, n), Gangs: make([]float64, n), Devices: make([]int, n), Memory: make([]int64, n),
		Sessions: []SessionPast{}}
	used := map[uint32]bool{}
	for i, s := range h.samples {
		p.At[i], p.Gangs[i], p.Devices[i], p.Memory[i] = s.at, s.gangs, s.devices, s.memory
		for id := range s.use {
			used[id] = true
		}
	}
	for id := range used {
		one := h.names[id]
		one.Use = make([]float64, n)
		for i, s := range h.samples {
			one.Use[i] = s.use[id]
		}
		p.Sessions = append(p.Sessions, one)
	}
	slices.SortFunc(p.Sessions, func(a, b SessionPast) int { return cmp.Compare(a.Session, b.Session) })
	return p
}
