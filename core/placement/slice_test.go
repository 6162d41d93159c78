package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// ask asks for a slice without waiting.
func ask(m *Map, session uint32, number uint64, v *View, w Want) (*Slice, error) {
	r := &Request{Session: session, Number: number, View: v, Want: w}
	if err := m.Ask(r); err != nil {
		return nil, err
	}
	if ended, _ := m.Serve(0, nil, math.MaxInt); !slices.Contains(ended, r) {
		return nil, status.New(status.Internal, "a request that does not wait still does")
	}
	s, err := r.Result()
	if s == nil && err == nil {
		err = status.New(status.ResourceExhausted, "others have %d devices", r.Lacks().Count())
	}
	return s, err
}

// behind returns the devices of a slice; their workers may have left.
func behind(s *Slice) (all []Device) {
	for _, d := range s.Devices {
		all = append(all, s.View.Device(d))
	}
	return all
}

// grant grants a slice to session 1 and returns its devices.
func grant(t testing.TB, m *Map, v *View, number uint64, w Want) []int {
	t.Helper()
	s, err := ask(m, 1, number, v, w)
	if err != nil {
		t.Fatalf("Grant(%+v): %v", w, err)
	}
	return s.Devices
}

// workers joins workers of one island with so many devices each.
func workers(t testing.TB, m *Map, devices ...int) *View {
	t.Helper()
	for i, n := range devices {
		join(t, m, offer(uint64(i+1), "", n))
	}
	return m.View()
}

func TestGrantPrefersWholeWorkersAndFreeDevices(t *testing.T) {
	for _, c := range []struct {
		name    string
		workers []int
		wants   []Want
		got     string // the devices of each
	}{
		{"one worker's", []int{2, 2}, []Want{{Devices: 2}, {Devices: 2}}, "[0 1] [2 3]"},
		{"the worker that has enough left", []int{2, 2}, []Want{{Devices: 1}, {Devices: 2}, {Devices: 1}}, "[0] [2 3] [1]"},
		{"the smallest that is large enough", []int{4, 2}, []Want{{Devices: 2}, {Devices: 4}}, "[4 5] [0 1 2 3]"},
		{"more than a worker has", []int{2, 2, 2}, []Want{{Devices: 4}, {Devices: 2}}, "[0 1 2 3] [4 5]"},
		{"free ones of two rather than shared ones of one", []int{4, 4}, []Want{{Devices: 1}, {Devices: 4}, {Devices: 3}},
			"[0] [4 5 6 7] [1 2 3]"},
		{"shared where there are no others", []int{2, 2}, []Want{{Devices: 4}, {Devices: 2}, {Devices: 2}, {Devices: 3}},
			"[0 1 2 3] [0 1] [2 3] [0 1 2]"},
		{"a free one first, then one of the same worker", []int{2, 2}, []Want{{Devices: 3}, {Devices: 2}}, "[0 1 2] [2 3]"},
		{"rows of one worker", []int{3, 3}, []Want{{Devices: 4, Topology: []int{2, 2}}}, "[0 1 3 4]"},
		{"rows beside what is in use", []int{3, 3}, []Want{{Devices: 1}, {Devices: 4, Topology: []int{2, 2}}},
			"[0] [1 2 3 4]"},
		{"rows longer than a worker", []int{2, 2, 2}, []Want{{Devices: 4, Topology: []int{1, 4}}}, "[0 1 2 3]"},
		{"neighbors", []int{1, 3, 1}, []Want{{Devices: 3, Topology: []int{3}}}, "[1 2 3]"},
		{"three dimensions", []int{4, 4}, []Want{{Devices: 8, Topology: []int{2, 2, 2}}}, "[0 1 2 3 4 5 6 7]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Map
			v := workers(t, &m, c.workers...)
			var got []string
			for i, w := range c.wants {
				got = append(got, fmt.Sprint(grant(t, &m, v, uint64(i+1), w)))
			}
			if got := strings.Join(got, " "); got != c.got {
				t.Errorf("got %s, want %s", got, c.got)
			}
		})
	}
}

