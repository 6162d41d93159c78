// The frontend of a cluster: a PJRT function table whose devices are those of many workers. It stands on
// core/client.Cluster, which takes whole objects and returns numbers.
//
// All handles are ours. An event is a future: there is one for each operation, counted, and handed out as often as a
// caller asks for it. A buffer is a shard of an object; the object is what the cluster knows. Slots that only read
// answer here, in C; Go is entered once for an operation.
#ifndef PATHWAYS_CAPI_CLUSTER_CLUSTER_H_
#define PATHWAYS_CAPI_CLUSTER_CLUSTER_H_

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "capture.h"
#include "export.h"
#include "object.h"

typedef struct pr_memory pr_memory;

// ---- counters (table.c): handles alive, and what was done ----
typedef struct {
  _Atomic int64_t clients, executables, buffers, objects, futures, puts, fetches, views;  // alive
  _Atomic int64_t go_entries, executes, host_puts, host_fetches, moved, reshards, copied;
} pr_counters;
extern pr_counters pr_count;
static inline void pr_count_moved(int64_t n) { atomic_fetch_add_explicit(&pr_count.moved, n, memory_order_relaxed); }
#define PR_COUNT(field, n) atomic_fetch_add_explicit(&pr_count.field, (n), memory_order_relaxed)

// How often devices of this process's sessions were lost, or got another worker: while it stays the same, programs
// still have the arrays that they captured.
extern _Atomic uint64_t pr_losses;
static inline uint64_t pr_lose(void) { return atomic_fetch_add_explicit(&pr_losses, 1, memory_order_release); }

// GIVE returns a text and its size.
#define GIVE(field, text) (args->field = (text), args->field##_size = strlen(args->field))

PJRT_Error* pr_unimplemented(const char* slot);
const PJRT_Api* pr_api(void);  // always the same table
void pr_table_fill(PJRT_Api* table);
PJRT_Extension_Base* pr_extensions(void);

// ---- futures (future.c) ----

// pr_future is completed when one operation ends.
typedef struct pr_future pr_future;
enum { PR_PENDING = 0, PR_READY = 1, PR_FAILED = 2 };

pr_future* pr_future_new(int32_t refs);  // NULL: no memory, which is pr_no_future
PJRT_Error* pr_no_future(void);
pr_future* pr_future_ready(void);  // an already completed one; a new reference
pr_future* pr_future_hold(pr_future* future);
void pr_future_drop(pr_future* future);
int pr_future_state(pr_future* future);
void pr_future_wait(pr_future* future);
void pr_future_wait_for(pr_future* future, int64_t ns);  // or until a signal arrives
PJRT_Error* pr_future_error(pr_future* future);  // NULL unless it failed
// pr_future_set completes a future once; later calls do nothing. It takes message, which is malloc'd. It runs the
// callbacks, so the caller must not hold a lock.
void pr_future_set(pr_future* future, PJRT_Error_Code code, char* message);

// pr_end is the end of one operation, as Go reports it. It takes the token's reference.
typedef struct {
  uint64_t token;  // a pr_future
  int32_t code;
  char* message;  // malloc'd, or NULL
} pr_end;
void pr_fire(const pr_end* ends, size_t n);

// ---- objects and buffers (slab.c) ----

// pr_object is an object of the cluster: one shard or many.
typedef struct pr_object {
  pw_object base;        // first; its number is 0 if made has failed
  _Atomic int32_t refs;  // the handles, the list of objects that have gone, and core/client while rows may join
  pr_future* made;
  _Atomic bool open;     // further puts may join it: core/client has yet to send its operation
  _Atomic bool joined;   // shards were put one by one, so that they may go one by one, see pr_rows_gone
} pr_object;

typedef struct pr_view pr_view;

// pr_charge is the memory of a shard that several handles share, or that an exported array keeps. It counts until the
// last of them drops it. Guarded by slab.c's lock.
typedef struct pr_charge {
  int32_t refs;
  pr_object* object;  // the shard's; a reference to the charge is one to the object, too
  PJRT_Device* device;
  int64_t bytes;
} pr_charge;
extern pr_charge pr_uncounted;

