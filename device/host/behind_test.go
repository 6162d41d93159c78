package host

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// slice returns the slice of a thread, 0 for the calling one, in nanoseconds.
func slice(t *testing.T, thread int) uint64 {
	t.Helper()
	a, err := unix.SchedGetAttr(thread, 0)
	if err != nil {
		t.Fatal(err)
	}
	return a.Runtime
}

func TestBehindIsOneThreadOnly(t *testing.T) {
	usual := slice(t, 0)
	if usual == 0 || usual == longSlice {
		t.Skip("this Linux knows no slices of single threads")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Behind()
		if got := slice(t, 0); got != longSlice {
			t.Errorf("the slice is %d ns, want %d", got, longSlice)
		}
		made := exec.Command("cat")
		input, err := made.StdinPipe()
		if err != nil || made.Start() != nil {
			t.Errorf("a child does not start (%v)", err)
			return
		}
		if got := slice(t, made.Process.Pid); got != usual {
			t.Errorf("the slice of what the thread makes is %d ns, want %d as usual", got, usual)
		}
		input.Close()
		if err := made.Wait(); err != nil {
			t.Error(err)
		}
	}()
	<-done
	if got := slice(t, 0); got != usual {
		t.Errorf("another thread's slice is %d ns, want %d as before", got, usual)
	}
}