func TestGrantOfIslands(t *testing.T) {
	var m Map
	join(t, &m, offer(1, "a", 2))
	o := offer(2, "b", 3)
	o.Kinds = []string{"big", "small", "small"}
	join(t, &m, o)
	v := m.View()
	for i, c := range []struct {
		want Want
		got  string
	}{
		{Want{Devices: 1, Island: "b"}, "[2]"},
		{Want{Devices: 2, Kind: "small"}, "[3 4]"},
		{Want{Devices: 3}, "[2 3 4]"}, // those of one island, though all are shared
		{Want{Devices: 4}, "[0 1 2 3]"},
		{Want{Devices: 5, Topology: []int{1, 5}}, "[0 1 2 3 4]"},
	} {
		if got := fmt.Sprint(grant(t, &m, v, uint64(i), c.want)); got != c.got {
			t.Errorf("%+v: got %s, want %s", c.want, got, c.got)
		}
	}
}

func TestGrantOfTheIslandWithFewerSlices(t *testing.T) {
	var m Map
	for w, granted := range [][]int32{{0, 0, 0, 3}, {1, 0, 1, 0}} {
		o := offer(uint64(w+1), fmt.Sprint(w), len(granted))
		join(t, &m, o)
		for i, n := range granted {
			m.loads[o.First+i].granted = n
		}
	}
	statustest.EqualSlices(t, grant(t, &m, m.View(), 1, Want{Devices: 4}), []int{4, 5, 6, 7}, "the devices")
}

func TestGrantIsRefused(t *testing.T) {
	var m Map
	o := offer(1, "", 2)
	o.Kinds = []string{"cpu", "cpu"}
	join(t, &m, o)
	o = offer(2, "far", 2)
	o.Kinds = []string{"tpu v4", "tpu v5"}
	join(t, &m, o)
	join(t, &m, offer(3, "far", 2))
	v := m.View()
	m.Leave(3)
	for _, c := range []struct {
		name string
		want Want
		code status.Code
		text []string
	}{
		{"none", Want{}, status.InvalidArgument, []string{"0 devices"}},
		{"fewer than none", Want{Devices: -1}, status.InvalidArgument, []string{"-1 devices"}},
		{"another shape", Want{Devices: 4, Topology: []int{2, 3}}, status.InvalidArgument, []string{"[2 3]", "4 devices"}},
		{"a shape of none", Want{Devices: 4, Topology: []int{4, 1, 0}}, status.InvalidArgument, []string{"[4 1 0]"}},
		{"a shape that overflows", Want{Devices: 4, Topology: []int{1 << 62, 1 << 62, 4}}, status.InvalidArgument,
			[]string{"4 devices"}},
		{"too many dimensions", Want{Devices: 1, Topology: make([]int, 1000)}, status.InvalidArgument,
			[]string{"1000 dimensions"}},
		{"an island that is not there", Want{Devices: 1, Island: "near"}, status.InvalidArgument,
			[]string{`"near"`, `"default" with 2, "far" with 2`}},
		{"a kind that is not there", Want{Devices: 1, Kind: "gpu"}, status.InvalidArgument,
			[]string{`"gpu"`, `"cpu" with 2`, `"tpu v5" with 1`}},
		{"a kind that is elsewhere", Want{Devices: 1, Kind: "cpu", Island: "far"}, status.InvalidArgument,
			[]string{`"far"`, `"cpu"`}},
		{"too many", Want{Devices: 5}, status.ResourceExhausted,
			[]string{"5 devices", "the session has 4", "2 more have no worker now"}},
		{"too many of an island", Want{Devices: 3, Island: DefaultIsland}, status.ResourceExhausted,
			[]string{"the session has 2", `"default"`}},
		{"too many of a kind", Want{Devices: 2, Kind: "tpu v4"}, status.ResourceExhausted,
			[]string{`"tpu v4"`, "the session has 1"}},
		{"more than anybody may have", Want{Devices: MaxGranted + 1}, status.ResourceExhausted, []string{"1048576"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ask(&m, 1, 1, v, c.want)
			statustest.Fails(t, "the error", err, c.code)
			for _, text := range c.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %s", err, text)
				}
			}
			statustest.EqualSlices(t, m.Holders(), nil, "what was refused is held by")
		})
	}
	grant(t, &m, v, 1, Want{Devices: 1})
	statustest.Fails(t, "a number used twice", statustest.Of(ask(&m, 1, 1, v, Want{Devices: 1})), status.AlreadyExists)
	statustest.Fails(t, "remapping what is not there", statustest.Of(m.Remap(1, 2, nil)), status.NotFound)
	for i := range uint64(MaxSlices) {
		_, err := ask(&m, 2, i, v, Want{Devices: 1})
		statustest.OK(t, err)
	}
	statustest.Fails(t, "a slice above the session's limit",
		statustest.Of(ask(&m, 2, MaxSlices, v, Want{Devices: 1})), status.ResourceExhausted)
}