// pr_buffer is a shard.
typedef struct pr_buffer {
  pw_slot slot;                 // first
  _Atomic bool gone;            // deleted, donated or destroyed
  _Atomic uint64_t donor;       // number of the latest call that donates it
  PJRT_Device* device;
  pr_memory* memory;
  pw_shape* shape;
  int64_t* minor_to_major;  // malloc'd; NULL: descending
  pr_object* object;
  // Which part of its memory counts on the device. NULL: all, for this handle alone; a charge: handles share it;
  // pr_uncounted: none, or no longer any.
  _Atomic(pr_charge*) charge;
  bool kept;          // a further handle of a shard; no run may donate the shard through it
  pp_symbol* symbol;  // what it stands for in a capture, or NULL
  _Atomic(pr_view*) view;  // its bytes in this process, or NULL, see view.c
} pr_buffer;

// Objects and buffers are made in two steps: slots, which may fail (false), and then what they are. Unused returns
// slots of which nothing was made.
bool pr_objects_new(pr_object** out, size_t n);
void pr_objects_unused(pr_object** slots, size_t n);
void pr_object_is(pr_object* object, uint64_t session, uint64_t number, pr_future* made, int32_t shards, int64_t bytes);
bool pr_buffers_new(pr_buffer** out, size_t n);
void pr_buffers_unused(pr_buffer** slots, size_t n);
// pr_shards_new takes n buffers and one object for them, which the cluster does not know yet: pr_object_becomes sets
// what it is, and takes the future.
bool pr_shards_new(pr_buffer** out, size_t n);
void pr_object_becomes(pr_object* object, uint64_t session, uint64_t number, pr_future* made, int64_t bytes);
// pr_object_opens is pr_object_becomes of an object that further rows may join until pr_object_sent. A row joins with
// pr_object_joins, which counts it as a shard, and fails if the last shard has gone. pr_object_undone takes both back.
void pr_object_opens(pr_object* object, uint64_t session, uint64_t number, pr_future* made, int64_t bytes);
bool pr_object_joins(pr_object* object, int64_t bytes);
void pr_object_sent(pr_object* object);
void pr_object_undone(pr_object* object);
// pr_hasten sends a put that waits for further rows, since a thread is about to wait for it.
void pr_hasten(void);
PJRT_Error* pr_no_shards(size_t n);  // the error if there are no slots
static inline PJRT_Buffer* pr_buffer_handle(pr_buffer* buffer) { return pw_slot_handle(&buffer->slot); }
static inline pr_buffer* pr_buffer_of(PJRT_Buffer* handle) { return (pr_buffer*)pw_slot_of(handle); }
#define ANY(b, handle, slot)           \
  pr_buffer* b = pr_buffer_of(handle); \
  if (b == NULL) return pw_buffer_gone(slot)
#define LIVE(b, handle, slot) \
  ANY(b, handle, slot);       \
  if (atomic_load_explicit(&b->gone, memory_order_acquire)) return pw_deleted(slot)
PJRT_Error* pr_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args);
void pr_buffer_release(pr_buffer* buffer);  // its shard is gone: deleted, donated or destroyed
// pr_buffer_count adds a new buffer of this many bytes to its device's account; pr_buffer_release subtracts them.
void pr_buffer_count(pr_buffer* buffer, int64_t bytes);
pr_charge* pr_charge_share(pr_buffer* buffer);  // one more reference; NULL: no memory, which is pr_no_charge
PJRT_Error* pr_no_charge(void);
pr_charge* pr_charge_hold(pr_charge* charge);
void pr_charge_drop(pr_charge* charge);
// For holders of a shard's object without a handle of the shard. pr_object_hold fails if the last shard has gone.
bool pr_object_hold(pr_object* object);
void pr_object_release(pr_object* object);
// pr_rows_gone takes shards that have gone before the other shards of their objects: of objects whose shards were put
// one by one.
typedef struct {
  pw_name object;
  uint32_t device;
} pr_row_name;
size_t pr_rows_gone(pr_row_name* rows, size_t room);
// pr_tell_rows_gone tells the cluster of them, before it is asked for memory.
void pr_tell_rows_gone(void);
// pr_freed takes objects whose last shard has gone: none until there is a full batch, unless all is set.
size_t pr_freed(pw_name* names, size_t room, bool all);
// pr_armed sets whether a sweep of freed objects is about to come; if not, the next object that is freed asks for one.
void pr_armed(bool yes);

