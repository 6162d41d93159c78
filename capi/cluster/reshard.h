// The C part of moving arrays between shardings (reshard.c), for reshard.go.
#ifndef PATHWAYS_CAPI_CLUSTER_RESHARD_H_
#define PATHWAYS_CAPI_CLUSTER_RESHARD_H_

#include "cluster.h"

// pr_export is an exported array. One that was made here has the only handles of its shards; one that was exported
// holds its shards' objects.
typedef struct pr_export {
  pw_export base;  // first
  PJRT_Client* client;
  bool fresh;
  pw_shape* shape;  // of a shard; a reference
  int64_t* minor_to_major;  // of a shard, its own copy; NULL: descending
  size_t n;
  struct {
    PJRT_Device* device;
    pr_memory* memory;
    pr_object* object;
    pr_charge* charge;  // if it was exported
    pr_buffer* buffer;  // if it was made here
  } shards[];
} pr_export;

pr_export* pr_export_new(PJRT_Client* client, size_t n, bool fresh, pw_shape* shape,
                         const int64_t* minor_to_major);  // NULL: no memory
// For pp_frontend.
size_t pr_export_shards(pw_export* exported);
bool pr_export_fresh(pw_export* exported);
void pr_export_look(pw_export* exported, size_t shard, pp_look* out);
pw_export* pr_export_close(PJRT_Buffer* const* buffers, size_t n);
void pr_export_take(pw_export* exported, PJRT_Buffer** out);
PJRT_Error* pr_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_export** out);
PJRT_Error* pr_export_made(PJRT_LoadedExecutable_Execute_Args* args, pw_export* exported);
static inline pr_object* pr_export_object(pr_export* h, size_t i) { return h->shards[i].object; }
static inline uint32_t pr_export_device(pr_export* h,
                                        size_t i) { return (uint32_t)h->shards[i].device->description.id; }
// pr_moved_new makes handles of shards on devices of the client; NULL: memory is short. pr_moved_is sets their object,
// and takes the future.
pr_export* pr_moved_new(PJRT_Client* client, const uint32_t* devices, size_t n, pw_shape* shape, const char* kind);
void pr_moved_is(pr_export* exported, uint64_t object, pr_future* made);

#endif  // PATHWAYS_CAPI_CLUSTER_RESHARD_H_
