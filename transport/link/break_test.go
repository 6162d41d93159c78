package link

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

func TestEveryFrameArrivesOnceHoweverOftenTheConnectionBreaks(t *testing.T) {
	const frames = 5000
	for _, every := range []time.Duration{time.Hour, 400 * time.Millisecond, 30 * time.Millisecond} {
		inWorld(t, Config{Lease: lease}, func(w *world) {
			near, far, _ := w.dial()
			pause := func() {
				if rand.IntN(10) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			done := make(chan error, 4)
			for _, c := range []transport.Conn{near, far} {
				go func() { done <- send(c, frames, pause) }()
				go func() {
					err := receive(c, frames)
					done <- err
					for err == nil { // so that acknowledgments are read, and lines replaced
						_, _, err = c.Recv()
					}
				}()
			}
			breaks := time.NewTicker(every)
			defer breaks.Stop()
			for left := 4; left > 0; {
				select {
				case err := <-done:
					statustest.Check(t, err)
					left--
				case <-breaks.C:
					w.network.Break("client")
				}
			}
			end(near, far)
		})
	}
}

// A connection may break behind any of its messages, also of those by which the link is made and resumed, and once more
// behind any of the next: each frame arrives once all the same. A Hello that comes late, once more, changes nothing.
func TestEveryFrameArrivesOnceBehindWhicheverMessageTheConnectionBreaks(t *testing.T) {
	const frames, messages, next = 12, 17, 8
	for first := range messages {
		for second := 1; second <= next; second++ {
			inWorld(t, Config{Lease: lease}, func(w *world) {
				var mu sync.Mutex
				arrived, broke := 0, 0
				w.network.Conditions.Breaks = func(string, string) bool {
					mu.Lock()
					defer mu.Unlock()
					breaks := arrived == first || arrived == first+second
					arrived++
					if breaks {
						broke++
					}
					return breaks
				}
				w.network.Conditions.Repeats = func(string) time.Duration { return 5 * time.Millisecond }
				near, far, _ := w.dial()
				ended := make(chan error, 2)
				done := make(chan error, 4)
				for _, c := range []transport.Conn{near, far} {
					go func() { done <- send(c, frames, func() { time.Sleep(time.Millisecond / 2) }) }()
					go func() {
						done <- receive(c, frames)
						ended <- drain(c) // so that lines are replaced
					}()
				}
				for range 4 {
					statustest.Checkf(t, <-done, "breaks behind message %d, and %d later", first, second)
				}
				time.Sleep(time.Second)
				mu.Lock()
				if broke == 0 {
					t.Errorf("message %d, behind which the connection was to break, did not come", first)
				}
				mu.Unlock()
				end(near, far)
				<-ended
				<-ended
			})
		}
	}
}
