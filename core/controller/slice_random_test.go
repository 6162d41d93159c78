package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Clients of tenants ask for slices, and are lost, or release, in every state of a request: while it waits, when it has
// just been granted, while they hold it, and after that; workers are lost, and the file of tenants changes meanwhile.
// Whatever comes: a request ends once, while its client is there; a client has what it was told; an exclusive slice is
// no one else's; a tenant gets no slice beyond the quota of that moment, and keeps what it has when the quota is
// lowered, or the tenant is removed; and of clients that have gone nothing is left.
func TestRequestsForSlicesEndWhateverComes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &slicing{t: t, clients: map[uint64]*slicer{}, conn: 1}
		w.st = New(Config{Cluster: "test", Term: 7, Heartbeat: 1e9, Tenants: tableOf(dummy{}, w.table())})
		w.now = 1e9
		for range rapid.IntRange(1, 3).Draw(t, "workers") {
			w.worker()
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w.event()
			w.check()
		}
		for conn := range w.clients {
			w.lose(conn)
		}
		if n := len(w.st.asked) + len(w.st.layout.Requests()) + len(w.st.sessions); n > 0 {
			t.Fatalf("%d requests and sessions are left", n)
		}
		w.step(Event{Kind: Tenants, Table: tableOf(dummy{}, "[tenants.other]")})
		if len(w.st.tenants) != 1 {
			t.Fatalf("%d tenants are left", len(w.st.tenants))
		}
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
}

// slicer is a client.
type slicer struct {
	tenant string
	next   uint64                        // slice
	waits  map[uint64]*wire.SliceRequest // by slice
	has    map[uint64][]uint32
	alone  map[uint64]bool
}

// holds reports whether a request waits, or has its slice.
func (c *slicer) holds(number uint64) bool { return c.waits[number] != nil || c.has[number] != nil }

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
		w.step(Event{Kind: Tenants, Table: tableOf(dummy{}, w.table())})
	case "tick":
		w.now += int64(rapid.SampledFrom([]int{1, 20, 61, 700}).Draw(w.t, "seconds")) * 1e9
		w.step(Event{Kind: Tick})
	case "ask":
		c.next++
		c.waits[c.next] = &wire.SliceRequest{Slice: c.next, Devices: uint32(rapid.IntRange(1, 4).Draw(w.t, "devices")),
			Exclusive: rapid.Bool().Draw(w.t, "alone"), WaitMs: rapid.SampledFrom([]uint64{0, 30e3, wire.LongestWait}).
					Draw(w.t, "wait"), Priority: int32(rapid.IntRange(-1, 1).Draw(w.t, "priority"))}
		w.say(conn, wire.KindSliceRequest, proto.CloneOf(c.waits[c.next]))
		if most, after := w.most[c.tenant], w.has(c.tenant); most > 0 && after > most && c.holds(c.next) {
			w.t.Fatalf("a request was let in with which a tenant has %d devices in slices, of %d", after, most)
		}
	case "release": // also of one that has ended, or that was never asked for
		number := uint64(rapid.IntRange(1, int(c.next)+1).Draw(w.t, "slice"))
		delete(c.waits, number)
		delete(c.has, number)
		w.say(conn, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}})
	case "remap":
		if number := uint64(rapid.IntRange(1, int(c.next)+1).Draw(w.t, "slice")); c.has[number] != nil {
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
	ev.Now = w.now
	for _, a := range w.st.Step(ev, nil) {
		for _, to := range a.To {
			if c := w.clients[to]; c != nil {
				w.hear(to, c, a)
			}
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
		w.t.Fatalf("client %d was sent away: %v", conn, a.Message)
	case a.Kind == Send && a.Wire == wire.KindSliceAnswer:
		m := new(wire.SliceAnswer)
		if err := proto.Unmarshal(a.Payload, m); err != nil {
			w.t.Fatal(err)
		}
		w.answered(c, m)
	}
}

func (w *slicing) answered(c *slicer, m *wire.SliceAnswer) {
	asked := c.waits[m.Slice]
	switch {
	case asked == nil && m.Position == 0:
		w.t.Fatalf("slice %d, which no client waits for, was answered: %v", m.Slice, m)
	case m.Position > 0:
		return
	}
	delete(c.waits, m.Slice)
	if m.Status.GetCode() != 0 {
		if strings.Contains(m.Status.Message, "may have") && w.most[c.tenant] == 0 {
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
				if w.st.workers[s.slots[d]] == nil || w.st.workers[s.slots[d]].gone != nil {
					continue
				}
				number := s.numbers[d]
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

// has returns how many devices the slices of a tenant's clients have, and wait for, as far as they know.
func (w *slicing) has(tenant string) (devices int) {
	for _, c := range w.clients {
		if c.tenant != tenant {
			continue
		}
		for _, asked := range c.waits {
			devices += int(asked.Devices)
		}
		for _, slice := range c.has {
			devices += len(slice)
		}
	}
	return devices
}
