package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	tenants "github.com/openpathways/pathways/core/tenant"
)

// tenantsOfTrial is how many tenants share the cluster of a trial, where it has a file of tenants. Clients of one may
// wait for each other's memory. Sessions without a token are of the default tenant.
const tenantsOfTrial = 2

// table draws a file of tenants with the same names and tokens each time.
func (x *trial) table() *tenants.Table {
	x.mu.Lock()
	r := rand.New(rand.NewPCG(x.chance("tenants").Uint64(), 0))
	x.mu.Unlock()
	var text strings.Builder
	fmt.Fprintln(&text, "[tenants.default]")
	for i := range tenantsOfTrial {
		fmt.Fprintf(&text, "[tenants.t%d]\ntoken-file = \"t%d\"\nweight = %d\nclass = %q\n", i, i, 1+r.IntN(9),
			[]string{"high", "normal", "low"}[r.IntN(3)])
		if r.IntN(3) == 0 {
			fmt.Fprintf(&text, "guaranteed = \"%d%%\"\n", 10+r.IntN(20))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&text, "at-most = \"%d%%\"\n", 30+r.IntN(60))
		}
		for _, quota := range []string{"device-memory", "host-memory"} {
			if r.IntN(3) == 0 {
				fmt.Fprintf(&text, "%s = \"%dB\"\n", quota, x.shape().Bytes()*(3+r.Int64N(16)))
			}
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&text, "slice-devices = %d\n", 1+r.IntN(4))
		}
	}
	return statustest.Value(tenants.Parse("tenants.toml", text.String(), func(path string) (string, error) {
		return strings.Repeat(path[strings.LastIndexByte(path, '/')+1:], 32), nil
	})).OK(x.t)
}

// credential returns what a client shows: the token of a tenant, if there are any.
func (a *actor) credential() string {
	if !a.x.tenants {
		return ""
	}
	return strings.Repeat(fmt.Sprint("t", a.r.IntN(tenantsOfTrial)), 32)
}

// changeTenants draws when the file of tenants changes.
func (x *trial) changeTenants(r *rand.Rand) {
	for range r.IntN(4) {
		x.faults = append(x.faults, fault{at: time.Duration(r.Int64N(int64(workTime))), what: "the file of tenants changes",
			do: func() { x.local.ReadTenants() }})
	}
}

// isShort reports whether an error says that memory was waited for in vain.
func (x *trial) isShort(err error) bool {
	text := err.Error()
	return status.CodeOf(err) == status.ResourceExhausted && (x.memory > 0 && strings.Contains(text, "--memory-limit") ||
		x.tenants && strings.Contains(text, " of tenant "))
}
