package ledger

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"pgregory.net/rapid"
)

// twin is the ledger written as its rules are told: a map of objects with their shards,
// everything added up again whenever it is asked.
type twin struct {
	objects map[ID]*twinObject
	open    map[Owner]bool
	places  map[Placement]twinPlace
	temps   []twinTemp
	limits  [4]int64
	ended   map[Owner]uint64 // of the gangs
	group   Group            // of owners 1 and 2
}

type twinPlace struct {
	owner   Owner
	devices []int
}

type twinObject struct {
	spec    Spec
	retired bool
	horizon uint64
}

type twinTemp struct {
	place Placement
	bytes int64
}

// device adds up the shards on a device, and what the largest computation there takes. Later: of those that do not
// leave, without computations.
func (w *twin) device(d int, later bool) (bytes, temp int64) {
	for _, o := range w.objects {
		if slices.Contains(w.places[o.spec.Placement].devices, d) && (!later || !o.retired) {
			bytes += o.spec.ShardBytes
		}
	}
	for _, x := range w.temps {
		if slices.Contains(w.places[x.place].devices, d) && !later {
			temp = max(temp, x.bytes)
		}
	}
	return bytes, temp
}

// blocked returns the devices without room for a request.
func (w *twin) blocked(specs []Spec, temp int64, later bool) (all []int) {
	for d := range w.limits {
		bytes, most := w.device(d, later)
		var need int64
		for i, s := range specs {
			if on := slices.Contains(w.places[s.Placement].devices, d); on {
				need += s.ShardBytes
				if i == 0 {
					need += max(0, temp-most)
				}
			}
		}
		if need > 0 && w.limits[d] > 0 && bytes+most+need > w.limits[d] {
			all = append(all, d)
		}
	}
	return all
}

// beyond is Ledger.Beyond for the group.
func (w *twin) beyond(specs []Spec, limit int64, later bool) (device int, has, need int64) {
	device = -1
	for d := range w.limits {
		var used, more int64
		for _, x := range w.objects {
			p := w.places[x.spec.Placement]
			if p.owner < 3 && slices.Contains(p.devices, d) && (!later || !x.retired) {
				used += x.spec.ShardBytes
			}
		}
		for _, s := range specs {
			if slices.Contains(w.places[s.Placement].devices, d) {
				more += s.ShardBytes
			}
		}
		if more > 0 && used+more > max(limit, has+need) {
			device, has, need = d, used, more
		}
	}
	return device, has, need
}

// has returns the bytes on a device that an owner has and that do not leave.
func (w *twin) has(o Owner, d int) (bytes int64) {
	for _, x := range w.objects {
		if p := w.places[x.spec.Placement]; p.owner == o && !x.retired && slices.Contains(p.devices, d) {
			bytes += x.spec.ShardBytes
		}
	}
	return bytes
}

// possible reports whether a request fits beside what some owners have.
func (w *twin) possible(specs []Spec, temp int64, beside ...Owner) bool {
	for d, limit := range w.limits {
		need, used := int64(0), int64(0)
		for i, s := range specs {
			if slices.Contains(w.places[s.Placement].devices, d) {
				need += s.ShardBytes
				if i == 0 {
					need += temp
				}
			}
		}
		for _, o := range beside {
			used += w.has(o, d)
		}
		if need > 0 && limit > 0 && used+need > limit {
			return false
		}
	}
	return true
}

func (w *twin) create(owner Owner, specs []Spec) status.Code {
	if !w.open[owner] {
		return status.NotFound
	}
	for _, s := range specs {
		if w.places[s.Placement].owner != owner {
			return status.InvalidArgument
		}
	}
	if len(w.blocked(specs, 0, false)) > 0 {
		return status.ResourceExhausted
	}
	return status.OK
}

func (w *twin) drop(o Owner) {
	w.open[o] = false
	maps.DeleteFunc(w.objects, func(_ ID, x *twinObject) bool { return w.places[x.spec.Placement].owner == o })
	w.temps = slices.DeleteFunc(w.temps, func(x twinTemp) bool { return w.places[x.place].owner == o })
}

// TestTwin makes the same random calls of Ledger and its twin and wants the same
// answers and sums.
func TestTwin(t *testing.T) { rapid.Check(t, twinProperty) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinProperty)) }

