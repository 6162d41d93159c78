package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// Clients of tenants ask for slices, and are lost, or release, in every state of a request: while it waits, when it has
// just been granted, while they hold it, and after that; workers are lost, the file of tenants changes, and the
// controller dies and starts again with what was on its disk meanwhile.
// Whatever comes: a request ends once, while its client is there; a client has what it was told; an exclusive slice is
// no one else's; a tenant gets no slice beyond the quota of that moment, and keeps what it has when the quota is
// lowered, or the tenant is removed; and of clients that have gone nothing is left.
func TestRequestsForSlicesEndWhateverComes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &slicing{t: t, clients: map[uint64]*slicer{}, conn: 1, now: 1e9, disk: newDisk()}
		w.text = w.table()
		w.start()
		for range rapid.IntRange(1, 3).Draw(t, "workers") {
			w.worker()
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				w.startAgain()
			} else {
				w.event()
			}
			w.check()
		}
		for conn := range w.clients {
			w.lose(conn)
		}
		if n := len(w.st.asked) + len(w.st.layout.Requests()) + len(w.st.sessions); n > 0 {
			t.Fatalf("%d requests and sessions are left", n)
		}
		w.step(Event{Kind: Tenants, Table: tableOf(dummy{}, "[tenants.other]")})
		statustest.MustEqual(t, len(w.st.tenants), 1, "tenants are left")
	})
}

// dummy has a mistake in a file of tenants end the test.
type dummy struct{ testing.TB }

func (dummy) Fatal(all ...any) { panic(fmt.Sprint(all...)) }

// slicing is a controller, and what its clients know.
type slicing struct {
	t       *rapid.T
	st      *State
	now     int64
	conn    uint64 // the next
	clients map[uint64]*slicer
	workers []uint64
	most    map[string]int // devices in slices, by tenant that the file names; 0 is any number
	text    string         // of the file of tenants
	begun   int64          // when the controller started
	disk    *disk
	slow    bool // the disk is: nothing comes there, and so clients are not answered
	deaf    bool // the controller is
	answers int  // to requests that clients have heard
}

// slicer is a client.
type slicer struct {
	tenant string
	next   uint64                        // slice
	waits  map[uint64]*wire.SliceRequest // by slice
	has    map[uint64][]uint32
	alone  map[uint64]bool
}

// table draws a file of tenants.
func (w *slicing) table() string {
	w.most = map[string]int{}
	text := "[tenants.always]\n"
	w.most["always"] = 0
	for _, name := range []string{"ada", "bob"} {
		if rapid.IntRange(0, 3).Draw(w.t, "has "+name) == 0 {
			continue
		}
		text += fmt.Sprintf("[tenants.%s]\nweight = %d\nclass = %q\n", name, rapid.IntRange(1, 9).Draw(w.t, "weight"),
			rapid.SampledFrom([]string{"high", "normal", "low"}).Draw(w.t, "class"))
		w.most[name] = rapid.IntRange(0, 4).Draw(w.t, "quota")
		if w.most[name] > 0 {
			text += fmt.Sprintf("slice-devices = %d\n", w.most[name])
		}
	}
	return text
}

func (w *slicing) worker() {
	offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}}
	for d := range rapid.IntRange(1, 3).Draw(w.t, "devices") {
		offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d)})
	}
	w.workers = append(w.workers, w.conn)
	w.join(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: fmt.Sprint("w", w.conn), Worker: offer}, "")
}

func (w *slicing) join(hello *wire.Hello, of string) {
	w.conn++
	w.step(Event{Kind: Join, Conn: w.conn - 1, Message: hello, Of: of})
}

