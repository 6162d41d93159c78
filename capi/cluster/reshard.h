// What moving arrays between shardings needs of C (reshard.c), for reshard.go.
#ifndef PATHWAYS_CAPI_CLUSTER_RESHARD_H_
#define PATHWAYS_CAPI_CLUSTER_RESHARD_H_

#include "cluster.h"

// pr_held is an array outside of its client. One that was made here has handles
// that nobody was given, one that was exported holds the objects of its shards.
typedef struct pr_held {
  pw_held base;  // first
  PJRT_Client* client;
  bool fresh;
  pw_shape* shape;  // of a shard; a reference
  int64_t* minor_to_major;  // of a shard, its own copy; NULL: descending
  size_t n;
  struct {
    PJRT_Device* device;
    pr_memory* memory;
    pr_object* object;
    pr_charge* charge;  // of one that was exported
    pr_buffer* buffer;  // of one that was made here
  } shards[];
} pr_held;

pr_held* pr_held_new(PJRT_Client* client, size_t n, bool fresh, pw_shape* shape,
                     const int64_t* minor_to_major);  // NULL: no memory
// What pp_door says of them.
size_t pr_held_shards(pw_held* held);
bool pr_held_fresh(pw_held* held);
void pr_held_look(pw_held* held, size_t shard, pp_look* out);
pw_held* pr_held_close(PJRT_Buffer* const* buffers, size_t n);
void pr_held_take(pw_held* held, PJRT_Buffer** out);
PJRT_Error* pr_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_held** out);
PJRT_Error* pr_held_made(PJRT_LoadedExecutable_Execute_Args* args, pw_held* held);
static inline pr_object* pr_held_object(pr_held* h, size_t i) { return h->shards[i].object; }
static inline uint32_t pr_held_device(pr_held* h, size_t i) { return (uint32_t)h->shards[i].device->description.id; }
// pr_moved_new makes handles of shards, on devices of the client; NULL: no memory.
// pr_moved_is says of which object they are. The future is taken.
pr_held* pr_moved_new(PJRT_Client* client, const uint32_t* devices, size_t n, pw_shape* shape, const char* kind);
void pr_moved_is(pr_held* held, uint64_t object, pr_future* made);

#endif  // PATHWAYS_CAPI_CLUSTER_RESHARD_H_
