// The C part of playing a program as one message (capture.c), for play.go.
#ifndef PATHWAYS_CAPI_CLUSTER_PLAY_H_
#define PATHWAYS_CAPI_CLUSTER_PLAY_H_

#include "graph.h"
#include "interpreter.h"
#include "reshard.h"

// pr_source is a shard that a play reads: of an input, or a constant.
typedef struct {
  uint64_t object;
  uint32_t device;
} pr_source;

// pr_played_new makes the handles of a value that a play returns; false: memory is short, and the caller destroys those
// that were made. pr_played sets their object, and takes the future.
bool pr_played_new(const pp_program* program, size_t value, PJRT_Buffer** shards);
void pr_played(const pp_program* program, size_t value, uint64_t object, pr_future* made, PJRT_Buffer** shards);

static inline uintptr_t pr_lowered(pp_program* p) { return atomic_load(&p->lowered); }
// pr_lower stores the lowered form of a program, unless another thread was first, and returns the stored one.
static inline uintptr_t pr_lower(pp_program* p, uintptr_t made) {
  uintptr_t have = 0;
  return atomic_compare_exchange_strong(&p->lowered, &have, made) ? made : have;
}
static inline PJRT_Executable* pr_executable(const pp_node* n) { return n->executable->x; }
static inline uint32_t pr_device_number(PJRT_Device* d) { return (uint32_t)d->description.id; }
static inline const char* pr_memory_name(PJRT_Memory* m) { return ((pr_memory*)m)->kind; }
static inline int64_t pr_output_bytes(const PJRT_Executable* x, size_t o) { return x->outputs[o].bytes; }

#endif  // PATHWAYS_CAPI_CLUSTER_PLAY_H_