// ---- bytes of shards in this process (view.c) ----

enum { PR_IN_MESSAGE = 16 << 10 };  // bytes; up to this size they travel inside a message, not in a block of memory

// Go's answers to prGoLend. pr_view_room allocates memory for bytes that come in no block; the view frees it; NULL:
// memory is short. pr_view_came returns false if the block is no longer wanted. pr_view_failed takes message.
char* pr_view_room(pr_view* view, size_t size);
bool pr_view_came(pr_view* view, char* data, uint64_t block);
void pr_view_failed(pr_view* view, PJRT_Error_Code code, char* message);
// pr_view_arrived returns the future of a shard's bytes if they are here, for the caller to drop; it has completed, or
// is about to. NULL: they are not here.
pr_future* pr_view_arrived(pr_buffer* buffer);
// pr_view_leave frees a shard's bytes unless something still reads them; with end, even then.
void pr_view_leave(pr_buffer* buffer);
void pr_view_end(pr_buffer* buffer);

// ---- clients, devices, memories (client.c) ----

struct PJRT_DeviceDescription {
  int id;
  char *kind, *text, *debug;
  PJRT_NamedValue* attributes;
  size_t num_attributes;
  pr_memory** memories;
  size_t num_memories, default_memory;
};

struct PJRT_Device {
  PJRT_Client* client;
  PJRT_DeviceDescription description;
  pw_account account;
};

struct pr_memory {
  pw_memory_base base;  // first
  int id, kind_id;
  char *kind, *text, *debug;
  PJRT_Device* device;
};

struct PJRT_TopologyDescription {
  char *platform, *version, *serialized;
  PJRT_DeviceDescription** devices;
  size_t num_devices;
};

// A session has a client for each platform of its devices, since a PJRT client has one platform. They are a family:
// each shows its own devices, and knows those of all by their ids, so that a call may name devices of several. The
// first one stands for all: programs and exported arrays belong to it, and it owns the devices. All are freed together.
struct PJRT_Client {
  uint64_t session;
  PJRT_Client *family, *next;  // the first one, and the one made before this one; NULL ends the list
  PJRT_TopologyDescription topology;
  PJRT_Device* device_structs;  // of the family, like the three below
  PJRT_Device** devices;        // by id
  size_t num_devices;
  int memory_ids;               // of the first one: how many there are
  size_t first, shown;          // its own devices: so many from this id on
  PJRT_Memory** memories;       // its own
  size_t num_memories;
};

// How Go makes a family: its first client for so many devices, and then others, each of which has some of them. NULL
// and false: memory is short. A family that is only partly made can be freed, by its first client.
PJRT_Client* pr_client_new(uint64_t session, const char* platform, const char* version, size_t devices);
PJRT_Client* pr_client_beside(PJRT_Client* family, const char* platform, const char* version);
bool pr_client_shows(PJRT_Client* client, size_t first, size_t devices);
bool pr_client_device(PJRT_Client* client, size_t i, const char* kind, const char* worker, int64_t slice, int64_t local,
                      size_t memories, size_t default_memory, int64_t limit, int64_t share, bool host);
// More attributes of a device, after those that pr_client_device sets.
bool pr_device_string(PJRT_Client* client, size_t i, const char* name, const char* value);
bool pr_device_int(PJRT_Client* client, size_t i, const char* name, int64_t value);
bool pr_client_memory(PJRT_Client* client, size_t device, size_t i, const char* kind, const char* text,
                      const char* debug);
