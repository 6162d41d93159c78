package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/transport/collective"
)

// Waits of this length are logged.
const stuck = 5 * time.Second

// Of very many, as after the loss of a worker that has not been noticed, so many are
// told of, and of each so many processes.
const (
	mostWaits = 64
	mostNames = 4
)

// Wait describes a wait of devices: of one that cannot begin its next part, of those in a collective with other
// devices, or of one that has called a function of its client. It is for people.
type Wait struct {
	Devices []int
	Gang    uint64
	For     string
	Since   time.Duration // of a collective, since Waits first found it

	Session   uint32
	Program   string   // "" where it is no run
	Line      string   // of the user's code that called it
	FirstCall bool     // Line is that of the program's first call
	At        string   // the collective, or the function; "" where the part has yet to begin
	Processes []uint64 // for which it waits
	Missing   []int    // local devices for which it waits
	Behind    bool     // of a part that has yet to begin: only for what came before it, or for its other devices here
}

// outside are the reasons to wait for what others do: a compiler, a process that brings bytes, or one that has yet to
// read an array before it is donated.
var outside = []devicequeue.Reason{devicequeue.Loading, devicequeue.Bytes, devicequeue.Readers}

// Waits lists the queues that wait, by device, and the collectives and calls that the devices are in, by gang.
func (w *Worker) Waits() []Wait {
	var all []Wait
	for _, q := range w.queues {
		s := q.stands.Load()
		if s == nil {
			continue
		}
		since, behind := time.Since(s.since), !slices.Contains(outside, s.reason)
		same := func(w Wait) bool { return w.Gang == s.gang && w.For == s.what && w.Behind == behind }
		if i := slices.IndexFunc(all, same); i >= 0 { // told once, for as long as all of them have waited
			all[i].Devices, all[i].Since = append(all[i].Devices, q.local), min(all[i].Since, since)
			continue
		}
		all = append(all, Wait{Devices: []int{q.local}, Gang: s.gang, For: s.what, Since: since, Behind: behind})
	}
	var in []collective.Wait
	if w.config.Engine != nil { // otherwise there are no calls either: see New
		in = w.config.Engine.Waits()
	}
	slices.SortFunc(in, func(a, b collective.Wait) int {
		return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Site, b.Site), slices.Compare(a.Came, b.Came))
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range in {
		slices.Sort(c.Came)
		all = append(all, Wait{Devices: c.Came, Gang: c.Gang, For: w.whom(c), Since: c.Since,
			At: fmt.Sprintf("collective %d (%s)", c.Site, c.Op), Processes: slices.Concat(c.From, c.To), Missing: c.Missing})
	}
	for _, number := range slices.Sorted(maps.Keys(w.calls)) {
		c := w.calls[number]
		all = append(all, Wait{Devices: []int{c.device}, Gang: c.g.ID,
			For: "a function of its client, " + w.people([]uint64{c.g.client}), Since: time.Since(c.since),
			At: wire.AtFunction, Processes: []uint64{c.g.client}})
	}
	for i := range all {
		s := &all[i]
		if g := w.gangs[s.Gang]; g != nil {
			s.Session = g.Session
			if r, ok := g.work.(*run); ok {
				s.Program, s.Line, s.FirstCall = r.program.Name, wire.Line(r.trace), r.first
			}
		}
	}
	return all
}

// standsFor is how long devices wait for something before a controller is told: much longer than usual waits, and short
// enough that an operator who looks sees it at once.
const standsFor = 2 * time.Second

// moves remembers how many bytes had come for gangs that stand, and since when no more have. One goroutine owns it:
// that of the heartbeats.
type moves map[uint64]arrivals

type arrivals struct {
	bytes int64
	since time.Time
}

