package placement

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
)

// queue is a Map whose requests have names.
type queue struct {
	t interface{ Fatalf(string, ...any) }
	Map
	view     *View
	now      int64
	requests map[string]*Request // that wait
	slices   map[string]*Slice
	last     uint64
	busy     map[Device]uint32 // the session that has arrays there
}

func newQueue(t testing.TB, devices ...int) *queue {
	q := &queue{t: t, requests: map[string]*Request{}, slices: map[string]*Slice{}, busy: map[Device]uint32{}}
	q.view = workers(t, &q.Map, devices...)
	return q
}

func (q *queue) occupied(session uint32, d Device) bool {
	by := q.busy[d]
	return by != 0 && by != session
}

// ask asks for a slice by a session whose name begins the slice's: "1a" is of session 1.
func (q *queue) ask(name string, wait int64, w Want) error {
	session := uint32(name[0] - '0')
	q.last++
	r := &Request{Session: session, Number: q.last, View: q.view, Want: w, Owner: name[:1], Asked: q.now,
		Until: q.now + wait}
	if i := strings.IndexByte(name, '!'); i >= 0 {
		r.Priority = len(name) - i
	}
	if err := q.Ask(r); err != nil {
		return err
	}
	q.requests[name] = r
	q.serve()
	return nil
}

func (q *queue) serve() {
	for _, r := range q.Serve(q.now, q.occupied) {
		for name, o := range q.requests {
			if o == r {
				delete(q.requests, name)
				if s, _ := r.Result(); s != nil {
					q.slices[name] = s
				}
			}
		}
	}
}

func (q *queue) release(name string) {
	if s := q.slices[name]; s != nil {
		q.Release(s.Session, s.Number)
		delete(q.slices, name)
	} else if r := q.requests[name]; r != nil {
		q.Cancel(r.Session, r.Number)
		delete(q.requests, name)
	}
	q.serve()
}

// waits returns the names of those that wait, in the order of their turns.
func (q *queue) waits() string {
	names := make([]string, len(q.Requests()))
	for name, r := range q.requests {
		names[r.Position()-1] = name
	}
	return strings.Join(names, " ")
}

func (q *queue) devices(name string) string {
	if s := q.slices[name]; s != nil {
		return fmt.Sprint(s.Devices)
	}
	return ""
}

func (q *queue) expect(waits string, granted ...string) {
	if got := q.waits(); got != waits {
		q.t.Fatalf("%q wait, want %q", got, waits)
	}
	for i := 0; i < len(granted); i += 2 {
		if got := q.devices(granted[i]); got != granted[i+1] {
			q.t.Fatalf("%s has %s, want %s", granted[i], got, granted[i+1])
		}
	}
}

const long = 1e12

func alone(devices int) Want { return Want{Devices: devices, Exclusive: true} }

func TestExclusiveSlicesWaitForDevices(t *testing.T) {
	q := newQueue(t, 2, 2)
	q.ask("1a", 0, alone(3))
	q.ask("2a", long, alone(2))
	q.ask("3a", long, Want{Devices: 2}) // which may share, but not these
	q.expect("2a 3a", "1a", "[0 1 2]", "2a", "", "3a", "")
	if got := fmt.Sprint(q.requests["2a"].Lacks()[0].Local, len(q.requests["2a"].Lacks())); got != "0 1" {
		t.Errorf("2a lacks %s", got)
	}
	if q.Excluded(2, q.view.Device(0)).Session != 1 || q.Excluded(1, q.view.Device(0)) != nil ||
		q.Excluded(2, q.view.Device(3)) != nil {
		t.Error("devices are not excluded as they should be")
	}
	q.release("1a")
	q.expect("", "2a", "[0 1]", "3a", "[2 3]")
	q.release("2a")
	q.ask("1b", 0, alone(4))
	q.expect("") // it did not wait
	q.release("3a")
	q.ask("1b", 0, alone(4))
	q.expect("", "1b", "[0 1 2 3]")
}

