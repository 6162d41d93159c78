// What XLA's partitioner asks of Python: JAX brings such answers to a plugin by an
// extension of PJRT, and a plugin that has none refuses the programs that need them, in
// XLA's own words.
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

char* pw_ffi_unpartitioned(const char* text, size_t size) {
  static const struct {
    const char *target, *what, *instead;
  } kinds[] = {
      {"InspectSharding", "jax.debug.inspect_array_sharding or visualize_array_sharding in a computation on several devices",
       "Return the array and look at its .sharding, or call visualize_array_sharding on it, outside of jax.jit"},
      {"xla_ffi_partitioned_python_", "jax.debug.callback or print with partitioned=True in a computation that XLA partitions",
       "Leave partitioned=True out, which makes one call with the whole array, or call it in jax.shard_map, which makes "
       "one call with each shard"},
      {"CustomSPMDPartitioning", "jax.experimental.custom_partitioning in a computation that XLA partitions",
       "Call the function in jax.shard_map, where it is its body that runs, on each shard"},
  };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (memmem(text, size, kinds[i].target, strlen(kinds[i].target)))
      return pw_ffi_format("%s cannot be had here: XLA's partitioner would have to call Python, for which the PJRT plugin "
                           "underneath has no extension (Custom_Partitioner; the CPU plugins have none). %s. XLA says: %.*s",
                           kinds[i].what, kinds[i].instead, (int)size, text);
  return NULL;
}
