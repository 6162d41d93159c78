//go:build !race && !invariants

package controller

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A tenant that wants more device memory than its quota, in however many sessions, hurts no other: what others put,
// where the device has room for it, is never held, and ends well while the tenant's waits.
func TestATenantOverItsQuotaHurtsNoOther(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		const memory, quota = 32, 8 // arrays
		c := newCrowd(tt, t, memory)
		c.b.st.apply(tableOf(tt, "[tenants.greedy]\ndevice-memory = \"32B\"\n[tenants.other]"))
		var greedy []*streamer
		for range rapid.IntRange(1, 4).Draw(t, "greedy sessions") {
			greedy = append(greedy, c.joinOf("greedy"))
		}
		other := c.joinOf("other")
		for range rapid.IntRange(10, 80).Draw(t, "events") {
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0, 1, 2: // also more than it may have at all
				x := rapid.SampledFrom(greedy).Draw(t, "session")
				c.put(x, int64(rapid.SampledFrom([]int{1, 3, quota, quota + 1}).Draw(t, "elements")))
			case 3:
				if x := rapid.SampledFrom(greedy).Draw(t, "frees"); len(x.live) > 0 {
					c.see(c.b.say(x.conn, wire.KindFree, &wire.Free{Objects: x.live[:1:1]}))
					x.live = x.live[1:]
				}
			case 4:
				c.put(other, 1)
				if c.b.st.conns.Get(other.conn).s.waiting != nil {
					t.Fatal("a put of another tenant is held, though the device has room")
				}
				if len(other.live) > memory-2*quota { // its own, and what is being freed
					c.pass()
					c.see(c.b.say(other.conn, wire.KindFree, &wire.Free{Objects: other.live}))
					other.live = nil
				}
			case 5:
				c.pass()
			}
		}
		for began := c.b.now; len(other.ended) < int(other.op); c.pass() {
			if c.b.now-began > crowdWait/2 { // before the tenant's fail
				t.Fatalf("%d of %d puts of another tenant have ended", len(other.ended), other.op)
			}
		}
		for op, err := range other.ended {
			statustest.OKf(t, err, "operation %d of another tenant", op)
		}
	})
}
