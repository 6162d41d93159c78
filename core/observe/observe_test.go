package observe_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestARecordingHasTheSpansOfItsSession(t *testing.T) {
	var r observe.Recorder
	if r.On() {
		t.Error("on before any recording")
	}
	early := r.Begin(1, observe.Span{Program: "before"})
	one, two := r.Start(1, 10), r.Start(2, 10)
	if !r.On() {
		t.Error("off while two record")
	}
	a := r.Begin(1, observe.Span{Program: "a", Submitted: 10})
	b := r.Begin(2, observe.Span{Program: "b", Submitted: 20})
	early.End(0, 5)
	b.End(0, 25)
	a.End(0, 15)
	got := one.Stop(time.Hour)
	want := []observe.Span{{Program: "a", Submitted: 10, End: 15}}
	if !reflect.DeepEqual(want, got.Spans) || got.Dropped != 0 {
		t.Errorf("%+v; expected %+v", got, want)
	}
	if got := two.Stop(time.Hour); len(got.Spans) != 1 || got.Spans[0].Program != "b" {
		t.Error(got)
	}
	if r.On() {
		t.Error("on after the last recording")
	}
	if r.Begin(1, observe.Span{}) != nil {
		t.Error("a span after the last recording")
	}
}

func TestARecordingIsBounded(t *testing.T) {
	var r observe.Recorder
	rec := r.Start(0, 2)
	for i := range 5 {
		r.Begin(0, observe.Span{Gang: uint64(i)}).End(0, 1)
	}
	if got := rec.Stop(0); len(got.Spans) != 2 || got.Dropped != 3 {
		t.Errorf("%d spans, %d dropped; expected 2 and 3", len(got.Spans), got.Dropped)
	}
}

func TestStopWaitsForWhatRunsAndNoLongerThanItsPatience(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r observe.Recorder
		rec, begun := r.Start(0, 10), time.Now()
		soon, never := r.Begin(0, observe.Span{Gang: 1}), r.Begin(0, observe.Span{Gang: 2})
		go func() {
			time.Sleep(time.Second)
			soon.End(0, 1)
		}()
		got := rec.Stop(3 * time.Second)
		if len(got.Spans) != 1 || got.Spans[0].Gang != 1 || got.Dropped != 1 || time.Since(begun) != 3*time.Second {
			t.Error(got, time.Since(begun))
		}
		never.End(0, 9) // ignored: it is not recorded

		rec, begun = r.Start(0, 10), time.Now()
		soon = r.Begin(0, observe.Span{})
		go func() {
			time.Sleep(time.Second)
			soon.End(0, 1)
		}()
		if got := rec.Stop(time.Hour); len(got.Spans) != 1 || time.Since(begun) != time.Second {
			t.Error(got, time.Since(begun))
		}
	})
}

func TestDropEndsASessionsRecordings(t *testing.T) {
	var r observe.Recorder
	r.Start(1, 10)
	kept := r.Start(2, 10)
	r.Drop(1)
	if !r.On() {
		t.Error("the other session's recording has ended too")
	}
	kept.Stop(0)
	if r.On() {
		t.Error("on with no recording left")
	}
}

// Device 0 has three spans, of which two were queued behind another.
var spans = []observe.Span{
	{Program: "jit_b", ProgramID: 2, Gang: 2, Device: 0, Submitted: 1010, Launched: 1011, End: 1030},
	{Program: "jit_a", ProgramID: 1, Gang: 1, Device: 0, Submitted: 1000, Launched: 1001, End: 1020},
	{Program: `jit_"c"`, ProgramID: 3, Gang: 3, Device: 0, Submitted: 1040, Launched: 1041, End: 1050},
	{Program: "jit_a", ProgramID: 1, Gang: 1, Device: 4, Submitted: 1000, Launched: 1001, End: 1025},
}

func TestPlanesOfDevices(t *testing.T) {
	devices := []observe.Device{{Number: 0, Platform: "cpu", Worker: "w0"}, {Number: 2, Platform: "cpu"},
		{Number: 4, Platform: "cpu"}}
	planes := observe.Planes(devices, spans)
	var names []string
	for _, p := range planes {
		names = append(names, p.Name)
	}
	if want := []string{"/device:CUSTOM:cpu:0 on w0", "/device:CUSTOM:cpu:2",
		"/device:CUSTOM:cpu:4"}; !reflect.DeepEqual(want, names) {
		t.Fatalf("%q; expected %q", names, want)
	}
	if len(planes[1].Lines) != 0 || len(planes[2].Lines) != 2 {
		t.Error(planes)
	}
	modules, ops := planes[0].Lines[0], planes[0].Lines[1]
	if modules.Name != "XLA Modules" || ops.Name != "XLA Ops" || modules.Begin != 1000 || ops.Begin != 1000 {
		t.Error(modules, ops)
	}
	type event struct {
		Module, Op  string
		Begin, End  int64
		Queued, Run int64
	}
	var got []event
	for i, op := range ops.Events {
		e := event{Module: modules.Events[i].Name, Begin: op.Begin, End: op.End}
		for _, s := range op.Stats {
			switch s.Name {
			case "hlo_op":
				e.Op = s.Text
			case "queued_ns":
				e.Queued = s.Number
			case "run_id":
				e.Run = s.Number
			}
		}
		got = append(got, e)
	}
	want := []event{
		{"jit_a(1)", "jit_a", 1000, 1020, 0, 1},
		{"jit_b(2)", "jit_b", 1020, 1030, 10, 2},
		{`jit_"c"(3)`, `jit_"c"`, 1040, 1050, 0, 3},
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("%+v\nexpected %+v", got, want)
	}
}

func TestPerfettoIsJSON(t *testing.T) {
	var b bytes.Buffer
	devices := []observe.Device{{Number: 0, Platform: "cpu", Worker: `"w0"`}, {Number: 4, Platform: "cpu"}}
	statustest.OK(t, observe.WritePerfetto(&b, 7, observe.Recorded{
		Began: 900, Spans: spans, Dropped: 2, Devices: devices}))
	var trace struct {
		TraceEvents []struct {
			Ph, Name string
			Tid      int
			Ts, Dur  float64
			Args     struct{ Name string }
		}
		OtherData map[string]string
	}
	statustest.OK(t, json.Unmarshal(b.Bytes(), &trace))
	var bars, tracks []string
	for _, e := range trace.TraceEvents {
		switch {
		case e.Ph == "X":
			bars = append(bars, e.Name)
		case e.Name == "thread_name":
			tracks = append(tracks, e.Args.Name)
		}
	}
	if want := []string{`device 0 on "w0"`, "device 4"}; !reflect.DeepEqual(want, tracks) {
		t.Errorf("the tracks are %q; expected %q", tracks, want)
	}
	want := []string{"jit_a", "jit_b", `jit_"c"`, "jit_a"}
	if !reflect.DeepEqual(want, bars) || trace.OtherData["dropped"] != "2" {
		t.Errorf("%q, %v; expected %q", bars, trace.OtherData, want)
	}
	if e := trace.TraceEvents[3]; e.Ts != 0.12 || e.Dur != 0.01 {
		t.Errorf("jit_b begins at %v for %v µs; expected 0.12 and 0.01", e.Ts, e.Dur)
	}
}
