package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestATallyShrinks(t *testing.T) {
	var loaded tally
	for _, slot := range []int{5, 1000, 5} {
		loaded.add(slot)
	}
	loaded.remove(1000)
	statustest.EqualSlices(t, loaded, tally{0, 0, 0, 0, 0, 2}, "counts")
	loaded.remove(5)
	loaded.remove(5)
	if loaded != nil {
		t.Errorf("a tally of nothing has room for %d slots", cap(loaded))
	}
}
