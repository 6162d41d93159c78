package observe_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status/statustest"
)

// drawn is what a trace shows: bars by process and track, arrows from track to track, and by number of the track when
// bars begin and end, in µs.
type drawn struct {
	bars   map[string][]string
	arrows []string
	times  map[int][][2]float64
}

func draw(t *testing.T, r observe.Recorded) (d drawn) {
	t.Helper()
	var b bytes.Buffer
	statustest.OK(t, observe.WritePerfetto(&b, 7, r))
	var trace struct {
		TraceEvents []struct {
			Ph, Name     string
			Pid, Tid, Id int
			Ts, Dur      float64
			Args         struct{ Name, Way string }
		}
	}
	statustest.OK(t, json.Unmarshal(b.Bytes(), &trace))
	processes, tracks, from := map[int]string{}, map[[2]int]string{}, map[int]string{}
	d.bars, d.times = map[string][]string{}, map[int][][2]float64{}
	for _, e := range trace.TraceEvents {
		at := tracks[[2]int{e.Pid, e.Tid}]
		switch {
		case e.Name == "process_name":
			processes[e.Pid] = e.Args.Name
		case e.Name == "thread_name":
			if at != "" || processes[e.Pid] == "" {
				t.Errorf("track %d of process %d has two names, or its process none", e.Tid, e.Pid)
			}
			tracks[[2]int{e.Pid, e.Tid}] = fmt.Sprintf("%s: %s", processes[e.Pid], e.Args.Name)
		case e.Ph == "X":
			d.bars[at] = append(d.bars[at], fmt.Sprintf("%s %.3f+%.3f", strings.TrimSpace(e.Name+" "+e.Args.Way), e.Ts, e.Dur))
			d.times[e.Tid] = append(d.times[e.Tid], [2]float64{e.Ts, e.Ts + e.Dur})
		case e.Ph == "s":
			from[e.Id] = at
		case e.Ph == "f":
			d.arrows = append(d.arrows, fmt.Sprintf("%s -> %s at %.3f", from[e.Id], at, e.Ts))
		}
	}
	slices.Sort(d.arrows)
	return d
}

// A run by two workers, and a put to one of them, from their calls to the devices.
func TestPerfettoShowsTheWayOfAnOperation(t *testing.T) {
	got := draw(t, observe.Recorded{
		Devices: []observe.Device{{Number: 0, Worker: "a"}, {Number: 1, Worker: "b"}},
		Spans: []observe.Span{{Program: "jit_f", Gang: 5, Device: 0, Submitted: 5000, End: 6000},
			{Program: "jit_f", Gang: 5, Device: 1, Submitted: 5500, End: 7000}},
		Events: []observe.Event{
			{Kind: observe.Call, Name: "run", Op: 2, Thread: 70, Begin: 1000, End: 1100},
			{Kind: observe.Call, Name: "put", Op: 3, Thread: 71, Begin: 1050, End: 1200},
			{Kind: observe.Arrival, Op: 2, Gang: 5, Worker: "b", Waited: 2000, Begin: 4500, End: 4500},
			{Kind: observe.Arrival, Op: 2, Gang: 5, Worker: "a", Waited: 2000, Begin: 4000, End: 4000},
			{Kind: observe.Arrival, Op: 3, Gang: 6, Worker: "a", Waited: 3000, Begin: 4600, End: 4600},
			{Kind: observe.Collective, Name: "all-reduce", Op: 2, Gang: 5, Worker: "b", Device: 1, Way: "direct",
				Begin: 5600, End: 6900},
			{Kind: observe.Move, Name: "put", Op: 3, Gang: 6, Worker: "a", Begin: 4700, End: 4900},
		}})
	bars := map[string][]string{
		"Open Pathways: calls of thread 70": {"jit_f 1.000+0.100"},
		"Open Pathways: calls of thread 71": {"put 1.050+0.150"},
		// The run waited for 2 µs, and the put for 3, of which the run was before it for one.
		"controller: operations":     {"jit_f 2.000+2.000", "put 4.000+0.600"},
		"a: bytes":                   {"put 4.700+0.200"},
		"b: collectives of device 1": {"all-reduce direct 5.600+1.300"},
		"a: device 0 on a":           {"jit_f 5.000+1.000"},
		"b: device 1 on b":           {"jit_f 5.500+1.500"},
	}
	if !reflect.DeepEqual(bars, got.bars) {
		t.Errorf("%q\nexpected %q", got.bars, bars)
	}
	arrows := []string{
		"Open Pathways: calls of thread 70 -> controller: operations at 2.000",
		"Open Pathways: calls of thread 71 -> controller: operations at 4.000",
		"controller: operations -> a: bytes at 4.700",
		"controller: operations -> a: device 0 on a at 5.000",
		"controller: operations -> b: device 1 on b at 5.500",
	}
	if !reflect.DeepEqual(arrows, got.arrows) {
		t.Errorf("%q\nexpected %q", got.arrows, arrows)
	}
}

// Bars of a track do not overlap, whatever was under way at the same time, and the tracks are few.
func TestPerfettoDrawsWhatOverlapsInFurtherTracks(t *testing.T) {
	var r observe.Recorded
	for i := range 100 {
		begin := int64(1000 + 10*i)
		r.Events = append(r.Events, observe.Event{Kind: observe.Move, Name: "put", Gang: uint64(i), Worker: "a", Begin: begin,
			End: begin + 500})
	}
	got := draw(t, r)
	statustest.Equal(t, len(got.bars["a: bytes"]), 100, "bars")
	for _, track := range got.times {
		end := 0.0
		for _, bar := range track {
			if bar[0] < end-0.0005 {
				t.Errorf("a bar begins at %v in a track that is taken until %v", bar[0], end)
			}
			end = bar[1]
		}
	}
	statustest.Equal(t, len(got.times), 32, "tracks, where 50 overlap")
}