func (w *slicing) event() {
	conns := []uint64{}
	for conn := range w.clients {
		conns = append(conns, conn)
	}
	slices.Sort(conns)
	kinds := []string{"client", "client", "worker", "tenants", "tick", "tick"}
	if w.deaf {
		kinds = []string{"tick"}
	}
	if len(conns) > 0 {
		kinds = append(kinds, "ask", "ask", "ask", "ask", "release", "release", "lose", "remap")
	}
	if len(w.workers) > 1 {
		kinds = append(kinds, "lose worker")
	}
	kind := rapid.SampledFrom(kinds).Draw(w.t, "event")
	var c *slicer
	conn := uint64(0)
	if len(conns) > 0 {
		conn = rapid.SampledFrom(conns).Draw(w.t, "of")
		c = w.clients[conn]
	}
	switch kind {
	case "client":
		w.clients[w.conn] = &slicer{tenant: rapid.SampledFrom([]string{"ada", "bob", "always"}).Draw(w.t, "tenant"),
			waits: map[uint64]*wire.SliceRequest{}, has: map[uint64][]uint32{}, alone: map[uint64]bool{}}
		w.join(&wire.Hello{Role: wire.Role_ROLE_CLIENT}, w.clients[w.conn].tenant)
	case "worker":
		if len(w.workers) < 4 {
			w.worker()
		}
	case "tenants":
		w.text = w.table()
		w.step(Event{Kind: Tenants, Table: tableOf(dummy{}, w.text)})
	case "tick":
		w.now += int64(rapid.SampledFrom([]int{1, 20, 61, 700}).Draw(w.t, "seconds")) * 1e9
		w.step(Event{Kind: Tick})
	case "ask":
		c.next++
		c.waits[c.next] = &wire.SliceRequest{Slice: c.next, Devices: uint32(rapid.IntRange(1, 4).Draw(w.t, "devices")),
			Exclusive: rapid.Bool().Draw(w.t, "alone"), WaitMs: rapid.SampledFrom([]uint64{0, 30e3, wire.LongestWait}).
					Draw(w.t, "wait"), Priority: int32(rapid.IntRange(-1, 1).Draw(w.t, "priority"))}
		w.say(conn, wire.KindSliceRequest, proto.CloneOf(c.waits[c.next]))
	case "release": // also of one that has ended, or that was never asked for
		number := uint64(rapid.IntRange(1, int(c.next)+1).Draw(w.t, "slice"))
		delete(c.waits, number)
		delete(c.has, number)
		w.say(conn, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}})
	case "remap":
		if number := uint64(rapid.IntRange(1, int(c.next)+1).Draw(w.t, "slice")); c.has[number] != nil &&
			c.waits[number] == nil {
			c.waits[number] = &wire.SliceRequest{Slice: number}
			w.say(conn, wire.KindSliceRequest, &wire.SliceRequest{Slice: number})
		}
	case "lose":
		w.lose(conn)
	case "lose worker":
		gone := rapid.SampledFrom(w.workers).Draw(w.t, "worker")
		w.workers = slices.DeleteFunc(w.workers, func(conn uint64) bool { return conn == gone })
		w.step(Event{Kind: Lost, Conn: gone, Err: status.New(status.Unavailable, "it fell over")})
	}
}

// start starts the controller.
func (w *slicing) start() {
	w.begun = w.now
	w.st = New(Config{Cluster: "test", Term: 7, Heartbeat: 1e9, Tenants: tableOf(dummy{}, w.text), Keeps: true,
		Unix: w.begun, Starts: 2})
}

// startAgain has the controller die when some of what it has decided is not on disk, and start again. Those that are
// still there come back, and what they have said meanwhile it has not heard.
func (w *slicing) startAgain() {
	w.slow = true
	for range rapid.IntRange(0, 3).Draw(w.t, "not on disk") {
		w.event()
	}
	w.flush(rapid.IntRange(0, len(w.disk.late)).Draw(w.t, "on disk"))
	w.disk.late = nil
	w.start() // it knows no connection
	w.deaf = true
	for range rapid.IntRange(0, 3).Draw(w.t, "not heard") {
		w.event()
	}
	w.slow, w.deaf = false, false
	w.disk.late = nil
	w.start()
	refused, actions := w.st.Restore(w.disk.kept())
	w.take(actions)
	w.flush(len(w.disk.late))
	for conn := range refused {
		delete(w.clients, conn) // its tenant was removed
		delete(w.disk.links, conn)
	}
	conns := slices.Sorted(maps.Keys(w.disk.links))
	for _, conn := range rapid.Permutation(conns).Draw(w.t, "back") {
		if !w.st.IsComingBack() {
			w.t.Fatal("the controller does not wait for all")
		}
		w.answers = 0
		w.step(Event{Kind: Tick})
		if w.answers > 0 {
			w.t.Fatal("the controller answers requests before all have come back")
		}
		m := &wire.Rejoin{}
		c := w.clients[conn]
		switch {
		case c != nil:
			for _, number := range slices.Sorted(maps.Keys(c.waits)) {
				payload := statustest.Value(proto.Marshal(c.waits[number])).OK(w.t)
				m.Frames = wire.AppendFrame(m.Frames, wire.KindSliceRequest, payload)
			}
			m.Slices = slices.AppendSeq(slices.Collect(maps.Keys(c.waits)), maps.Keys(c.has))
		case !slices.Contains(w.workers, conn):
			delete(w.disk.links, conn)
			w.step(Event{Kind: Lost, Conn: conn, Err: status.New(status.Unavailable, "it does not come back")})
			continue
		}
		w.say(conn, wire.KindRejoin, m)
	}
	if w.st.IsComingBack() {
		w.t.Fatal("the controller waits although all have come back")
	}
}

