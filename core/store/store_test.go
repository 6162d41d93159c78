package store

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStaleIDs(t *testing.T) {
	table, p := benchTable(t, 2)
	a, err := table.Create(1, Spec{ShardBytes: 8, Placement: p})
	if err != nil {
		t.Fatal(err)
	}
	table.Unref(a)
	b, err := table.Create(1, Spec{ShardBytes: 8, Placement: p})
	if err != nil {
		t.Fatal(err)
	}
	if a.Index() != b.Index() || a == b {
		t.Fatalf("%v and %v: want one slot and two generations", a, b)
	}
	if table.Ref(a) || table.Unref(a) || table.Delete(a) || table.Fail(a, errLost) || table.Unpin(a) {
		t.Error("a stale ID did something")
	}
	if s, err := table.State(a); s != Gone || status.CodeOf(err) != status.NotFound {
		t.Errorf("a stale ID is %v with %v", s, err)
	}
	if s, err := table.State(b); s != Pending || err != nil {
		t.Errorf("the new object is %v with %v", s, err)
	}
}

// A slot whose generations are used up is not used again.
func TestGenerationsEnd(t *testing.T) {
	table, p := benchTable(t, 1)
	sp := Spec{ShardBytes: 1, Placement: p}
	a, _ := table.Create(1, sp)
	table.Unref(a)
	table.slot(uint32(a.Index())).gen = maxGen - 1
	b, _ := table.Create(1, sp)
	if b.Index() != a.Index() || uint64(b>>indexBits) != maxGen {
		t.Fatalf("%v is not the last generation of its slot", b)
	}
	if !table.Unref(b) {
		t.Fatal("the last generation is not freed")
	}
	c, _ := table.Create(1, sp)
	if c.Index() == a.Index() {
		t.Errorf("%v has a slot without generations", c)
	}
	if s, _ := table.State(b); s != Gone {
		t.Errorf("%v is %v, want gone", b, s)
	}
}

func TestBadArguments(t *testing.T) {
	table, p := benchTable(t, 2)
	for _, devices := range [][]int{nil, {-1}, {MaxDevices}, {3, 3}} {
		if _, err := table.Place(devices); status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("Place(%v): %v", devices, err)
		}
	}
	q, err := table.Place([]int{1, 0})
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
		{1, Spec{Placement: p, Purpose: Purposes}, status.InvalidArgument},
	} {
		if _, err := table.Create(c.owner, c.spec); status.CodeOf(err) != c.code {
			t.Errorf("Create(%d, %+v): %v, want %v", c.owner, c.spec, err, c.code)
		}
		if ids, ok, err := table.Admit(c.owner, nil, []Spec{c.spec}, nil); ok || len(ids) > 0 || status.CodeOf(err) != c.code {
			t.Errorf("Admit(%d, %+v): %v, want %v", c.owner, c.spec, err, c.code)
		}
	}
	if _, ok, err := table.Admit(1, []ID{7}, nil, nil); ok || status.CodeOf(err) != status.Internal {
		t.Errorf("Admit of an input that is not held: %v", err)
	}
	for _, err := range []error{table.SetLimit(-1, 1), table.SetLimit(MaxDevices, 1), table.SetLimit(0, -1)} {
		if status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("SetLimit: %v", err)
		}
	}
	if table.Len() != 0 {
		t.Errorf("%d objects are left", table.Len())
	}
}

// Sums never overflow, whatever is asked for.
func TestMoreThanCanBeCounted(t *testing.T) {
	table, p := benchTable(t, 4096)
	huge := Spec{ShardBytes: MaxShardBytes, Placement: p}
	var made int
	for {
		_, err := table.Create(1, huge)
		if err != nil {
			if status.CodeOf(err) != status.ResourceExhausted {
				t.Fatal(err)
			}
			break
		}
		if made++; made > 1<<20 {
			t.Fatal("there is no end to it")
		}
	}
	if _, ok, err := table.Admit(1, nil, slices.Repeat([]Spec{huge}, 1000), nil); ok || status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("admitted: %t, %v", ok, err)
	}
	if u := table.Total(); u.InUse != int64(made)*MaxShardBytes*4096 {
		t.Errorf("%d objects are %d bytes", made, u.InUse)
	}
}