// What others have been granted counts, until it is released or they are gone.
func TestGrantsOfOthersCountUntilReleased(t *testing.T) {
	var m Map
	v := workers(t, &m, 1, 1, 1)
	other := func(session uint32, want string) {
		t.Helper()
		s := statustest.Value(ask(&m, session, 1, v, Want{Devices: 1})).OK(t)
		statustest.MustEqual(t, fmt.Sprint(s.Devices), want, "session %d was granted", session)
	}
	other(1, "[0]")
	other(2, "[1]")
	other(3, "[2]")
	m.Release(2, 1)
	m.Release(2, 1)
	other(4, "[1]")
	m.ReleaseAll(3)
	other(5, "[2]")
	statustest.Equal(t, fmt.Sprint(m.Holders()), "[1 4 5]", "slices are held by")
}

func TestRemapReplacesLostDevices(t *testing.T) {
	var m Map
	v := workers(t, &m, 2, 2, 2)
	remap := func(number uint64, want string) {
		t.Helper()
		s := statustest.Value(m.Remap(1, number, nil)).OK(t)
		statustest.MustEqual(t, fmt.Sprint(s.Devices), want, "slice %d became", number)
	}
	grant(t, &m, v, 1, Want{Devices: 3})
	grant(t, &m, v, 2, Want{Devices: 2})
	remap(1, "[0 1 2]") // there is nothing better
	m.Leave(1)
	remap(1, "[3 4 2]") // the others of its worker, and one that is shared; what is left stays
	remap(2, "[4 5]")
	m.Release(1, 2)
	remap(1, "[3 4 2]")
	m.Leave(2)
	statustest.Fails(t, "3 devices of 2", statustest.Of(m.Remap(1, 1, nil)), status.ResourceExhausted)
	statustest.Equal(t, fmt.Sprint(m.Slices(1)[0].Devices), "[3 4 2]", "a remap that failed left")
	// A worker that joined later is not in the session's view.
	join(t, &m, offer(9, "", 8))
	statustest.Fails(t, "devices that the session does not know were granted", statustest.Of(m.Remap(1, 1, nil)),
		status.ResourceExhausted)
	consistent(t, &m)
}

