package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// clients is a Map whose requests have names.
type clients struct {
	t interface{ Fatalf(string, ...any) }
	Map
	view     *View
	now      int64
	requests map[string]*Request // that wait
	slices   map[string]*Slice
	last     uint64
	busy     map[int]uint32   // the session that has arrays on a device, by its number in the whole cluster
	views    map[uint32]*View // by session, where it is not the one of all
	class    map[string]int   // by owner
	quota    map[string]int   // the same
	served   bool             // Serve has looked at all since the last event
	most     int              // steps that Serve does, before others come in between
}

func newClients(t testing.TB, devices ...int) *clients {
	q := &clients{t: t, requests: map[string]*Request{}, slices: map[string]*Slice{}, busy: map[int]uint32{},
		views: map[uint32]*View{}, class: map[string]int{}, quota: map[string]int{}, most: math.MaxInt}
	q.view = workers(t, &q.Map, devices...)
	return q
}

func (q *clients) occupied(session uint32) (others Numbers) {
	for d, by := range q.busy {
		if by != 0 && by != session {
			others.Add(d)
		}
	}
	return others
}

// number returns the number of a device of the first view in the whole cluster.
func (q *clients) number(virtual int) int {
	w, local := q.view.where(virtual)
	return w.First + local
}

// ask asks for a slice by a session whose name begins the slice's: "1a" is of session 1.
func (q *clients) ask(name string, wait int64, w Want) error {
	session := uint32(name[0] - '0')
	q.last++
	r := &Request{Session: session, Number: q.last, View: cmp.Or(q.views[session], q.view), Want: w, Owner: name[:1],
		Class: q.class[name[:1]], Quota: q.quota[name[:1]], Asked: q.now, Until: q.now + wait}
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

func (q *clients) serve() {
	looks := 1
	if q.Map.queue.at > 0 || q.Map.queue.search.of != nil { // what has happened since counts in the next look
		looks = 2
	}
	for looks > 0 {
		ended, more := q.Serve(q.now, q.occupied, q.most)
		if q.end(ended); !more {
			looks--
		}
	}
	q.served = true
}

func (q *clients) end(ended []*Request) {
	for _, r := range ended {
		for name, o := range q.requests {
			if o == r {
				delete(q.requests, name)
				if s, _ := r.Result(); s != nil {
					q.slices[name] = s
					others := q.occupied(r.Session)
					if r.Want.Exclusive && slices.ContainsFunc(s.Devices, func(d int) bool {
						w, local := s.View.where(d)
						return others.Has(w.First + local)
					}) {
						q.t.Fatalf("%s has devices %v for itself, and others use some", name, s.Devices)
					}
					if most := q.quota[name[:1]]; most > 0 && q.Owned(name[:1]) > most {
						q.t.Fatalf("owner %s has %d devices with %s, of %d", name[:1], q.Owned(name[:1]), name, most)
					}
				}
			}
		}
	}
}

func (q *clients) release(name string) {
	if s := q.slices[name]; s != nil {
		q.Release(s.Session, s.Number)
		delete(q.slices, name)
	} else if r := q.requests[name]; r != nil {
		q.Cancel(r.Session, r.Number)
		delete(q.requests, name)
	}
	q.serve()
}

// limit changes the quota of an owner.
func (q *clients) limit(owner string, quota int) {
	q.quota[owner] = quota
	q.SetQuota(owner, quota)
	q.serve()
}

// waits returns the names of those that wait, in the order of their turns.
func (q *clients) waits() string {
	names := make([]string, len(q.Requests()))
	for name, r := range q.requests {
		names[r.Position()-1] = name
	}
	return strings.Join(names, " ")
}

func (q *clients) devices(name string) string {
	if s := q.slices[name]; s != nil {
		return fmt.Sprint(s.Devices)
	}
	return ""
}

func (q *clients) expect(waits string, granted ...string) {
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
	q := newClients(t, 2, 2)
	q.ask("1a", 0, alone(3))
	q.ask("2a", long, alone(2))
	q.ask("3a", long, Want{Devices: 2}) // which may share, but not these
	q.expect("2a 3a", "1a", "[0 1 2]", "2a", "", "3a", "")
	if got := fmt.Sprint(q.requests["2a"].Lacks().Has(q.number(2)), q.requests["2a"].Lacks().Count()); got != "true 1" {
		t.Errorf("2a lacks %s", got)
	}
	excluded := func(session uint32, device int) bool {
		s, _ := q.Excluded(session, []int{q.number(device)})
		return s != nil
	}
	if !excluded(2, 0) || excluded(1, 0) || excluded(2, 3) {
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

// A request says which ones before it have reserved what it would have without them, free or not, and how much of that.
func TestRequestsSayWhatIsReservedAheadOfThem(t *testing.T) {
	q := newClients(t, 4)
	q.ask("1a", 0, alone(2))
	q.ask("2a", long, alone(3))
	q.ask("3a", long, alone(1)) // 2a leaves it a device of 1a, and keeps two free ones
	q.ask("4a", long, alone(2)) // nothing is left
	q.ask("5a", long, alone(4))
	q.expect("2a 3a 4a 5a")
	for name, want := range map[string]string{"2a": "lacks 1", "3a": "lacks 1, 2: 1", "4a": "lacks 0, 2: 2",
		"5a": "lacks 0, 2: 3, 3: 1"} {
		got := fmt.Sprint("lacks ", q.requests[name].Lacks().Count())
		for _, a := range q.requests[name].Ahead() {
			got += fmt.Sprintf(", %s: %d", a.By.Owner, a.Devices)
		}
		statustest.Equal(t, got, want, "%s", name)
	}
}

// What an owner may have is for its requests in their order, and what waits for that keeps nothing from others.
func TestRequestsWaitForQuotas(t *testing.T) {
	q := newClients(t, 8)
	q.quota["1"] = 3
	q.ask("1a", 0, alone(2))
	q.ask("1b", long, alone(3))
	q.ask("1c", long, alone(1))
	q.ask("1d", 0, alone(1)) // 1b comes first
	q.ask("1e", long, alone(4))
	q.ask("2a", 0, alone(6))
	q.ask("2b", long, alone(1))
	q.expect("2b 1b 1c", "1a", "[0 1]", "1d", "", "1e", "", "2a", "[2 3 4 5 6 7]")
	q.release("2a")
	q.expect("1b 1c", "2b", "[2]")
	q.release("1a")
	q.expect("1c", "1b", "[3 4 5]")
	q.limit("1", 4)
	q.expect("", "1c", "[0]")
	q.limit("1", 2)
	q.ask("1f", long, alone(1))
	q.release("1b")
	q.expect("", "1c", "[0]", "1f", "[1]")
	// A quota that becomes too small for what waits ends that.
	q.ask("1g", long, alone(2))
	q.ask("1h", long, alone(1))
	q.limit("1", 1)
	q.expect("1h", "1g", "")
}

func TestOneSlowRequestKeepsWhatItReserved(t *testing.T) {
	q := newClients(t, 4)
	q.ask("1a", 0, alone(1))
	q.ask("2a", long, alone(4))
	q.ask("3a", 0, Want{Devices: 1})
	statustest.Fails(t, "a view of a device that is reserved", statustest.Of(q.ViewOf(1)), status.ResourceExhausted)
	q.expect("2a", "3a", "")
	q.release("1a")
	q.expect("", "2a", "[0 1 2 3]")
}

func TestLaterRequestsGetWhatEarlierOnesDoNotReserve(t *testing.T) {
	q := newClients(t, 2, 2)
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

func TestRequestsKeepSomeOfAWorkersDevices(t *testing.T) {
	q := newClients(t)
	for w, kinds := range [][]string{{"a"}, {"a", "b", "b", "b"}} {
		o := offer(uint64(w+1), "", len(kinds))
		o.Kinds = kinds
		join(t, &q.Map, o)
	}
	q.view = q.View()
	q.ask("1a", 0, Want{Devices: 1, Kind: "a", Exclusive: true})
	q.ask("2a", long, Want{Devices: 2, Kind: "a", Exclusive: true}) // reserves device 1
	q.ask("3a", 0, Want{Devices: 2})
	q.expect("2a", "1a", "[0]", "3a", "[2 3]")
	q.release("3a")
	q.ask("3b", long, alone(4)) // reserves what is left
	q.ask("4a", 0, Want{Devices: 1})
	q.expect("2a 3b", "4a", "")
}

func TestPrioritiesOrderRequestsOfOneOwner(t *testing.T) {
	q := newClients(t, 2)
	q.ask("9a", 0, alone(2))
	q.ask("1a", long, alone(2))
	q.ask("1b!!", long, alone(2))
	q.ask("2a", long, alone(2))
	q.ask("2b!", long, alone(2))
	q.ask("2c", long, alone(2))
	q.expect("1b!! 2b! 1a 2a 2c") // each owner's first before anyone's second
	q.now += 2 * ages
	q.ask("2d!", long, alone(2)) // to which two minutes of waiting are worth more
	q.expect("1b!! 2b! 1a 2a 2c 2d!")
	q.release("9a")
	q.expect("2b! 1a 2a 2c 2d!", "1b!!", "[0 1]") // owner 1 has devices now
}

func TestClassThenDevicesThenTimeOrderOwners(t *testing.T) {
	q := newClients(t, 2, 2)
	q.class["4"] = 1
	q.ask("1a", 0, alone(3))
	q.ask("2a", 0, alone(1))
	q.ask("1b", long, alone(2))
	q.ask("2b!!!!", long, alone(2))
	q.ask("3a", long, alone(2))
	q.ask("5a!", long, alone(2))
	q.ask("4a", long, alone(2))
	q.expect("4a 3a 5a! 2b!!!! 1b")
	q.now += patient / 2
	q.ask("6a", long, alone(2))
	q.expect("4a 3a 5a! 6a 2b!!!! 1b")
	q.now += patient / 2 // from when on those that waited come before all that arrive
	q.ask("4b!!!!", long, alone(2))
	q.ask("7a", long, alone(2))
	q.expect("1b 2b!!!! 3a 5a! 4a 6a 7a 4b!!!!")
}

// A request for what it does not get keeps devices from others for as long as it lets others have them.
func TestOneThatWaitsKeepsDevicesByTurns(t *testing.T) {
	q := newClients(t, 4)
	q.ask("1a", 0, alone(1))
	q.ask("2a", 100*long, alone(4))
	var kept string
	for range 16 {
		v, err := q.ViewOf(1)
		q.ask("3a", 0, Want{Devices: 1})
		if (err == nil) != (q.slices["3a"] != nil) {
			t.Fatalf("a session of a device begins: %v, and a slice has %s", err, q.devices("3a"))
		}
		if err == nil {
			q.Retire(v)
			kept += "."
		} else {
			kept += "k"
		}
		q.release("3a")
		before := q.now
		if q.now += ages; q.IsDue(before) || !q.IsDue(q.now) {
			t.Error("Serve is not due once in a minute")
		}
		q.serve()
	}
	statustest.Equal(t, kept, "k.kk..kkkk....kk", "minute by minute devices")
	q.release("1a")
	q.expect("", "2a", "[0 1 2 3]")
}

// What is free and kept for an exclusive slice is kept from sessions that began since.
func TestKeepsFreeDevicesFromSessionsThatBegin(t *testing.T) {
	q := newClients(t, 2)
	q.now = 5
	q.ask("1a", 0, alone(1)) // device 0
	q.ask("2a", 100*long, alone(2))
	keeps := func(session uint32, began int64, want string) {
		t.Helper()
		r, i := q.Keeper(session, began, []int{q.number(0), q.number(1)})
		statustest.Equal(t, fmt.Sprint(r != nil && r.Session == 2, i), want,
			"a device is kept from session %d, which began at %d", session, began)
	}
	keeps(3, 4, "false 0")
	keeps(3, 5, "true 1")
	keeps(2, 5, "false 0")
	before := q.Kept()
	q.now += ages
	q.serve()
	keeps(3, q.now, "false 0")
	if q.Kept() == before {
		t.Error("nothing says that the device is no longer kept")
	}
	q.now += ages
	q.serve()
	keeps(3, q.now-1, "false 0")
	keeps(3, q.now, "true 1")
	q.release("2a")
	keeps(3, q.now, "false 0")
}

// One that waits for all devices, again and again, does not keep others from being looked at.
func TestOneOwnersRequestsDoNotFillTheQueue(t *testing.T) {
	q := newClients(t, 2)
	q.ask("1a", 0, alone(1))
	for i := range MaxWaiting {
		q.ask(fmt.Sprint("2", strings.Repeat("!", i+1)), long, alone(2))
	}
	q.ask("3a", long, alone(1))
	statustest.Equal(t, q.requests["3a"].Position(), 2, "its number among those that wait")
	q.now += ages // each that waits lets others have devices
	q.serve()
	statustest.Equal(t, q.devices("3a"), "[1]", "it got")
}

func TestExclusiveSlicesAvoidWhatIsInUse(t *testing.T) {
	q := newClients(t, 4)
	q.busy[q.number(0)] = 2
	v, err := q.ViewOf(1) // of device 0, too, since no slice has any
	statustest.OK(t, err)
	q.ask("1a", long, alone(4))
	q.expect("1a")
	delete(q.busy, q.number(0))
	q.serve()
	q.expect("1a")
	q.Retire(v)
	q.serve()
	q.expect("", "1a", "[0 1 2 3]")
	if _, err := q.Remap(1, q.slices["1a"].Number, q.occupied); err != nil {
		t.Errorf("a slice cannot have its devices again: %v", err)
	}
	q.Leave(1)
	statustest.Fails(t, "remapping to no devices", statustest.Of(q.Remap(1, q.slices["1a"].Number, q.occupied)),
		status.ResourceExhausted)
}

func TestRequestsThatCannotBeMetAnyMoreEnd(t *testing.T) {
	q := newClients(t, 1, 1)
	q.ask("1a", 0, alone(1))
	q.ask("2a", long, alone(2))
	r := q.requests["2a"]
	q.Leave(2)
	q.serve()
	statustest.Fails(t, "a request for lost devices", statustest.Of(r.Result()), status.ResourceExhausted)
	for range MaxWaiting {
		statustest.OK(t, q.ask("2b", long, alone(1)))
	}
	statustest.Fails(t, fmt.Sprintf("request %d of a session", MaxWaiting+1), q.ask("2c", long, alone(1)),
		status.ResourceExhausted)
	again := &Request{Session: 2, Number: q.last - 1, View: q.view, Want: alone(1)}
	statustest.Fails(t, "a number used twice", q.Ask(again), status.AlreadyExists)
	q.ReleaseAll(2)
	statustest.Equal(t, len(q.Requests()), 0, "requests of a session that ended wait")
	statustest.Fails(t, "a priority of 101", q.Ask(&Request{Priority: 101, View: q.view, Want: alone(1)}),
		status.InvalidArgument)
}

// The search for a request's devices has several steps, between which others come: it grants nothing that they have
// taken meanwhile, and nothing of a worker that has left.
func TestSearchInStepsGrantsWhatIsStillFree(t *testing.T) {
	for steps := range 3 {
		for name, happens := range map[string]func(q *clients){
			"another session uses a device": func(q *clients) { q.busy[q.number(0)] = 9 },
			"a worker leaves":               func(q *clients) { q.Leave(1) },
		} {
			q := newClients(t, 1, 1)
			q.busy[q.number(1)] = 9
			statustest.OK(t, q.ask("1a", long, Want{Devices: 2, Exclusive: true}))
			q.expect("1a")
			clear(q.busy)
			_, more := q.Serve(q.now, q.occupied, steps)
			statustest.Equal(t, more, true, "more is left after %d steps", steps)
			happens(q)
			q.serve()
			if s := q.slices["1a"]; s != nil {
				t.Errorf("%s after %d steps, and devices %v are granted", name, steps, s.Devices)
			}
		}
	}
}
