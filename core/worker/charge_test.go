package worker

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Each moment is charged to the oldest launch of a device, in whatever order ends are told and read.
func TestEachMomentIsChargedToTheOldestLaunch(t *testing.T) {
	// Capital letters are collectives of the plugin's own. "told" is an end that is not read yet.
	for _, c := range []struct{ what, events, want string }{
		{"in order", "given a 0, given b 1, end a 3, end b 5", "a 3, b 2, all 5"},
		{"idle between", "given a 0, end a 3, given b 4, end b 5", "a 3, b 1, all 4"},
		{"told in another order", "given a 0, given b 1, end b 5, end a 6, given c 5, end c 8", "a 5, b 0, c 3, all 8"},
		{"the first told late", "given a 0, given b 1, given c 1, end b 5, end c 8, end a 9", "a 5, b 0, c 3, all 8"},
		{"read in another order", "given a 0, given b 1, told a 3, end b 5, end a 3", "a 3, b 2, all 5"},
		{"the middle told first", "given a 0, given b 1, given c 1, end b 5, end a 6, end c 8", "a 5, b 0, c 3, all 8"},
		{"a failure out of turn", "given a 0, given b 1, fail b 2, end a 5", "a 5, b 0, all 5"},
		{"beside a collective", "given A 0, given b 1, end b 2, given c 3, end c 4, end A 9", "A 9, b 0, c 0, all 9"},
		{"an input comes later", "late a 0, given b 1, came a 3, end a 5, end b 6", "a 2, b 1, all 3"},
		{"an input comes after the next has ended", "late a 0, given b 1, end b 2, came a 3, end a 5", "a 2, b 1, all 3"},
		{"an input comes while another computes", "given a 0, late b 1, came b 2, end a 3, end b 5", "a 3, b 2, all 5"},
		{"an input is told after the end of who reads it", "late a 0, end a 5, given b 6, end b 8", "a 0, b 2, all 2"},
		{"begun before, launched after", "given a 2, given b 1, end b 3, end a 5", "b 2, a 2, all 4"},
	} {
		q, launches := &queue{w: &Worker{}}, map[string]*launch{}
		for event := range strings.SplitSeq(c.events, ", ") {
			var verb, name string
			var at time.Duration
			fmt.Sscan(event, &verb, &name, (*int64)(&at))
			l := launches[name]
			switch verb {
			case "given", "late":
				l = &launch{g: &gang{}, r: &run{program: &program{form: wire.Loadable_PORTABLE}}, moments: moments{given: at}}
				if name == strings.ToUpper(name) {
					l.r.program.form = wire.Loadable_JOINED
				}
				if verb == "late" { // it waits for an input
					l.inputs = []*atomic.Int64{{}}
				}
				launches[name], q.open = l, append(q.open, l)
			case "came":
				l.inputs[0].Store(int64(at))
			case "told":
				l.told.Store(int64(at))
			default:
				l.told.Store(int64(at))
				q.charge(l, verb == "fail")
			}
		}
		var got []string
		for want := range strings.SplitSeq(c.want, ", ") {
			name, _, _ := strings.Cut(want, " ")
			spent := q.charged.Load()
			if name != "all" {
				spent = int64(launches[name].g.spent.Load())
			}
			got = append(got, fmt.Sprint(name, " ", spent))
		}
		statustest.Equal(t, strings.Join(got, ", "), c.want, "%s: what is charged", c.what)
		statustest.Equal(t, len(q.open), 0, "%s: launches that are still open", c.what)
	}
}
