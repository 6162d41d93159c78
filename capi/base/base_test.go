package base_test

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func text(c *int8) string {
	var b []byte
	for p := unsafe.Pointer(c); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	return string(b)
}

func TestGuardTurnsAPanicIntoAnError(t *testing.T) {
	var code int32
	var message *int8
	func() {
		defer base.Guard(&code, &message)
		panic("the row is empty")
	}()
	statustest.Equal(t, status.Code(code), status.Internal, "code")
	const want = "this is a bug of Open Pathways, please report it: the row is empty\n"
	if got := text(message); len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("message %q, want it to begin with %q", got, want)
	}
}

func TestFailKeepsCodeAndText(t *testing.T) {
	for _, c := range []struct {
		err  error
		code status.Code
	}{
		{nil, status.OK},
		{status.New(status.NotFound, "no such plan"), status.NotFound},
		{errors.New("an error of another library"), status.Unknown},
	} {
		var message *int8
		statustest.Equal(t, status.Code(base.Fail(c.err, &message)), c.code, "%v: code", c.err)
		switch {
		case c.err == nil && message != nil:
			t.Errorf("no error, but the text %q", text(message))
		case c.err != nil && text(message) != c.err.Error():
			t.Errorf("text %q, want %q", text(message), c.err)
		}
	}
}
