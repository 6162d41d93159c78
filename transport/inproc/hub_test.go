package inproc

import (
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/transporttest"
)

func world(t testing.TB, n int) transporttest.World {
	pool := shm.NewPool(shm.Config{Limit: 1 << 30})
	t.Cleanup(pool.Trim)
	hub := NewHub(pool)
	w := transporttest.World{Longest: 64 << 20, Used: func() (all int64) {
		for _, n := range pool.Stats().Used {
			all += n
		}
		return all
	}}
	none := func(int) []string { return nil }
	for i := 1; i <= n; i++ {
		x := statustest.Value(hub.Join(uint64(i), "")).OK(t)
		x.Peers(transporttest.Processes(n, none, func(int) string { return "here" }), nil, nil)
		w.Exchanges = append(w.Exchanges, x)
	}
	return w
}

func TestExchange(t *testing.T) {
	transporttest.Exchange(t, func(t *testing.T, n int) transporttest.World { return world(t, n) })
}

// What is sent to a process that others have heard of, and that has yet to join the hub, arrives once it has.
func TestBlocksWaitForAProcessToJoin(t *testing.T) {
	pool := shm.NewPool(shm.Config{Limit: 1 << 20})
	defer pool.Trim()
	hub := NewHub(pool)
	sender, err := hub.Join(1, "sender")
	statustest.OK(t, err)
	defer sender.Close()
	key := transport.Key{Space: 1, ID: 2}
	sent, arrived := make(chan error, 1), make(chan error, 1)
	sender.Peers([]*wire.Process{{Number: 2, Name: "late"}}, nil, nil)
	sender.PushBytes(2, key, []byte("block"), func(err error) { sent <- err })
	late, err := hub.Join(2, "late")
	statustest.OK(t, err)
	defer late.Close()
	got := make([]byte, 5)
	late.Expect(1, key, 5, got, func(_ transport.Block, err error) { arrived <- err })
	statustest.Check(t, <-sent)
	if err := <-arrived; err != nil || string(got) != "block" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Two processes that are apart are called by their names, also by one that has not heard of the other.
func TestBothOfAPairThatIsApartAreNamed(t *testing.T) {
	pool := shm.NewPool(shm.Config{Limit: 1 << 20})
	defer pool.Trim()
	hub := NewHub(pool)
	hub.Delay = func(uint64, uint64) time.Duration { return 0 }
	failed := make(chan error, 2)
	for i, name := range []string{"one", "other"} {
		x, err := hub.Join(uint64(1+i), name)
		statustest.OK(t, err)
		defer x.Close()
		x.Expect(uint64(2-i), transport.Key{Space: 1}, 1, nil, func(_ transport.Block, err error) { failed <- err })
	}
	hub.Part(1, 2)
	for range 2 {
		if err := <-failed; err == nil || !strings.Contains(err.Error(), "(one)") ||
			!strings.Contains(err.Error(), "(other)") {
			t.Errorf("%v, expected an error that names both", err)
		}
	}
}

func TestLending(t *testing.T) {
	transporttest.Lending(t, func(t *testing.T, n int) transporttest.World { return world(t, n) },
		func(_, size int) []byte { return make([]byte, size) })
}

func BenchmarkExchange(b *testing.B) {
	transporttest.ExchangeBench(b, func(b *testing.B, n int) transporttest.World { return world(b, n) })
}

// Blocks of one way follow each other at its bandwidth; those of another way, or of none, do not wait for them.
func TestBlocksShareABandwidth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		pool := shm.NewPool(shm.Config{Limit: 1 << 20})
		defer pool.Trim()
		hub := NewHub(pool)
		const delay = 100 * time.Millisecond // of an offer, and then of the bytes
		hub.Delay = func(uint64, uint64) time.Duration { return delay }
		hub.Bandwidth = func(from, to uint64) float64 { return map[uint64]float64{1: 1000, 2: 500}[from] }
		var all []*Exchange
		for i := range uint64(3) {
			x := statustest.Value(hub.Join(i+1, "")).OK(t)
			defer x.Close()
			all = append(all, x)
		}
		begun := time.Now()
		for _, w := range []struct {
			from, to, id uint64
			want         time.Duration
		}{
			{1, 2, 1, time.Second + 2*delay},
			{1, 2, 2, 2*time.Second + 2*delay},
			{1, 3, 3, time.Second + 4*delay},
			{2, 1, 4, 2*time.Second + 5*delay},
			{3, 1, 5, 5 * delay},
		} {
			key := transport.Key{Space: 1, ID: w.id}
			all[w.from-1].PushBytes(w.to, key, make([]byte, 1000), nil)
			all[w.to-1].Expect(w.from, key, 1000, make([]byte, 1000), func(_ transport.Block, err error) {
				if took := time.Since(begun); err != nil || took != w.want {
					t.Errorf("block %d from %d to %d: %v after %v, want it after %v", w.id, w.from, w.to, err, took, w.want)
				}
			})
			time.Sleep(delay) // so that the next is offered later
		}
		time.Sleep(3 * time.Second)
	})
}
