package base_test

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestSessionNumbersAreNotUsedAgain(t *testing.T) {
	type session struct{ name string }
	var all base.Sessions[session]
	anyOf := func(*session) bool { return true }
	if all.Any() || all.Get(0) != nil || all.Get(1) != nil || all.Latest(anyOf) != 0 || all.Open() != nil {
		t.Error("an empty list has a session")
	}
	a, b := &session{"a"}, &session{"b"}
	if n, m := all.Add(a), all.Add(b); n != 1 || m != 2 {
		t.Fatalf("numbers %d and %d, want 1 and 2", n, m)
	}
	before := all.Open()
	statustest.Equal(t, all.Remove(2), b, "removing 2 returned")
	if all.Remove(2) != nil || all.Get(2) != nil {
		t.Error("session 2 is there after it was removed")
	}
	statustest.Equal(t, all.Add(b), 3, "the next session has number")
	if !slices.Equal(before, []*session{a, b}) || !slices.Equal(all.Open(), []*session{a, b}) {
		t.Errorf("open: %v before, %v after", before, all.Open())
	}
	statustest.Equal(t, all.Latest(func(s *session) bool { return s == a }), 1, "the latest that can be used")
	if !all.Any() {
		t.Error("there was no session")
	}
}
