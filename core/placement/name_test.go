package placement

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestNamesInTheOrderOfPeople(t *testing.T) {
	want := []string{"", "a", "a:7", "worker-0", "worker-1", "worker-02", "worker-2", "worker-10", "worker-10a",
		"worker-10b"}
	got := []string{"worker-10b", "worker-02", "a:7", "worker-10", "", "worker-2", "worker-1", "a", "worker-10a",
		"worker-0"}
	slices.SortStableFunc(got, CompareNames)
	statustest.EqualSlices(t, got, want, "got")
	for _, a := range want {
		for _, b := range want {
			if CompareNames(a, b) != -CompareNames(b, a) {
				t.Errorf("%q and %q are in no order", a, b)
			}
		}
	}
}
