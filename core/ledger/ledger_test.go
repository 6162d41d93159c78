package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one makes one object.
func one(t testing.TB, l *Ledger, o Owner, s Spec) ID {
	t.Helper()
	var ids [1]ID
	statustest.OK(t, l.Admit(o, Request{Specs: []Spec{s}}, ids[:]))
	return ids[0]
}

func index(id ID) uint32 { return uint32(id & maxIndex) }

func TestStaleIDsDoNothing(t *testing.T) {
	l, p := benchLedger(t, 2, 0)
	a := one(t, l, 1, Spec{ShardBytes: 8, Placement: p})
	l.Free(a)
	b := one(t, l, 1, Spec{ShardBytes: 8, Placement: p})
	if index(a) != index(b) || a == b {
		t.Fatalf("%d and %d: want one slot and two generations", a, b)
	}
	for _, id := range []ID{a, 0, 1 << 40, ^ID(0)} {
		l.Free(id)
	}
	if l.Len() != 1 || l.Device(1).InUse != 8 {
		t.Errorf("a stale ID left %d objects of %d bytes, want 1 of 8", l.Len(), l.Device(1).InUse)
	}
}

// A slot whose generations are used up is not used again.
func TestSlotWithoutGenerationsIsNotUsedAgain(t *testing.T) {
	l, p := benchLedger(t, 1, 0)
	sp := Spec{ShardBytes: 1, Placement: p}
	a := one(t, l, 1, sp)
	l.Free(a)
	l.slot(index(a)).gen = maxGen - 1
	b := one(t, l, 1, sp)
	if index(b) != index(a) || b>>indexBits != maxGen {
		t.Fatalf("%d is not the last generation of its slot", b)
	}
	if l.Free(b); l.Len() != 0 {
		t.Fatal("the last generation is not freed")
	}
	if c := one(t, l, 1, sp); index(c) == index(a) {
		t.Errorf("%d has a slot without generations", c)
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	l, p := benchLedger(t, 2, 0)
	for _, devices := range [][]int{nil, {-1}, {MaxDevices}, {3, 3}} {
		statustest.Fails(t, fmt.Sprintf("Place(%v)", devices), statustest.Of(l.Place(1, devices)),
			status.InvalidArgument)
	}
	for _, c := range []struct {
		owner Owner
		spec  Spec
		code  status.Code
	}{
		{2, Spec{Placement: p}, status.NotFound},
		{1, Spec{}, status.InvalidArgument},
		{1, Spec{Placement: Placement{&extent{owner: new(account), devices: []int32{1}}}}, status.InvalidArgument},
		{1, Spec{Placement: p, ShardBytes: -1}, status.InvalidArgument},
		{1, Spec{Placement: p, ShardBytes: MaxShardBytes + 1}, status.ResourceExhausted},
	} {
		good := Spec{Placement: p, ShardBytes: 1}
		statustest.Fails(t, fmt.Sprintf("Admit(%d, %+v)", c.owner, c.spec),
			l.Admit(c.owner, Request{Specs: []Spec{good, c.spec}}, make([]ID, 2)), c.code)
	}
	for _, err := range []error{l.SetLimit(-1, 1), l.SetLimit(MaxDevices, 1), l.SetLimit(0, -1)} {
		statustest.Fails(t, "SetLimit", err, status.InvalidArgument)
	}
	statustest.Equal(t, l.Len(), 0, "objects are left")
}

// Sums never overflow, whatever is asked for.
func TestMoreThanCanBeCounted(t *testing.T) {
	l, p := benchLedger(t, 4096, 0)
	huge := Spec{ShardBytes: MaxShardBytes, Placement: p}
	made := int64(0)
	for ids := make([]ID, 1); ; made++ {
		if err := l.Admit(1, Request{Specs: []Spec{huge}}, ids); err != nil {
			statustest.Fails(t, "the error", err, status.ResourceExhausted)
			break
		}
		if made > 1<<20 {
			t.Fatal("there is no end to it")
		}
	}
	err := l.Admit(1, Request{Specs: slices.Repeat([]Spec{huge}, 1000)}, make([]ID, 1000))
	statustest.Fails(t, "made", err, status.ResourceExhausted)
	if u := l.Device(4095); u.InUse != made*MaxShardBytes {
		t.Errorf("%d objects are %d bytes", made, u.InUse)
	}
}

// What does not fit is refused as a whole, with need, limit and holders.
func TestObjectsAboveTheLimitAreRefusedWhole(t *testing.T) {
	l := New()
	for o, name := range map[Owner]string{1: "session 1", 2: "session 2"} {
		statustest.OK(t, l.AddOwner(o, name))
	}
	place := func(o Owner, devices ...int) Placement {
		p := statustest.Value(l.Place(o, devices)).OK(t)
		return p
	}
	const gib = 1 << 30
	for d := range 4 {
		statustest.OK(t, l.SetLimit(d, 16*gib))
	}
	one(t, l, 1, Spec{ShardBytes: 6 * gib, Placement: place(1, 0, 1, 2, 3), Label: "params"})
	other := one(t, l, 2, Spec{ShardBytes: 5 * gib, Placement: place(2, 2), Label: "table"})
	refused := func(specs []Spec, parts ...string) {
		t.Helper()
		err := l.Admit(2, Request{Specs: specs}, make([]ID, len(specs)))
		statustest.Fails(t, "the error", err, status.ResourceExhausted)
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		statustest.Equal(t, l.Device(3), Usage{InUse: 6 * gib, Limit: 16 * gib},
			"device 3, which what is refused takes nothing of")
	}
	eval := []Spec{{ShardBytes: 2 * gib, Placement: place(2, 2, 3), Label: "eval"},
		{ShardBytes: 4 * gib, Placement: place(2, 2)}}
	refused(eval, "device 2", `"eval" of session 2`, "needs 6 GiB", "limit of 16 GiB", "11 GiB is in use: ",
		"6 GiB in 1 of params, session 1", "5 GiB in 1 of table, session 2", "delete arrays")
	refused([]Spec{{ShardBytes: 17 * gib, Placement: place(2, 0), Label: "big"}}, "use smaller arrays")
	l.Free(other)
	statustest.Checkf(t, l.Admit(2, Request{Specs: eval}, make([]ID, 2)), "what fits, once there is room")
	l.DropOwner(1)
	l.DropOwner(1)
	statustest.Fails(t, "create for an owner that was dropped", l.Admit(1, Request{Specs: eval}, make([]ID, 2)),
		status.NotFound)
	if u := l.Device(2); u.InUse != 6*gib {
		t.Errorf("device 2 has %d bytes in use, want those of session 2", u.InUse)
	}
}

// What was retired counts until the gangs before it have ended, and says that it leaves.
func TestRetiredObjectsGoInTheirTime(t *testing.T) {
	l, p := benchLedger(t, 2, 0)
	statustest.OK(t, l.SetLimit(0, 10))
	a, b := one(t, l, 1, Spec{ShardBytes: 4, Placement: p}), one(t, l, 1, Spec{ShardBytes: 5, Placement: p})
	more := []Spec{{ShardBytes: 4, Placement: p}}
	holds := func(what string, use int64, fits, will bool) {
		t.Helper()
		if u := l.Device(0).InUse; u != use || l.Fits(more, 0) != fits || l.WillFit(more, 0) != will {
			t.Errorf("%s: %d bytes, 4 more fit: %t, will fit: %t; want %d, %t, %t", what, u, l.Fits(more, 0), l.WillFit(more, 0),
				use, fits, will)
		}
	}
	holds("at first", 9, false, false)
	l.Retire(a, 3)
	holds("with 4 that leave", 9, false, true)
	l.Retire(a, 5)
	if l.Passed(1, 2) {
		t.Error("gang 2 has ended, and bytes left that gang 3 may use")
	}
	holds("after gang 2", 9, false, true)
	if !l.Passed(1, 4) {
		t.Error("gang 4 has ended, and no bytes left")
	}
	holds("after gang 4", 5, true, true)
	l.Retire(b, 6)
	if l.Passed(1, 6); l.Len() != 0 {
		t.Errorf("%d objects are left", l.Len())
	}
}

// Of the computations under way on a device the one that takes most counts, and one that takes no more takes nothing.
func TestComputationsCountOnceADevice(t *testing.T) {
	l, p := benchLedger(t, 2, 0)
	q := statustest.Value(l.Place(1, []int{1})).OK(t)
	for d := range 2 {
		statustest.OK(t, l.SetLimit(d, 10))
	}
	uses := func(a, b int64) {
		t.Helper()
		if l.Device(0).InUse != a || l.Device(1).InUse != b {
			t.Errorf("%+v and %+v in use, want %d and %d", l.Device(0), l.Device(1), a, b)
		}
	}
	l.Begin(p, 3)
	l.Begin(p, 3)
	l.Begin(q, 7)
	uses(3, 7)
	if nothing := []Spec{{Placement: p}}; !l.Fits(nothing, 7) || l.Fits(nothing, 11) {
		t.Error("a computation that takes 7 beside one that does has room, and one that takes 11 has none")
	}
	if some := []Spec{{Placement: q, ShardBytes: 4}}; l.Fits(some, 0) || !l.WillFit(some, 0) {
		t.Error("4 bytes have no room beside 7 of 10, and will have some")
	}
	l.End(q, 7)
	l.End(p, 3)
	uses(3, 3)
	l.DropOwner(1)
	uses(0, 0)
}

// An owner leaves and goes in the same few steps however many objects it has, and their slots are used again.
func TestOwnersGoWithoutALookAtTheirObjects(t *testing.T) {
	const objects = 1000
	l, p := benchLedger(t, 4, 0)
	slots := func() (all []object) {
		for i := range l.slots {
			all = append(all, *l.slot(i))
		}
		return all
	}
	for round := range uint64(3) {
		for i := range uint64(objects) {
			id := l.Charge(Spec{ShardBytes: 1, Placement: p})
			if i%2 == 0 {
				l.Retire(id, i)
			}
		}
		before := slots()
		l.Leave(1)
		if all := []Spec{{ShardBytes: 1, Placement: p}}; l.On(1, 0) != 0 || !l.WillFit(all, 0) {
			t.Errorf("%d bytes do not leave", l.On(1, 0))
		}
		l.DropOwner(1)
		changed := 0
		for i, o := range slots() {
			if o != before[i] {
				changed++
			}
		}
		if changed > 2 || l.Len() != 0 || l.Device(0).InUse != 0 {
			t.Errorf("round %d: of %d objects %d were changed, %d are left, of %d bytes; expected one of each list, and none",
				round, objects, changed, l.Len(), l.Device(0).InUse)
		}
		statustest.OK(t, l.AddOwner(1, "another"))
		p = statustest.Value(l.Place(1, []int{0, 1, 2, 3})).OK(t)
	}
	statustest.Equal(t, l.slots, objects, "slots were used")
}

// Once the ledger has grown to the load, objects cost no memory, and no more on many devices than on one.
func TestDoesNotAllocate(t *testing.T) {
	if invariants.Checked {
		t.Skip("the checks of the build tag invariants allocate")
	}
	for _, devices := range []int{1, 8, 4096} {
		l, p := benchLedger(t, devices, 0)
		specs := []Spec{{ShardBytes: 1, Placement: p}, {ShardBytes: 1, Placement: p}}
		var ids [2]ID
		round := func() {
			_ = l.Admit(1, Request{Specs: specs}, ids[:])
			for _, id := range ids {
				l.Free(id)
			}
		}
		round()
		statustest.Equal(t, testing.AllocsPerRun(1000, round), 0, "%d devices: allocations a round", devices)
	}
}

// Beyond counts what the owners of a group have together, with and without what leaves, and what a request takes over.
func TestBeyondCountsGroupsTogether(t *testing.T) {
	l := New()
	place := func(o Owner, devices ...int) Placement {
		p := statustest.Value(l.Place(o, devices)).OK(t)
		return p
	}
	var group Group
	for o := range Owner(3) {
		statustest.OK(t, l.AddOwner(o+1, "an owner"))
		if o < 2 {
			statustest.OK(t, l.Join(o+1, &group))
		}
	}
	l.Charge(Spec{ShardBytes: 5, Placement: place(1, 0, 1)})
	leaves := l.Charge(Spec{ShardBytes: 3, Placement: place(2, 1, 2)})
	l.Charge(Spec{ShardBytes: 100, Placement: place(3, 0, 1, 2)})
	l.Retire(leaves, 1)
	wide := place(1, 0, 1, 2)
	for _, c := range []struct {
		specs       []Spec
		limit       int64
		later       bool
		device      int
		has, need   int64
		description string
	}{
		{[]Spec{{ShardBytes: 2, Placement: wide}}, 10, false, -1, 0, 0, "all fits"},
		{[]Spec{{ShardBytes: 2, Placement: wide}}, 9, false, 1, 8, 2, "the fullest device"},
		{[]Spec{{ShardBytes: 2, Placement: wide}}, 6, true, 0, 5, 2, "without what leaves"},
		{[]Spec{{ShardBytes: 2, Placement: wide}, {ShardBytes: -2, Placement: place(1, 1)}}, 6, false, 0, 5, 2,
			"one takes over"},
		{[]Spec{{ShardBytes: 0, Placement: wide}}, 1, false, -1, 0, 0, "nothing is wanted"},
	} {
		device, has, need := l.Beyond(&group, c.specs, c.limit, c.later)
		if device != c.device || has != c.has || need != c.need {
			t.Errorf("%s: device %d with %d and %d more, expected %d, %d, %d", c.description, device, has, need, c.device, c.has,
				c.need)
		}
	}
	statustest.Fails(t, "an owner joins two groups", l.Join(2, new(Group)), status.FailedPrecondition)
	l.DropOwner(1)
	if device, _, _ := l.Beyond(&group, []Spec{{ShardBytes: 1, Placement: place(2, 0)}}, 1, false); device != -1 {
		t.Error("an owner that has gone counts")
	}
}

// A ledger whose numbers are used up makes no object, and says so before.
func TestLedgerIsFull(t *testing.T) {
	l, p := benchLedger(t, 1, 0)
	l.slots, l.live = maxIndex+1, maxIndex // as if they had been made
	if id := l.Charge(Spec{ShardBytes: 1, Placement: p}); id != 0 || l.Room() != 0 {
		t.Errorf("object %d is made where there is room for %d", id, l.Room())
	}
}
