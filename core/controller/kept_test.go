package controller

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Of many traces the newest are kept: a few of each client, and no more than a bound of all.
func TestTheNewestTracesAreKept(t *testing.T) {
	st := New(Config{KeepTraces: true})
	of := func(client uint64) *session {
		return &session{process: &wire.Process{Number: client}, tenant: new(tenancy)}
	}
	keep := func(client uint64, name string, size int) {
		st.keepTrace(of(client), &wire.Trace{Name: name, Data: make([]byte, size)})
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
	keep(8, "too long", maxTrace+1)
	if got, want := len(named()), maxTraces/maxTrace; got != want || named()[0] == "large 0" {
		t.Errorf("%d traces of %d bytes are kept, want %d", got, maxTrace, want)
	}
}
