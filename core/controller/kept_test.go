package controller

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Of many traces the newest are kept: a few of each client, and no more than a bound of all.
func TestTheNewestTracesAreKept(t *testing.T) {
	st := New(Config{KeepTraces: true})
	keep := func(client uint64, name string, size int) {
		s := &session{process: &wire.Process{Number: client}, tenant: new(tenancy)}
		st.keepTrace(s, &wire.Trace{Name: name}, make([]byte, size))
	}
	named := func() (names []string) {
		for _, about := range st.Traces() {
			names = append(names, about.Name)
		}
		return names
	}
	keep(9, "other", 1)
	for i := range tracesOfClient + 2 {
		keep(1, fmt.Sprint(i), 1)
	}
	statustest.Equal(t, fmt.Sprint(named()), "[other 2 3 4 5]",
		"traces of a client that are kept of %d", tracesOfClient+2)
	for client := range uint64(maxTraces/maxTrace + 1) {
		keep(100+client, fmt.Sprint("large ", client), maxTrace)
	}
	if got, want := len(named()), maxTraces/maxTrace; got != want || named()[0] == "large 0" {
		t.Errorf("%d traces of %d bytes are kept, want %d", got, maxTrace, want)
	}
}

// A trace is kept if all of its parts come, in their order, and are what the client has hashed.
func TestATraceIsKeptIfAllOfItComes(t *testing.T) {
	const size = 2*wire.TracePart + 5
	trace := make([]byte, size)
	for i := range trace {
		trace[i] = byte(i >> 8)
	}
	content := wire.ContentOf(trace)
	var parts []*wire.Trace
	for at := 0; at < size; at += wire.TracePart {
		parts = append(parts, &wire.Trace{Name: "t", Data: trace[at:min(at+wire.TracePart, size)], At: uint64(at),
			Content: content})
	}
	short := &wire.Trace{Data: parts[1].Data[1:], At: parts[1].At, Content: content}
	other := &wire.Trace{Data: []byte("other"), At: parts[2].At, Content: content}
	long := &wire.Trace{Data: parts[0].Data, Content: &wire.Content{Size: maxTrace + 1, Sha256: content.Sha256}}
	for _, c := range []struct {
		name   string
		parts  []*wire.Trace
		kept   bool
		events int
	}{
		{name: "all", parts: parts, kept: true},
		{name: "another begins before", parts: slices.Concat(parts[:2], parts), kept: true},
		{name: "no first part", parts: parts[1:]},
		{name: "no second part", parts: []*wire.Trace{parts[0], parts[2]}},
		{name: "a short part", parts: []*wire.Trace{parts[0], short, parts[2]}},
		{name: "other bytes", parts: []*wire.Trace{parts[0], parts[1], other}, events: 1},
		{name: "a trace that is too long", parts: []*wire.Trace{long}},
		{name: "no content", parts: []*wire.Trace{{Data: []byte("x")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, Config{KeepTraces: true}, 1, 1)
			before := b.st.happened
			b.around = func(step func()) { step() }
			for _, m := range c.parts {
				b.say(b.client, wire.KindTrace, m)
			}
			if kept := b.st.Trace(1); (kept != nil) != c.kept || c.kept && !bytes.Equal(kept, trace) {
				t.Errorf("it is kept: %t, of %d bytes; want %t", kept != nil, len(kept), c.kept)
			}
			statustest.Equal(t, b.st.happened-before, uint64(c.events), "events")
			statustest.Equal(t, b.st.traces.coming, 0, "bytes on their way")
		})
	}

	b := newBed(t, Config{KeepTraces: true}, 1, 1)
	b.say(b.client, wire.KindTrace, parts[0])
	statustest.Equal(t, b.st.traces.coming, wire.TracePart, "bytes on their way")
	b.say(b.client, wire.KindGoodbye, &wire.Goodbye{})
	statustest.Equal(t, b.st.traces.coming, 0, "bytes on their way from a client that has left")
}
