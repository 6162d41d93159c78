package wire

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Ages have as many digits as people need; short ones are not rounded to nothing.
func TestAges(t *testing.T) {
	for ms, want := range map[int64]string{0: "0s", 8: "8ms", 140: "100ms", 1260: "1.3s", 75_400: "1m15s"} {
		statustest.Equal(t, Age(ms).String(), want, "%d ms", ms)
	}
}
