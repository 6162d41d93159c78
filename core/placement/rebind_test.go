package placement

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

func anyWorker(uint64) bool { return true }

func TestReplacementIsLikeTheLostWorker(t *testing.T) {
	lost := Offer{Worker: 2, Name: "b", Devices: 2, Kinds: []string{"k", "k"}, Memories: []string{"m", "m"}, First: 8}
	for _, c := range []struct {
		name   string
		change func(*Offer)
		why    string // it does not take the place
	}{
		{"the same again", func(*Offer) {}, ""},
		{"another name", func(o *Offer) { o.Name = "z" }, ""},
		{"another island", func(o *Offer) { o.Island = "x" }, "; b is of island x"},
		{"fewer devices", func(o *Offer) { o.Devices = 1 }, "; b has 1 device of kind k"},
		{"another kind", func(o *Offer) { o.Kinds = []string{"k", "l"} }, "; b has 2 devices of kind k, l"},
		{"other memories", func(o *Offer) { o.Memories = []string{"m", "m, host"} },
			"; b has other memories, or another plugin or processor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Map
			join(t, &m, Offer{Worker: 1, Name: "a", Devices: 2, Kinds: []string{"k", "k"}})
			join(t, &m, lost)
			v := m.View()
			if m.Rebind(1, v, anyWorker, nil) != nil {
				t.Fatal("a view of workers that are all there is bound anew")
			}
			m.Leave(2)
			o := lost
			o.Worker, o.First = 3, 16
			c.change(&o)
			join(t, &m, o)
			lacks := "2 of its 4 devices wait for 1 worker of island default, with 2 devices of kind k each" + c.why
			statustest.Equal(t, m.Lacks(1, v, nil), lacks, "the view lacks")
			next := m.Rebind(1, v, anyWorker, nil)
			if (next != nil) != (c.why == "") {
				t.Fatalf("it takes the place: %v, want %v", next != nil, c.why == "")
			}
			if next == nil {
				return
			}
			if got := list(next); got != "1.0/0 1.1/0 3.0/0 3.1/0" || next.Epoch() != 2 {
				t.Errorf("the view of epoch %d is %q", next.Epoch(), got)
			}
			statustest.Equal(t, list(v), "1.0/0 1.1/0 2.0/0 2.1/0", "the view before has changed to")
		})
	}
}

// The worker of the same name comes first, then the one that the fewest have; devices that are kept are not taken.
func TestReplacementIsTheSameWorkerOrTheLeastUsed(t *testing.T) {
	var m Map
	for n := range uint64(4) {
		join(t, &m, offer(n+1, "", 1))
	}
	v, err := m.ViewOf(1)
	if err != nil || list(v) != "1.0/0" {
		t.Fatalf("the view is %q, %v", list(v), err)
	}
	other, err := m.ViewOf(1) // has worker 2
	statustest.OK(t, err)
	r := &Request{Session: 7, Number: 1, View: m.View(), Owner: "o", Want: Want{Devices: 1, Exclusive: true}}
	statustest.OK(t, m.Ask(r))
	m.Serve(0, nil, 10)
	exclusive, _ := r.Result()
	kept := exclusive.View.Device(exclusive.Devices[0]).Worker
	m.Leave(1)
	next := m.Rebind(1, v, anyWorker, nil)
	if next == nil || next.Device(0).Worker == 2 || next.Device(0).Worker == kept {
		t.Fatalf("the place of worker 1 is taken by %q; worker 2 is in use, and worker %d kept", list(next), kept)
	}
	m.Leave(next.Device(0).Worker)
	m.Release(7, 1)
	again := offer(9, "", 1)
	again.Name = fmt.Sprintf("w%d", next.Device(0).Worker)
	join(t, &m, again)
	if last := m.Rebind(1, next, anyWorker, nil); last == nil || last.Device(0).Worker != 9 || last.Epoch() != 3 {
		t.Errorf("the place is taken by %v, want the worker of the same name", last)
	} else {
		m.Retire(last)
	}
	m.Retire(other)
}