// consistent fails where the counts are not those of the slices.
func consistent(t interface{ Fatalf(string, ...any) }, m *Map) {
	want := map[*Worker][]int{}
	for _, w := range m.workers {
		want[w] = make([]int, w.Devices)
	}
	for _, session := range m.Holders() {
		all := m.Slices(session)
		if len(all) == 0 {
			t.Fatalf("session %d holds no slices, and is there", session)
		}
		for _, s := range all {
			if len(s.Devices) != s.Want.Devices {
				t.Fatalf("slice %d.%d wanted %d devices and has %v", session, s.Number, s.Want.Devices, s.Devices)
			}
			for _, d := range behind(s) {
				if w := m.workers[d.Worker]; w != nil {
					want[w][d.Local]++
				}
			}
		}
	}
	for w, counts := range want {
		for local, n := range counts {
			if l := m.loads[w.First+local]; int(l.granted) != n {
				t.Fatalf("device %d of worker %d counts %d slices, there are %d", local, w.Offer.Worker, l.granted, n)
			}
		}
	}
}

// machine has a Map go through events, and looks at each answer.
type machine struct {
	t interface{ Fatalf(string, ...any) }
	Map
	last  uint64
	views map[uint32]*View // by session
	next  uint64           // number of a slice
}

// check looks at what was granted, given how often each device was before.
func (m *machine) check(s *Slice, session uint32, before map[Device]int) {
	v := m.views[session]
	seen := map[int]bool{}
	islands := map[*Island]bool{}
	worst := -1
	for _, d := range s.Devices {
		if d < 0 || d >= v.Len() || seen[d] {
			m.t.Fatalf("slice %+v has device %d twice, or one that is not the session's", s, d)
		}
		seen[d] = true
		dev := v.Device(d)
		w := m.workers[dev.Worker]
		if w == nil || s.Want.Island != "" && dev.Island.Name != s.Want.Island || s.Want.Kind != "" &&
			w.kind(dev.Local) != s.Want.Kind {
			m.t.Fatalf("slice %+v has device %d, which it may not", s, d)
		}
		islands[dev.Island] = true
		worst = max(worst, before[dev])
	}
	if len(s.Want.Topology) > 0 {
		return
	}
	// A device that fewer have, of the same island and not taken, would be better.
	room := map[*Island]int{}
	for d := range v.Len() {
		dev := v.Device(d)
		w := m.workers[dev.Worker]
		if w == nil || s.Want.Island != "" && dev.Island.Name != s.Want.Island || s.Want.Kind != "" &&
			w.kind(dev.Local) != s.Want.Kind {
			continue
		}
		room[dev.Island]++
		if islands[dev.Island] && !seen[d] && before[dev] < worst && len(islands) == 1 {
			m.t.Fatalf("slice %+v does without device %d, which %d have, and has one that %d have", s, d, before[dev], worst)
		}
	}
	for is, n := range room {
		if n >= s.Want.Devices && len(islands) > 1 {
			m.t.Fatalf("slice %+v is of %d islands, and %q has enough", s, len(islands), is.Name)
		}
	}
}

// uses is how many slices have each device, but for one.
func (m *machine) uses(but *Slice) map[Device]int {
	uses := map[Device]int{}
	for _, session := range m.Holders() {
		for _, s := range m.Slices(session) {
			for _, d := range behind(s) {
				if s != but {
					uses[d]++
				}
			}
		}
	}
	return uses
}

