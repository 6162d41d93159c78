// Package statustest says what a test expects of a call: which error, or none, and which value. Only tests and their
// parts import it.
package statustest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/status"
)

// T is a test, or a trial of one.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test with the error of a call that it goes on from, if there is one.
func OK(t T, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Check fails the test with the error of a call, if there is one, and lets it go on; any goroutine may call it.
func Check(t T, err error) {
	if err != nil {
		t.Helper()
		t.Errorf("%v", err)
	}
}

// OKf is OK, and its error says what the call was.
func OKf(t T, err error, format string, args ...any) {
	if err != nil {
		t.Helper()
		t.Fatal(fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
	}
}

// Checkf is Check, and its error says what the call was.
func Checkf(t T, err error, format string, args ...any) {
	if err != nil {
		t.Helper()
		t.Errorf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// Fails fails the test unless the error of what has the code, and each of the texts in its message.
func Fails(t T, what string, err error, code status.Code, texts ...string) {
	t.Helper()
	if got := status.CodeOf(err); got != code {
		t.Errorf("%s: %v: %v, want %v", what, got, err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: the message lacks %q: %v", what, text, err)
		}
	}
}

// Equal fails the test unless what it got is what it wants; the text, of a format and its arguments, says what that is.
func Equal[V comparable](t T, got, want V, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s", differs(got, want, format, args...))
	}
}

// MustEqual is Equal for what the rest of the test stands on: it ends the test.
func MustEqual[V comparable](t T, got, want V, format string, args ...any) {
	if got != want {
		t.Helper()
		t.Fatal(differs(got, want, format, args...))
	}
}

// EqualSlices is Equal of slices, element by element; one that is nil equals one that is empty.
func EqualSlices[V comparable](t T, got, want []V, format string, args ...any) {
	if !slices.Equal(got, want) {
		t.Helper()
		t.Errorf("%s", differs(got, want, format, args...))
	}
}

// MustEqualSlices is EqualSlices for what the rest of the test stands on: it ends the test.
func MustEqualSlices[V comparable](t T, got, want []V, format string, args ...any) {
	if !slices.Equal(got, want) {
		t.Helper()
		t.Fatal(differs(got, want, format, args...))
	}
}

// Soon waits until what it gets is what it wants, which other threads or processes bring about and do not tell the
// test; the text says what that is. It ends the test if that takes a minute: a hang, as no test waits for this bound.
func Soon[V comparable](t T, get func() V, want V, format string, args ...any) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		got := get()
		if got == want {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("after a minute: " + differs(got, want, format, args...))
		}
	}
}

// differs says what is not as it was wanted, texts in quotes.
func differs[V any](got, want V, format string, args ...any) string {
	verbs := "%s: %v, want %v"
	switch any(got).(type) {
	case string, []string:
		verbs = "%s: %q, want %q"
	}
	return fmt.Sprintf(verbs, fmt.Sprintf(format, args...), got, want)
}

// Of returns the error of a call that also returns a value.
func Of[V any](_ V, err error) error { return err }

// Of2 returns the error of a call that also returns two values.
func Of2[V, W any](_ V, _ W, err error) error { return err }

// Value has what a call returned that also returns an error: Value(call()).OK(t) is the value, and the end of the test
// where there is an error.
func Value[V any](v V, err error) Returned[V] { return Returned[V]{v, err} }

// Returned is what a call returned.
type Returned[V any] struct {
	value V
	err   error
}

// OK returns the value of a call that a test goes on from, and ends the test with its error, if there is one.
func (r Returned[V]) OK(t T) V {
	if r.err != nil {
		t.Helper()
		t.Fatal(r.err)
	}
	return r.value
}
