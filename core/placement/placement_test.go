package placement

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func offer(worker uint64, island string, devices int) Offer {
	return Offer{Worker: worker, Name: fmt.Sprintf("w%d", worker), Island: island, Platform: "cpu", Fingerprint: "f",
		Versions: map[string]string{"jax": "0.10"}, Devices: devices, First: int(worker) * 8}
}

func join(t testing.TB, m *Map, o Offer) *Worker {
	t.Helper()
	w, err := m.Join(o)
	statustest.OKf(t, err, "Join(%+v)", o)
	return w
}

func list(v *View) string {
	var b strings.Builder
	for d := range v.Len() {
		fmt.Fprintf(&b, " %d.%d/%d", v.Device(d).Worker, v.Device(d).Local, v.Device(d).Island.Index)
	}
	return strings.TrimSpace(b.String())
}

// Islands come first, then workers, then local devices; what comes later does not
// move what a session has.
func TestNewDevicesDoNotMoveOldOnes(t *testing.T) {
	var m Map
	join(t, &m, offer(1, "b", 2))
	join(t, &m, offer(2, "a", 1))
	early := m.View()
	join(t, &m, offer(3, "b", 2))
	statustest.Equal(t, list(early), "1.0/0 1.1/0 2.0/1", "the early view")
	statustest.Equal(t, list(m.View()), "1.0/0 1.1/0 3.0/0 3.1/0 2.0/1", "the late view")
	m.Leave(1)
	join(t, &m, offer(4, "b", 1))
	v := m.View()
	statustest.Equal(t, list(v), "3.0/0 3.1/0 4.0/0 2.0/1", "after a loss the view")
	statustest.Equal(t, v.Device(2).Number, 0, "number of the new device in its island")
	statustest.Equal(t, fmt.Sprint(v.Spans()), "[{3 0 2} {4 0 1} {2 0 1}]", "spans")
}

// A view of a number of devices has the first that are there: a worker that fits,
// an island that has enough, and what no other such view has.
// What a search has chosen beside other calls is what ViewOf would choose, and the Map chooses nothing itself, unless
// something has happened meanwhile to the devices.
func TestViewsAreSearchedForBesideOtherCalls(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(m *Map)
		again     bool
		want      string
	}{
		{"nothing happens", func(*Map) {}, false, "1.0/0 1.1/0"},
		{"another view has the devices", func(m *Map) { _, _ = m.ViewOf(2) }, true, "2.0/0 2.1/0"},
		{"another view has one of them", func(m *Map) {
			first, _ := m.ViewOf(1)
			_, _ = m.ViewOf(1)
			m.Retire(first)
		}, true, "2.0/0 2.1/0"},
		{"a worker leaves", func(m *Map) { m.Leave(1) }, true, "2.0/0 2.1/0"},
		{"a worker comes", func(m *Map) { join(t, m, offer(3, "", 2)) }, true, "1.0/0 1.1/0"},
	} {
		m := &Map{}
		for w := range uint64(2) {
			join(t, m, offer(w+1, "", 2))
		}
		s := statustest.Value(m.SearchView(2)).OK(t)
		s.Choose()
		c.meanwhile(m)
		m.scratch = scratch{}
		v := statustest.Value(m.TakeView(s, 2)).OK(t)
		if again := &m.scratch.free[0] != &s.of[0].free[0]; list(v) != c.want || again != c.again {
			t.Errorf("%s: the view is of %s, and the Map has searched again: %v; expected %s, %v", c.name, list(v), again,
				c.want, c.again)
		}
	}
}

