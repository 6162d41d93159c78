package controller

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// The sessions that wait for a program get it some at a time, so that others come in between, such as the end of one of
// them.
func TestManySessionsThatWaitForAProgramGetItSomeAtATime(t *testing.T) {
	const others = 40
	b := newBed(t, Config{}, 2, 1)
	for range others {
		b.joinClient()
	}
	op := b.compile(1, 2)
	all := b.sessions()
	for _, s := range all[1:] {
		b.say(s.conn, wire.KindCompile, compileOf(1, 2))
	}
	b.st.Weigh(3 * weightOfInstall)
	answered := 0
	after := func(ev Event) {
		t.Helper()
		before := answered
		b.actions = b.st.Step(&ev, b.actions[:0])
		for _, a := range b.actions {
			if a.Kind == Send && a.Wire == wire.KindCompiled {
				statustest.OK(t, wiretest.Decode[wire.Compiled](t, sent(a)).Status.Err())
				answered++
			}
		}
		if answered-before > 3 {
			t.Errorf("%d sessions were answered in one step, expected 3 at most", answered-before)
		}
		statustest.Check(t, b.st.Check())
	}
	say := func(conn uint64, kind wire.Kind, m proto.Message) {
		t.Helper()
		after(Event{Kind: Message, Conn: conn, Wire: kind, Message: m})
	}
	say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: op,
		Info:     &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}},
		Loadable: &wire.Loadable{Serialized: []byte("x")}})
	say(all[others].conn, wire.KindGoodbye, &wire.Goodbye{})
	if answered == 0 || !b.st.More() {
		t.Fatalf("%d sessions of %d were answered in two steps", answered, others)
	}
	say(all[others-1].conn, wire.KindForget, &wire.Forget{Programs: []uint64{1}})
	for b.st.More() {
		after(Event{Kind: Continue})
	}
	statustest.Equal(t, answered, others-1, "sessions have the program") // without those that do not want it any more
}
