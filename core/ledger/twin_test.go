package ledger

import (
	"maps"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"pgregory.net/rapid"
)

// twin is the ledger written as its rules are told: a map of objects, everything
// added up again whenever it is asked.
type twin struct {
	objects map[ID]twinObject
	open    map[Owner]bool
	devices [][]int // by placement
	limits  [4]int64
}

type twinObject struct {
	owner Owner
	spec  Spec
}

func (w *twin) device(d int) (u Usage) {
	u.Limit = w.limits[d]
	for _, o := range w.objects {
		if slices.Contains(w.devices[o.spec.Placement], d) {
			u.InUse += o.spec.ShardBytes
		}
	}
	return u
}

// create is the code of Create's error.
func (w *twin) create(owner Owner, specs []Spec) status.Code {
	if !w.open[owner] {
		return status.NotFound
	}
	for d := range w.limits {
		var need int64
		for _, s := range specs {
			if slices.Contains(w.devices[s.Placement], d) {
				need += s.ShardBytes
			}
		}
		if u := w.device(d); need > 0 && u.Limit > 0 && u.InUse+need > u.Limit {
			return status.ResourceExhausted
		}
	}
	return status.OK
}

// TestTwin makes the same random calls of Ledger and its twin and wants the same
// answers and sums.
func TestTwin(t *testing.T) { rapid.Check(t, twinProperty) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinProperty)) }

func twinProperty(t *rapid.T) {
	l := New()
	w := &twin{objects: map[ID]twinObject{}, open: map[Owner]bool{}, devices: [][]int{nil}}
	for d := range w.limits {
		w.limits[d] = rapid.SampledFrom([]int64{0, 10, 30, 100}).Draw(t, "limit")
		if err := l.SetLimit(d, w.limits[d]); err != nil {
			t.Fatal(err)
		}
	}
	for _, devices := range [][]int{{0}, {1}, {2, 0}, {0, 1, 2, 3}, {3, 1}} {
		p, err := l.Place(devices)
		if err != nil || int(p) != len(w.devices) {
			t.Fatalf("placement %d of %v: %v", p, devices, err)
		}
		w.devices = append(w.devices, devices)
	}
	spec := rapid.Custom(func(t *rapid.T) Spec {
		return Spec{
			ShardBytes: rapid.Int64Range(0, 20).Draw(t, "bytes"),
			Placement:  Placement(rapid.IntRange(1, len(w.devices)-1).Draw(t, "placement")),
		}
	})
	ids := []ID{0, 1 << 40} // all that ever were, and two that never
	drawOwner := func() Owner { return Owner(rapid.IntRange(1, 3).Draw(t, "owner")) }
	code := func(what string, err error, want status.Code) {
		if status.CodeOf(err) != want {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}

	for o := range Owner(2) {
		code("add owner", l.AddOwner(o+1, "session"), status.OK)
		w.open[o+1] = true
	}
	for range rapid.SampledFrom([]int{10, 60, 60}).Draw(t, "calls") { // IntRange would mostly be few
		switch rapid.SampledFrom([]string{"create", "create", "create", "free", "free", "owner", "drop"}).Draw(t, "call") {
		case "create":
			o, specs := drawOwner(), rapid.SliceOfN(spec, 0, 3).Draw(t, "specs")
			made := make([]ID, len(specs))
			want := w.create(o, specs)
			code("create", l.Create(o, specs, made), want)
			if want != status.OK {
				break
			}
			for i, id := range made {
				if slices.Contains(ids, id) {
					t.Fatalf("%d was used before", id)
				}
				ids = append(ids, id)
				w.objects[id] = twinObject{o, specs[i]}
			}
		case "free":
			from := ids
			if live := slices.Sorted(maps.Keys(w.objects)); len(live) > 0 && rapid.IntRange(0, 3).Draw(t, "any") > 0 {
				from = live
			}
			id := rapid.SampledFrom(from).Draw(t, "object")
			l.Free(id)
			delete(w.objects, id)
		case "owner":
			o, want := drawOwner(), status.OK
			if w.open[o] {
				want = status.AlreadyExists
			}
			code("add owner", l.AddOwner(o, "session"), want)
			w.open[o] = true
		case "drop":
			o := drawOwner()
			l.DropOwner(o)
			w.open[o] = false
			maps.DeleteFunc(w.objects, func(_ ID, x twinObject) bool { return x.owner == o })
		}
		compareTwin(t, l, w)
	}
	for o := range Owner(4) {
		l.DropOwner(o)
	}
	w.objects = nil
	compareTwin(t, l, w)
}

func compareTwin(t *rapid.T, l *Ledger, w *twin) {
	l.check()
	for d := range w.limits {
		want := w.device(d)
		if got := (Usage{l.space.device(d), l.space.limit(d)}); got != want {
			t.Fatalf("device %d: %+v, want %+v", d, got, want)
		}
		var held int64
		for _, h := range l.holders(d, 100) {
			held += h.bytes
		}
		if held != want.InUse {
			t.Fatalf("holders of device %d have %d bytes, want %d", d, held, want.InUse)
		}
	}
	if l.live != len(w.objects) {
		t.Fatalf("%d objects, want %d", l.live, len(w.objects))
	}
}
