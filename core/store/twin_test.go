package store

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"pgregory.net/rapid"
)

// twin is the table written as its rules are told: a map of objects, everything
// added up anew whenever it is asked.
type twin struct {
	objects map[ID]*twinObject
	open    map[Owner]bool
	devices [][]int // by placement
	limits  [4]int64
}

type twinObject struct {
	owner                    Owner
	spec                     Spec
	refs, waits, holds, pins int
	state                    State
	err                      error
}

func (o *twinObject) contents() bool { return o.refs > 0 && o.state <= Ready }
func (o *twinObject) charged() bool {
	return o.contents() || o.waits > 0 || o.holds > 0 || o.pins > 0
}
func (o *twinObject) leaving() bool {
	return o.charged() && !o.contents() && o.waits == 0 && o.pins == 0
}

func (w *twin) charged() map[ID]bool {
	m := map[ID]bool{}
	for id, o := range w.objects {
		if o.charged() {
			m[id] = true
		}
	}
	return m
}

// forget drops what nothing keeps.
func (w *twin) forget() {
	maps.DeleteFunc(w.objects, func(_ ID, o *twinObject) bool {
		return o.refs+o.waits+o.holds+o.pins == 0
	})
}

func (w *twin) device(d int) (u Usage) {
	u.Limit = w.limits[d]
	for _, o := range w.objects {
		if slices.Contains(w.devices[o.spec.Placement], d) && o.charged() {
			u.InUse += o.spec.ShardBytes
			u.ByPurpose[o.spec.Purpose] += o.spec.ShardBytes
			if o.leaving() {
				u.Leaving += o.spec.ShardBytes
			}
		}
	}
	return u
}

func (w *twin) owner(owner Owner) (u OwnerUsage) {
	for _, o := range w.objects {
		if o.owner == owner {
			u.Objects++
			if o.charged() {
				n := o.spec.ShardBytes * int64(len(w.devices[o.spec.Placement]))
				u.InUse += n
				u.ByPurpose[o.spec.Purpose] += n
			}
		}
	}
	return u
}

// usable is the code of the error that a use of id gets.
func (w *twin) usable(id ID) status.Code {
	o := w.objects[id]
	switch {
	case o == nil || o.refs == 0:
		return status.NotFound
	case o.state == Failed:
		return status.CodeOf(o.err)
	case o.state == Deleted:
		return status.FailedPrecondition
	}
	return status.OK
}

// admit is the code of Admit's error, and ok.
func (w *twin) admit(owner Owner, inputs []ID, specs []Spec) (code status.Code, ok bool) {
	if !w.open[owner] {
		return status.NotFound, false
	}
	for _, id := range inputs {
		if o := w.objects[id]; o.state == Failed {
			return status.CodeOf(o.err), false
		}
	}
	ok = true
	for d := range w.limits {
		var need int64
		for _, s := range specs {
			if slices.Contains(w.devices[s.Placement], d) {
				need += s.ShardBytes
			}
		}
		u := w.device(d)
		if need == 0 || u.Limit == 0 || u.InUse+need <= u.Limit {
			continue
		}
		ok = false
		if u.InUse-u.Leaving+need > u.Limit {
			code = status.ResourceExhausted
		}
	}
	return code, ok
}

type twinRun struct {
	owner  Owner
	inputs []ID
	made   []ID // once admitted
}

var errLost = status.New(status.Unavailable, "worker 3 is lost")

// TestTwin gives Table and its twin the same random calls and wants the same
// answers and sums.
func TestTwin(t *testing.T) { rapid.Check(t, twinProperty) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinProperty)) }

