package controller

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/wire"
)

// However many workers have come and gone since the binding before, a binding is what it would be without one.
func TestBindingsDoNotDependOnTheOneBefore(t *testing.T) {
	bare := t
	rapid.Check(t, func(t *rapid.T) {
		b := newBed(bare, Config{}, rapid.IntRange(1, 60).Draw(t, "workers"), 2)
		for i := range rapid.IntRange(1, 10).Draw(t, "events") {
			for range rapid.IntRange(0, 25).Draw(t, "losses") {
				if len(b.st.present) > 1 {
					at := rapid.IntRange(0, len(b.st.present)-1).Draw(t, "worker")
					b.step(Event{Kind: Lost, Conn: b.st.present[at].to[0], Err: errLeft})
				}
			}
			for k := range rapid.IntRange(0, 3).Draw(t, "workers that come") {
				b.joinWorker(fmt.Sprint("w", rapid.IntRange(0, 60).Draw(t, "name"), ".", i, ".", k),
					rapid.IntRange(1, 3).Draw(t, "devices"))
			}
			b.joinClient()
			s := b.st.sessions[b.st.session]
			b.st.bound = nil
			if fresh := b.st.bind(s.view); !reflect.DeepEqual(fresh, s.binding) {
				t.Fatalf("a session's devices are bound to\n%+v, and without the binding before to\n%+v", s.binding, fresh)
			}
			b.st.bound = s.binding
			if rapid.Bool().Draw(t, "it stays") {
				continue
			}
			b.say(b.conns, wire.KindGoodbye, &wire.Goodbye{})
		}
	})
}
