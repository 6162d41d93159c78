package embedded

import (
	"fmt"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Each session that is opened stands by itself: devices, memory and order.
func TestSessionsAreIndependent(t *testing.T) {
	e := Embedded{Devices: []string{"cpu", "cpu"}, Limit: 1 << 20}
	var sessions [2]*Session
	for i := range sessions {
		e.Cells = []*executor.Cell{new(executor.Cell)}
		s := statustest.Value(e.Open()).OK(t)
		defer s.Close()
		sessions[i] = s
		program, err := s.AddProgram(Program{Name: "both", Devices: []int{0, 1}, Outputs: []int64{64}})
		statustest.OK(t, err)
		turn, err := s.Submit(Run{Program: program, Only: -1}, &Admitted{Objects: make([]uint64, 1)})
		if err != nil || !turn.Now {
			t.Fatalf("the first run of a session: %+v, %v", turn, err)
		}
		for d := range 2 {
			if u := s.Memory(d); u.InUse != 64 || u.Limit != 1<<20 {
				t.Errorf("device %d: %+v, want 64 bytes in use of %d", d, u, 1<<20)
			}
		}
		statustest.Fails(t, "a program on a device that is not there",
			statustest.Of(s.AddProgram(Program{Name: "third", Devices: []int{2}})), status.InvalidArgument)
	}
	sessions[0].Close()
	statustest.Equal(t, sessions[1].Objects(), 1, "objects after the end of another session")
}

// A session without a memory limit counts nothing, and says that it need not be asked. One with a limit has to be.
func TestOnlyALimitIsCounted(t *testing.T) {
	for _, limit := range []int64{0, 100} {
		pass := new(executor.Pass)
		s := statustest.Value(Embedded{Devices: []string{"cpu"}, Limit: limit, Pass: pass}.Open()).OK(t)
		defer s.Close()
		counts := limit > 0
		if passes := pass.Load() == 1; passes == counts {
			t.Errorf("limit %d: a run needs no turn is %v", limit, passes)
		}
		object, err := s.Place(0, 64)
		if err != nil || (object != 0) != counts {
			t.Errorf("limit %d: an array is object %d, %v", limit, object, err)
		}
		if _, err := s.Place(0, 64); (err != nil) != counts {
			t.Errorf("limit %d: as much again returned %v", limit, err)
		}
		s.Free(object)
		if s.Close(); pass.Load() != 0 {
			t.Errorf("limit %d: a run needs no turn after the end of its session", limit)
		}
	}
}

// What a run takes while it runs counts until its end is told; what would fit alone may wait.
func TestRunsUnderWayCount(t *testing.T) {
	s := statustest.Value(Embedded{Devices: []string{"cpu"}, Limit: 100}.Open()).OK(t)
	defer s.Close()
	program := func(output, temp int64) uint64 {
		return statustest.Value(s.AddProgram(
			Program{Name: "step", Devices: []int{0}, Outputs: []int64{output}, Temp: temp})).OK(t)
	}
	admit := func(program uint64, taken int64) (Admitted, error) {
		out := Admitted{Objects: make([]uint64, 1)}
		_, err := s.Submit(Run{Program: program, Only: -1, Taken: taken}, &out)
		return out, err
	}
	large, huge := program(40, 20), program(90, 20)
	first, err := admit(large, 0)
	if err != nil || first.Computation == 0 {
		t.Fatalf("the first run: %+v, %v", first, err)
	}
	statustest.OKf(t, statustest.Of(admit(large, 0)), "the second run, beside the first")
	if _, err := admit(large, 0); !CanWait(err) {
		t.Errorf("no room now: %v, want an error that can wait", err)
	}
	statustest.Checkf(t, statustest.Of(admit(large, 40)), "in the memory of the first")
	if _, err := admit(huge, 0); status.CodeOf(err) != status.ResourceExhausted || CanWait(err) {
		t.Errorf("more than the limit: %v, want an error that cannot wait", err)
	}
	s.Free(first.Objects[0])
	s.Free(first.Computation)
	s.Free(first.Computation)
	statustest.Equal(t, s.Memory(0).InUse, 100, "bytes in use, 2 × 40 and 20 beside")
}

// A program's code is part of what its first run on a device needs, and counts until the program is forgotten and its
// runs have ended.
func TestCodeCountsFromTheFirstRun(t *testing.T) {
	s := statustest.Value(Embedded{Devices: []string{"gpu", "gpu"}, Limit: 100}.Open()).OK(t)
	defer s.Close()
	in := func(device int, want, code int64) {
		t.Helper()
		if u := s.Memory(device); u.InUse != want || s.Code(device) != code {
			t.Errorf("%d bytes are in use on device %d, %d of them code; want %d and %d", u.InUse, device, s.Code(device), want,
				code)
		}
	}
	program := func(code int64) uint64 {
		return statustest.Value(s.AddProgram(
			Program{Name: "step", Devices: []int{0}, Outputs: []int64{10}, CodeBytes: code})).OK(t)
	}
	run := func(program uint64, only int) (Admitted, error) {
		out := Admitted{Objects: make([]uint64, 1)}
		_, err := s.Submit(Run{Program: program, Only: only}, &out)
		return out, err
	}
	small, large := program(30), program(80)
	in(0, 0, 0)
	first, err := run(small, -1)
	if err != nil || first.Computation == 0 {
		t.Fatalf("the first run: %+v, %v", first, err)
	}
	statustest.OK(t, statustest.Of(run(small, -1)))
	in(0, 50, 30)
	in(1, 0, 0)
	statustest.OK(t, statustest.Of(run(small, 1)))
	in(1, 40, 30)
	if _, err := run(large, -1); !CanWait(err) || !strings.Contains(err.Error(), "30 bytes in 1 of code of step") {
		t.Errorf("code that does not fit now: %v, want an error that can wait and names the code that is there", err)
	}
	s.Free(first.Computation)
	s.Forget(small)
	in(0, 50, 30) // the second run is under way
	s.Free(first.Computation + 1)
	in(0, 50, 30) // and the one on the other device
	s.Free(first.Computation + 2)
	in(0, 20, 0)
	in(1, 10, 0)
	s.Free(first.Objects[0])
	statustest.Checkf(t, statustest.Of(run(large, -1)), "after the other program has gone")
}

func TestOpenRefusesBadSettings(t *testing.T) {
	for _, e := range []Embedded{{}, {Devices: []string{"cpu"}, Limit: -1}} {
		statustest.Fails(t, fmt.Sprintf("%+v", e), statustest.Of(e.Open()), status.InvalidArgument)
	}
}
