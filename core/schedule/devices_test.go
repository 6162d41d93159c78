package schedule

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestDeviceSetString(t *testing.T) {
	for _, c := range []struct {
		ids  []int
		want string
	}{
		{nil, ""},
		{[]int{0}, "0"},
		{[]int{3, 1, 2, 2}, "1-3"},
		{[]int{63, 64}, "63-64"},
		{[]int{0, 2, 4, 5, 6, 128, MaxDevices - 1}, "0,2,4-6,128,65535"},
	} {
		statustest.Equal(t, Devices(c.ids...).String(), c.want, "Devices(%v)", c.ids)
	}
}

func TestDevicesPanicsOutsideItsRange(t *testing.T) {
	for _, d := range []int{-1, MaxDevices} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Devices(%d) made a set", d)
				}
			}()
			Devices(d)
		}()
	}
}

func TestDeviceSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, 500)))
		a, b := ids.Draw(t, "a"), ids.Draw(t, "b")
		sa, sb := Devices(a...), Devices(b...)
		for _, c := range []struct {
			set DeviceSet
			ids []int
		}{{sa, a}, {sb, b}} {
			want := slices.Compact(slices.Sorted(slices.Values(c.ids)))
			if got := slices.Collect(c.set.All()); !slices.Equal(got, want) {
				t.Fatalf("%v has %v", want, got)
			}
			statustest.MustEqual(t, c.set.Len(), len(want), "%v has length", want)
			for d := range 520 {
				statustest.MustEqual(t, c.set.Has(d), slices.Contains(want, d), "%v has %d", want, d)
			}
		}
		share := slices.ContainsFunc(a, func(d int) bool { return slices.Contains(b, d) })
		if sa.overlaps(&sb.mask) != share || sb.overlaps(&sa.mask) != share {
			t.Fatalf("%v overlaps %v: %t, want %t", sa, sb, sa.overlaps(&sb.mask), share)
		}

		// The masks that State works with: union, difference, intersection.
		var m, rest mask
		m.add(&sa.mask)
		if rest.intersect(&m, &sb.mask) != share {
			t.Fatalf("%v and %v intersect: %t", sa, sb, !share)
		}
		m.add(&sb.mask)
		left := m.remove(&sa.mask)
		for d := range 520 {
			in := func(m *mask) bool { return DeviceSet{mask: *m}.Has(d) }
			if in(&rest) != (sa.Has(d) && sb.Has(d)) || in(&m) != (sb.Has(d) && !sa.Has(d)) {
				t.Fatalf("%v and %v: wrong at %d", sa, sb, d)
			}
		}
		statustest.MustEqual(t, left, m.low != 0 || slices.ContainsFunc(m.high, func(w uint64) bool { return w != 0 }),
			"remove says that devices are left")
	})
}

// parseDevices reads what DeviceSet.String writes.
func parseDevices(s string) (DeviceSet, error) {
	var ids []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil {
			return DeviceSet{}, err
		}
		last, err := strconv.Atoi(to)
		if err != nil {
			return DeviceSet{}, err
		}
		for d := first; d <= last; d++ {
			ids = append(ids, d)
		}
	}
	return Devices(ids...), nil
}
