package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
)

// What a held operation waits for is due no more when it is not held any longer, whether it has failed or its session
// has ended: else that time would hide all that is due later.
func TestNothingIsDueForWhatWasHeld(t *testing.T) {
	const second = int64(1e9)
	for name, goes := range map[string]func(b *bed){
		"it fails for want of memory": func(b *bed) { b.now += 60 * second },
		"its session ends":            func(b *bed) { b.step(Event{Kind: Lost, Conn: b.client, Err: errStopped}) },
	} {
		b := newBed(t, Config{MemoryWait: 60 * second}, 1, 1)
		b.st.ledger.SetLimit(0, 4)
		for op := uint64(1); op <= 2; op++ {
			b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: &wire.Array{Dtype: uint32(shape.F32)},
				Devices: []uint32{0}})
			if op == 1 {
				b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}})
			}
		}
		if len(b.st.held) != 1 || b.st.Due() == 0 {
			t.Fatalf("%d operations are held, and due is %d", len(b.st.held), b.st.Due())
		}
		goes(b)
		for range 10 {
			b.now += second
			b.step(Event{Kind: Tick})
			for b.st.More() {
				b.step(Event{Kind: Continue})
			}
		}
		if due := b.st.Due(); len(b.st.held) > 0 || due != 0 {
			t.Errorf("%s: %d operations are held, and something is due at %d, now %d", name, len(b.st.held), due, b.now)
		}
	}
}
