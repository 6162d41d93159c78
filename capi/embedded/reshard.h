// What moving arrays between shardings needs of C (reshard.c), for reshard.go.
#ifndef PATHWAYS_CAPI_EMBEDDED_RESHARD_H_
#define PATHWAYS_CAPI_EMBEDDED_RESHARD_H_

#include "embedded.h"

// pw_held_array is an array outside of its client.
typedef struct pw_held_array {
  pw_held base;  // first
  PJRT_Client* client;
  bool fresh;  // it was made here: no client has a handle of its shards
  size_t n;
  pw_buffer* shards[];
} pw_held_array;

pw_held_array* pw_held_new(PJRT_Client* client, size_t n, bool fresh);  // NULL: no memory
// What pp_door says of them.
size_t pw_held_shards(pw_held* held);
bool pw_held_fresh(pw_held* held);
void pw_held_look(pw_held* held, size_t shard, pp_look* out);
pw_held* pw_held_close(PJRT_Buffer* const* buffers, size_t n);
void pw_held_take_handles(pw_held* held, PJRT_Buffer** out);
PJRT_Error* pw_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_held** out);
PJRT_Error* pw_held_made(PJRT_LoadedExecutable_Execute_Args* args, pw_held* held);
static inline const int64_t* pw_dims(const pw_shape* s) { return s->dims; }
static inline pw_buffer* pw_held_shard(pw_held_array* h, size_t i) { return h->shards[i]; }
// pw_held_gang gives the gang that has yet to be launched to make an array, or 0;
// several: there is more than one.
uint64_t pw_held_gang(const pw_held_array* held, bool* several);
PJRT_Device* pw_device_numbered(PJRT_Client* client, int id);  // as the client shows it; or NULL

// pw_source is a shard that bytes are taken from. Guarded by its mover until all
// are ready.
typedef struct pw_source {
  struct pw_moving* moving;
  char* staged;  // its bytes, where they cannot be read in place
  int code;      // why there are none
  char* message;
} pw_source;

// pw_moving is an array on its way.
typedef struct pw_moving {
  pw_held_array* from;
  uintptr_t go;          // what pwGoMove is called with, once, unless pw_moving_armed said true
  _Atomic int32_t left;  // sources that are not ready, and 1 until it is armed
  pw_source sources[];
} pw_moving;

pw_moving* pw_moving_new(pw_held_array* from, uintptr_t go);  // NULL: no memory
void pw_moving_free(pw_moving* moving);
void pw_moving_watch(pw_moving* moving, size_t source);  // it will be read
bool pw_moving_ready(pw_moving* moving);                 // all that are watched are, before it is armed
bool pw_moving_armed(pw_moving* moving);                 // all are watched; true: and ready
// pw_moving_bytes gives a source's dense row-major bytes when it is ready, or NULL:
// it has an error.
const char* pw_moving_bytes(pw_moving* moving, size_t source);
static inline pw_source* pw_moving_source(pw_moving* m, size_t i) { return &m->sources[i]; }

// Where it goes. pw_moved_new makes handles of shards without contents, of an array, which
// is an object of the core's; pw_moved_promise or pw_moved_put gives each its contents. It
// returns NULL, and pw_moved_memory too, where memory is short.
bool pw_can_promise(void);
pw_held_array* pw_moved_new(PJRT_Client* client, const int32_t* devices, size_t n, pw_shape* shape, const char* kind,
                            uint64_t object, pw_array** array);
int pw_moved_promise(pw_buffer* shard, void** fulfil, char** message);
void* pw_moved_memory(size_t bytes);  // for pw_moved_put, which takes it
int pw_moved_put(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape, void* data, void* fulfil,
                 pw_buffer* to, char** message);
void pw_moved_fail(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape, void* fulfil, int code,
                   const char* message);
void pw_moved_begun(pw_array* array, pw_held_array* from, uint64_t gang);
void pw_moved_settled(pw_array* array);

#endif  // PATHWAYS_CAPI_EMBEDDED_RESHARD_H_