func TestOneSlowRequestKeepsWhatItReserved(t *testing.T) {
	q := newQueue(t, 4)
	q.ask("1a", 0, alone(1))
	q.ask("2a", long, alone(4))
	q.ask("3a", 0, Want{Devices: 1})
	if _, err := q.ViewOf(1, nil); status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("a view of a device that is reserved returned %v", err)
	}
	q.expect("2a", "3a", "")
	q.release("1a")
	q.expect("", "2a", "[0 1 2 3]")
}

func TestLaterRequestsGetWhatEarlierOnesDoNotReserve(t *testing.T) {
	q := newQueue(t, 2, 2)
	q.ask("1a", 0, alone(2))
	q.ask("2a", long, Want{Devices: 2, Exclusive: true, Topology: []int{2}})
	q.expect("", "1a", "[0 1]", "2a", "[2 3]")
	q.ask("3a", long, alone(1))
	q.release("1a")
	q.expect("", "3a", "[0]")
	q.ask("1b", long, alone(2))
	q.ask("4a", long, alone(1))
	q.expect("1b 4a") // 1b reserves device 1
	q.release("2a")
	q.expect("", "1b", "[2 3]", "4a", "[1]")
}

func TestTurnsFollowPriorityAgeAndOwners(t *testing.T) {
	q := newQueue(t, 2)
	q.ask("1a", 0, alone(1))
	q.ask("1b", long, alone(2))
	q.ask("1c", long, alone(1)) // owner 1 has a device
	q.ask("2a", long, alone(2))
	q.ask("3!", long, alone(2))
	q.expect("3! 2a 1b 1c")
	q.now += 2 * ages // which is worth more than the priority of one that comes now
	q.ask("4!", long, alone(2))
	q.expect("3! 2a 1b 1c 4!")
	q.release("1a")
	q.expect("2a 1b 1c 4!", "3!", "[0 1]")
	q.release("2a")
	q.now += long
	q.serve()
	q.expect("")
}

func TestExclusiveSlicesAvoidWhatIsInUse(t *testing.T) {
	q := newQueue(t, 4)
	q.busy[q.view.Device(0)] = 2
	v, err := q.ViewOf(1, nil) // of device 0, too, since no slice has any
	if err != nil {
		t.Fatal(err)
	}
	q.ask("1a", long, alone(4))
	q.expect("1a")
	delete(q.busy, q.view.Device(0))
	q.serve()
	q.expect("1a")
	q.Retire(v)
	q.serve()
	q.expect("", "1a", "[0 1 2 3]")
	if _, err := q.Remap(1, q.slices["1a"].Number, q.view, q.occupied); err != nil {
		t.Errorf("a slice cannot have its devices again: %v", err)
	}
	q.Leave(1)
	if _, err := q.Remap(1, q.slices["1a"].Number, q.view, q.occupied); status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("remapping to no devices returned %v", err)
	}
}

func TestRequestsThatCannotBeMetAnyMoreEnd(t *testing.T) {
	q := newQueue(t, 1, 1)
	q.ask("1a", 0, alone(1))
	q.ask("2a", long, alone(2))
	r := q.requests["2a"]
	q.Leave(2)
	q.serve()
	if _, err := r.Result(); status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("a request for lost devices ended with %v", err)
	}
	for range MaxWaiting {
		if err := q.ask("2b", long, alone(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.ask("2c", long, alone(1)); status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("request %d of a session returned %v", MaxWaiting+1, err)
	}
	again := &Request{Session: 2, Number: q.last - 1, View: q.view, Want: alone(1)}
	if err := q.Ask(again); status.CodeOf(err) != status.AlreadyExists {
		t.Errorf("a number used twice returned %v", err)
	}
	q.ReleaseAll(2)
	if n := len(q.Requests()); n != 0 {
		t.Errorf("%d requests of a session that ended wait", n)
	}
	if err := q.Ask(&Request{Priority: 101, View: q.view, Want: alone(1)}); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("a priority of 101 returned %v", err)
	}
}

