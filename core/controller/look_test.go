package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Many held gangs are looked at over several Steps. What is freed in between lets those go on, too, that were looked at
// before it.
func TestHeldGangsAreLookedAtInParts(t *testing.T) {
	const others, large, arrays = 10, 15, 20
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 1)
	statustest.OK(t, b.st.ledger.SetLimit(0, 4*arrays))
	put := func(conn, op uint64, elements int64) {
		b.say(conn, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(elements), Devices: []uint32{0}})
	}
	for op := uint64(1); op <= arrays; op++ {
		put(b.client, op, 1)
		b.reportAll()
	}
	put(b.joinClient(), 1, large) // all that come later wait behind it
	for range others {
		put(b.joinClient(), 1, 1)
	}
	free := func(from, to uint64) {
		m := new(wire.Free)
		for id := from; id <= to; id++ {
			m.Objects = append(m.Objects, id)
		}
		b.say(b.client, wire.KindFree, m)
	}
	b.st.Weigh(1)
	free(1, arrays/2)
	b.step(Event{Kind: Continue})
	if n := b.st.round.next; n != 2 || !b.st.More() {
		t.Fatalf("after two Steps %d gangs were looked at, is there more: %t", n, b.st.More())
	}
	free(arrays/2+1, arrays)
	for b.st.More() {
		b.step(Event{Kind: Continue})
		statustest.OK(t, b.st.Check())
	}
	statustest.Equal(t, len(b.st.held), 1+others-(1+arrays-large), "gangs are held")
}
