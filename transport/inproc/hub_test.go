package inproc

import (
	"testing"

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
		x, err := hub.Join(uint64(i), "")
		if err != nil {
			t.Fatal(err)
		}
		x.Peers(transporttest.Processes(n, none, func(int) string { return "here" }), nil, nil)
		w.Exchanges = append(w.Exchanges, x)
	}
	return w
}

func TestExchange(t *testing.T) {
	transporttest.Exchange(t, func(t *testing.T, n int) transporttest.World { return world(t, n) })
}

func TestLending(t *testing.T) {
	transporttest.Lending(t, func(t *testing.T, n int) transporttest.World { return world(t, n) },
		func(_, size int) []byte { return make([]byte, size) })
}

func BenchmarkExchange(b *testing.B) {
	transporttest.ExchangeBench(b, func(b *testing.B, n int) transporttest.World { return world(b, n) })
}
