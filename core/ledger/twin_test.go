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

// Ledger and its twin get the same random calls, and must give the same
// answers and sums.
func TestLedgerAnswersLikeItsTwin(t *testing.T) { rapid.Check(t, twinProperty) }

func FuzzTwin(f *testing.F) { f.Fuzz(rapid.MakeFuzz(twinProperty)) }

func twinProperty(t *rapid.T) {
	x := &trial{T: t, l: New(), ids: []ID{0, 1 << 40}, w: &twin{objects: map[ID]*twinObject{}, open: map[Owner]bool{},
		places: map[Placement]twinPlace{}, ended: map[Owner]uint64{}}}
	x.limits()
	x.begin(1)
	x.begin(2)
	calls := []func(){x.create, x.create, x.create, x.charge, x.free, x.free, x.retire, x.retire, x.passed,
		x.beginComputation, x.endComputation, x.fits, x.fits, x.owner, x.drop, x.limits, x.leave, x.shrink}
	for range rapid.SampledFrom([]int{10, 60, 60}).Draw(t, "calls") { // IntRange would mostly be few
		if len(x.places) == 0 {
			x.l.DropOwner(3) // it may be leaving
			x.w.drop(3)
			x.begin(3)
		}
		calls[rapid.IntRange(0, len(calls)-1).Draw(t, "call")]()
		compareTwin(t, x.l, x.w)
	}
	for o := range Owner(4) {
		x.l.DropOwner(o)
		x.w.drop(o)
	}
	compareTwin(t, x.l, x.w)
}

// trial has a Ledger and its twin, and makes each call of both.
type trial struct {
	*rapid.T
	l       *Ledger
	w       *twin
	places  []Placement // of owners that are there
	ids     []ID        // all that ever were, and two that never
	horizon uint64
}

func (x *trial) drawOwner() Owner         { return Owner(rapid.IntRange(1, 3).Draw(x.T, "owner")) }
func (x *trial) drawPlacement() Placement { return rapid.SampledFrom(x.places).Draw(x.T, "placement") }

func (x *trial) drawSpecs(from, to int, least int64) (specs []Spec) {
	for range rapid.IntRange(from, to).Draw(x.T, "specs") {
		specs = append(specs, Spec{ShardBytes: rapid.Int64Range(least, 20).Draw(x.T, "bytes"), Placement: x.drawPlacement()})
	}
	return specs
}

func (x *trial) drawID() ID {
	from := x.ids
	if live := slices.Sorted(maps.Keys(x.w.objects)); len(live) > 0 && rapid.IntRange(0, 3).Draw(x.T, "any") > 0 {
		from = live
	}
	return rapid.SampledFrom(from).Draw(x.T, "object")
}

func (x *trial) limits() {
	for d := range x.w.limits {
		x.w.limits[d] = rapid.SampledFrom([]int64{0, 10, 30, 100}).Draw(x.T, "limit")
		statustest.OK(x, x.l.SetLimit(d, x.w.limits[d]))
	}
}

// begin adds an owner, with its placements.
func (x *trial) begin(o Owner) {
	statustest.OK(x, x.l.AddOwner(o, "session"))
	if o < 3 {
		statustest.OK(x, x.l.Join(o, &x.w.group))
	}
	x.w.open[o] = true
	for _, devices := range [][]int{{0}, {1}, {2, 0}, {0, 1, 2, 3}, {3, 1}} {
		p := statustest.Value(x.l.Place(o, devices)).OK(x)
		x.places = append(x.places, p)
		x.w.places[p] = twinPlace{o, devices}
	}
}

// made takes in an object that there is now.
func (x *trial) made(id ID, s Spec) {
	if slices.Contains(x.ids, id) {
		x.Fatalf("%d was used before", id)
	}
	x.ids = append(x.ids, id)
	x.w.objects[id] = &twinObject{spec: s}
}

func (x *trial) create() {
	o, specs := x.drawOwner(), x.drawSpecs(0, 3, 0)
	ids := make([]ID, len(specs))
	want := x.w.create(o, specs)
	statustest.Fails(x, "create", x.l.Admit(o, Request{Specs: specs}, ids), want)
	for i, id := range ids {
		if want == status.OK {
			x.made(id, specs[i])
		}
	}
}

func (x *trial) charge() {
	s := x.drawSpecs(1, 1, 0)[0]
	x.made(x.l.Charge(s), s)
}

