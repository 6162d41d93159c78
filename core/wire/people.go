package wire

import (
	"fmt"
	"strings"
	"time"
)

// Numbers writes rising numbers for people, such as 0-3, 7.
func Numbers(all []uint32) string {
	var parts []string
	for i := 0; i < len(all); {
		end := i
		for end+1 < len(all) && all[end+1] == all[end]+1 {
			end++
		}
		part := fmt.Sprint(all[i])
		if end > i {
			part += fmt.Sprintf("-%d", all[end])
		}
		parts = append(parts, part)
		i = end + 1
	}
	return strings.Join(parts, ", ")
}

// Viewer is who a report is for. The zero Viewer is an operator, who is told everything.
type Viewer struct {
	IsTenant bool   // it is told no lines of others' code
	Tenant   string // the tenant that it is, whose own lines it is told; "" has no name
}

// Is reports whether a viewer is the tenant of that name.
func (v Viewer) Is(tenant string) bool { return v.Tenant != "" && v.Tenant == tenant }

// Age returns how long something has lasted, for people.
func Age(ms int64) time.Duration {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d < 100*time.Millisecond:
		return d
	}
	return d.Round(100 * time.Millisecond)
}

// Called says for people where something was called: at a line of the user's code, or, where that is not known of this
// call, at the line where its session called the program first. Without a line it is "".
func Called(line string, first bool) string {
	switch {
	case line == "":
		return ""
	case first:
		return "first called at " + line
	}
	return "called at " + line
}

// WaitText says what devices wait for.
func (m *Standing) WaitText() string {
	devices, have := "devices "+Numbers(m.Devices), "have"
	if len(m.Devices) == 1 {
		devices, have = "device "+Numbers(m.Devices), "has"
	}
	what := fmt.Sprintf("operation %d", m.Gang)
	if called := Called(m.Line, m.FirstCall); called != "" {
		what += ", " + called
	}
	if m.Program != "" {
		what = fmt.Sprintf("%s (%s)", m.Program, what)
	}
	switch m.At {
	case "":
		return fmt.Sprintf("%s %s stood for %v at %s, which waits for %s", devices, have, Age(m.SinceMs), what, m.Awaits)
	case AtFunction: // so does what it waits for say
	default:
		what = m.At + " of " + what
	}
	return fmt.Sprintf("%s %s waited for %v in %s for %s", devices, have, Age(m.SinceMs), what, m.Awaits)
}
