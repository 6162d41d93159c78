package observe

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// WritePerfetto writes a recording as JSON trace events, which https://ui.perfetto.dev
// opens: one track per device, in process pid. Times are relative to the beginning of
// the recording: readers keep them in doubles, which cannot hold a date in nanoseconds.
//
// Errors: those of w.
func WritePerfetto(w io.Writer, pid int, r Recorded) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":%d,"args":{"name":"Open Pathways"}}`, pid)
	const µs = 1e3 // ns
	for _, timeline := range timelines(r.Spans) {
		device := timeline[0].Device
		track, err := json.Marshal(trackName(device, r.Devices))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, ",\n"+`{"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":%s}}`, pid, device, track)
		for i := range timeline {
			s := &timeline[i]
			name, err := json.Marshal(s.Program)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, ",\n"+`{"ph":"X","name":%s,"cat":"gang","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,`+
				`"args":{"gang":%d,"queued_us":%.3f,"launch_us":%.3f}}`,
				name, pid, device, float64(s.begin-r.Began)/µs, float64(s.End-s.begin)/µs,
				s.Gang, float64(s.begin-s.Submitted)/µs, float64(s.Launched-s.Submitted)/µs)
		}
	}
	fmt.Fprintf(out, "\n"+`],"otherData":{"dropped":"%d"}}`+"\n", r.Dropped)
	return out.Flush()
}

// trackName returns the name of a device's track, with its worker if it is on one.
func trackName(number int32, devices []Device) string {
	name := fmt.Sprintf("device %d", number)
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Number == number })
	if i >= 0 && devices[i].Worker != "" {
		name += " on " + devices[i].Worker
	}
	return name
}
