// The C part of moving arrays between shardings (reshard.c), for reshard.go.
#ifndef PATHWAYS_CAPI_EMBEDDED_RESHARD_H_
#define PATHWAYS_CAPI_EMBEDDED_RESHARD_H_

#include "embedded.h"

// pw_export_array is an exported array.
typedef struct pw_export_array {
  pw_export base;  // first
  PJRT_Client* client;
  bool fresh;  // made here: no client has handles of its shards
  size_t n;
  pw_buffer* shards[];
} pw_export_array;

pw_export_array* pw_export_new(PJRT_Client* client, size_t n, bool fresh);  // NULL: no memory
// For pp_frontend.
size_t pw_export_shards(pw_export* exported);
bool pw_export_fresh(pw_export* exported);
void pw_export_look(pw_export* exported, size_t shard, pp_look* out);
pw_export* pw_export_close(PJRT_Buffer* const* buffers, size_t n);
void pw_export_take_handles(pw_export* exported, PJRT_Buffer** out);
PJRT_Error* pw_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_export** out);
PJRT_Error* pw_export_made(PJRT_LoadedExecutable_Execute_Args* args, pw_export* exported);
static inline pw_buffer* pw_export_shard(pw_export_array* h, size_t i) { return h->shards[i]; }
// pw_export_gang returns the gang that makes an array and is not launched yet, or 0. several: there is more than one.
uint64_t pw_export_gang(const pw_export_array* exported, bool* several);
PJRT_Device* pw_device_numbered(PJRT_Client* client, int id);  // by the id that the client shows; or NULL

// pw_source is a shard from which bytes are copied.
typedef struct pw_source {
  struct pw_moving* moving;
  char* staged;  // its bytes, if they cannot be read in place
  int code;      // why there are none
  char* message;
} pw_source;

// pw_moving is an array that is being moved.
typedef struct pw_moving {
  pw_export_array* from;
  uintptr_t go;  // an argument of pwGoMove
  pw_source sources[];
} pw_moving;

pw_moving* pw_moving_new(pw_export_array* from, uintptr_t go);  // NULL: no memory
void pw_moving_free(pw_moving* moving);
// pw_moving_watch returns whether a source is ready, or has an error. Otherwise pwGoMove is called once it is or has;
// this may be before pw_moving_watch returns.
bool pw_moving_watch(pw_moving* moving, size_t source);
// pw_moving_bytes returns a source's dense row-major bytes once it is ready; NULL: it has an error.
const char* pw_moving_bytes(pw_moving* moving, size_t source);
static inline pw_source* pw_moving_source(pw_moving* m, size_t i) { return &m->sources[i]; }

// The destination. pw_moved_new makes an array, which is an object of the core's, and handles of its shards, without
// contents; pw_moved_promise or pw_moved_put fills each. pw_moved_new and pw_moved_memory return NULL if memory is
// short.
bool pw_can_promise(void);
pw_export_array* pw_moved_new(PJRT_Client* client, const int32_t* devices, size_t n, pw_shape* shape, const char* kind,
                              uint64_t object, pw_array** array);
int pw_moved_promise(pw_buffer* shard, void** fulfill, char** message);
void* pw_moved_memory(size_t bytes);  // for pw_moved_put, which takes it
int pw_moved_put(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape, void* data, void* fulfill,
                 pw_buffer* to, char** message);
void pw_moved_fail(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape, void* fulfill, int code,
                   const char* message);
void pw_moved_begun(pw_array* array, pw_export_array* from, uint64_t gang);
void pw_moved_settled(pw_array* array);

#endif  // PATHWAYS_CAPI_EMBEDDED_RESHARD_H_
