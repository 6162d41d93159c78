//go:build !race && !invariants

package controller

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// streamer is a session that puts an array after the other, and frees them again.
type streamer struct {
	conn  uint64
	op    uint64   // and number of the array
	live  []uint64 // arrays
	ended map[uint64]error
}

// crowd is a device's memory with sessions that stream arrays through it. Arrays have four bytes.
type crowd struct {
	b         *bed
	t         *rapid.T
	streamers []*streamer
	under     []uint64 // gangs
}

const (
	arrayBytes = 4
	crowdWait  = 6e9
	crowdStep  = 10e6 // between events
)

func newCrowd(tt *testing.T, t *rapid.T, memory int64) *crowd {
	b := newBed(tt, Config{MemoryWait: crowdWait, Limits: Limits{Credit: 1 << 14}}, 1, 1)
	statustest.OK(t, b.st.ledger.SetLimit(0, memory*arrayBytes))
	b.st.Weigh(rapid.SampledFrom([]int64{0, 1}).Draw(t, "weight")) // held gangs are looked at together, or one by one
	return &crowd{b: b, t: t}
}

func (c *crowd) join() *streamer { return c.joinOf("") }

func (c *crowd) joinOf(tenant string) *streamer {
	c.b.conns++
	x := &streamer{conn: c.b.conns, ended: map[uint64]error{}}
	c.see(c.b.step(Event{Kind: Join, Conn: x.conn, Of: tenant,
		Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "x"}}))
	c.streamers = append(c.streamers, x)
	return x
}

// see records what a Step brought, and those that go on with it.
func (c *crowd) see(actions []Action) {
	for c.take(actions); c.b.st.More(); {
		c.take(c.b.step(Event{Kind: Continue}))
	}
}

// take records gangs, and ends.
func (c *crowd) take(actions []Action) {
	for _, a := range actions {
		switch {
		case a.Kind != Send:
		case a.Wire == wire.KindDispatch:
			m := new(wire.Dispatch)
			statustest.OK(c.t, m.Parse(a.Payload))
			if wire.Kind(m.Kind) != wire.KindFree {
				c.under = append(c.under, m.Gang)
			}
		case a.Wire == wire.KindCompleted:
			m := new(wire.Completed)
			statustest.OK(c.t, m.Parse(a.Payload))
			for _, x := range c.streamers {
				if x.conn == a.To[0] {
					for _, op := range m.Ok {
						x.ended[op] = nil
					}
					for _, f := range m.Failed {
						x.ended[f.Number] = f.Status.Err()
					}
				}
			}
		}
	}
	statustest.OK(c.t, c.b.st.Check())
}

func (c *crowd) put(x *streamer, elements int64) {
	x.op++
	c.see(c.b.say(x.conn, wire.KindPut, &wire.Put{Op: x.op, Object: x.op, Devices: []uint32{0},
		Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{elements}}}))
	x.live = append(x.live, x.op)
}

// stream has a session go on: it waits for the array before the last, and keeps the last one.
func (c *crowd) stream(x *streamer) {
	if uint64(len(x.ended))+2 > x.op && rapid.IntRange(0, 3).Draw(c.t, "puts") > 0 {
		c.put(x, 1)
	}
	waits := c.b.st.conns.Get(x.conn).s.waiting != nil // then it releases what it has
	if len(x.live) > 1 && (waits || rapid.IntRange(0, 3).Draw(c.t, "frees") == 0) {
		c.see(c.b.say(x.conn, wire.KindFree, &wire.Free{Objects: x.live[:1:1]}))
		x.live = x.live[1:]
	}
}

// pass has time pass, and a worker end some gangs.
func (c *crowd) pass() {
	c.b.now += crowdStep
	n := min(len(c.under), rapid.IntRange(1, 4).Draw(c.t, "ends"))
	done := c.under[:n]
	c.under = c.under[n:]
	if n > 0 {
		c.see(c.b.say(c.b.workers[0], wire.KindCompleted, &wire.Completed{Ok: done}))
	}
	if due := c.b.st.Due(); due != 0 && due <= c.b.now {
		c.see(c.b.step(Event{Kind: Tick}))
	}
	c.see(c.b.step(Event{Kind: Flush}))
}

// A put that needs all memory but what others keep gets it in its turn, though they go on to put small arrays as fast
// as they can, and would fill all of it. None of them fails.
func TestStreamsOfOthersDoNotStarveALargeGang(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		const memory = 12
		c := newCrowd(tt, t, memory)
		others := rapid.IntRange(1, 4).Draw(t, "others")
		for range others {
			c.join()
		}
		for range memory { // they fill it
			for _, x := range c.streamers {
				c.put(x, 1)
			}
		}
		c.pass()
		big := c.join()
		c.put(big, memory-int64(others))
		for began := c.b.now; len(big.ended) == 0; c.pass() {
			for _, x := range c.streamers[:others] {
				c.stream(x)
			}
			if waited := c.b.now - began; waited > crowdWait*3/4 {
				t.Fatalf("after %v s the large put has not ended", float64(waited)/1e9)
			}
		}
		for _, x := range c.streamers {
			for op, err := range x.ended {
				statustest.OKf(t, err, "operation %d of %d", op, x.conn)
			}
		}
	})
}

// Others stop but for a moment where what a session keeps leaves no room in any case, on the device or in the quota of
// their tenant.
func TestOthersStopForAMomentWhereThatIsInVain(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		c := newCrowd(tt, t, 24)
		if rapid.Bool().Draw(t, "quota") {
			statustest.OK(t, c.b.st.ledger.SetLimit(0, 100*arrayBytes))
			c.b.st.apply(tableOf(tt, fmt.Sprintf("[tenants.default]\ndevice-memory = \"%dB\"", 24*arrayBytes)))
		}
		idle, x, big := c.join(), c.join(), c.join()
		c.put(idle, 12)
		c.put(x, 1)
		c.put(big, 16)
		last := c.b.now // when the stream went on
		for ended := 0; len(big.ended) == 0; c.pass() {
			c.stream(x)
			if len(x.ended) > ended {
				ended, last = len(x.ended), c.b.now
			}
			if stopped := c.b.now - last; stopped > 2*freesCome+20*crowdStep {
				t.Fatalf("small puts have waited for %v s", float64(stopped)/1e9)
			}
		}
		statustest.Fails(t, "the large put", big.ended[1], status.ResourceExhausted)
	})
}
