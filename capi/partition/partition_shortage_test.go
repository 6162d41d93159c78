//go:build invariants

package partition_test

import (
	"testing"

	"github.com/openpathways/pathways/capi/base/shortage"
	"github.com/openpathways/pathways/capi/partition"
	"github.com/openpathways/pathways/core/status"
)

// Without memory for what there is to say of a program that was refused, that is the error, and not the plugin's.
func TestRefusedWithoutMemory(t *testing.T) {
	n := shortage.Walk(t, "Refused", func() error {
		err := partition.Refused("NOT_FOUND: no call InspectSharding")
		if status.CodeOf(err) == status.Unimplemented {
			err = nil // as it is with all the memory
		}
		return err
	})
	if n == 0 {
		t.Error("a refusal has a text without memory")
	}
}
