package series

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A map and a series that are used in the same way have the same values.
func TestLikeAMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		var s Of[int]
		twin := map[uint64]*int{}
		next := uint64(r.IntN(1000))
		for range 1000 {
			number := next
			switch r.IntN(20) {
			case 0:
				number = r.Uint64() // far from all others
			case 1:
				next += uint64(r.IntN(3 * pageSize))
				number = next
			case 2, 3, 4, 5, 6, 7, 8, 9, 10, 11:
				next++
				number = next
			default:
				number -= min(number, uint64(r.IntN(5*pageSize)))
			}
			if r.IntN(3) > 0 {
				v := new(int)
				s.Set(number, v)
				twin[number] = v
			} else if all := slices.Sorted(maps.Keys(twin)); len(all) > 0 && r.IntN(4) > 0 {
				number = all[r.IntN(min(len(all), 4))] // the oldest go first
			}
			if r.IntN(2) == 0 {
				s.Delete(number)
				delete(twin, number)
			}
			if s.Get(number) != twin[number] || s.Len() != len(twin) {
				t.Fatalf("%d: %p of %d, want %p of %d", number, s.Get(number), s.Len(), twin[number], len(twin))
			}
		}
		var in []uint64
		for number, v := range s.All() {
			if in = append(in, number); twin[number] != v {
				t.Fatalf("%d: %p, want %p", number, v, twin[number])
			}
		}
		if want := slices.Sorted(maps.Keys(twin)); !slices.Equal(in, want) {
			t.Fatalf("numbers %d, want %d", in, want)
		}
		for number := range s.All() {
			s.Delete(number)
		}
		if s.Len() != 0 || len(s.far) > 0 || len(s.pages) > 0 {
			t.Fatalf("%d values, %d far ones and %d pages are left", s.Len(), len(s.far), len(s.pages))
		}
	}
}

// Numbers that come and go take a constant room.
func TestRoom(t *testing.T) {
	var s Of[int]
	const under, all = 3 * pageSize, 1 << 20
	for i := range uint64(all) {
		s.Set(i, new(int))
		if i >= under {
			s.Delete(i - under)
		}
	}
	if len(s.pages) > under/pageSize+2 || cap(s.pages) > 64 {
		t.Fatalf("%d pages, with room for %d", len(s.pages), cap(s.pages))
	}
}

func BenchmarkGet(b *testing.B) {
	var s Of[int]
	m := map[uint64]*int{}
	for i := range uint64(512) {
		v := new(int)
		s.Set(1000+i, v)
		m[1000+i] = v
	}
	b.Run("series", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if s.Get(uint64(1000+i%512)) == nil {
				b.Fatal("nil")
			}
		}
	})
	b.Run("map", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if m[uint64(1000+i%512)] == nil {
				b.Fatal("nil")
			}
		}
	})
}