func TestViewOfSomeDevicesPrefersOneWorker(t *testing.T) {
	var m Map
	for _, o := range []Offer{offer(1, "b", 2), offer(2, "b", 2), offer(3, "a", 4)} {
		join(t, &m, o)
	}
	view := func(devices int, want string) *View {
		t.Helper()
		v := statustest.Value(m.ViewOf(devices)).OK(t)
		statustest.Equal(t, list(v), want, "a view of %d devices", devices)
		return v
	}
	for i, want := range []string{"1.0/0", "1.0/0 1.1/0", "3.0/1 3.1/1 3.2/1", "3.0/1 3.1/1 3.2/1 3.3/1",
		"1.0/0 1.1/0 2.0/0 2.1/0 3.0/1"} {
		m.Retire(view(i+1, want))
	}
	m.Retire(view(8, list(m.View())))
	one := view(1, "1.0/0")
	two := view(2, "2.0/0 2.1/0")
	m.Retire(view(3, "3.0/1 3.1/1 3.2/1"))
	m.Retire(one)
	view(2, "1.0/0 1.1/0")
	m.Leave(2)
	m.Retire(two) // of a worker that has gone
	for devices, want := range map[int]string{
		0: "at least 1", -1: "at least 1", 7: "a session of 7 devices was asked for, and the cluster has 6 in 2 workers"} {
		if _, err := m.ViewOf(devices); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a view of %d devices: %v, want %q", devices, err, want)
		}
	}
	statustest.Fails(t, "a view of an empty map", statustest.Of(new(Map).ViewOf(1)), status.ResourceExhausted)
}

// Each platform has its own devices, numbered from 0; the default is that of the accelerators of the worker that is the
// first by name, whichever joined first.
func TestViewHasDevicesOfOnePlatform(t *testing.T) {
	var m Map
	is := func(want string) {
		t.Helper()
		if got := m.DefaultPlatform(); got != want {
			t.Errorf("the default platform is %q with workers of %v, want %q", got, m.Platforms(), want)
		}
	}
	is("")
	add := func(worker uint64, island, platform string) {
		o := offer(worker, island, 2)
		o.Platform = platform
		join(t, &m, o)
	}
	add(1, "host", "cpu")
	is("cpu")
	add(2, "a", "cuda")
	add(3, "b", "tpu")
	add(4, "c", "cuda")
	is("cuda")
	before := offer(5, "d", 2)
	before.Name, before.Platform = "w01", "tpu"
	join(t, &m, before)
	is("tpu")
	m.Leave(5)
	is("cuda")
	for platform, want := range map[string]string{
		"cpu": "1.0/0 1.1/0", "cuda": "2.0/1 2.1/1 4.0/3 4.1/3", "tpu": "3.0/2 3.1/2", "sim": ""} {
		statustest.Equal(t, list(m.View(platform)), want, "the devices of %s", platform)
	}
	statustest.Equal(t, list(m.View("tpu", "cpu")), "3.0/2 3.1/2 1.0/0 1.1/0", "the devices of tpu and cpu")
	both, err := m.ViewOf(1, "tpu", "cpu")
	if err != nil || list(both) != "3.0/2 1.0/0" {
		t.Errorf("a view of a device of each of tpu and cpu: %v, %v", both, err)
	}
	m.Retire(both)
	// A slice comes from the first platform, unless the request names an island.
	mixed := m.View("cuda", "cpu")
	for i, want := range []Want{{Devices: 2}, {Devices: 2, Island: "host"}} {
		statustest.Equal(t, fmt.Sprint(grant(t, &m, mixed, uint64(i), want)), []string{"[0 1]", "[4 5]"}[i],
			"%+v: got", want)
	}
	if err := m.Ask(&Request{Session: 1, Number: 9, View: mixed, Want: Want{Devices: 5}}); err == nil {
		t.Error("a slice has devices of two platforms")
	}
	m.ReleaseAll(1)
	if v, err := m.ViewOf(3, "cuda"); err != nil || list(v) != "2.0/1 2.1/1 4.0/3" {
		t.Errorf("a view of 3 devices of cuda: %v, %v", v, err)
	}
	if _, err := m.ViewOf(3, "cpu"); err == nil || !strings.Contains(err.Error(), "has 2 of platform cpu in 1 worker;") {
		t.Errorf("a view of 3 devices of cpu: %v", err)
	}
	m.Leave(2)
	m.Leave(4)
	is("tpu")
	m.Leave(3)
	is("cpu")
}

func TestSkewIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Offer)
		code   status.Code
		want   []string
	}{
		{"platform", func(o *Offer) { o.Platform = "cuda" }, status.FailedPrecondition,
			[]string{"w2", "w1", "cuda", "cpu", "another island"}},
		{"platform of another island", func(o *Offer) { o.Platform, o.Island = "cuda", "other" }, status.OK, nil},
		{"fingerprint", func(o *Offer) { o.Fingerprint = "g" }, status.FailedPrecondition,
			[]string{"w2", "w1", `"g"`, `"f"`}},
		{"one fact of the fingerprint", func(o *Offer) { o.Fingerprint = "f, g" }, status.FailedPrecondition,
			[]string{"w2", "w1", `"g"`, `""`}},
		{"fingerprint of another island", func(o *Offer) { o.Fingerprint, o.Island = "g", "other" }, status.OK, nil},
		{"version", func(o *Offer) { o.Versions = map[string]string{"jax": "0.12"} }, status.FailedPrecondition,
			[]string{"w2", "w1", "0.12", "0.10"}},
		{"another version", func(o *Offer) { o.Versions = map[string]string{"torch": "3"} }, status.OK, nil},
		{"no devices", func(o *Offer) { o.Devices = 0 }, status.InvalidArgument, []string{"w2"}},
		{"too many devices", func(o *Offer) { o.Devices = MaxDevices }, status.ResourceExhausted, []string{"w2", "65536"}},
		{"a number that is taken", func(o *Offer) { o.Worker = 1 }, status.AlreadyExists, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Map
			join(t, &m, offer(1, "", 1))
			o := offer(2, "", 1)
			c.change(&o)
			_, err := m.Join(o)
			statustest.Fails(t, "the error", err, c.code)
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %s", err, w)
				}
			}
			if want := 1; c.code != status.OK && m.View().Len() != want {
				t.Errorf("a refused worker left %d devices, want %d", m.View().Len(), want)
			}
		})
	}
	// A worker cannot differ from workers that have all left.
	var m Map
	join(t, &m, offer(1, "", 1))
	m.Leave(1)
	o := offer(2, "", 1)
	o.Fingerprint, o.Platform, o.Versions = "g", "cuda", nil
	join(t, &m, o)
}

// Whatever comes and goes, numbers of devices that are there differ, and a view
// stays as it is.
func TestViewsStayWhateverComesAndGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Map
		last := uint64(0)
		views := map[*View]string{}
		var open []*View
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if last > 0 && rapid.Bool().Draw(t, "leave") {
				m.Leave(rapid.Uint64Range(1, last).Draw(t, "worker"))
			} else {
				last++
				statustest.OK(t, statustest.Of(m.Join(offer(last, rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "island"),
					rapid.IntRange(1, 5).Draw(t, "devices")))))
			}
			v := m.View()
			if all := v.Len(); all > 0 && rapid.Bool().Draw(t, "some") {
				n := rapid.IntRange(1, all).Draw(t, "number")
				some, err := m.ViewOf(n)
				if err != nil || some.Len() != n {
					t.Fatalf("a view of %d of %d devices: %v", n, all, err)
				}
				v = some
				if rapid.Bool().Draw(t, "retired") {
					m.Retire(v)
				} else {
					open = append(open, v)
				}
			}
			seen := map[string]bool{}
			for d := range v.Len() {
				dev := v.Device(d)
				if key := fmt.Sprint(dev.Island.Index, dev.Number); seen[key] {
					t.Fatalf("two devices have number %s", key)
				} else {
					seen[key] = true
				}
			}
			n := 0
			for _, s := range v.Spans() {
				for i := range s.Count {
					if dev := v.Device(n); dev.Worker != s.Worker || dev.Local != s.Local+i {
						t.Fatalf("the spans have %d.%d for device %d", s.Worker, s.Local+i, n)
					}
					n++
				}
			}
			statustest.MustEqual(t, n, v.Len(), "devices of the spans")
			views[v] = list(v)
		}
		for v, want := range views {
			if got := list(v); got != want {
				t.Fatalf("a view changed from %q to %q", want, got)
			}
		}
		for _, v := range open {
			m.Retire(v)
		}
		for id, w := range m.workers {
			for local := range w.Devices {
				if n := m.loads[w.First+local].viewed; n != 0 {
					t.Fatalf("device %d.%d is of %d views, and all are retired", id, local, n)
				}
			}
		}
	})
}
