//go:build !race && !invariants

package epoch

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A value of any size arrives, or its Put fails with a sentence; the epoch goes on.
func TestValuesOfAllSizes(t *testing.T) {
	each(t, Limits{}, func(t *testing.T, w where) {
		for _, mib := range []int{0, 62, 63, 64, 65, 200} {
			members := w.gather(t, "a", "b")
			value := make([]byte, mib<<20)
			switch err := members[0].Put(t.Context(), "k", value); {
			case mib < 63:
				statustest.Checkf(t, err, "a value of %d MiB", mib)
				got, err := members[1].Get(t.Context(), "k")
				if err != nil || len(got) != len(value) {
					t.Errorf("a value of %d MiB arrives with %d bytes, %v", mib, len(got), err)
				}
			case mib < 64:
				statustest.Fails(t, "a value of 63 MiB", err, status.ResourceExhausted, "exceed the limit")
			default:
				statustest.Fails(t, "a value that no message holds", err, status.InvalidArgument, "a message has at most")
			}
			statustest.Checkf(t, members[1].Put(t.Context(), "next", nil), "behind a value of %d MiB", mib)
			for _, m := range members {
				m.Close()
			}
		}
	})
}