// disk is what a controller has kept, and what is on its way there.
type disk struct {
	links map[uint64]KeptLink
	facts map[string]map[string]proto.Message
	late  []Action
}

func newDisk() *disk {
	return &disk{links: map[uint64]KeptLink{}, facts: map[string]map[string]proto.Message{}}
}

// kept is what the next start knows.
func (d *disk) kept() *Kept {
	k := &Kept{Sessions: map[uint32]*wire.KeptSession{}, Compiled: map[string]*wire.KeptCompiled{}}
	for _, conn := range slices.Sorted(maps.Keys(d.links)) {
		k.Links = append(k.Links, d.links[conn])
	}
	for _, m := range d.facts[tableSessions] {
		k.Sessions[m.(*wire.KeptSession).Session] = m.(*wire.KeptSession)
	}
	for _, m := range d.facts[tableLosses] {
		k.Losses = append(k.Losses, m.(*wire.KeptLoss))
	}
	for _, m := range d.facts[tableSlices] {
		k.Slices = append(k.Slices, m.(*wire.KeptSlice))
	}
	for _, m := range d.facts[tableBoards] {
		k.Boards = append(k.Boards, m.(*wire.KeptBoard))
	}
	if m, ok := d.facts[tableNumbers]["last"]; ok {
		k.Numbers = m.(*wire.KeptLink)
	}
	return k
}

// flush has the first of what is on its way come to the disk, and clients hear what waits for that.
func (w *slicing) flush(n int) {
	for _, a := range w.disk.late[:n] {
		switch {
		case a.Kind == Send:
			w.deliver(a)
		case a.Kind == Close:
			delete(w.disk.links, a.To[0])
		case a.Fact == nil:
			delete(w.disk.facts[a.Table], a.Key)
		default:
			if w.disk.facts[a.Table] == nil {
				w.disk.facts[a.Table] = map[string]proto.Message{}
			}
			w.disk.facts[a.Table][a.Key] = a.Fact
		}
	}
	w.disk.late = w.disk.late[n:]
}

// lose is a client that was killed, has left, or whose connection broke.
func (w *slicing) lose(conn uint64) {
	delete(w.clients, conn)
	w.step(Event{Kind: Lost, Conn: conn, Err: status.New(status.Unavailable, "it fell over")})
}

func (w *slicing) say(conn uint64, kind wire.Kind, m proto.Message) {
	w.step(Event{Kind: Message, Conn: conn, Wire: kind, Message: m})
}

// step has the controller do an event, and its clients hear what it says.
func (w *slicing) step(ev Event) {
	ev.Now = w.now - w.begun
	had := w.have()
	actions := apart(w.st.Step(&ev, nil))
	for tenant, has := range w.have() {
		if most := w.most[tenant]; most > 0 && has > max(most, had[tenant]) {
			w.t.Fatalf("%s was given slices with which it has %d devices, of %d", tenant, has, most)
		}
	}
	w.take(actions)
	switch ev.Kind {
	case Join: // its link is on disk when it is let in
		w.flush(len(w.disk.late))
		c := w.st.conns.Get(ev.Conn)
		if c == nil {
			return
		}
		l := &wire.KeptLink{Hello: ev.Message.(*wire.Hello), Tenant: ev.Of}
		if c.w != nil {
			l.Process = c.w.process.Number
		} else {
			l.Process, l.Session = c.s.process.Number, c.s.id
		}
		w.disk.links[ev.Conn] = KeptLink{Conn: ev.Conn, KeptLink: l}
	case Lost:
		w.disk.late = append(w.disk.late, Action{Kind: Close, To: []uint64{ev.Conn}})
	}
	if !w.slow {
		w.flush(len(w.disk.late))
	}
}