// A run waits while running work can make room, and not for its own inputs.
func TestAdmission(t *testing.T) {
	table := New()
	for o, name := range map[Owner]string{1: "session 1", 2: "session 2"} {
		if err := table.AddOwner(o, name); err != nil {
			t.Fatal(err)
		}
	}
	place := func(devices ...int) Placement {
		p, err := table.Place(devices)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const gib = 1 << 30
	for d := range 4 {
		if err := table.SetLimit(d, 16*gib); err != nil {
			t.Fatal(err)
		}
	}
	create := func(o Owner, label string, bytes int64, p Placement) ID {
		id, err := table.Create(o, Spec{ShardBytes: bytes, Placement: p, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	params := create(1, "params", 6*gib, place(0, 1, 2, 3))
	other := create(2, "table", 5*gib, place(2))
	if err := table.Hold([]ID{params}); err != nil {
		t.Fatal(err)
	}
	step := []Spec{{ShardBytes: 2 * gib, Placement: place(0, 1, 2, 3), Label: "train_step"},
		{ShardBytes: 3 * gib, Placement: place(0, 1, 2, 3), Purpose: Scratch}}
	first, ok, err := table.Admit(1, []ID{params}, step, nil)
	if !ok || err != nil {
		t.Fatalf("the first run: %t, %v", ok, err)
	}

	// The second one: device 2 is full, but the scratch of the first will go.
	next := []Spec{{ShardBytes: 3 * gib, Placement: place(2, 3), Label: "eval"}}
	if _, ok, err := table.Admit(2, nil, next, nil); ok || err != nil {
		t.Fatalf("a run that can wait: %t, %v", ok, err)
	}
	if u := table.Device(3); u.InUse != 11*gib {
		t.Errorf("device 3 has %d bytes in use; a run that waits must take none", u.InUse)
	}
	// One that needs more than that must not wait.
	next[0].ShardBytes = 5 * gib
	_, ok, err = table.Admit(2, nil, next, nil)
	if ok || status.CodeOf(err) != status.ResourceExhausted {
		t.Fatalf("a run that cannot fit: %t, %v", ok, err)
	}
	for _, part := range []string{"device 2", `"eval" of session 2`, "needs 5.0 GiB", "limit of 16.0 GiB", "16.0 GiB is in use", "free 3.0 GiB",
		`6.0 GiB of session 1 in 1 × array "params"`, `5.0 GiB of session 2 in 1 × array "table"`, "delete arrays"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	// A user's reference does not leave by itself; deleted, it leaves with the run that
	// reads it; held by a run that waits, it does not.
	table.Release(append(first, params), nil)
	inputs := []ID{other}
	if err := table.Hold(inputs); err != nil {
		t.Fatal(err)
	}
	if table.Delete(other) {
		t.Error("an input of a run that waits was freed")
	}
	next[0].ShardBytes = 4 * gib
	if _, ok, err := table.Admit(2, inputs, next, nil); ok || status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("a run that could wait for its own input alone: %t, %v", ok, err)
	}
	next[0].ShardBytes = 3 * gib
	ids, ok, err := table.Admit(2, inputs, next, nil)
	if !ok || err != nil {
		t.Fatalf("a run that just fits: %t, %v", ok, err)
	}
	if u := table.Device(2); u.InUse != 16*gib || u.Leaving != 5*gib {
		t.Errorf("device 2: %+v", u)
	}
	if freed := table.Release(inputs, nil); !slices.Equal(freed, inputs) {
		t.Errorf("freed %v, want %v", freed, inputs)
	}

	// What NumPy sees stays, past its owner too, and errors name it.
	if err := table.Pin(params); err != nil {
		t.Fatal(err)
	}
	if freed := table.DropOwner(1, nil); !slices.Equal(freed, first[:1]) {
		t.Errorf("freed %v, want %v", freed, first[:1])
	}
	_, _, err = table.Admit(2, nil, []Spec{{ShardBytes: 17 * gib, Placement: place(0), Label: "big"}}, nil)
	for _, part := range []string{"session 1 (closed)", "6.0 GiB held by NumPy", "use smaller arrays"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	if _, err := table.Create(1, next[0]); status.CodeOf(err) != status.NotFound {
		t.Errorf("create for an owner that was dropped: %v", err)
	}
	if !table.Unpin(params) {
		t.Error("the last pin freed nothing")
	}
	table.Release(ids, nil)
	table.DropOwner(2, nil)
	if table.Len() != 0 || table.Total() != (Usage{}) {
		t.Errorf("%d objects of %+v are left", table.Len(), table.Total())
	}
}

// The first failure holds, with code and text, for all who ask.
func TestErrors(t *testing.T) {
	table, p := benchTable(t, 1)
	id, _ := table.Create(1, Spec{ShardBytes: 4, Placement: p, Label: "x"})
	if err := table.Hold([]ID{id}); err != nil {
		t.Fatal(err)
	}
	if table.Fail(id, errLost) || table.Fail(id, status.New(status.Internal, "later")) {
		t.Error("memory that a run holds was freed")
	}
	for range 2 {
		if s, err := table.State(id); s != Failed || err != errLost {
			t.Errorf("%v with %v", s, err)
		}
	}
	if _, ok, err := table.Admit(1, []ID{id}, nil, nil); ok || err != errLost {
		t.Errorf("a run of a failed input: %t, %v", ok, err)
	}
	if freed := table.Abandon([]ID{id}, nil); len(freed) != 1 {
		t.Error("the run's hold was the last, and freed nothing")
	}
	if table.Unref(id) {
		t.Error("freed twice")
	}
	id, _ = table.Create(1, Spec{ShardBytes: 4, Placement: p})
	table.SetReady(id)
	if s, err := table.State(id); table.Fail(id, errLost) || s != Ready || err != nil {
		t.Errorf("failing what is ready: %v with %v", s, err)
	}
	if s, err := table.State(id); s != Ready || err != nil || !table.Unref(id) {
		t.Errorf("what was ready is %v with %v", s, err)
	}
	id, _ = table.Create(1, Spec{ShardBytes: 4, Placement: p, Label: "x"})
	if !table.Fail(id, nil) {
		t.Error("a failed object keeps memory")
	}
	if _, err := table.State(id); status.CodeOf(err) != status.Internal {
		t.Errorf("a failure without a reason: %v", err)
	}
	if table.Delete(id) {
		t.Error("freed twice")
	}
	if _, err := table.State(id); status.CodeOf(err) != status.FailedPrecondition || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("a deleted object: %v", err)
	}
}

// Many goroutines make, share, run and drop; the sums agree in the end, and no limit
// is passed on the way.
func TestParallel(t *testing.T) {
	table := New()
	var places []Placement
	for _, devices := range [][]int{{0}, {1}, {0, 1}} {
		p, _ := table.Place(devices)
		places = append(places, p)
	}
	const limit = 64
	for d := range 2 {
		if err := table.SetLimit(d, limit); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			o := Owner(g)
			if err := table.AddOwner(o, fmt.Sprintf("session %d", g)); err != nil {
				t.Error(err)
			}
			var kept []ID
			for i := range 2000 {
				specs := []Spec{{ShardBytes: int64(i % 7), Placement: places[i%3]}, {ShardBytes: 3, Placement: places[(i+g)%3], Purpose: Scratch}}
				if err := table.Hold(kept); err != nil {
					t.Error(err)
					return
				}
				made, ok, err := table.Admit(o, kept, specs, nil)
				if !ok {
					if err != nil && status.CodeOf(err) != status.ResourceExhausted {
						t.Error(err)
					}
					table.Abandon(kept, nil)
					table.UnrefAll(kept, nil)
					kept = kept[:0]
					continue
				}
				if u := table.Device(i % 2); u.InUse > limit {
					t.Errorf("device %d has %d bytes of %d", i%2, u.InUse, limit)
				}
				table.SetReady(made[0])
				table.Release(made, table.Release(kept, nil))
				if kept = append(kept, made[0]); len(kept) > 3 {
					table.Unref(kept[0])
					kept = kept[1:]
				}
			}
			table.DropOwner(o, nil)
		})
	}
	wg.Wait()
	table.check()
	if table.Len() != 0 || table.Total() != (Usage{}) {
		t.Errorf("%d objects of %+v are left", table.Len(), table.Total())
	}
}

// Once the table has grown to the load, objects and runs cost no memory, and no more
// on many devices than on one.
func TestDoesNotAllocate(t *testing.T) {
	if checked {
		t.Skip("the checks of the build tag invariants allocate")
	}
	for _, devices := range []int{1, 8, 4096} {
		table, p := benchTable(t, devices)
		in, _ := table.Create(1, Spec{ShardBytes: 1, Placement: p})
		inputs := []ID{in}
		specs := []Spec{{ShardBytes: 1, Placement: p}, {ShardBytes: 1, Placement: p, Purpose: Scratch}}
		var ids, freed []ID
		round := func() {
			id, _ := table.Create(1, Spec{ShardBytes: 1, Placement: p})
			table.Unref(id)
			_ = table.Hold(inputs)
			ids, _, _ = table.Admit(1, inputs, specs, ids[:0])
			freed = table.Release(ids, table.Release(inputs, freed[:0]))
			table.Unref(ids[0])
		}
		round()
		if n := testing.AllocsPerRun(1000, round); n != 0 {
			t.Errorf("%d devices: %v allocations a round, want 0", devices, n)
		}
	}
}
