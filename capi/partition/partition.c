#define _GNU_SOURCE
#include "partition.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "interpreter.h"

// ---- which programs ask ----

static const struct {
  const char *target, *what, *instead;
} required[] = {
    {"InspectSharding",
     "jax.debug.inspect_array_sharding or visualize_array_sharding in a computation on several devices",
     "Return the array and look at its .sharding, or call visualize_array_sharding on it, outside of jax.jit"},
    {"xla_ffi_partitioned_python_",
     "jax.debug.callback or print with partitioned=True in a computation that XLA partitions",
     "Leave partitioned=True out, which makes one call with the whole array, or call it in jax.shard_map, which makes "
     "one call with each shard"},
    {"CustomSPMDPartitioning", "jax.experimental.custom_partitioning in a computation that XLA partitions",
     "Call the function in jax.shard_map, to say what each device does"},
};
enum { kRequired = sizeof required / sizeof *required };

// Programs with these run better with answers, and stay as they are if jaxlib cannot partition them.
static const char* const optional[] = {
    // An attribute that calls have whose first dimensions XLA may split
    // (jax.ffi.register_ffi_target_as_batch_partitionable).
    "num_batch_dims",
};

// Operations that Python replaces.
static const char placement[] = "annotate_device_placement";
static const char* const replaced[] = {placement, "ragged_all_to_all", "collective_broadcast"};
enum { kReplaced = sizeof replaced / sizeof *replaced };

// The end of the bytecode, with its last byte, by which a mesh says that its devices are in another order than the
// program's. jaxlib 0.12 leaves such meshes to the plugin. If two meshes of a program differ in their order alone, the
// XLA of plugins as old as jax 0.10 then mixes up the shards, without an error; jaxlib's partitioner does not.
static const char another_order[] = "device_ids";

static bool has(const char* code, size_t size, const char* word) {
  return memmem(code, size, word, strlen(word)) != NULL;
}

bool pw_partition_optional(const char* code, size_t size) {
  for (size_t i = 0; i < kRequired; i++)
    if (has(code, size, required[i].target)) return false;
  return memmem(code, size, another_order, sizeof another_order) == NULL;
}

bool pw_partition_replaces(const char* code, size_t size) {
  for (size_t i = 0; i < kReplaced; i++)
    if (has(code, size, replaced[i])) return true;
  return false;
}

bool pw_partition_asks(const char* code, size_t size) {
  return pw_partition_replaces(code, size) || pw_partition_partitions(code, size);
}

bool pw_partition_partitions(const char* code, size_t size) {
  for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
    if (has(code, size, optional[i])) return true;
  return !pw_partition_optional(code, size);
}

bool pw_partition_refused(const char* text, size_t size, char** said) {
  const char *what = NULL, *why = NULL, *instead = NULL;
  if (has(text, size, placement)) {
    what =
        "a program that places arrays by a memory kind (out_shardings, jax.device_put inside of jax.jit, compute_on)";
    why = " needs, with this plugin, a Python process, which removes the kinds that mean nothing on a CPU. ";
    instead = "Leave them out, or take a newer plugin: pip install --no-deps lammps-jax-pjrt-cpu";
  } else if (has(text, size, "opcode `ragged-all-to-all`") || has(text, size, "opcode `collective-broadcast`")) {
    what = "a program with ragged_all_to_all or collective_broadcast";
    why = " needs, on CPU devices, a Python process, which replaces them in programs that are StableHLO. ";
    instead = "Compile it there, or use all_gather and all_to_all, or collective_permute";
  }
  for (size_t i = 0; what == NULL && i < kRequired; i++) {
    if (!has(text, size, required[i].target)) continue;
    what = required[i].what;
    why =
        " needs XLA's partitioner to call Python: that works in a Python process, in programs for CPU devices with one "
        "replica. ";
    instead = required[i].instead;
  }
  if (what == NULL) return false;
  *said = pw_text("%s%s%s. XLA says: %.*s", what, why, instead, (int)size, text);
  return true;
}

// ---- the function that partitions ----

static _Atomic(pw_partitioner) partitioner;
static _Atomic(pw_replacer) replacer;
static pthread_rwlock_t calling = PTHREAD_RWLOCK_INITIALIZER;  // read-locked while one of them is called

void pathways_set_partitioner(pw_partitioner partitions, pw_replacer replaces) {
  atomic_store(&partitioner, partitions);
  atomic_store(&replacer, replaces);
  pthread_rwlock_wrlock(&calling);
  pthread_rwlock_unlock(&calling);
}

void pathways_partition_give(pw_partition_call* call, const char* code, size_t size) {
  free(call->code);
  call->code = pw_copy(code, size);
  call->code_size = size;
}

void pathways_partition_fail(pw_partition_call* call, const char* text) {
  pw_refusal_free(call->error);
  call->error = pw_refusal(pw_copy_text(text));
}

int pw_partition_call_python(const char* code, size_t code_size, const char* options, size_t options_size,
                             const char* directory, pw_partition_call* call) {
  int how = PW_PARTITION_NO_PARTITIONER;
  pthread_rwlock_rdlock(&calling);
  pw_partitioner partition = directory ? atomic_load(&partitioner) : NULL;
  pw_replacer replace = directory ? NULL : atomic_load(&replacer);
  if (partition || replace) {
    int done = partition ? partition(call, code, code_size, options, options_size, directory)
                         : replace(call, code, code_size);
    how = done == 1 ? PW_PARTITION_DONE : done == 0 ? PW_PARTITION_FAILED : PW_PARTITION_INTERRUPTED;
  }
  void* exception = how == PW_PARTITION_INTERRUPTED ? pw_python_keyboard_interrupt() : NULL;
  if (exception) pw_python_raise(exception);
  pthread_rwlock_unlock(&calling);
  return how;
}
