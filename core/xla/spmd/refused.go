package spmd

import (
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// refusals are the words by which a plugin for CPUs refuses a program that needs what a Python process does for its own
// programs (capi/partition), or a newer plugin, and what to say then.
var refusals = []struct{ word, what, needs, instead string }{
	{"annotate_device_placement",
		"a program that places arrays by a memory kind (out_shardings, jax.device_put inside of jax.jit, compute_on)",
		"with this plugin, a Python process, which removes the kinds that mean nothing on a CPU",
		"Leave them out, or take a newer plugin: pip install --no-deps lammps-jax-pjrt-cpu"},
	{"unknown attribute code",
		"a program with an attribute that this plugin's StableHLO does not know (jax.shard_map over 8-bit or 4-bit floats " +
			"on several devices has one)",
		"a newer plugin than this one, which `pathways doctor` shows",
		"Take a newer one (pip install --no-deps lammps-jax-pjrt-cpu), or, for these floats, call " +
			"jax.config.update(\"jax_use_shardy_partitioner\", False); see docs/guides/plugins.md"},
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
// others, or that is newer than the plugin; nil if that was not why.
func Refused(text string) error {
	for _, r := range refusals {
		if strings.Contains(text, r.word) {
			return status.New(status.Unimplemented, "%s needs %s. %s. XLA says: %s", r.what, r.needs,
				r.instead, text)
		}
	}
	return nil
}
