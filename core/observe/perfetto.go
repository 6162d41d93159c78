package observe

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// WritePerfetto writes a recording as JSON trace events, which https://ui.perfetto.dev
// opens. Times are relative to the beginning of the recording: readers keep them in
// doubles, which cannot hold a date in nanoseconds.
//
// Process pid has a track per device, whose number is that of the device. Of a recording
// with events, that is the client, with a track per thread that called; the controller and
// each worker are processes beside it, with tracks of their own; and arrows lead from a call
// to its operation in the controller, and from there to each device that computes and each
// worker that moves bytes for it. A mark across all tracks says where a recording is cut off, and why.
//
// Errors: those of w.
func WritePerfetto(w io.Writer, pid int, r Recorded) error {
	out := &perfetto{w: bufio.NewWriter(w), began: r.Began, pid: pid, next: 1}
	for _, d := range r.Devices {
		out.next = max(out.next, d.Number+1)
	}
	for i := range r.Spans {
		out.next = max(out.next, r.Spans[i].Device+1)
	}
	fmt.Fprintf(out.w, `{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":%d,"args":{"name":"Open Pathways"}}`, pid)
	flows := out.events(&r)
	for _, timeline := range timelines(r.Spans) {
		device := timeline[0].Device
		out.track(out.process(workerOf(device, r.Devices), len(r.Events) > 0), device, trackName(device, r.Devices))
		for i := range timeline {
			s := &timeline[i]
			out.slice(s.Program, "gang", s.begin, s.End, fmt.Sprintf(`"gang":%d,"queued_us":%.3f,"launch_us":%.3f`,
				s.Gang, float64(s.begin-s.Submitted)/µs, float64(s.Launched-s.Submitted)/µs))
			out.arrow(flows[s.Gang], s.begin)
		}
	}
	if r.Ended != 0 {
		fmt.Fprintf(out.w, ",\n"+`{"ph":"i","s":"g","name":%s,"pid":%d,"tid":0,"ts":%.3f}`, out.text("cut off here: "+r.Why),
			pid, float64(r.Ended-r.Began)/µs)
	}
	fmt.Fprintf(out.w, "\n"+`],"otherData":{"dropped":"%d"}}`+"\n", r.Dropped)
	if out.err != nil {
		return out.err
	}
	return out.w.Flush()
}

const µs = 1e3 // ns

// perfetto is a file that is being written.
type perfetto struct {
	w         *bufio.Writer
	began     int64
	pid       int
	processes []string // beside pid, by number after it
	next      int32    // number of the next track
	at        [2]int   // process and track of what is written
	flow      int      // number of the last arrow
	err       error    // of a name that does not encode
}

// lane is whose events share tracks.
type lane struct {
	kind   Kind
	worker string
}

// origin is the point where arrows to an operation's slices begin.
type origin struct {
	at   [2]int
	time int64
}

// process returns the number of a process, which is made with the first track of it.
func (p *perfetto) process(name string, apart bool) int {
	if !apart || name == "" {
		return p.pid
	}
	i := slices.Index(p.processes, name)
	if i < 0 {
		i = len(p.processes)
		p.processes = append(p.processes, name)
		fmt.Fprintf(p.w, ",\n"+`{"ph":"M","name":"process_name","pid":%d,"args":{"name":%s}}`, p.pid+1+i, p.text(name))
	}
	return p.pid + 1 + i
}

// track begins a track of a process.
func (p *perfetto) track(process int, number int32, name string) {
	p.at = [2]int{process, int(number)}
	fmt.Fprintf(p.w, ",\n"+`{"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":%s}}`, process, number,
		p.text(name))
}

// slice writes a bar of the track.
func (p *perfetto) slice(name, category string, begin, end int64, args string) {
	fmt.Fprintf(p.w, ",\n"+`{"ph":"X","name":%s,"cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"args":{%s}}`,
		p.text(name), category, p.at[0], p.at[1], float64(begin-p.began)/µs, float64(end-begin)/µs, args)
}

// arrow writes an arrow to the slice that begins at a time, from the latest origin that is not after it.
func (p *perfetto) arrow(from []origin, to int64) {
	for _, o := range slices.Backward(from) {
		if o.time > to {
			continue
		}
		p.flow++
		fmt.Fprintf(p.w, ",\n"+`{"ph":"s","name":"operation","cat":"operation","id":%d,"pid":%d,"tid":%d,"ts":%.3f}`,
			p.flow, o.at[0], o.at[1], float64(o.time-p.began)/µs)
		fmt.Fprintf(p.w, ",\n"+`{"ph":"f","bp":"e","name":"operation","cat":"operation","id":%d,"pid":%d,"tid":%d,"ts":%.3f}`,
			p.flow, p.at[0], p.at[1], float64(to-p.began)/µs)
		return
	}
}

func (p *perfetto) text(s string) []byte {
	b, err := json.Marshal(s)
	p.err = cmp.Or(p.err, err)
	return b
}

