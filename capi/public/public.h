// What the files of this package share: objects behind handles, and the frontends.
#ifndef PATHWAYS_CAPI_PUBLIC_PUBLIC_H_
#define PATHWAYS_CAPI_PUBLIC_PUBLIC_H_

#include <pthread.h>

#include "base.h"
#include "openpathways.h"

// ---- errors (error.c) ----

pathways_error pc_fail(pathways_code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// pc_fail_with takes a malloc'd message.
pathways_error pc_fail_with(pathways_code code, char* message);
// pc_short returns the error of an allocation that failed: what for, and of how many bytes.
pathways_error pc_short(const char* what, size_t bytes);
// The handle of the error that there is no memory even for an error. It names no object, and dropping it does nothing.
#define PC_NO_MEMORY ((pathways_error)PC_ERROR << 60 | (pathways_error)0xfffffff << 32)
// pc_take makes an error of a frontend's error, which it frees. 0 for NULL.
pathways_error pc_take(PJRT_Error* error);
pathways_error pc_forked(void);

#define PC_TRY(call)                \
  do {                              \
    pathways_error err_ = (call);   \
    if (err_) return err_;          \
  } while (0)

// PC_STRUCT refuses a caller's struct that is NULL, or whose size cannot be right.
#define PC_STRUCT(of, what)                                                                      \
  if ((of) == NULL || (of)->struct_size < sizeof(size_t) || (of)->struct_size > PC_LARGEST)      \
    return pc_no_struct(what, (of) != NULL)
enum { PC_LARGEST = 1 << 16 };  // bytes; no struct of a later version is larger
pathways_error pc_no_struct(const char* what, bool there);

// PC_READ copies the fields of a caller's struct that both sides know.
#define PC_READ(type, name, from, what) \
  type name;                            \
  memset(&name, 0, sizeof name);        \
  PC_STRUCT(from, what);                \
  memcpy(&name, (from), (from)->struct_size < sizeof name ? (from)->struct_size : sizeof name)

// PC_WRITE copies a struct of ours to the caller's, which PC_STRUCT has checked, as far as the caller's extends.
#define PC_WRITE(to, from)                                                                       \
  do {                                                                                           \
    size_t size_ = (to)->struct_size;                                                            \
    (from).struct_size = size_;                                                                  \
    memcpy((to), &(from), size_ < sizeof(from) ? size_ : sizeof(from));                          \
  } while (0)

// ---- objects (handle.c) ----

typedef enum {
  PC_ERROR = 1,
  PC_SESSION,
  PC_EXECUTABLE,
  PC_ARRAY,
  PC_FUTURE,
  PC_VIEW,
  PC_SLICE,
  PC_PROGRAM,
  PC_LAST = PC_PROGRAM
} pc_kind;

struct pc_session;

// pc_object begins every object. It is counted: one reference for the handle, one for each call that is using it, and
// one for each object that needs it.
typedef struct pc_object {
  pc_kind kind;
  uint32_t slot, generation;
  struct pc_session* session;            // with a reference; NULL for sessions and errors
  struct pc_object *previous, *next;     // in the session's list
} pc_object;

// pc_new makes a slot and a handle for an object; the handle takes over the object's one reference. It fails, and
// destroys the object, if its session has ended.
pathways_error pc_new(pc_object* object, pc_kind kind, struct pc_session* session, uint64_t* handle);
// pc_get returns the object of a handle, with a reference.
pathways_error pc_get(uint64_t handle, pc_kind kind, void* object);
void pc_hold(pc_object* object);
// pc_let drops a reference; the last one destroys the object.
void pc_let(void* object);
// pc_let_later is for threads of a plugin, on which no session may end.
void pc_let_later(pc_object* object);
// pc_discard drops a handle that may be stale.
void pc_discard(uint64_t handle);
// pc_end drops the handles of everything in a session's list.
void pc_end(struct pc_session* session);

// The destructor of each kind. They leave the object's reference to its session alone.
void pc_error_destroy(pc_object* object);
void pc_session_destroy(pc_object* object);
void pc_executable_destroy(pc_object* object);
void pc_array_destroy(pc_object* object);
void pc_future_destroy(pc_object* object);
void pc_view_destroy(pc_object* object);
void pc_slice_destroy(pc_object* object);
void pc_program_destroy(pc_object* object);

// ---- sessions (session.c) ----

typedef struct {
  PJRT_Device* device;
  PJRT_Memory* memory;  // the default
  int32_t id;
} pc_device;

typedef struct pc_session {
  pc_object base;
  const PJRT_Api* api;  // of the frontend; always valid
  PJRT_Client* client;
  bool cluster, on_host;
  pc_device* devices;
  size_t num_devices;
  pthread_mutex_t mu;  // guards the list and ended
  pc_object* first;    // executables and arrays
  bool ended;
  _Atomic int64_t arrays, executables, runs, puts, fetches;
} pc_session;

// pc_devices finds n devices by id, or the first n if ids is NULL. list has n places.
pathways_error pc_devices(pc_session* s, const int32_t* ids, size_t n, pc_device** list);
// pc_device_of returns the device of a frontend's device; NULL if there is none.
pc_device* pc_device_of(const pc_session* s, PJRT_Device* device);

// ---- executables (executable.c) ----

typedef struct {
  pw_shape* shape;  // of a shard
  bool tiled;
  int64_t tiles[PATHWAYS_MAX_DIMS];
} pc_output;

typedef struct pc_executable {
  pc_object base;
  PJRT_LoadedExecutable* loaded;
  char name[128];
  pc_device** devices;  // one for each row
  size_t num_devices;
  pc_output* outputs;
  size_t num_outputs;
} pc_executable;

// ---- arrays (array.c, put.c) ----

typedef struct pc_array {
  pc_object base;
  pw_shape* shape;  // of a shard
  bool tiled;
  int64_t tiles[PATHWAYS_MAX_DIMS];
  size_t num_shards;
  struct {
    PJRT_Buffer* buffer;
    pc_device* device;
  } shards[];
} pc_array;

// pc_array_make returns an array of n shards without a handle, which pc_array_destroy frees. tiles is NULL if the
// positions of the shards are not known. It takes the shape. NULL, for which pc_no_array is the error: there is no
// memory or no shape.
pc_array* pc_array_make(pc_session* s, pw_shape* shape, const int64_t* tiles, size_t n);
pathways_error pc_no_array(size_t shards);
void pc_array_free(pc_array* array);  // without a handle so far
pathways_error pc_shard(const pc_array* array, int32_t shard);  // an error if there is no such shard
size_t pc_element(PJRT_Buffer_Type type);                         // bytes in host memory
// pc_bytes multiplies dims and an element's size, and refuses a product that is not a possible number of bytes.
bool pc_bytes(const int64_t* dims, size_t num_dims, size_t element, int64_t* bytes);
// pc_lay checks how an array is distributed over shards, for a call, and writes its tiles and the shape of a shard.
pathways_error pc_lay(const char* call, const pathways_host_options* o, size_t num_shards, int64_t* tiles,
                      int64_t* shard);
// pc_put is pathways_array_from_host with options that were already read. direct: `released` is a function of this
// library, which may be called on a thread of a plugin.
pathways_error pc_put(pc_session* s, const pathways_host_options* o, bool direct, pathways_array* array);
// pc_part writes where a shard begins in the whole array.
void pc_part(const pc_array* array, size_t shard, int64_t* start);
// pc_dense writes the strides of a dense row-major array. pc_is_dense reports whether a region with these strides is
// one dense row-major block.
void pc_dense(const int64_t* dims, size_t n, size_t element, int64_t* strides);
bool pc_is_dense(const int64_t* dims, const int64_t* strides, size_t n, size_t element);
// pc_region copies a region of dims between a dense array and bytes with strides.
void pc_region(char* dense, char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element,
            bool out);

// ---- futures (future.c) ----

typedef struct pc_future pc_future;
// pc_future_make returns a future of this many events and one more, which is the maker's to count, with two references:
// the maker's and that of the pending events. NULL: no memory.
pc_future* pc_future_make(pc_session* s, size_t events);
// pc_future_on takes an event of a frontend as one of the pending ones. If `ended` is not NULL it is called first, on a
// thread of the plugin.
void pc_future_on(pc_future* f, PJRT_Event* event, void (*ended)(void* arg, bool failed), void* arg);
// pc_future_one counts an event that has fired, with its error or NULL.
void pc_future_one(pc_future* f, PJRT_Error* error);
void pc_future_give(pc_future* f, uint64_t* handle);  // takes the maker's reference
void pc_future_abandon(pc_future* f);                 // drops the maker's reference

// pc_later has a function called on the library's thread. If memory is short it waits for some: the function must be
// called, and not on this thread.
void pc_later(void (*call)(void* arg), void* arg);
// pc_event_drop destroys a frontend's event.
void pc_event_drop(const PJRT_Api* api, PJRT_Event* event);

#endif  // PATHWAYS_CAPI_PUBLIC_PUBLIC_H_
