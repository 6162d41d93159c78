package host

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
)

// share returns how many processors Go has by itself.
func share() int {
	runtime.SetDefaultGOMAXPROCS()
	return runtime.GOMAXPROCS(0)
}

func processors(t *testing.T, when string, want int) {
	t.Helper()
	statustest.Equal(t, runtime.GOMAXPROCS(0), want, "%s: processors", when)
}

func TestSpareProcessorsAreThoseOfTheLargestAndAreGivenBack(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	usual := share()
	three := Spare(3)
	processors(t, "three are spare", usual+3)
	one := Spare(1)
	processors(t, "one more is asked for", usual+3)
	three()
	three()
	processors(t, "three were given back", usual+1)
	many := Spare(1 << 14)
	processors(t, "as many as there may be", usual+maxSpare)
	many()
	one()
	processors(t, "all were given back", usual)
}

func TestSpareProcessorsLeaveTheUsersChoiceAlone(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.GOMAXPROCS(0)
	defer Spare(5)()
	processors(t, "where the environment says how many", before)
}

// bound returns the processors that this thread may run on, and one of them.
func bound(t *testing.T) (all, one unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		t.Skipf("this thread may run on %d processors (%v); the test takes one away", all.Count(), err)
	}
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			one.Set(i)
			break
		}
	}
	return all, one
}

func TestSecondProcessorIsSpareWhereThereIsOne(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	usual := share()
	defer share()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, one := bound(t)
	none := Second()
	processors(t, "there are several", usual)
	none()
	statustest.OK(t, unix.SchedSetaffinity(0, &one))
	defer func() { statustest.OK(t, unix.SchedSetaffinity(0, &all)) }()
	share()
	first, second := Second(), Second()
	processors(t, "there is one", 2)
	first()
	processors(t, "another one needs it", 2)
	second()
	processors(t, "none needs it", 1)
}

// A share of the machine that changes meanwhile counts, as it does without spare processors.
func TestSpareProcessorsFollowTheShareOfTheMachine(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	usual := share()
	defer share()
	giveBack := Spare(3)
	defer giveBack()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, one := bound(t)
	set := func(to *unix.CPUSet, want int) {
		t.Helper()
		statustest.OK(t, unix.SchedSetaffinity(0, to))
		spare.mu.Lock()
		follow()
		spare.mu.Unlock()
		processors(t, "the share has changed", want)
	}
	set(&one, 1+3)
	set(&all, usual+3)
}
