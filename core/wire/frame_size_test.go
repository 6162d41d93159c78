package wire_test

import (
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// An error of any length keeps its code, its beginning and its end, and is short.
func TestLongErrorIsCut(t *testing.T) {
	for _, bytes := range []int{0, 16 << 10, 1 << 20, 200 << 20} {
		err := status.New(status.Internal, "begins%sends", strings.Repeat("x", bytes))
		got := wire.Of(err).Err()
		text := got.Error()
		if status.CodeOf(got) != status.Internal || !strings.HasPrefix(text, "begins") || !strings.HasSuffix(text, "ends") {
			t.Errorf("%d bytes became %v: %.20s", bytes, status.CodeOf(got), text)
		}
		if len(text) > 17<<10 {
			t.Errorf("%d bytes became %d", bytes, len(text))
		}
		statustest.Equal(t, len(err.Error()) <= 16<<10, text == err.Error(),
			"%d bytes became %d, and were to stay as they were", bytes, len(text))
	}
}