// events writes what a recording has beside computations, and returns where arrows to the computations of gangs begin.
func (p *perfetto) events(r *Recorded) map[uint64][]origin {
	by := map[lane][]Event{}
	for _, e := range r.Events {
		at := lane{e.Kind, e.Worker}
		if e.Kind == Arrival {
			at.worker = "" // of all workers: they become the controller's
		}
		by[at] = append(by[at], e)
	}
	names := map[uint64]string{} // of programs, by gang
	for i := range r.Spans {
		names[r.Spans[i].Gang] = r.Spans[i].Program
	}
	moves := map[uint64]string{} // names, by gang
	for _, e := range r.Events {
		if e.Kind == Move {
			moves[e.Gang] = e.Name
		}
	}
	arrivals := first(by[lane{kind: Arrival}])
	gangs := map[uint64]*Event{} // by operation
	for i := range arrivals {
		e := &arrivals[i]
		if e.Op != 0 && gangs[e.Op] == nil {
			gangs[e.Op] = e
		}
	}
	calls := p.calls(by[lane{kind: Call}], gangs, names)
	flows := p.operations(arrivals, calls, func(gang uint64) string {
		return cmp.Or(names[gang], moves[gang], "operation")
	})
	for _, worker := range workers(r.Events) {
		process := p.process(worker, true)
		move := func(e *Event) {
			p.slice(e.Name, "move", e.Begin, e.End, fmt.Sprintf(`"gang":%d,"operation":%d,"bytes":%d,"queued_us":%.3f`,
				e.Gang, e.Op, e.Bytes, float64(e.Waited)/µs))
			p.arrow(flows[e.Gang], e.Begin)
		}
		p.lanes(process, by[lane{Move, worker}], func(int32) string { return "bytes" }, move)
		p.lanes(process, by[lane{Collective, worker}],
			func(d int32) string { return fmt.Sprintf("collectives of device %d", d) },
			func(e *Event) {
				args := fmt.Sprintf(`"gang":%d,"bytes":%d`, e.Gang, e.Bytes)
				if e.Way != "" {
					args += fmt.Sprintf(`,"way":%s`, p.text(e.Way))
				}
				p.slice(e.Name, "collective", e.Begin, e.End, args)
			})
	}
	return flows
}

// operations writes the controller's track, with arrows from calls, and returns where arrows to the computations of
// gangs begin. Name returns the name of a gang's operation.
func (p *perfetto) operations(arrivals []Event, calls map[uint64]origin,
	name func(gang uint64) string) map[uint64][]origin {
	flows := map[uint64][]origin{}
	if len(arrivals) > 0 {
		p.track(p.process("controller", true), p.next, "operations")
		p.next++
	}
	slices.SortFunc(arrivals, func(a, b Event) int { return cmp.Compare(a.End, b.End) })
	last := int64(0)
	for i := range arrivals {
		e := &arrivals[i]
		begin := max(e.End-e.Waited, last) // behind those before it, as computations are on a device
		last = max(e.End, begin)
		p.slice(name(e.Gang), "controller", begin, last,
			fmt.Sprintf(`"gang":%d,"operation":%d,"waited_us":%.3f`, e.Gang, e.Op, float64(e.Waited)/µs))
		if o, ok := calls[e.Op]; ok {
			flows[e.Gang] = append(flows[e.Gang], o)
			p.arrow(flows[e.Gang], begin)
		}
		flows[e.Gang] = append(flows[e.Gang], origin{p.at, begin})
	}
	return flows
}

// calls writes a track per thread of the client, and returns where arrows from the calls of operations begin.
func (p *perfetto) calls(all []Event, gangs map[uint64]*Event, names map[uint64]string) map[uint64]origin {
	calls := map[uint64]origin{}
	p.lanes(p.pid, all, func(thread int32) string { return fmt.Sprintf("calls of thread %d", thread) }, func(e *Event) {
		name := e.Name
		if g := gangs[e.Op]; g != nil && name == "run" {
			name = cmp.Or(names[g.Gang], name)
		}
		p.slice(name, "call", e.Begin, e.End, fmt.Sprintf(`"call":%q,"operation":%d,"bytes":%d`, e.Name, e.Op, e.Bytes))
		if e.Op != 0 {
			calls[e.Op] = origin{p.at, e.Begin}
		}
	})
	return calls
}

// first returns one arrival of each gang: the first.
func first(arrivals []Event) []Event {
	slices.SortFunc(arrivals, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Begin, b.Begin))
	})
	return slices.CompactFunc(arrivals, func(a, b Event) bool { return a.Gang == b.Gang })
}

// maxLanes bounds the tracks of one name.
const maxLanes = 32

// lanes writes events in tracks of a process, whose names of are by the events' devices, or threads. Events of a track
// must not overlap, so those that do are in further tracks of that name; where these do not suffice, they begin later.
func (p *perfetto) lanes(process int, all []Event, name func(of int32) string, write func(*Event)) {
	of := func(e *Event) int32 { return max(e.Device, e.Thread) }
	slices.SortStableFunc(all, func(a, b Event) int {
		return cmp.Or(cmp.Compare(of(&a), of(&b)), cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	for len(all) > 0 {
		track, end, number := of(&all[0]), int64(0), 0
		for ; len(all) > 0 && of(&all[0]) == track; number++ {
			p.track(process, p.next, name(track))
			p.next++
			var later []Event
			for len(all) > 0 && of(&all[0]) == track {
				e := all[0]
				all = all[1:]
				if e.Begin < end && number < maxLanes-1 {
					later = append(later, e)
					continue
				}
				e.Begin = max(e.Begin, end)
				e.End = max(e.End, e.Begin)
				end = e.End
				write(&e)
			}
			all, end = append(later, all...), 0
		}
	}
}

// workers returns the names of the workers of events, in the order of the alphabet.
func workers(events []Event) (names []string) {
	for _, e := range events {
		if e.Worker != "" {
			names = append(names, e.Worker)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// workerOf returns the name of a device's worker, "" if it has none.
func workerOf(number int32, devices []Device) string {
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Number == number })
	if i < 0 {
		return ""
	}
	return devices[i].Worker
}

// trackName returns the name of a device's track, with its worker if it is on one.
func trackName(number int32, devices []Device) string {
	name := fmt.Sprintf("device %d", number)
	if worker := workerOf(number, devices); worker != "" {
		name += " on " + worker
	}
	return name
}
