package embedded

import (
	"context"
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// The devices of this process are granted as those of a cluster are.
func TestLocalSlices(t *testing.T) {
	s, err := begin(1, "session", []string{"cpu", "cpu", "cpu"}, executor.NewIsland(nil, schedule.Config{}), unlimited(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	first, devices, err := s.Grant(ctx, placement.Want{Devices: 2, Kind: "cpu", Island: placement.DefaultIsland})
	if err != nil || fmt.Sprint(devices) != "[0 1]" {
		t.Fatalf("the first slice is %v, %v", devices, err)
	}
	second, devices, err := s.Grant(ctx, placement.Want{Devices: 2})
	if err != nil || second == first || fmt.Sprint(devices) != "[0 2]" {
		t.Fatalf("the second slice is %d, %v, %v", second, devices, err)
	}
	if _, _, err := s.Grant(ctx, placement.Want{Devices: 4}); status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("4 devices of 3 returned %v", err)
	}
	s.Release(first)
	if devices, err := s.Remap(ctx, second); err != nil || fmt.Sprint(devices) != "[0 2]" {
		t.Errorf("remapped to %v, %v", devices, err)
	}
	if _, err := s.Remap(ctx, first); status.CodeOf(err) != status.NotFound {
		t.Errorf("remapping what was released returned %v", err)
	}
	s.Close()
	if _, err := s.Remap(ctx, second); status.CodeOf(err) != status.Unavailable {
		t.Errorf("remapping after the session's end returned %v", err)
	}
	if _, _, err := s.Grant(ctx, placement.Want{Devices: 1}); status.CodeOf(err) != status.Unavailable {
		t.Errorf("a slice after the session's end returned %v", err)
	}
}