bool pr_client_done(PJRT_Client* client);
void pr_client_free(PJRT_Client* family);
pr_memory* pr_memory_kind(PJRT_Device* device, const char* kind, size_t size);  // the default for size 0
// PJRT_Plugin_Attributes returns these. pr_attributes_new begins a new list; the others append one attribute each.
size_t pr_attributes_new(void);
// False: memory is short.
bool pr_attribute_string(const char* name, const char* value);
bool pr_attribute_ints(const char* name, const int64_t* values, size_t n, bool list);

// ---- executables (program.c) ----

typedef struct {
  pw_shape* shape;
  int64_t bytes;  // of a shard
  char* memory;
  size_t memory_size;
  int64_t* minor_to_major;
  bool descending;  // minor_to_major is that of dense row-major bytes
} pr_array;

// pr_order_copy copies the order of n dimensions to *out; NULL, the descending order, stays NULL. It returns false if
// memory is short.
static inline bool pr_order_copy(int64_t** out, const int64_t* minor_to_major, size_t n) {
  *out = minor_to_major ? pw_copy(minor_to_major, n * sizeof *minor_to_major) : NULL;
  return minor_to_major == NULL || *out != NULL;
}
static inline const int64_t* pr_array_order(const pr_array* a) { return a->descending ? NULL : a->minor_to_major; }

typedef struct {
  char* data;
  size_t size;
} pr_bytes;

// What a program takes of a device's memory, in bytes, as its plugin states it.
typedef struct {
  int64_t arguments, outputs;
  int64_t aliased;  // of the outputs, what takes the memory of donated arguments
  int64_t temporary, code;
} pr_memory_use;

struct PJRT_Executable {
  _Atomic int32_t refs;
  PJRT_Client* client;
  uint64_t session, program;
  char *name, *fingerprint;
  size_t replicas, partitions;
  PJRT_Device** devices;  // one for each row of Execute
  uint32_t* rows;         // their ids
  size_t num_devices;
  pr_array *outputs, *params;
  size_t num_outputs, num_params;
  bool any_params;        // what it takes is not known here
  pw_port port;           // whether it is an export or import program, see reshard.c
  bool* donates;          // by parameter
  pr_memory** memories;   // [device][output]
  // Runs may fail for want of memory after their call has returned, and take much longer than the microsecond or so of
  // finding the line that made the call.
  bool heavy;
  _Atomic bool called;    // it has been run before
  pr_memory_use use;
  uintptr_t code;         // Go's, which keeps it in any case and copies no constants for it; 0 is none
  pr_bytes format, options, optimized, assignment;
  bool manual;  // capi/partition made the program, and its options
  // In the form that PJRT returns.
  PJRT_Buffer_Type* types;
  int64_t* dims;
  size_t* ranks;
  const char **kinds, **param_kinds;
  size_t *kind_sizes, *param_kind_sizes;
  PJRT_LogicalDeviceIds* logical;
  _Atomic(PJRT_NamedValue*) properties;  // with their names, one block
  _Atomic size_t num_properties;
  _Atomic(void*) output_layouts;  // lists of the Layouts extension
  _Atomic(void*) param_layouts;
};

struct PJRT_LoadedExecutable {
  PJRT_Executable* x;
  _Atomic int32_t refs;  // the handle, and programs
  _Atomic bool deleted, closed;
};
void pr_loaded_drop(PJRT_LoadedExecutable* executable);

// ---- captures (capture.c) ----
extern const pp_frontend pr_frontend;
// pr_unmade returns the error of a buffer that the cluster does not know.
static inline PJRT_Error* pr_unmade(const pr_buffer* b) {
  return b->object->base.name.number ? NULL : pr_future_error(b->object->made);
}

PJRT_Error* pr_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args);

