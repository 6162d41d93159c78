package pjrt

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestErrorsOfHandlersKeepTheirCode(t *testing.T) {
	ours := textOf(status.New(status.Unavailable, "worker a is gone: it burnt"))
	for _, c := range []struct {
		code       status.Code
		text, want string
	}{
		{status.Unavailable, ours, "UNAVAILABLE: worker a is gone: it burnt"},
		{status.Internal, dispatching + ours, "UNAVAILABLE: worker a is gone: it burnt"},
		{status.Internal, "Buffer Definition Event: " + dispatching + ours, "UNAVAILABLE: worker a is gone: it burnt"},
		{status.Internal, dispatching + "CpuCallback: no", "INTERNAL: " + dispatching + "CpuCallback: no"},
		{status.InvalidArgument, "no: such: shape", "INVALID_ARGUMENT: no: such: shape"},
		{status.Unknown, "", "UNKNOWN: "},
	} {
		statustest.Equal(t, textOf(coded(c.code, c.text)), c.want, "%v, %q", c.code, c.text)
	}
}
