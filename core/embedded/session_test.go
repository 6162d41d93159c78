package embedded

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const devices = 8

// unlimited returns an empty account with a limit that no test reaches. It counts, where one without a limit does not.
func unlimited(t testing.TB) *account {
	t.Helper()
	memory := statustest.Value(newAccount(devices, 1<<40)).OK(t)
	return memory
}

func open(t testing.TB, id uint32, memory *account) *Session {
	t.Helper()
	cells := make([]*executor.Cell, 4)
	for i := range cells {
		cells[i] = new(executor.Cell)
	}
	s, err := begin(id, "session", make([]string, devices), executor.NewIsland(cells, schedule.Config{}), memory)
	statustest.OKf(t, err, "Open")
	t.Cleanup(s.Close)
	return s
}

func add(t testing.TB, s *Session, on []int, outputs ...int64) uint64 {
	t.Helper()
	id, err := s.AddProgram(Program{Name: "step", Devices: on, Outputs: outputs})
	if err != nil || id == 0 {
		t.Fatalf("AddProgram: %d, %v", id, err)
	}
	return id
}

func upTo(n int) []int {
	on := make([]int, n)
	for i := range on {
		on[i] = i
	}
	return on
}

func submit(t testing.TB, s *Session, r Run, outputs int) (executor.Turn, []uint64) {
	t.Helper()
	objects := make([]uint64, outputs)
	turn, err := s.Submit(r, &Admitted{Objects: objects})
	statustest.OKf(t, err, "Submit")
	return turn, objects
}

// end ends a launch as the thread does that ran it.
func end(s *Session, turn executor.Turn) {
	if turn.Cell != nil && turn.Cell.Or(executor.CellEnded)&executor.CellWanted != 0 {
		s.Island().Report(turn.Gang)
	}
}

// holds asserts the number of objects and the bytes in use on each device.
func holds(t testing.TB, s *Session, what string, objects int, bytes ...int64) {
	t.Helper()
	statustest.Equal(t, s.Objects(), objects, "%s: objects", what)
	for d := range devices {
		var want int64
		if d < len(bytes) {
			want = bytes[d]
		}
		statustest.Equal(t, s.Memory(d).InUse, want, "%s: bytes in use on device %d", what, d)
	}
}

func TestProgramsThatAreNotThere(t *testing.T) {
	s := open(t, 1, unlimited(t))
	gone := add(t, s, upTo(devices), 8)
	s.Forget(gone)
	s.Forget(gone)
	s.Forget(12345)
	if id := add(t, s, upTo(devices), 8); id == gone {
		t.Errorf("the number %d of a forgotten program is given again", id)
	}
	for _, id := range []uint64{0, gone, 12345, 1 << 63} {
		turn, err := s.Submit(Run{Program: id, Only: -1}, &Admitted{Objects: make([]uint64, 1)})
		statustest.Fails(t, "Submit", err, status.NotFound, "program", "deleted")
		statustest.Equal(t, turn, (executor.Turn{}), "a refused run has turn")
	}
	holds(t, s, "after runs that were refused", 0)
}

func TestAddProgramRefuses(t *testing.T) {
	s := open(t, 1, unlimited(t))
	for _, on := range [][]int{{-1}, {devices}, {0, devices}, {}, {3, 3}} {
		statustest.Fails(t, fmt.Sprintf("a program on devices %v", on),
			statustest.Of(s.AddProgram(Program{Name: "bad", Devices: on})), status.InvalidArgument)
	}
}

// An output is one object, whatever the number of devices, and is counted on each
// of them.
func TestOutputsAreCounted(t *testing.T) {
	s := open(t, 1, unlimited(t))
	program := add(t, s, []int{3, 1, 2}, 100, 28)
	none := add(t, s, upTo(devices))
	var all []uint64
	for n := range int64(3) {
		holds(t, s, "after some runs", int(2*n), 0, 128*n, 128*n, 128*n)
		turn, objects := submit(t, s, Run{Program: program, Only: -1}, 2)
		end(s, turn)
		all = append(all, objects...)
	}
	turn, _ := submit(t, s, Run{Program: none, Only: -1}, 0)
	end(s, turn)
	holds(t, s, "after a run without outputs", 6, 0, 384, 384, 384)
	s.Forget(program) // its results stay
	s.Free(all[0])
	holds(t, s, "without one output", 5, 0, 284, 284, 284)
	for _, o := range all[1:] {
		s.Free(o)
	}
	holds(t, s, "without any", 0)
}

