package wire

import (
	"fmt"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// LongestWait bounds SliceRequest.wait_ms: some 34 years.
const LongestWait = 1 << 40

// Values of Report.Holder.how: how a session has devices, the strongest first, and that a request of it comes first.
const (
	HasExclusive = "exclusive slice"
	HasSlice     = "slice"
	HasView      = "session"
	HasUse       = "use"
	HasTurn      = "queue"
)

// AtFunction is Standing.at where devices wait for a function of their client.
const AtFunction = "a function of its client"

// inWords says for people what some devices are to a session.
var inWords = map[string]string{
	HasExclusive: "in an exclusive slice of",
	HasSlice:     "in a slice of",
	HasView:      "among those asked for by",
	HasUse:       "in use by",
	HasTurn:      "reserved for an earlier request of",
}

// namesHolders is how many holders of devices a sentence names.
const namesHolders = 3

// LacksText returns, for people, which sessions have the devices that a request for a slice lacks, or come first for
// them, or have its tenant's quota.
func LacksText(w *Report_SliceWait) string {
	var parts []string
	has := uint32(0)
	for i, h := range w.Holders {
		has += h.Devices
		if i == namesHolders {
			parts = append(parts, fmt.Sprintf("others are used by, or reserved for, %s more",
				status.Count(len(w.Holders)-i, "session")))
		}
		if i >= namesHolders {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", status.Are(h.Devices), inWords[h.How],
			Owner(h.Session, h.Client, h.User, h.Host)))
	}
	if w.Quota == 0 {
		if len(parts) == 0 {
			return "devices are reserved for requests that come before it"
		}
		return strings.Join(parts, "; ")
	}
	if has+w.Devices <= w.Quota {
		parts = append(parts, "requests of it that come first want the rest")
	}
	return fmt.Sprintf("tenant %s may have %s in slices, and has %d: %s", w.Tenant, status.Count(w.Quota, "device"), has,
		strings.Join(parts, "; "))
}
