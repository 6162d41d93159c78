package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Clients keep to their tenants' quota of host memory: they hear it when their session begins, when the file of tenants
// changes it, and from a controller that has started again, whose file may say something else.
func TestClientsHearTheirQuotaOfHostMemory(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Tenants: tableOf(t, "[tenants.default]\nhost-memory = \"8B\"")}, 2, 1)
	hears := func(want int64, out []Action) {
		t.Helper()
		var heard []int64
		for _, a := range append(out, b.step(Event{Kind: Flush})...) {
			m := new(wire.Completed)
			switch {
			case a.Kind == Welcome:
				heard = append(heard, a.Message.HostMemory)
			case a.Kind == Send && a.Wire == wire.KindCompleted:
				statustest.OK(t, m.Parse(sent(a)))
				heard = append(heard, m.HostMemory)
			}
		}
		statustest.EqualSlices(t, heard, []int64{want}, "the client hears")
	}
	hears(8, b.step(Event{Kind: Join, Conn: 99, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "other"}}))
	b.step(Event{Kind: Lost, Conn: 99})
	b.program(2)
	b.st.apply(tableOf(t, "[tenants.default]\nhost-memory = \"16B\""))
	hears(16, nil)
	hears(8, b.startAgain([2][]*wire.HeldGang{}, &wire.Rejoin{Last: 2}))
}
