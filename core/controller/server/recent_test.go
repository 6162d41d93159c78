package server

import (
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Those that accept a report of before share one, operators and tenants by themselves; it is made anew when it is older
// than they accept. Others get one of their own.
func TestReportsAreShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := statustest.Value(New(Config{})).OK(t)
		defer s.Close()
		recent := func(to wire.Viewer) *wire.Report { return s.Answer(&wire.Ask{MaxAgeMs: 1000}, to) }
		operator, tenant := wire.Viewer{}, wire.Viewer{IsTenant: true}
		first, theirs := recent(operator), recent(tenant)
		if first == theirs {
			t.Error("a tenant is told what an operator is")
		}
		encoded := func(to wire.Viewer) *byte { return &s.encoded(&wire.Ask{MaxAgeMs: 1000}, to).Encode()[0] }
		sent := encoded(operator)
		time.Sleep(time.Second - 1)
		if recent(operator) != first || recent(tenant) != theirs {
			t.Error("a report of less than a second was made anew")
		}
		if encoded(operator) != sent || encoded(tenant) == sent {
			t.Error("a report was encoded again for an operator, or a tenant was sent an operator's")
		}
		if own := s.Report(); own == first {
			t.Error("who wants to know how it is now is told how it was")
		}
		time.Sleep(time.Nanosecond)
		if recent(tenant) == theirs || recent(operator) == first {
			t.Error("a report of a second was told once more")
		}
	})
}