// A portable program runs on the one device that is asked for.
func TestPortableProgramRunsOnTheGivenDevice(t *testing.T) {
	s := open(t, 1, unlimited(t))
	turn, _ := submit(t, s, Run{Program: add(t, s, upTo(devices)), Only: -1}, 0)
	defer end(s, turn)
	program := add(t, s, []int{0}, 10)
	one, on5 := submit(t, s, Run{Program: program, Only: 5}, 1)
	if !one.Now || one.Cell != nil {
		t.Errorf("a run on one device: %+v, want its turn at once", one)
	}
	holds(t, s, "on device 5", 1, 0, 0, 0, 0, 0, 10)
	_, on0 := submit(t, s, Run{Program: program, Only: -1}, 1)
	holds(t, s, "where it was compiled for", 2, 10, 0, 0, 0, 0, 10)
	_, err := s.Submit(Run{Program: program, Only: devices}, &Admitted{Objects: make([]uint64, 1)})
	statustest.Fails(t, "Submit", err, status.InvalidArgument, "device 8", "8 devices")
	s.Free(on5[0])
	s.Free(on0[0])
	holds(t, s, "without any", 0)
}

func TestRunsWaitForWhatTheyReadAndNestedOnesDoNot(t *testing.T) {
	s := open(t, 1, unlimited(t))
	left, right := add(t, s, []int{0, 1}), add(t, s, []int{2, 3})
	first, _ := submit(t, s, Run{Program: left, Only: -1}, 0)
	reads, _ := submit(t, s, Run{Program: right, Only: -1, After: []uint64{first.Gang}}, 0)
	if reads.Now {
		t.Error("a run has its turn before what it reads from was launched")
	}
	nested, _ := submit(t, s, Run{Program: left, Only: -1, Nested: true}, 0)
	if !nested.Now {
		t.Error("a run from inside a callback waits for its own turn")
	}
	end(s, first)
	statustest.Check(t, s.Island().Await(reads.Gang))
	s.Island().Completed(reads.Gang)
}

// A run that comes to nothing leaves no object and no turn.
func TestSubmitUndoesItself(t *testing.T) {
	s := open(t, 1, unlimited(t))
	good, bad := add(t, s, upTo(devices), 8), add(t, s, upTo(devices), 8, 8, -1)
	_, err := s.Submit(Run{Program: good, Only: -1}, &Admitted{Objects: make([]uint64, 2)})
	statustest.Fails(t, "Submit with room for other outputs", err, status.Internal, "1 outputs", "for 2")

	_, err = s.Submit(Run{Program: bad, Only: -1}, &Admitted{Objects: make([]uint64, 3)})
	statustest.Fails(t, "Submit", err, status.InvalidArgument)
	holds(t, s, "after a run with its turn", 0)
	turn, objects := submit(t, s, Run{Program: good, Only: -1}, 1)
	if !turn.Now {
		t.Fatal("the run that came to nothing kept its turn")
	}
	_, err = s.Submit(Run{Program: bad, Only: -1}, &Admitted{Objects: make([]uint64, 3)}) // has to wait
	statustest.Fails(t, "Submit", err, status.InvalidArgument)
	holds(t, s, "after a run that had to wait", 1, 8, 8, 8, 8, 8, 8, 8, 8)
	next, more := submit(t, s, Run{Program: good, Only: -1}, 1)
	end(s, turn)
	statustest.Checkf(t, s.Island().Await(next.Gang), "behind a run that came to nothing")
	s.Island().Completed(next.Gang)
	s.Free(objects[0])
	s.Free(more[0])
	holds(t, s, "without any", 0)
}

func TestPlaceCountsAnArrayOnItsDevice(t *testing.T) {
	s := open(t, 1, unlimited(t))
	a := statustest.Value(s.Place(2, 40)).OK(t)
	b, err := s.Place(2, 2)
	statustest.OK(t, err)
	holds(t, s, "two arrays", 2, 0, 0, 42)
	for _, d := range []int{-1, devices} {
		statustest.Fails(t, "Place", statustest.Of(s.Place(d, 1)), status.InvalidArgument, "8 devices")
	}
	_, err = s.Place(0, -1)
	statustest.Fails(t, "Place", err, status.InvalidArgument)
	s.Free(a)
	s.Free(b)
	holds(t, s, "without any", 0)
}