func (x *trial) free() {
	id := x.drawID()
	x.l.Free(id)
	if o := x.w.objects[id]; o != nil && !o.retired {
		delete(x.w.objects, id)
	}
}

func (x *trial) retire() {
	id := x.drawID()
	x.horizon += uint64(rapid.IntRange(0, 2).Draw(x.T, "gangs"))
	x.l.Retire(id, x.horizon)
	if o := x.w.objects[id]; o != nil && !o.retired {
		o.retired, o.horizon = true, x.horizon
	}
}

func (x *trial) passed() {
	o, w := x.drawOwner(), x.w
	w.ended[o] += uint64(rapid.IntRange(0, 3).Draw(x.T, "ended"))
	before := len(w.objects)
	maps.DeleteFunc(w.objects, func(_ ID, y *twinObject) bool {
		return w.places[y.spec.Placement].owner == o && y.retired && y.horizon <= w.ended[o]
	})
	statustest.MustEqual(x, x.l.Passed(o, w.ended[o]), before != len(w.objects),
		"whether bytes are left, with %d objects before and %d after", before, len(w.objects))
}

func (x *trial) beginComputation() {
	c := twinTemp{x.drawPlacement(), rapid.Int64Range(1, 20).Draw(x.T, "bytes")}
	x.l.Begin(c.place, c.bytes)
	x.w.temps = append(x.w.temps, c)
}

func (x *trial) endComputation() {
	if n := len(x.w.temps); n > 0 {
		i := rapid.IntRange(0, n-1).Draw(x.T, "computation")
		x.l.End(x.w.temps[i].place, x.w.temps[i].bytes)
		x.w.temps = slices.Delete(x.w.temps, i, i+1)
	}
}

func (x *trial) fits() {
	l, w := x.l, x.w
	specs, temp := x.drawSpecs(1, 3, -20), rapid.Int64Range(0, 20).Draw(x.T, "temp")
	statustest.MustEqual(x, l.Fits(specs, temp), len(w.blocked(specs, temp, false)) == 0, "%+v and %d fit", specs, temp)
	want := w.blocked(specs, temp, true)
	statustest.MustEqualSlices(x, slices.Sorted(slices.Values(l.Blocked(specs, temp, nil))), want,
		"%+v and %d have no room on", specs, temp)
	statustest.MustEqual(x, l.WillFit(specs, temp), len(want) == 0, "%+v and %d will fit", specs, temp)
	statustest.MustEqual(x, l.Possible(specs, temp), w.possible(specs, temp), "%+v and %d are possible", specs, temp)
	limit, later := rapid.Int64Range(1, 60).Draw(x.T, "quota"), rapid.Bool().Draw(x.T, "later")
	type answer struct {
		device    int
		has, need int64
	}
	var got, expected answer
	got.device, got.has, got.need = l.Beyond(&w.group, specs, limit, later)
	expected.device, expected.has, expected.need = w.beyond(specs, limit, later)
	statustest.MustEqual(x, got, expected, "%+v with a quota of %d, later: %t", specs, limit, later)
	o := x.drawOwner()
	statustest.MustEqual(x, l.PossibleBeside(o, specs, temp), w.possible(specs, temp, o),
		"%+v and %d are possible beside owner %d", specs, temp, o)
}

func (x *trial) owner() {
	if o := x.drawOwner(); x.w.open[o] {
		statustest.Fails(x, "add owner", x.l.AddOwner(o, "session"), status.AlreadyExists)
	} else {
		x.begin(o)
	}
}

func (x *trial) drop() {
	o := x.drawOwner()
	x.l.DropOwner(o)
	x.w.drop(o)
	x.forget(o)
}

// forget drops the placements of an owner that goes.
func (x *trial) forget(o Owner) {
	x.places = slices.DeleteFunc(x.places, func(p Placement) bool { return x.w.places[p].owner == o })
}

func (x *trial) leave() {
	o := x.drawOwner()
	x.l.Leave(o)
	for _, y := range x.w.objects {
		if x.w.places[y.spec.Placement].owner == o && !y.retired {
			y.retired, y.horizon = true, math.MaxUint64
		}
	}
	x.forget(o)
}

func (x *trial) shrink() {
	id, bytes := x.drawID(), rapid.Int64Range(0, 20).Draw(x.T, "bytes")
	x.l.Shrink(id, bytes)
	if o := x.w.objects[id]; o != nil && !o.retired {
		o.spec.ShardBytes -= min(bytes, o.spec.ShardBytes)
	}
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
