package host

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestBehindIsOneThreadOnly(t *testing.T) {
	usual := statustest.Value(nice()).OK(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Behind()
		if got, err := nice(); err != nil || got != min(usual+behind, 19) {
			t.Errorf("the thread is nice by %d (%v), want %d", got, err, min(usual+behind, 19))
		}
		made := make(chan int)
		go func() { // on another thread, since this one is the goroutine's alone
			n, _ := nice()
			made <- n
		}()
		if got := <-made; got != usual {
			t.Errorf("a goroutine that it starts is nice by %d, want %d as usual", got, usual)
		}
	}()
	<-done
	if got, err := nice(); err != nil || got != usual {
		t.Errorf("another thread is nice by %d (%v), want %d as before", got, err, usual)
	}
}
