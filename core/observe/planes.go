package observe

import (
	"fmt"
	"strconv"

	"github.com/openpathways/pathways/core/xla/xplane"
)

// Device is a device that has a plane in a profile.
type Device struct {
	Number   int32  // as in Span
	Platform string // "cpu"
	Worker   string // "" means this process
}

// The lines of a device's plane, as XLA's own profilers call them.
const (
	modulesLine = "XLA Modules"
	opsLine     = "XLA Ops"
)

// DeviceLines is above the IDs of all lines that Planes makes.
const DeviceLines = 3

// Planes returns one plane per device, even for devices that ran nothing.
//
// A plugin reports when a computation begins and ends, but not the operations in it. So
// each computation is one event on both lines of its device, and on the second line it
// stands for all its operations: hlo_op is the name of the module.
func Planes(devices []Device, spans []Span) []xplane.Plane {
	planes := make([]xplane.Plane, len(devices))
	lines := map[int32][]xplane.Line{}
	for _, timeline := range timelines(spans) {
		lines[timeline[0].Device] = deviceLines(timeline)
	}
	for i, d := range devices {
		planes[i] = xplane.Plane{ID: int64(i), Name: planeName(d), Lines: lines[d.Number]}
	}
	return planes
}

// planeName returns a name by which xprof recognizes a device's plane. For platforms
// that it does not know, xprof looks for CUSTOM.
func planeName(d Device) string {
	name := fmt.Sprintf("/device:CUSTOM:%s:%d", d.Platform, d.Number)
	if d.Worker != "" {
		name += " on " + d.Worker
	}
	return name
}

func deviceLines(timeline []busy) []xplane.Line {
	begin := timeline[0].begin
	modules, ops := xplane.Line{ID: 1, Name: modulesLine, Begin: begin}, xplane.Line{ID: 2, Name: opsLine, Begin: begin}
	for i := range timeline {
		s := &timeline[i]
		stats := []xplane.Stat{
			{Name: "hlo_module", Text: s.Program},
			{Name: "program_id", Number: int64(s.ProgramID)},
			{Name: "run_id", Number: int64(s.Gang)},
			{Name: "device_ordinal", Number: int64(s.Device)},
			{Name: "queued_ns", Number: s.begin - s.Submitted},
		}
		module := s.Program + "(" + strconv.FormatUint(s.ProgramID, 10) + ")"
		modules.Events = append(modules.Events, xplane.Event{Name: module, Begin: s.begin, End: s.End, Stats: stats})
		stats = append(stats[:len(stats):len(stats)], xplane.Stat{Name: "hlo_op", Text: s.Program})
		ops.Events = append(ops.Events, xplane.Event{Name: s.Program, Begin: s.begin, End: s.End, Stats: stats})
	}
	return []xplane.Line{modules, ops}
}
