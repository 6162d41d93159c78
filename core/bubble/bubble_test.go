package bubble_test

import (
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
)

// Goroutines that find their tickers due at the same moment.
func TestTickersThatAreDueTogether(t *testing.T) {
	const bubbles, goroutines, ticks = 20, 64, 200
	for range bubbles {
		bubble.Test(t, func(t *testing.T) {
			var ends sync.WaitGroup
			for range goroutines {
				ends.Go(func() { lookAtTicker(t, ticks) })
			}
			ends.Wait()
		})
	}
}

func lookAtTicker(t *testing.T, ticks int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := range ticks {
		time.Sleep(time.Millisecond)
		select {
		case <-tick.C:
		default:
			t.Errorf("tick %d did not come", n)
			return
		}
	}
}
