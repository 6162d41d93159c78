package watch

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/openpathways/pathways/core/wire"
)

// Timeline says what devices did, as the page draws it. Times are whole tenths of a microsecond: a second of 64 busy
// devices has tens of thousands of them, and writing fractions took a third of what watching costs.
type Timeline struct {
	Now      int64    `json:"now"`      // by a clock that bars go by
	Newest   uint64   `json:"newest"`   // what is to be asked for next comes after it
	Devices  uint64   `json:"devices"`  // that there are to choose from
	Programs []string `json:"programs"` // names, which bars refer to by index
	Lanes    []Lane   `json:"lanes"`
}

// Lane is a device.
type Lane struct {
	Island  string `json:"island"`
	Worker  string `json:"worker"`
	Process uint64 `json:"process"` // the worker's number
	Device  uint32 `json:"device"`  // of the worker
	// Bars are a computation each, or several short ones, oldest first: session, program (-1 where it is not shown),
	// computations, and the times of begin and end.
	Bars    [][5]int64 `json:"bars"`
	Dropped uint64     `json:"dropped"` // computations among them that did not fit
}

// timeline writes what some devices did: those of an island and worker, from a number on, after what the page has.
func (s *Site) timeline(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	look := &wire.Look{Island: values.Get("island"), Most: mostLanes}
	for name, set := range map[string]func(uint64){
		"worker": func(n uint64) { look.Worker = n },
		"first":  func(n uint64) { look.First = uint32(n) },
		"after":  func(n uint64) { look.After = n },
	} {
		bits := 64
		if name == "first" {
			bits = 32
		}
		if n, err := strconv.ParseUint(values.Get(name), 10, bits); err == nil {
			set(n)
		} else if values.Get(name) != "" {
			http.Error(w, name+" is a number, not negative", http.StatusBadRequest)
			return
		}
	}
	t, bars := draw(s.config.Source.Timeline(look), viewing(r)), 0
	for i := range t.Lanes {
		bars += len(t.Lanes[i].Bars)
	}
	const lane, bar = 128, 40 // about as many bytes as they take
	writeJSON(w, t.appendJSON(make([]byte, 0, lane*(1+len(t.Lanes))+bar*bars)))
}

// appendJSON appends a timeline as encoding/json does, which takes several times as long: bars are many.
func (t *Timeline) appendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"now":`...), t.Now, 10)
	b = strconv.AppendUint(append(b, `,"newest":`...), t.Newest, 10)
	b = strconv.AppendUint(append(b, `,"devices":`...), t.Devices, 10)
	b = append(append(b, `,"programs":`...), quoted(t.Programs)...)
	b = append(b, `,"lanes":[`...)
	for i := range t.Lanes {
		if i > 0 {
			b = append(b, ',')
		}
		l := &t.Lanes[i]
		b = append(append(b, `{"island":`...), quoted(l.Island)...)
		b = append(append(b, `,"worker":`...), quoted(l.Worker)...)
		b = strconv.AppendUint(append(b, `,"process":`...), l.Process, 10)
		b = strconv.AppendUint(append(b, `,"device":`...), uint64(l.Device), 10)
		b = append(strconv.AppendUint(append(b, `,"dropped":`...), l.Dropped, 10), `,"bars":[`...)
		for k := range l.Bars {
			if k > 0 {
				b = append(b, ',')
			}
			separator := byte('[')
			for _, n := range l.Bars[k] {
				b = strconv.AppendInt(append(b, separator), n, 10)
				separator = ','
			}
			b = append(b, ']')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

// quoted returns texts as JSON.
func quoted(texts any) []byte {
	b, _ := json.Marshal(texts) // which has no error for texts
	return b
}

// mostLanes bounds the devices that a page shows at a time.
const mostLanes = 64

// draw makes a timeline of what a controller knows, for a viewer.
func draw(t *wire.Timeline, who viewer) *Timeline {
	own := map[uint32]bool{} // sessions whose programs are shown
	for _, o := range t.Owners {
		own[o.Session] = o.Tenant == who.tenant && who.tenant != ""
	}
	shows := func(session uint32) bool { return !t.Shared || who.role == operators || own[session] }
	out := &Timeline{Now: tenths(t.NowNs), Newest: t.Newest, Devices: t.Devices, Programs: []string{}, Lanes: []Lane{}}
	numbers := map[string]int{}
	for _, row := range t.Rows {
		lanes := make([]Lane, row.Count)
		for i := range lanes {
			lanes[i] = Lane{Island: row.Island, Worker: row.Process.GetName(), Process: row.Process.GetNumber(),
				Device: row.First + uint32(i), Bars: [][5]int64{}}
		}
		for _, told := range row.Doing {
			for _, l := range told.Lanes {
				if l.Local < row.First || l.Local >= row.First+row.Count {
					continue
				}
				lane := &lanes[l.Local-row.First]
				lane.Dropped += l.Dropped
				at := told.AheadNs
				// A worker of another version may have sent columns that differ.
				n := min(len(l.Sessions), len(l.Programs), len(l.Runs), len(l.GapNs), len(l.Ns))
				lane.Bars = slices.Grow(lane.Bars, n)
				for i := range n {
					begin := at + int64(l.GapNs[i])
					at = begin + int64(l.Ns[i])
					program := -1
					if k := int(l.Programs[i]); k < len(told.Programs) && shows(l.Sessions[i]) {
						name := told.Programs[k]
						var there bool
						if program, there = numbers[name]; !there {
							program = len(out.Programs)
							numbers[name], out.Programs = program, append(out.Programs, name)
						}
					}
					lane.Bars = append(lane.Bars, [5]int64{int64(l.Sessions[i]), int64(program), int64(l.Runs[i]),
						tenths(begin), tenths(at)})
				}
			}
		}
		out.Lanes = append(out.Lanes, lanes...)
	}
	return out
}

// tenths returns tenths of a microsecond.
func tenths(ns int64) int64 { return ns / 100 }