// What names no object, or one that has gone, frees nothing.
func TestFreeOfStaleObjects(t *testing.T) {
	s := open(t, 1, unlimited(t))
	old := statustest.Value(s.Place(0, 1)).OK(t)
	s.Free(old)
	object, err := s.Place(0, 2) // where the old one was
	if err != nil || object == old {
		t.Fatalf("object %d after %d: %v", object, old, err)
	}
	for _, id := range []uint64{old, 0, 1, 12345, 1 << 40, ^uint64(0)} {
		if id != object {
			s.Free(id)
		}
	}
	holds(t, s, "after stale numbers", 1, 2)
	s.Free(object)
	s.Free(object)
	holds(t, s, "without any", 0)
}

func TestSessionNumberInUseIsRefused(t *testing.T) {
	memory := unlimited(t)
	open(t, 1, memory)
	_, err := begin(1, "again", make([]string, devices), executor.NewIsland(nil, schedule.Config{}), memory)
	statustest.Fails(t, "Open with a number that is taken", err, status.AlreadyExists)
}

type verdict struct{ err chan error }

func (v verdict) Launch(uint64) bool     { v.err <- nil; return false }
func (v verdict) Fail(_ uint64, e error) { v.err <- e }

// All that a session made goes with it, and nothing of others.
func TestCloseFreesOnlyItsOwnSession(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		memory := unlimited(t)
		s, other := open(t, 1, memory), open(t, 2, memory)
		statustest.OK(t, statustest.Of(other.Place(7, 5)))
		program := add(t, s, upTo(devices), 16)
		turn, objects := submit(t, s, Run{Program: program, Only: -1}, 1)
		queued, _ := submit(t, s, Run{Program: program, Only: -1}, 1)
		v := verdict{make(chan error, 2)}
		s.Island().Arm(queued.Gang, v)
		statustest.OK(t, statustest.Of(s.Place(0, 1)))
		holds(t, s, "before", 4, 33, 32, 32, 32, 32, 32, 32, 37)
		s.Close()
		holds(t, s, "after", 1, 0, 0, 0, 0, 0, 0, 0, 5)
		statustest.Fails(t, "a run that waited", <-v.err, status.Cancelled, "shut down")
		_, err := s.Submit(Run{Program: program, Only: -1}, &Admitted{Objects: make([]uint64, 1)})
		statustest.Fails(t, "Submit after Close", err, status.Unavailable, "shut down")
		if _, err := s.Place(0, 1); err == nil {
			t.Error("Place after Close made an object")
		}
		s.Free(objects[0])
		end(s, turn)
		s.Close()
		synctest.Wait()
		if len(v.err) > 0 {
			t.Errorf("a run that waited has a second verdict: %v", <-v.err)
		}
		holds(t, other, "of the other session", 1, 0, 0, 0, 0, 0, 0, 0, 5)
	})
}

// Whatever threads do at the same time, all is accounted for in the end.
func TestAllIsAccountedForWhateverThreadsDo(t *testing.T) {
	s := open(t, 1, unlimited(t))
	var threads sync.WaitGroup
	for n := range 4 {
		threads.Go(func() {
			for round := range 100 {
				program := add(t, s, upTo(1+(n+round)%devices), 8, 8)
				turn, objects := submit(t, s, Run{Program: program, Only: -1}, 2)
				if !turn.Now {
					statustest.Check(t, s.Island().Await(turn.Gang))
					s.Island().Completed(turn.Gang)
				}
				end(s, turn)
				s.Forget(program)
				placed, err := s.Place(n, 1)
				statustest.Check(t, err)
				for _, o := range append(objects, placed) {
					s.Free(o)
				}
			}
		})
	}
	threads.Wait()
	holds(t, s, "in the end", 0)
	turn, _ := submit(t, s, Run{Program: add(t, s, upTo(devices)), Only: -1}, 0)
	if !turn.Now {
		t.Error("in the end gangs still wait: a run on all devices does not have its turn at once")
	}
	end(s, turn)
}

// What a run costs the core: its turn, its results' objects, and the end of them.
func BenchmarkSubmitFree(b *testing.B) {
	for _, c := range []struct {
		name             string
		devices, outputs int
	}{{"devices=1/outputs=1", 1, 1}, {"devices=8/outputs=1", 8, 1}, {"devices=8/outputs=16", 8, 16}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, 1, unlimited(b))
			program := add(b, s, upTo(c.devices), make([]int64, c.outputs)...)
			objects := make([]uint64, c.outputs)
			b.ReportAllocs()
			for b.Loop() {
				turn, err := s.Submit(Run{Program: program, Only: -1}, &Admitted{Objects: objects})
				if err != nil || !turn.Now {
					b.Fatal("no turn", err)
				}
				end(s, turn)
				for _, o := range objects {
					s.Free(o)
				}
			}
		})
	}
}