// Whatever is asked for: an exclusive slice is alone on its devices, the first that waits really cannot be served, and
// once no more is asked for, all are served.
func TestQueueProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &queue{t: t, requests: map[string]*Request{}, slices: map[string]*Slice{}, busy: map[Device]uint32{}}
		islands := rapid.IntRange(1, 2).Draw(t, "islands")
		for i := range rapid.IntRange(1, 4).Draw(t, "workers") {
			if _, err := q.Join(offer(uint64(i+1), []string{"", "x"}[i%islands], 2)); err != nil {
				t.Fatalf("%v", err)
			}
		}
		q.view = q.View()
		for i := range rapid.IntRange(1, 40).Draw(t, "events") {
			q.now += int64(rapid.IntRange(0, 3).Draw(t, "minutes")) * ages
			switch names := q.names(); rapid.IntRange(0, 4).Draw(t, "event") {
			case 0, 1, 2:
				w := Want{Devices: rapid.IntRange(1, q.view.Len()).Draw(t, "devices"), Exclusive: rapid.Bool().Draw(t, "alone")}
				name := fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "session"), " ", i, []string{"", "!", "!!!"}[i%3])
				if err := q.ask(name, long, w); err != nil {
					t.Fatalf("%v", err)
				}
			case 3:
				if len(names) > 0 {
					q.release(rapid.SampledFrom(names).Draw(t, "name"))
				}
			case 4:
				q.busy[q.view.Device(rapid.IntRange(0, q.view.Len()-1).Draw(t, "device"))] =
					uint32(rapid.IntRange(0, 3).Draw(t, "by"))
				q.serve()
			}
			q.check()
		}
		clear(q.busy)
		q.serve()
		for len(q.requests) > 0 {
			if len(q.slices) == 0 {
				t.Fatalf("%s wait for nothing", q.waits())
			}
			for _, name := range q.names() {
				if q.slices[name] != nil {
					q.release(name)
					break
				}
			}
			q.check()
		}
	})
}

func (q *queue) names() (all []string) {
	for n := range q.last + 1 { // in a fixed order
		for name, s := range q.slices {
			if s.Number == n {
				all = append(all, name)
			}
		}
		for name, r := range q.requests {
			if r.Number == n {
				all = append(all, name)
			}
		}
	}
	return all
}

func (q *queue) check() {
	consistent(q.t, &q.Map)
	users := map[Device]int{}
	exclusive := map[Device]bool{}
	for _, s := range q.slices {
		for _, d := range s.Behind() {
			users[d]++
			exclusive[d] = exclusive[d] || s.Want.Exclusive
		}
	}
	for d, is := range exclusive {
		if is && users[d] > 1 {
			q.t.Fatalf("device %v is of an exclusive slice, and of %d", d, users[d])
		}
	}
	for name, r := range q.requests {
		if r.Position() != 1 {
			continue
		}
		free, most, of := map[*Island]int{}, 0, map[*Island]int{}
		for d := range q.view.Len() {
			dev := q.view.Device(d)
			of[dev.Island]++
			if !exclusive[dev] && (!r.Want.Exclusive || users[dev] == 0 && !q.occupied(r.Session, dev)) {
				free[dev.Island]++
				most++
			}
		}
		fits := false
		for is, n := range of {
			fits = fits || n >= r.Want.Devices
			if free[is] >= r.Want.Devices {
				q.t.Fatalf("%s waits for %d devices, and %d of its island are free", name, r.Want.Devices, free[is])
			}
		}
		if !fits && most >= r.Want.Devices {
			q.t.Fatalf("%s waits for %d devices, and %d are free", name, r.Want.Devices, most)
		}
	}
}
