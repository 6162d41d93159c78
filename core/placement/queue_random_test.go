package placement

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Whatever is asked for, lost and begun: an exclusive slice is alone on its devices, no owner is granted a slice beyond
// its quota, the first that waits really cannot be served, each that has looked for devices says what it waits for,
// those that wait for a quota are behind all others, none waits longer than it may, and once no more is asked for, all
// are served. It makes no difference how often others come between the looks.
func TestQueueServesAllUnderRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &clients{t: t, requests: map[string]*Request{}, slices: map[string]*Slice{}, busy: map[int]uint32{},
			views: map[uint32]*View{}, class: map[string]int{"2": rapid.IntRange(-1, 1).Draw(t, "class")},
			quota: map[string]int{}, most: rapid.SampledFrom([]int{1, 3, math.MaxInt}).Draw(t, "most")}
		for _, owner := range []string{"1", "2", "3"} {
			q.quota[owner] = rapid.SampledFrom([]int{0, 0, 2, 5}).Draw(t, "quota")
		}
		workers := uint64(0)
		join := func() {
			workers++
			o := offer(workers, rapid.SampledFrom([]string{"", "x"}).Draw(t, "island"), rapid.IntRange(1, 3).Draw(t, "devices"))
			statustest.OK(t, statustest.Of(q.Join(o)))
		}
		for range rapid.IntRange(1, 4).Draw(t, "workers") {
			join()
		}
		q.view = q.View()
		session := func() uint32 { return uint32(rapid.IntRange(1, 3).Draw(t, "session")) }
		for i := range rapid.IntRange(1, 60).Draw(t, "events") {
			q.now += int64(rapid.IntRange(0, 3).Draw(t, "minutes")) * ages
			names := q.names()
			q.served = false
			switch event := rapid.SampledFrom([]string{"ask", "ask", "ask", "release", "release", "busy", "begin", "leave",
				"join", "remap", "tick", "quota", "part"}).Draw(t, "event"); event {
			case "ask":
				q.draw(t, i, session())
			case "release":
				if len(names) > 0 {
					q.release(rapid.SampledFrom(names).Draw(t, "name"))
				}
			case "busy":
				q.busy[q.number(rapid.IntRange(0, q.view.Len()-1).Draw(t, "device"))] =
					uint32(rapid.IntRange(0, 3).Draw(t, "by"))
				q.serve()
			case "begin":
				q.begin(t, session(), rapid.IntRange(0, 4).Draw(t, "size"))
			case "leave":
				if w := uint64(rapid.IntRange(2, 5).Draw(t, "worker")); q.Map.workers[w] != nil { // the first stays
					q.lose(w)
				}
			case "join":
				if workers < 8 {
					join()
				}
			case "remap":
				if len(names) > 0 {
					q.remap(rapid.SampledFrom(names).Draw(t, "name"))
				}
			case "tick":
				q.serve()
			case "quota":
				q.limit(fmt.Sprint(session()), rapid.IntRange(0, 6).Draw(t, "quota"))
			case "part": // of a look
				ended, more := q.Serve(q.now, q.occupied, 1)
				if q.end(ended); more {
					continue
				}
			}
			q.check()
		}
		clear(q.busy)
		for s := range uint32(4) {
			q.end(q.ends(s)) // views of a size go with their sessions, and all they have
			q.serve()
		}
		statustest.MustEqual(t, len(q.Requests())+len(q.Holders())+len(q.holders)+len(q.owners)+q.exclusive, 0,
			"things are left")
	})
}

// draw has a session ask for a slice.
func (q *clients) draw(t *rapid.T, i int, session uint32) {
	w := Want{Devices: rapid.IntRange(1, 6).Draw(t, "wanted"), Exclusive: rapid.Bool().Draw(t, "alone"),
		Island: rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "of island")}
	if rapid.IntRange(0, 3).Draw(t, "shape") == 0 {
		w.Topology = []int{rapid.IntRange(1, 3).Draw(t, "rows"), rapid.IntRange(1, 3).Draw(t, "row")}
		w.Devices = w.Topology[0] * w.Topology[1]
	}
	name := fmt.Sprint(session, " ", i, []string{"", "!", "!!!"}[i%3])
	wait := rapid.SampledFrom([]int64{0, 2 * ages, 30 * ages, long}).Draw(t, "wait")
	err := q.ask(name, wait, w)
	if code := status.CodeOf(err); err != nil && code != status.ResourceExhausted && code != status.InvalidArgument {
		t.Fatalf("%v", err)
	}
}

// begin ends a session, and has another of its number begin, of some devices or of all.
func (q *clients) begin(t *rapid.T, session uint32, size int) {
	q.end(q.ends(session))
	if size == 0 {
		q.views[session] = q.View()
	} else if v, err := q.ViewOf(size); err == nil {
		q.views[session] = v
		for d := range v.Len() {
			w, local := v.where(d)
			if q.loads[w.First+local].exclusive != nil || q.Map.queue.reserved.Has(w.First+local) {
				t.Fatalf("a session was given device %d.%d, which another has, or keeps, for itself", w.Offer.Worker, local)
			}
		}
	} else if status.CodeOf(err) != status.ResourceExhausted {
		t.Fatalf("%v", err)
	}
	q.serve()
}