// event carries out an event that four bytes choose.
func (m *machine) event(what, a, b, c byte) {
	session := uint32(a % 3)
	if m.views[session] == nil {
		m.views[session] = m.View()
	}
	switch what % 8 {
	case 0:
		m.last++
		o := offer(m.last, []string{"", "x", "y"}[a%3], int(b%5)+1)
		if c%2 == 0 {
			o.Kinds = []string{"p", "q", "p", "q"}
		}
		if _, err := m.Join(o); err != nil {
			m.t.Fatalf("Join: %v", err)
		}
		m.views[uint32(c%3)] = m.View()
		m.ReleaseAll(uint32(c % 3)) // another session with the same number
	case 1:
		m.Leave(uint64(a) % (m.last + 1))
	case 2, 3, 4:
		w := Want{Devices: int(b%9) + 1, Island: []string{"", "", "x"}[c%3], Kind: []string{"", "", "p"}[c/3%3]}
		if what%8 == 4 {
			w.Topology = []int{int(b%3) + 1, int(b/3%3) + 1}
			w.Devices = w.Topology[0] * w.Topology[1]
		}
		before := m.uses(nil)
		m.next++
		s, err := ask(&m.Map, session, m.next, m.views[session], w)
		if err == nil {
			m.check(s, session, before)
		} else if code := status.CodeOf(err); code != status.ResourceExhausted && code != status.InvalidArgument {
			m.t.Fatalf("Grant(%+v): %v", w, err)
		}
	case 5, 6:
		all := m.Slices(session)
		if len(all) == 0 {
			return
		}
		s := all[int(b)%len(all)]
		if what%8 == 5 {
			m.Release(session, s.Number)
			return
		}
		old, before := slices.Clone(s.Devices), m.uses(s)
		s, err := m.Remap(session, s.Number, nil)
		if err == nil {
			m.check(s, session, before)
			old = slices.Clone(s.Devices)
			if s, err = m.Remap(session, s.Number, nil); err != nil || !slices.Equal(s.Devices, old) {
				m.t.Fatalf("a second remap returned %v, %v after %v", s, err, old)
			}
		} else if s := m.holders[session].slices[all[int(b)%len(all)].Number]; !slices.Equal(s.Devices, old) {
			m.t.Fatalf("a remap failed with %v and left %v of %v", err, s.Devices, old)
		}
	case 7:
		m.ReleaseAll(session)
	}
	consistent(m.t, &m.Map)
}

func newMachine(t interface{ Fatalf(string, ...any) }) *machine {
	return &machine{t: t, views: map[uint32]*View{}}
}

// A slice with a topology gets other devices only if they are better, and then keeps these: rows are looked for at one
// offset of the devices at a time, which may pass over those that it has.
func TestRemapOfATopologyKeepsDevicesUnlessOthersAreBetter(t *testing.T) {
	for _, c := range []struct {
		workers, devices int
		taken            []int // by another session
		has, want        []int
	}{
		{1, 5, nil, []int{1, 2}, []int{1, 2}},
		{4, 2, []int{0, 1, 6}, []int{0, 1, 2}, []int{3, 4, 5}},
	} {
		m := &Map{}
		for w := range c.workers {
			join(t, m, offer(uint64(w+1), "", c.devices))
		}
		v := m.View()
		for i, d := range c.taken {
			r := &Request{Session: 2, Number: uint64(i + 1), View: v, Want: Want{Devices: 1}}
			statustest.OK(t, m.Regrant(r, []int{d}))
		}
		w := Want{Devices: len(c.has), Topology: []int{1, len(c.has)}}
		statustest.OK(t, m.Regrant(&Request{Session: 1, Number: 1, View: v, Want: w}, c.has))
		for range 2 {
			s := statustest.Value(m.Remap(1, 1, nil)).OK(t)
			statustest.EqualSlices(t, s.Devices, c.want, "the devices of the slice that had %v", c.has)
		}
	}
}

// Whatever is asked for and lost: nothing is granted that is not there or not
// wanted, none that more have where one is there that fewer have, and counts are
// those of what is granted.
func TestSlicesHaveWhatWasWantedUnderRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			e := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "event")
			m.event(e[0], e[1], e[2], e[3])
		}
	})
}

func FuzzSlices(f *testing.F) {
	f.Add([]byte{0, 0, 4, 1, 0, 1, 4, 0, 2, 0, 3, 0, 4, 0, 4, 1, 1, 1, 0, 0, 6, 0, 0, 0})
	f.Add([]byte{0, 0, 2, 0, 2, 1, 1, 4, 3, 2, 8, 0, 5, 1, 0, 0, 7, 2, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		m := newMachine(t)
		for ; len(script) >= 4; script = script[4:] {
			m.event(script[0], script[1], script[2], script[3])
		}
	})
}
