package ledger

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one makes one object.
func one(t testing.TB, l *Ledger, o Owner, s Spec) ID {
	t.Helper()
	var ids [1]ID
	if err := l.Create(o, []Spec{s}, ids[:]); err != nil {
		t.Fatal(err)
	}
	return ids[0]
}

func index(id ID) uint32 { return uint32(id & maxIndex) }

func TestStaleIDsDoNothing(t *testing.T) {
	l, p := benchLedger(t, 2)
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
func TestGenerationsEnd(t *testing.T) {
	l, p := benchLedger(t, 1)
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

func TestBadArguments(t *testing.T) {
	l, p := benchLedger(t, 2)
	for _, devices := range [][]int{nil, {-1}, {MaxDevices}, {3, 3}} {
		if _, err := l.Place(devices); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Place(%v): %v", devices, err)
		}
	}
	q, err := l.Place([]int{1, 0})
	if err != nil || q != p {
		t.Errorf("the same devices have placements %d and %d, %v", p, q, err)
	}
	for _, c := range []struct {
		owner Owner
		spec  Spec
		code  status.Code
	}{
		{2, Spec{Placement: p}, status.NotFound},
		{1, Spec{}, status.InvalidArgument},
		{1, Spec{Placement: 9}, status.InvalidArgument},
		{1, Spec{Placement: p, ShardBytes: -1}, status.InvalidArgument},
		{1, Spec{Placement: p, ShardBytes: MaxShardBytes + 1}, status.ResourceExhausted},
	} {
		good := Spec{Placement: p, ShardBytes: 1}
		if err := l.Create(c.owner, []Spec{good, c.spec}, make([]ID, 2)); status.CodeOf(err) != c.code {
			t.Errorf("Create(%d, %+v): %v, want %v", c.owner, c.spec, err, c.code)
		}
	}
	for _, err := range []error{l.SetLimit(-1, 1), l.SetLimit(MaxDevices, 1), l.SetLimit(0, -1)} {
		if status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("SetLimit: %v", err)
		}
	}
	if l.Len() != 0 {
		t.Errorf("%d objects are left", l.Len())
	}
}

// Sums never overflow, whatever is asked for.
func TestMoreThanCanBeCounted(t *testing.T) {
	l, p := benchLedger(t, 4096)
	huge := Spec{ShardBytes: MaxShardBytes, Placement: p}
	made := int64(0)
	for ids := make([]ID, 1); ; made++ {
		if err := l.Create(1, []Spec{huge}, ids); err != nil {
			if status.CodeOf(err) != status.ResourceExhausted {
				t.Fatal(err)
			}
			break
		}
		if made > 1<<20 {
			t.Fatal("there is no end to it")
		}
	}
	err := l.Create(1, slices.Repeat([]Spec{huge}, 1000), make([]ID, 1000))
	if status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("made: %v", err)
	}
	if u := l.Device(4095); u.InUse != made*MaxShardBytes {
		t.Errorf("%d objects are %d bytes", made, u.InUse)
	}
}

// What does not fit is refused as a whole, with need, limit and holders.
func TestObjectsAboveTheLimitAreRefusedWhole(t *testing.T) {
	l := New()
	for o, name := range map[Owner]string{1: "session 1", 2: "session 2"} {
		if err := l.AddOwner(o, name); err != nil {
			t.Fatal(err)
		}
	}
	place := func(devices ...int) Placement {
		p, err := l.Place(devices)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const gib = 1 << 30
	for d := range 4 {
		if err := l.SetLimit(d, 16*gib); err != nil {
			t.Fatal(err)
		}
	}
	one(t, l, 1, Spec{ShardBytes: 6 * gib, Placement: place(0, 1, 2, 3), Label: "params"})
	other := one(t, l, 2, Spec{ShardBytes: 5 * gib, Placement: place(2), Label: "l"})
	refused := func(specs []Spec, parts ...string) {
		t.Helper()
		err := l.Create(2, specs, make([]ID, len(specs)))
		if status.CodeOf(err) != status.ResourceExhausted {
			t.Fatalf("%v, want RESOURCE_EXHAUSTED", err)
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		if u := l.Device(3); u != (Usage{InUse: 6 * gib, Limit: 16 * gib}) {
			t.Errorf("device 3: %+v; what is refused must take nothing", u)
		}
	}
	eval := []Spec{{ShardBytes: 2 * gib, Placement: place(2, 3), Label: "eval"},
		{ShardBytes: 4 * gib, Placement: place(2)}}
	refused(eval, "device 2", `"eval" of session 2`, "needs 6.0 GiB", "limit of 16.0 GiB", "11.0 GiB is in use",
		`6.0 GiB of session 1 in 1 × array "params"`, `5.0 GiB of session 2 in 1 × array "l"`, "delete arrays")
	refused([]Spec{{ShardBytes: 17 * gib, Placement: place(0), Label: "big"}}, "use smaller arrays")
	l.Free(other)
	if err := l.Create(2, eval, make([]ID, 2)); err != nil {
		t.Errorf("what fits, once there is room: %v", err)
	}
	l.DropOwner(1)
	l.DropOwner(1)
	if err := l.Create(1, eval, make([]ID, 2)); status.CodeOf(err) != status.NotFound {
		t.Errorf("create for an owner that was dropped: %v", err)
	}
	if u := l.Device(2); u.InUse != 6*gib {
		t.Errorf("device 2 has %d bytes in use, want those of session 2", u.InUse)
	}
}

// Once the ledger has grown to the load, objects cost no memory, and no more on many devices than on one.
func TestDoesNotAllocate(t *testing.T) {
	if checked {
		t.Skip("the checks of the build tag invariants allocate")
	}
	for _, devices := range []int{1, 8, 4096} {
		l, p := benchLedger(t, devices)
		specs := []Spec{{ShardBytes: 1, Placement: p}, {ShardBytes: 1, Placement: p}}
		var ids [2]ID
		round := func() {
			_ = l.Create(1, specs, ids[:])
			for _, id := range ids {
				l.Free(id)
			}
		}
		round()
		if n := testing.AllocsPerRun(1000, round); n != 0 {
			t.Errorf("%d devices: %v allocations a round, want 0", devices, n)
		}
	}
}
