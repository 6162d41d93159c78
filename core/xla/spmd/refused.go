package spmd

import (
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// refusals are the words by which a plugin for CPUs refuses a program that needs what a Python process does for its own
// programs (capi/partition), and what to say then.
var refusals = []struct{ word, what, needs, instead string }{
	{"annotate_device_placement",
		"a program that places arrays by a memory kind (out_shardings, jax.device_put inside of jax.jit, compute_on)",
		"with this plugin, a Python process, which removes the kinds that mean nothing on a CPU",
		"Leave them out, or take a newer plugin: pip install --no-deps lammps-jax-pjrt-cpu"},
	{"opcode `ragged-all-to-all`", collectives, replaces, others},
	{"opcode `collective-broadcast`", collectives, replaces, others},
	{"InspectSharding",
		"jax.debug.inspect_array_sharding or visualize_array_sharding in a computation on several devices", asks,
		"Return the array and look at its .sharding, or call visualize_array_sharding on it, outside of jax.jit"},
	{"xla_ffi_partitioned_python_",
		"jax.debug.callback or print with partitioned=True in a computation that XLA partitions", asks,
		"Leave partitioned=True out, which makes one call with the whole array, or call it in jax.shard_map, which makes " +
			"one call with each shard"},
	{"CustomSPMDPartitioning", "jax.experimental.custom_partitioning in a computation that XLA partitions", asks,
		"Call the function in jax.shard_map, to say what each device does"},
}

const (
	collectives = "a program with ragged_all_to_all or collective_broadcast"
	replaces    = "on CPU devices, a Python process, which replaces them in programs that are StableHLO"
	others      = "Compile it there, or use all_gather and all_to_all, or collective_permute"
	asks        = "XLA's partitioner to call Python: that works in a Python process, in programs for CPU devices with " +
		"one replica"
)

// Refused returns the error of a program that a plugin refused with this text because of something that Python does for
// others; nil if that was not why.
func Refused(text string) error {
	for _, r := range refusals {
		if strings.Contains(text, r.word) {
			return status.New(status.Unimplemented, "%s needs %s. %s. XLA says: %s", r.what, r.needs,
				r.instead, text)
		}
	}
	return nil
}