enum { PR_FORMAT, PR_OPTIONS, PR_OPTIMIZED, PR_ASSIGNMENT };
// How Go makes an executable. NULL and false: memory is short. One that is only partly made can be dropped.
PJRT_Executable* pr_program_new(PJRT_Client* client, uint64_t program, const char* name, const char* fingerprint,
                                size_t replicas, size_t partitions, size_t devices, size_t params, size_t outputs);
bool pr_program_array(PJRT_Executable* x, bool output, size_t i, uint32_t type, const int64_t* dims, size_t num_dims,
                      const int64_t* minor_to_major, const char* memory, bool donated);
void pr_program_device(PJRT_Executable* x, size_t row, uint32_t device);
bool pr_program_bytes(PJRT_Executable* x, int what, const void* data, size_t size);
bool pr_program_done(PJRT_Executable* x);
void pr_program_drop(PJRT_Executable* x);

// pr_context_functions returns the Python functions of an execute context, or NULL.
const void* pr_context_functions(PJRT_ExecuteContext* context);
// pr_context_keep makes a context with these functions; NULL if there are none.
PJRT_ExecuteContext* pr_context_keep(PJRT_ExecuteContext* context, void** functions);

// ---- layouts (layout.c) ----

// pr_pack and pr_unpack copy an array between dense row-major bytes and strides.
void pr_pack(char* dense, const char* strided, const int64_t* dims, const int64_t* strides, size_t n, size_t element);
void pr_unpack(char* strided, const char* dense, const int64_t* dims, const int64_t* strides, size_t n, size_t element);
bool pr_dense(const int64_t* dims, const int64_t* strides, size_t n, size_t element);
// pr_layout_strides converts a caller's layout to strides.
PJRT_Error* pr_layout_strides(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t n, size_t element,
                              int64_t* strides);
size_t pr_element_size(PJRT_Buffer_Type type);  // in host memory
int64_t pr_host_bytes(const pw_shape* shape);

// ---- arguments of calls into Go ----

// pr_put is host data on its way to the cluster. Go calls pr_put_fill once, or drops it.
typedef struct pr_put {
  const char* data;
  char* copy;  // of the data, if the caller's own is gone
  char* room;  // for the copy, until it is made
  pw_shape* shape;
  int64_t* strides;  // NULL: dense
  pr_future* done;   // completes when the caller's data is no longer needed
} pr_put;
void pr_put_fill(pr_put* put, char* dst);
void pr_put_keep(pr_put* put);   // copies the caller's data, which is about to go
pr_future* pr_put_free(pr_put* put);  // returns done, for pr_fire

// pr_fetch is a destination with strides for fetched bytes.
typedef struct pr_fetch {
  char *bytes, *dst;
  pw_shape* shape;
  int64_t* strides;
} pr_fetch;
void pr_fetch_end(pr_fetch* fetch, bool arrived);

// pr_shard is a row's shard of an argument.
typedef struct {
  uint64_t object;
  uint32_t device;
  const pr_buffer* buffer;
} pr_shard;

// pr_run is one run, for Go.
typedef struct {
  uint64_t session, program;
  uint64_t token;
  const uint64_t* inputs;  // 0: see shards
  size_t num_inputs;
  size_t num_rows;
  const uint32_t* mixed;   // arguments that are not one object with a shard on each row's device
  size_t num_mixed;
  const pr_shard* shards;  // num_rows of each of mixed
  const uint32_t* rows;    // devices of the rows; read only if there are mixed arguments
  const uint32_t* not_donated;
  size_t num_not_donated;
  int32_t only;  // a device, or -1
  const char* trace;
  size_t trace_size;
  const void* functions;   // of its execute context: what the program may call; or NULL
  uint64_t caller;         // out, if there are functions: for prGoServe
  const pw_name* freed;
  size_t num_freed;
  size_t num_outputs;
  uint64_t first_output;  // out
  char* message;          // out
} pr_run;

#endif  // PATHWAYS_CAPI_CLUSTER_CLUSTER_H_
