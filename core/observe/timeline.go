package observe

import (
	"cmp"
	"slices"
)

// busy is a span with the time at which its device began to work on it.
type busy struct {
	Span
	begin int64
}

// timelines groups spans by device and sorts them by time. A device works on one
// computation at a time, so one that was queued behind another began when that one
// ended. Nor does it begin before what it reads has come.
func timelines(spans []Span) [][]busy {
	all := make([]busy, len(spans))
	for i, s := range spans {
		all[i] = busy{s, max(s.Submitted, min(s.Came, s.End))}
	}
	slices.SortFunc(all, func(a, b busy) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.End, b.End), cmp.Compare(a.Gang, b.Gang))
	})
	var out [][]busy
	for from := 0; from < len(all); {
		to := from + 1
		for ; to < len(all) && all[to].Device == all[from].Device; to++ {
			all[to].begin = max(all[to].begin, all[to-1].End)
		}
		out = append(out, all[from:to:to])
		from = to
	}
	return out
}