// still returns how long a wait has lasted without a byte for it. A block that has come ends its part of the wait, so
// only bytes of long blocks count: those that take longer than a heartbeat to come.
func (w *Worker) still(s *Wait, before, after moves, now time.Time) time.Duration {
	if w.config.Moved == nil || len(s.Processes) == 0 || s.At == wire.AtFunction {
		return s.Since
	}
	m, ok := after[s.Gang]
	if !ok {
		m = arrivals{bytes: w.config.Moved(s.Gang), since: now}
		if b, ok := before[s.Gang]; !ok {
			m.since = now.Add(-s.Since)
		} else if b.bytes == m.bytes {
			m.since = b.since
		}
		after[s.Gang] = m
	}
	return min(s.Since, now.Sub(m.since))
}

// tellWaits returns what devices stand at, for the controller, and how many more there are. It remembers what has
// come.
func (w *Worker) tellWaits(all []Wait, moved moves, now time.Time) (told []*wire.Standing, more uint32) {
	before := maps.Clone(moved)
	clear(moved)
	for i := range all {
		s := &all[i]
		if s.Since < standsFor {
			continue
		}
		if len(told) == mostWaits {
			more++
			continue
		}
		m := s.standing()
		m.StillMs = w.still(s, before, moved, now).Milliseconds()
		told = append(told, m)
	}
	return told, more
}

// standing returns a wait for a controller's report, without how long it has stood still.
func (s *Wait) standing() *wire.Standing {
	m := &wire.Standing{Gang: s.Gang, Session: s.Session, Program: s.Program, Line: s.Line, FirstCall: s.FirstCall,
		At: s.At, Awaits: s.For,
		Processes: s.Processes[:min(len(s.Processes), mostWaits)], SinceMs: s.Since.Milliseconds(), Behind: s.Behind}
	for _, d := range s.Devices {
		m.Devices = append(m.Devices, uint32(d))
	}
	m.MoreProcesses = uint32(len(s.Processes) - len(m.Processes))
	for _, d := range s.Missing {
		m.Missing = append(m.Missing, uint32(d))
	}
	return m
}

// String is for people.
func (s Wait) String() string { return s.standing().WaitText() }

// whom returns what a collective waits for: workers, or devices of this one. The caller holds mu.
func (w *Worker) whom(c collective.Wait) string {
	if len(c.Missing) > 0 {
		slices.Sort(c.Missing)
		return devices(c.Missing) + " of this worker"
	}
	if len(c.From) > 0 {
		return w.people(c.From)
	}
	return w.people(c.To) + " to take a block"
}

// people names processes. mu is held.
func (w *Worker) people(processes []uint64) string {
	slices.Sort(processes)
	var names []string
	for _, p := range processes[:min(len(processes), mostNames)] {
		if name := w.names[p]; name != "" {
			names = append(names, fmt.Sprintf("%s (process %d)", name, p))
		} else {
			names = append(names, fmt.Sprintf("process %d", p))
		}
	}
	if more := len(processes) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return list(names)
}

// list is "a, b and c".
func list(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// devices is "device 1", or "devices 1, 2 and 5".
func devices(local []int) string {
	names := make([]string, len(local))
	for i, d := range local {
		names[i] = fmt.Sprint(d)
	}
	if len(names) == 1 {
		return "device " + names[0]
	}
	return "devices " + list(names)
}

// journal is the waits that were logged, and how long they had lasted then.
type journal map[journalKey]time.Duration

type journalKey struct {
	device int // the first
	gang   uint64
	at     string
}

// logLong logs waits that are long, and new in the journal, or have lasted twice as long as when they were last logged.
func (w *Worker) logLong(all []Wait, logged journal) {
	before := maps.Clone(logged)
	clear(logged)
	for _, s := range all {
		if s.Since <= stuck || len(logged) == mostWaits {
			continue
		}
		key := journalKey{s.Devices[0], s.Gang, s.At}
		last := before[key]
		if last == 0 || s.Since >= 2*last {
			last = s.Since
			w.log.Warn("a device waits", "worker", w.config.Name, "wait", s.String())
		}
		logged[key] = last
	}
}
