package embedded

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// granted asks for a slice and waits for it.
func granted(s grant.Slices, w placement.Want) (uint64, []int, error) {
	a, err := s.Ask(w, grant.Terms{})
	if err != nil {
		return 0, nil, err
	}
	devices, err := a.Wait(context.Background())
	return a.Number, devices, err
}

// The devices of this process are granted as those of a cluster are.
func TestDevicesOfThisProcessAreGranted(t *testing.T) {
	s, err := begin(1, "session", []string{"cpu", "cpu", "cpu"}, executor.NewIsland(nil, schedule.Config{}), unlimited(t))
	statustest.OK(t, err)
	ctx := context.Background()
	first, devices, err := granted(s, placement.Want{Devices: 2, Kind: "cpu", Island: placement.DefaultIsland})
	if err != nil || fmt.Sprint(devices) != "[0 1]" {
		t.Fatalf("the first slice is %v, %v", devices, err)
	}
	second, devices, err := granted(s, placement.Want{Devices: 2})
	if err != nil || second == first || fmt.Sprint(devices) != "[0 2]" {
		t.Fatalf("the second slice is %d, %v, %v", second, devices, err)
	}
	statustest.Fails(t, "4 devices of 3", statustest.Of2(granted(s, placement.Want{Devices: 4})), status.ResourceExhausted)
	s.Release(first)
	statustest.Equal(t, fmt.Sprint(statustest.Value(s.Remap(ctx, second)).OK(t)), "[0 2]", "remapped to")
	statustest.Fails(t, "remapping what was released", statustest.Of(s.Remap(ctx, first)), status.NotFound)
	s.Close()
	statustest.Fails(t, "remapping after the session's end", statustest.Of(s.Remap(ctx, second)), status.Unavailable)
	statustest.Fails(t, "a slice after the session's end", statustest.Of2(granted(s, placement.Want{Devices: 1})),
		status.Unavailable)
}

// A request waits until its devices are released, for as long as it may.
func TestLocalRequestsWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := statustest.Value(newLocal([]string{"cpu", "cpu", "cpu"})).OK(t)
		ctx := context.Background()
		first, _, err := granted(l, placement.Want{Devices: 2, Exclusive: true})
		statustest.OK(t, err)
		ask := func(devices int, wait time.Duration) *grant.Request {
			a := statustest.Value(l.Ask(placement.Want{Devices: devices, Exclusive: true}, grant.Terms{Wait: wait})).OK(t)
			return a
		}
		short, long, behind := ask(3, time.Second), ask(3, grant.Forever), ask(1, time.Hour)
		if at, lacks := short.Position(); at != 1 || lacks != "2 are in other slices of this process" {
			t.Errorf("the first request waits as number %d: %s", at, lacks)
		}
		if at, lacks := behind.Position(); at != 3 || lacks != "1 is reserved for an earlier request of this process" {
			t.Errorf("the last request waits as number %d: %s", at, lacks)
		}
		begun := time.Now()
		if _, err := short.Wait(ctx); status.CodeOf(err) != status.ResourceExhausted || time.Since(begun) != time.Second {
			t.Errorf("after %v the request ended with %v", time.Since(begun), err)
		}
		l.Release(first)
		statustest.Equal(t, fmt.Sprint(statustest.Value(long.Wait(ctx)).OK(t)), "[0 1 2]", "granted")
		l.Release(behind.Number)
		statustest.Fails(t, "a cancelled request", statustest.Of(behind.Wait(ctx)), status.Cancelled)
		last := ask(1, grant.Forever)
		l.end(status.New(status.Unavailable, "it ends"))
		statustest.Fails(t, "after the session's end a request", statustest.Of(last.Wait(ctx)), status.Unavailable)
	})
}
