#define _GNU_SOURCE
#include "partition.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "interpreter.h"

// ---- which programs ask ----

// Without an answer the program fails, with an error from core/xla/spmd.
static const char* const required[] = {"InspectSharding", "xla_ffi_partitioned_python_", "CustomSPMDPartitioning"};

// Programs with these run better with answers, and stay as they are if jaxlib cannot partition them.
static const char* const optional[] = {
    // An attribute that calls have whose first dimensions XLA may split
    // (jax.ffi.register_ffi_target_as_batch_partitionable).
    "num_batch_dims",
};

// Operations that Python replaces.
static const char* const replaced[] = {"annotate_device_placement", "ragged_all_to_all", "collective_broadcast"};

// The end of the bytecode, with its last byte, by which a mesh says that its devices are in another order than the
// program's. jaxlib 0.12 leaves such meshes to the plugin. If two meshes of a program differ in their order alone, the
// XLA of plugins as old as jax 0.10 then mixes up the shards, without an error; jaxlib's partitioner does not.
static const char another_order[] = "device_ids";

static bool has(const char* code, size_t size, const char* word) {
  return memmem(code, size, word, strlen(word)) != NULL;
}

bool pw_partition_optional(const char* code, size_t size) {
  for (size_t i = 0; i < sizeof required / sizeof *required; i++)
    if (has(code, size, required[i])) return false;
  return memmem(code, size, another_order, sizeof another_order) == NULL;
}

bool pw_partition_replaces(const char* code, size_t size) {
  for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
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