func twinProperty(t *rapid.T) {
	table := New()
	w := &twin{objects: map[ID]*twinObject{}, open: map[Owner]bool{}, devices: [][]int{nil}}
	for d := range w.limits {
		w.limits[d] = rapid.SampledFrom([]int64{0, 10, 30, 100}).Draw(t, "limit")
		if err := table.SetLimit(d, w.limits[d]); err != nil {
			t.Fatal(err)
		}
	}
	for _, devices := range [][]int{{0}, {1}, {2, 0}, {0, 1, 2, 3}, {3, 1}} {
		p, err := table.Place(devices)
		if err != nil || int(p) != len(w.devices) {
			t.Fatalf("placement %d of %v: %v", p, devices, err)
		}
		w.devices = append(w.devices, devices)
	}
	spec := rapid.Custom(func(t *rapid.T) Spec {
		return Spec{
			ShardBytes: rapid.Int64Range(0, 20).Draw(t, "bytes"),
			Placement:  Placement(rapid.IntRange(1, len(w.devices)-1).Draw(t, "placement")),
			Purpose:    rapid.SampledFrom([]Purpose{Array, Array, Scratch, Staging}).Draw(t, "purpose"),
		}
	})
	var queued, running []twinRun
	ids := []ID{0, 1 << 40} // all that ever were, and two that never
	object := func() (ID, *twinObject) {
		from := ids
		if live := slices.Sorted(maps.Keys(w.objects)); len(live) > 0 && rapid.IntRange(0, 3).Draw(t, "any") > 0 {
			from = live
		}
		id := rapid.SampledFrom(from).Draw(t, "object")
		return id, w.objects[id]
	}
	drawOwner := func() Owner { return Owner(rapid.IntRange(1, 3).Draw(t, "owner")) }
	code := func(what string, err error, want status.Code) {
		if status.CodeOf(err) != want {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}
	release := func(id ID) { w.objects[id].holds-- }
	take := func(runs *[]twinRun) (twinRun, bool) {
		if len(*runs) == 0 {
			return twinRun{}, false
		}
		i := rapid.IntRange(0, len(*runs)-1).Draw(t, "run")
		r := (*runs)[i]
		*runs = slices.Delete(*runs, i, i+1)
		return r, true
	}

	for o := range Owner(2) {
		if err := table.AddOwner(o+1, "session"); err != nil {
			t.Fatal(err)
		}
		w.open[o+1] = true
	}
	for range rapid.SampledFrom([]int{10, 60, 60}).Draw(t, "calls") { // IntRange would mostly be few
		before := w.charged()
		var freed []ID
		one := func(id ID, yes bool) {
			if yes {
				freed = append(freed, id)
			}
		}
		switch rapid.SampledFrom([]string{"create", "create", "ref", "unref", "unref", "unref all", "hold", "admit", "admit", "release",
			"abandon", "pin", "unpin", "ready", "fail", "delete", "owner", "drop"}).Draw(t, "call") {
		case "create":
			o, s := drawOwner(), spec.Draw(t, "spec")
			id, err := table.Create(o, s)
			if !w.open[o] {
				code("create for nobody", err, status.NotFound)
				break
			}
			code("create", err, status.OK)
			if slices.Contains(ids, id) {
				t.Fatalf("%v was given before", id)
			}
			ids = append(ids, id)
			w.objects[id] = &twinObject{owner: o, spec: s, refs: 1}
		case "ref":
			id, o := object()
			if got, want := table.Ref(id), o != nil && o.refs > 0; got != want {
				t.Fatalf("ref of %v: %t, want %t", id, got, want)
			} else if want {
				o.refs++
			}
		case "unref":
			id, o := object()
			one(id, table.Unref(id))
			if o != nil && o.refs > 0 {
				o.refs--
			}
		case "unref all":
			some := rapid.SliceOfN(rapid.SampledFrom(ids), 0, 4).Draw(t, "objects")
			freed = table.UnrefAll(some, nil)
			for _, id := range some {
				if o := w.objects[id]; o != nil && o.refs > 0 {
					o.refs--
				}
			}
		case "hold":
			r := twinRun{owner: drawOwner(), inputs: rapid.SliceOfN(rapid.SampledFrom(ids), 0, 3).Draw(t, "inputs")}
			want := status.OK
			for _, id := range r.inputs {
				if want = w.usable(id); want != status.OK {
					break
				}
			}
			code("hold", table.Hold(r.inputs), want)
			if want == status.OK {
				for _, id := range r.inputs {
					w.objects[id].waits++
				}
				queued = append(queued, r)
			}
		case "admit":
			r, ok := take(&queued)
			if !ok {
				break
			}
			specs := rapid.SliceOfN(spec, 0, 3).Draw(t, "specs")
			want, wantOK := w.admit(r.owner, r.inputs, specs)
			made, ok, err := table.Admit(r.owner, r.inputs, specs, nil)
			code("admit", err, want)
			if ok != wantOK || len(made) != 0 && !ok {
				t.Fatalf("admit: %t with %v, want %t", ok, made, wantOK)
			}
			if !ok {
				queued = append(queued, r)
				break
			}
			for _, id := range r.inputs {
				w.objects[id].waits--
				w.objects[id].holds++
			}
			for i, id := range made {
				o := &twinObject{owner: r.owner, spec: specs[i], holds: 1}
				if specs[i].Purpose != Scratch {
					o.refs = 1
				}
				w.objects[id] = o
				ids = append(ids, id)
			}
			r.made = made
			running = append(running, r)
		case "release":
			if r, ok := take(&running); ok {
				freed = table.Release(r.made, table.Release(r.inputs, nil))
				for _, id := range append(slices.Clone(r.inputs), r.made...) {
					release(id)
				}
			}
		case "abandon":
			if r, ok := take(&queued); ok {
				freed = table.Abandon(r.inputs, nil)
				for _, id := range r.inputs {
					w.objects[id].waits--
				}
			}
		case "pin":
			id, o := object()
			want := w.usable(id)
			code("pin", table.Pin(id), want)
			if want == status.OK {
				o.pins++
			}
		case "unpin":
			id, o := object()
			one(id, table.Unpin(id))
			if o != nil && o.pins > 0 {
				o.pins--
			}
		case "ready":
			id, o := object()
			table.SetReady(id)
			if o != nil && o.state == Pending {
				o.state = Ready
			}
		case "fail":
			id, o := object()
			one(id, table.Fail(id, errLost))
			if o != nil && o.state == Pending {
				o.state, o.err = Failed, errLost
			}
		case "delete":
			id, o := object()
			one(id, table.Delete(id))
			if o != nil && o.refs > 0 {
				o.state = Deleted
			}
		case "owner":
			o := drawOwner()
			want := status.OK
			if w.open[o] || w.owner(o).Objects > 0 {
				want = status.AlreadyExists
			}
			code("add owner", table.AddOwner(o, "session"), want)
			w.open[o] = w.open[o] || want == status.OK
		case "drop":
			o := drawOwner()
			freed = table.DropOwner(o, nil)
			w.open[o] = false
			for _, x := range w.objects {
				if x.owner == o {
					x.refs = 0
				}
			}
		}

		after := w.charged()
		var wantFreed []ID
		for id := range before {
			if !after[id] {
				wantFreed = append(wantFreed, id)
			}
		}
		slices.Sort(freed)
		if slices.Sort(wantFreed); !slices.Equal(freed, wantFreed) {
			t.Fatalf("freed %v, want %v", freed, wantFreed)
		}
		w.forget()
		compareTwin(t, table, w, ids)
	}

	// All that runs or waits ends, all owners go, all pins: then nothing is left.
	for _, r := range queued {
		table.Abandon(r.inputs, nil)
	}
	for _, r := range running {
		table.Release(r.made, table.Release(r.inputs, nil))
	}
	for o := range Owner(4) {
		table.DropOwner(o, nil)
	}
	for id, o := range w.objects {
		for range o.pins {
			table.Unpin(id)
		}
	}
	if n, u := table.Len(), table.Total(); n != 0 || u != (Usage{}) || len(table.owners) != 0 {
		t.Fatalf("%d objects of %+v are left", n, u)
	}
}

func compareTwin(t *rapid.T, table *Table, w *twin, ids []ID) {
	table.mu.Lock()
	table.check()
	table.mu.Unlock()
	var total Usage
	for d := range w.limits {
		want := w.device(d)
		if got := table.Device(d); got != want {
			t.Fatalf("device %d: %+v, want %+v", d, got, want)
		}
		total.InUse += want.InUse
		total.Leaving += want.Leaving
		for i, b := range want.ByPurpose {
			total.ByPurpose[i] += b
		}
		var held int64
		for _, h := range table.Holders(d, 100) {
			held += h.Bytes
		}
		if held != want.InUse {
			t.Fatalf("holders of device %d have %d bytes, want %d", d, held, want.InUse)
		}
	}
	if got := table.Total(); got != total {
		t.Fatalf("total %+v, want %+v", got, total)
	}
	for o := range Owner(4) {
		if got, want := table.Owner(o), w.owner(o); got != want {
			t.Fatalf("owner %d: %+v, want %+v", o, got, want)
		}
	}
	if got := table.Len(); got != len(w.objects) {
		t.Fatalf("%d objects, want %d", got, len(w.objects))
	}
	for _, id := range ids {
		want := Gone
		if o := w.objects[id]; o != nil && o.refs > 0 {
			want = o.state
		}
		got, err := table.State(id)
		if got != want || status.CodeOf(err) != w.usable(id) || want == Failed && !errors.Is(err, errLost) {
			t.Fatalf("object %v is %v with %v, want %v", id, got, err, want)
		}
	}
}