// ends ends a session.
func (q *clients) ends(session uint32) []*Request {
	if v := q.views[session]; v != nil {
		q.Retire(v)
		delete(q.views, session)
	}
	for name, s := range q.slices {
		if s.Session == session {
			delete(q.slices, name)
		}
	}
	return q.ReleaseAll(session)
}

// lose loses a worker.
func (q *clients) lose(worker uint64) {
	w := q.Map.workers[worker]
	for local := range w.Devices {
		delete(q.busy, w.First+local)
	}
	q.Leave(worker)
	q.serve()
}

func (q *clients) remap(name string) {
	s := q.slices[name]
	if s == nil {
		return
	}
	before := s.Devices
	if _, err := q.Remap(s.Session, s.Number, q.occupied); err == nil {
		for _, d := range s.Devices {
			if w, _ := s.View.where(d); !q.isHere(w, w.First) {
				q.t.Fatalf("%s was mapped to lost device %d", name, d)
			}
		}
	} else if !slices.Equal(s.Devices, before) {
		q.t.Fatalf("%v, and it has %v instead of %v", err, s.Devices, before)
	}
	q.serve()
}

func (q *clients) names() (all []string) {
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

func (q *clients) check() {
	consistent(q.t, &q.Map)
	users, viewers := map[Device]int{}, map[Device]int{}
	exclusive := map[Device]bool{}
	owned := map[string]int{}
	for name, s := range q.slices {
		for _, d := range behind(s) {
			users[d]++
			exclusive[d] = exclusive[d] || s.Want.Exclusive
		}
		if s.Want.Exclusive {
			owned[name[:1]] += len(s.Devices)
		}
	}
	for d, is := range exclusive {
		if is && users[d] > 1 {
			q.t.Fatalf("device %v is of an exclusive slice, and of %d", d, users[d])
		}
	}
	for name, n := range owned {
		if got := q.owners[name].alone; got != n {
			q.t.Fatalf("owner %s has %d devices, and its slices %d", name, got, n)
		}
	}
	for _, v := range q.views {
		for d := 0; v.sized && d < v.Len(); d++ {
			viewers[v.Device(d)]++
		}
	}
	for i, r := range q.Requests() {
		if q.served && (r.position != i+1 || r.Until <= q.now) {
			q.t.Fatalf("request %d.%d waits as number %d of %d, until %d", r.Session, r.Number, r.position, i+1, r.Until)
		}
		if q.served && i < maxLooking && !r.beyond && len(r.Want.Topology) == 0 && r.lacks.Count()+len(r.ahead) == 0 {
			q.t.Fatalf("request %d.%d waits as number %d for nothing", r.Session, r.Number, r.position)
		}
	}
	if len(q.Requests()) > 0 && q.served {
		q.first(q.Requests()[0], exclusive, users, viewers)
		q.beyond()
	}
}

// beyond fails where other requests wait for their owners' quotas than those from the first on that would go beyond.
func (q *clients) beyond() {
	wants, behind := map[string]int{}, false
	for _, r := range q.Requests() {
		if wants[r.Owner] == 0 {
			wants[r.Owner] = q.Owned(r.Owner)
		}
		wants[r.Owner] += r.Want.Devices
		most := q.quota[r.Owner]
		if beyond := most > 0 && wants[r.Owner] > most; beyond != r.IsBeyondQuota() || behind && !beyond ||
			beyond && r.keeps != nil || most > 0 && r.Want.Devices > most {
			q.t.Fatalf("%d.%d of %d devices waits for its owner's quota of %d, behind such a request, keeping %v: %t, %t",
				r.Session, r.Number, r.Want.Devices, most, r.keeps, r.IsBeyondQuota(), behind)
		}
		behind = behind || r.IsBeyondQuota()
	}
}

// first fails where the first that waits could have its devices.
func (q *clients) first(r *Request, exclusive map[Device]bool, users, viewers map[Device]int) {
	free, most, of := map[*Island]int{}, 0, map[*Island]int{}
	others := q.occupied(r.Session)
	for d := range r.View.Len() {
		dev := r.View.Device(d)
		w, local := r.View.where(d)
		if !q.isHere(w, w.First) || r.Want.Island != "" && r.Want.Island != dev.Island.Name {
			continue
		}
		of[dev.Island]++
		own := 0
		if r.View.sized {
			own = 1
		}
		if !exclusive[dev] && (!r.Want.Exclusive ||
			users[dev] == 0 && viewers[dev] == own && !others.Has(w.First+local)) {
			free[dev.Island]++
			most++
		}
	}
	fits := false
	if r.IsBeyondQuota() {
		return
	}
	for is, n := range of {
		fits = fits || n >= r.Want.Devices
		if free[is] >= r.Want.Devices && len(r.Want.Topology) == 0 {
			q.t.Fatalf("%d.%d waits for %d devices, and %d of its island are free", r.Session, r.Number, r.Want.Devices,
				free[is])
		}
	}
	if !fits && most >= r.Want.Devices && len(r.Want.Topology) == 0 {
		q.t.Fatalf("%d.%d waits for %d devices, and %d are free", r.Session, r.Number, r.Want.Devices, most)
	}
}
