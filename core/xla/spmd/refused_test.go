package spmd

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestRefusedSaysWhatToDoInstead(t *testing.T) {
	for text, instead := range map[string]string{
		"NOT_FOUND: no call InspectSharding":                         ".sharding",
		"NOT_FOUND: no call xla_ffi_partitioned_python_cpu_callback": "Leave partitioned=True out",
		"NOT_FOUND: no call CustomSPMDPartitioning":                  "jax.shard_map",
		"NOT_FOUND: no call annotate_device_placement":               "a newer plugin",
		"UNIMPLEMENTED: opcode `ragged-all-to-all`":                  "or collective_permute",
		"UNIMPLEMENTED: opcode `collective-broadcast`":               "or collective_permute",
	} {
		statustest.Fails(t, text, Refused(text), status.Unimplemented, "Python process", instead, "XLA says: "+text)
	}
	const newer = "INVALID_ARGUMENT: error: unknown attribute code: 24"
	statustest.Fails(t, newer, Refused(newer), status.Unimplemented, "a newer plugin", "pathways doctor",
		"jax_use_shardy_partitioner", "XLA says: "+newer)
	statustest.Checkf(t, Refused("INTERNAL: something else"), "of something else")
}