func twinProperty(t *rapid.T) {
	l := New()
	w := &twin{objects: map[ID]*twinObject{}, open: map[Owner]bool{}, places: map[Placement]twinPlace{},
		ended: map[Owner]uint64{}}
	limits := func() {
		for d := range w.limits {
			w.limits[d] = rapid.SampledFrom([]int64{0, 10, 30, 100}).Draw(t, "limit")
			statustest.OK(t, l.SetLimit(d, w.limits[d]))
		}
	}
	limits()
	code := func(what string, err error, want status.Code) {
		statustest.Fails(t, what, err, want)
	}
	var places []Placement // of owners that are there
	begin := func(o Owner) {
		code("add owner", l.AddOwner(o, "session"), status.OK)
		if o < 3 {
			code("join", l.Join(o, &w.group), status.OK)
		}
		w.open[o] = true
		for _, devices := range [][]int{{0}, {1}, {2, 0}, {0, 1, 2, 3}, {3, 1}} {
			p := statustest.Value(l.Place(o, devices)).OK(t)
			places = append(places, p)
			w.places[p] = twinPlace{o, devices}
		}
	}
	begin(1)
	begin(2)
	place := rapid.Custom(func(t *rapid.T) Placement { return rapid.SampledFrom(places).Draw(t, "placement") })
	spec := func(least int64) *rapid.Generator[Spec] {
		return rapid.Custom(func(t *rapid.T) Spec {
			return Spec{ShardBytes: rapid.Int64Range(least, 20).Draw(t, "bytes"), Placement: place.Draw(t, "placement")}
		})
	}
	ids := []ID{0, 1 << 40} // all that ever were, and two that never
	drawOwner := func() Owner { return Owner(rapid.IntRange(1, 3).Draw(t, "owner")) }
	drawID := func() ID {
		from := ids
		if live := slices.Sorted(maps.Keys(w.objects)); len(live) > 0 && rapid.IntRange(0, 3).Draw(t, "any") > 0 {
			from = live
		}
		return rapid.SampledFrom(from).Draw(t, "object")
	}
	made := func(id ID, s Spec) {
		if slices.Contains(ids, id) {
			t.Fatalf("%d was used before", id)
		}
		ids = append(ids, id)
		w.objects[id] = &twinObject{spec: s}
	}
	horizon := uint64(0)
	calls := []string{"create", "create", "create", "charge", "free", "free", "retire", "retire", "passed",
		"begin", "end", "fits", "fits", "owner", "drop", "limits", "leave", "shrink"}
	for range rapid.SampledFrom([]int{10, 60, 60}).Draw(t, "calls") { // IntRange would mostly be few
		if len(places) == 0 {
			l.DropOwner(3) // it may be leaving
			w.drop(3)
			begin(3)
		}
		switch rapid.SampledFrom(calls).Draw(t, "call") {
		case "create":
			o, specs := drawOwner(), rapid.SliceOfN(spec(0), 0, 3).Draw(t, "specs")
			ids := make([]ID, len(specs))
			want := w.create(o, specs)
			code("create", l.Admit(o, Request{Specs: specs}, ids), want)
			for i, id := range ids {
				if want == status.OK {
					made(id, specs[i])
				}
			}
		case "charge":
			s := spec(0).Draw(t, "spec")
			made(l.Charge(s), s)
		case "free":
			id := drawID()
			l.Free(id)
			if o := w.objects[id]; o != nil && !o.retired {
				delete(w.objects, id)
			}
		case "retire":
			id := drawID()
			horizon += uint64(rapid.IntRange(0, 2).Draw(t, "gangs"))
			l.Retire(id, horizon)
			if o := w.objects[id]; o != nil && !o.retired {
				o.retired, o.horizon = true, horizon
			}
		case "passed":
			o := drawOwner()
			w.ended[o] += uint64(rapid.IntRange(0, 3).Draw(t, "ended"))
			before := len(w.objects)
			maps.DeleteFunc(w.objects, func(_ ID, x *twinObject) bool {
				return w.places[x.spec.Placement].owner == o && x.retired && x.horizon <= w.ended[o]
			})
			statustest.MustEqual(t, l.Passed(o, w.ended[o]), before != len(w.objects),
				"whether bytes are left, with %d objects before and %d after", before, len(w.objects))
		case "begin":
			x := twinTemp{place.Draw(t, "placement"), rapid.Int64Range(1, 20).Draw(t, "bytes")}
			l.Begin(x.place, x.bytes)
			w.temps = append(w.temps, x)
		case "end":
			if n := len(w.temps); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "computation")
				l.End(w.temps[i].place, w.temps[i].bytes)
				w.temps = slices.Delete(w.temps, i, i+1)
			}
		case "fits":
			specs, temp := rapid.SliceOfN(spec(-20), 1, 3).Draw(t, "specs"), rapid.Int64Range(0, 20).Draw(t, "temp")
			statustest.MustEqual(t, l.Fits(specs, temp), len(w.blocked(specs, temp, false)) == 0,
				"%+v and %d fit", specs, temp)
			want := w.blocked(specs, temp, true)
			statustest.MustEqualSlices(t, slices.Sorted(slices.Values(l.Blocked(specs, temp, nil))), want,
				"%+v and %d have no room on", specs, temp)
			statustest.MustEqual(t, l.WillFit(specs, temp), len(want) == 0, "%+v and %d will fit", specs, temp)
			statustest.MustEqual(t, l.Possible(specs, temp), w.possible(specs, temp),
				"%+v and %d are possible", specs, temp)
			limit, later := rapid.Int64Range(1, 60).Draw(t, "quota"), rapid.Bool().Draw(t, "later")
			type answer struct {
				device    int
				has, need int64
			}
			var got, expected answer
			got.device, got.has, got.need = l.Beyond(&w.group, specs, limit, later)
			expected.device, expected.has, expected.need = w.beyond(specs, limit, later)
			statustest.MustEqual(t, got, expected, "%+v with a quota of %d, later: %t", specs, limit, later)
			o := drawOwner()
			statustest.MustEqual(t, l.PossibleBeside(o, specs, temp), w.possible(specs, temp, o),
				"%+v and %d are possible beside owner %d", specs, temp, o)
		case "owner":
			if o := drawOwner(); w.open[o] {
				code("add owner", l.AddOwner(o, "session"), status.AlreadyExists)
			} else {
				begin(o)
			}
		case "drop":
			o := drawOwner()
			l.DropOwner(o)
			w.drop(o)
			places = slices.DeleteFunc(places, func(p Placement) bool { return w.places[p].owner == o })
		case "leave":
			o := drawOwner()
			l.Leave(o)
			for _, x := range w.objects {
				if w.places[x.spec.Placement].owner == o && !x.retired {
					x.retired, x.horizon = true, math.MaxUint64
				}
			}
			places = slices.DeleteFunc(places, func(p Placement) bool { return w.places[p].owner == o })
		case "shrink":
			id, bytes := drawID(), rapid.Int64Range(0, 20).Draw(t, "bytes")
			l.Shrink(id, bytes)
			if o := w.objects[id]; o != nil && !o.retired {
				o.spec.ShardBytes -= min(bytes, o.spec.ShardBytes)
			}
		case "limits":
			limits()
		}
		compareTwin(t, l, w)
	}
	for o := range Owner(4) {
		l.DropOwner(o)
		w.drop(o)
	}
	compareTwin(t, l, w)
}

func compareTwin(t *rapid.T, l *Ledger, w *twin) {
	l.check()
	if rapid.Bool().Draw(t, "compare") { // which folds
		for d := range w.limits {
			bytes, temp := w.device(d, false)
			statustest.MustEqual(t, l.Device(d), (Usage{bytes + temp, temp, w.limits[d]}), "device %d", d)
			var held int64
			for _, h := range l.Holders(d, 100) {
				held += h.Bytes
			}
			statustest.MustEqual(t, held, bytes, "bytes of the holders of device %d", d)
			for o := range Owner(4) {
				want := w.has(o, d)
				if got, has := l.On(o, d), l.Has(o, []int{d}); got != want || has != (want > 0) {
					t.Fatalf("owner %d has %d bytes on device %d, any: %t, want %d", o, got, d, has, want)
				}
			}
		}
	}
	statustest.MustEqual(t, l.live, len(w.objects), "objects")
}