// take carries out actions.
func (w *slicing) take(actions []Action) {
	for _, a := range actions {
		if a.Kind == Keep || a.AfterKept {
			a.To, a.Payload = slices.Clone(a.To), slices.Clone(a.Payload)
			w.disk.late = append(w.disk.late, a)
			continue
		}
		w.deliver(a)
	}
}

func (w *slicing) deliver(a Action) {
	for _, to := range a.To {
		if c := w.clients[to]; c != nil {
			w.hear(to, c, a)
		}
	}
}

func (w *slicing) hear(conn uint64, c *slicer, a Action) {
	switch {
	case a.Kind == Refuse:
		_, named := w.most[c.tenant]
		if code := status.CodeOf(a.Err); named && code == status.PermissionDenied {
			w.t.Fatalf("a client of %s was refused: %v", c.tenant, a.Err)
		}
		delete(w.clients, conn)
	case a.Kind == Send && a.Wire == wire.KindGoodbye:
		m := new(wire.Goodbye)
		_ = proto.Unmarshal(a.Payload, m)
		w.t.Fatalf("client %d was sent away: %v", conn, m)
	case a.Kind == Send && a.Wire == wire.KindSliceAnswer:
		m := wiretest.Decode[wire.SliceAnswer](w.t, a.Payload)
		w.answered(c, m)
	}
}

func (w *slicing) answered(c *slicer, m *wire.SliceAnswer) {
	asked := c.waits[m.Slice]
	w.answers++
	switch {
	case asked == nil && m.Position == 0 && w.slow: // it was released while the answer was on its way
		return
	case asked == nil && m.Position == 0:
		w.t.Fatalf("slice %d, which no client waits for, was answered: %v", m.Slice, m)
	case m.Position > 0:
		return
	}
	delete(c.waits, m.Slice)
	if m.Status.GetCode() != 0 {
		if strings.Contains(m.Status.Message, "may have") && w.most[c.tenant] == 0 && !w.slow {
			if _, named := w.most[c.tenant]; named {
				w.t.Fatalf("a tenant without a quota is refused: %s", m.Status.Message)
			}
		}
		return
	}
	c.has[m.Slice] = m.Devices
	if asked.Devices > 0 {
		c.alone[m.Slice] = asked.Exclusive
		if len(m.Devices) != int(asked.Devices) {
			w.t.Fatalf("slice %d of %d devices got %v", m.Slice, asked.Devices, m.Devices)
		}
	}
}

// check compares what clients know with what the controller does.
func (w *slicing) check() {
	waiting := 0
	users := map[int][]string{} // slices of a device, by its number
	alone := map[int]bool{}
	for _, s := range w.st.sessions {
		c := w.clients[s.conn]
		if c == nil {
			w.t.Fatalf("session %d is there, and its client has gone", s.id)
		}
		all := w.st.layout.Slices(s.id)
		if len(all) != len(c.has) {
			w.t.Fatalf("session %d has %d slices, and was told of %d", s.id, len(all), len(c.has))
		}
		for _, slice := range all {
			if got := c.has[slice.Number]; len(got) != len(slice.Devices) || c.alone[slice.Number] != slice.Want.Exclusive {
				w.t.Fatalf("slice %d has %v, its client was told %v", slice.Number, slice.Devices, got)
			}
			for _, d := range slice.Devices {
				if s.behind(uint32(d)).gone != nil {
					continue
				}
				number := s.number(uint32(d))
				users[number] = append(users[number], fmt.Sprint(s.id, ".", slice.Number))
				alone[number] = alone[number] || slice.Want.Exclusive
			}
		}
		for number, asked := range c.waits {
			if asked.Devices == 0 {
				w.t.Fatalf("session %d has no answer to remap %d", s.id, number)
			}
			waiting++
		}
	}
	for number, of := range users {
		if alone[number] && len(of) > 1 {
			w.t.Fatalf("device %d is in an exclusive slice, and in %v", number, of)
		}
	}
	if waiting != len(w.st.asked) || waiting != len(w.st.layout.Requests()) {
		w.t.Fatalf("%d requests wait for their clients, %d for the controller, %d in the queue", waiting, len(w.st.asked),
			len(w.st.layout.Requests()))
	}
}

// have returns how many devices slices have, by tenant.
func (w *slicing) have() map[string]int {
	devices := map[string]int{}
	for _, s := range w.st.sessions {
		for _, granted := range w.st.layout.Slices(s.id) {
			devices[s.tenant.terms.Name] += len(granted.Devices)
		}
	}
	return devices
}
