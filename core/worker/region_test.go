package worker

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A region outside its array is refused before anything is copied.
func TestRegionOutsideItsArrayIsRefused(t *testing.T) {
	for _, b := range []region{
		{from: []int64{4}, start: []int64{3}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{-1}, size: []int64{2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{0}, size: []int64{-2}, at: []int64{0}},
		{from: []int64{4}, start: []int64{1 << 62}, size: []int64{4}, at: []int64{0}},
		{from: []int64{4, 4}, start: []int64{0}, size: []int64{1}, at: []int64{0}},
	} {
		statustest.Fails(t, fmt.Sprintf("%+v", b), b.check(), status.InvalidArgument)
	}
}