// Whatever joins and leaves, a view that is bound anew differs from the one before only in devices whose workers had
// left; no worker is in it twice; and what counts uses ends at nothing.
func TestRebindChangesOnlyLostDevices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Map
		number := uint64(0)
		join := func() {
			number++
			o := offer(number, rapid.SampledFrom([]string{"", "x"}).Draw(t, "island"), rapid.IntRange(1, 2).Draw(t, "devices"))
			o.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			statustest.OK(t, statustest.Of(m.Join(o)))
		}
		join()
		views := map[uint32]*View{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				join()
			case 1:
				m.Leave(rapid.Uint64Range(1, number).Draw(t, "worker"))
			case 2:
				if all := m.View(); all.Len() > 0 {
					v, err := m.ViewOf(rapid.IntRange(1, all.Len()).Draw(t, "of"))
					if err != nil {
						continue // too many are in exclusive slices
					}
					s := uint32(len(views) + 1)
					views[s] = v
					r := &Request{Session: s, Number: 1, View: v, Owner: "o", Want: Want{Devices: 1,
						Exclusive: rapid.Bool().Draw(t, "exclusive")}}
					if m.Ask(r) == nil {
						m.Serve(0, nil, 10)
					}
				}
			}
			for s, v := range views {
				next := m.Rebind(s, v, anyWorker, nil)
				if next == nil {
					continue
				}
				seen := map[Device]bool{}
				for d := range v.Len() {
					was, is := v.Device(d), next.Device(d)
					if w := m.workers[was.Worker]; w != nil && was != is {
						t.Fatalf("device %d is there, and was bound anew", d)
					}
					if is.Island != was.Island || is.Local != was.Local || seen[is] {
						t.Fatalf("device %d was %+v and is %+v", d, was, is)
					}
					seen[is] = true
				}
				if next.Epoch() != v.Epoch()+1 || next.Sized() != v.Sized() {
					t.Fatalf("epoch %d follows %d", next.Epoch(), v.Epoch())
				}
				views[s] = next
			}
			for number, l := range m.loads {
				if l.exclusive != nil && (l.granted > 1 || l.viewed > 1) {
					t.Fatalf("device %d is in an exclusive slice, and is not alone there: %+v", number, l)
				}
			}
		}
		for s, v := range views {
			m.ReleaseAll(s)
			m.Retire(v)
		}
		for _, w := range m.workers {
			for n := w.First; n < w.First+w.Devices; n++ {
				if l := m.loads[n]; l.granted != 0 || l.viewed != 0 || l.exclusive != nil {
					t.Fatalf("device %d is still counted: %+v", n, l)
				}
			}
		}
	})
}

// Sessions that have all devices have one view, and one view of the next epoch: what takes time in proportion to the
// workers is done once for all of them, and anew when a worker has come or gone.
func TestSessionsOfAllDevicesShareTheirViews(t *testing.T) {
	var m Map
	join(t, &m, offer(1, "", 1))
	join(t, &m, offer(2, "", 1))
	v := m.View()
	if m.View() != v {
		t.Error("two sessions have views of their own")
	}
	m.Leave(2)
	statustest.Equal(t, list(m.View()), "1.0/0", "a view of the workers that are left")
	join(t, &m, offer(3, "", 1))
	next := m.Rebind(1, v, anyWorker, nil)
	if next == nil || m.Rebind(2, v, anyWorker, nil) != next {
		t.Error("two sessions are bound anew to views of their own")
	}
	if m.Rebind(3, v, func(uint64) bool { return false }, nil) != nil {
		t.Error("a session is bound to a worker that it cannot use")
	}
	m.Leave(3)
	join(t, &m, offer(4, "", 1))
	statustest.Equal(t, list(m.Rebind(1, next, anyWorker, nil)), "1.0/0 4.0/0", "the view after the second loss")
}
