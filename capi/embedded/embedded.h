// The embedded frontend: what a PJRT client sees, on top of the function table of a plugin.
//
// Five kinds of handle are ours: client, device, memory, loaded executable and buffer. Everything else (events, the
// plugin's errors, executables, topologies, device descriptions, execute contexts, transfer managers) is the plugin's
// own and passes through; slots that take only such handles are the plugin's own function pointers.
//
// Slots that only read answer here, in C. Go is entered to make and end clients and executables, and once to place a
// run or a new buffer; pw_pass says when a run of one device or a new buffer needs no place.
#ifndef PATHWAYS_CAPI_EMBEDDED_EMBEDDED_H_
#define PATHWAYS_CAPI_EMBEDDED_EMBEDDED_H_

#include "base.h"
#include "capture.h"
#include "devicetime.h"
#include "export.h"
#include "object.h"

// The plugin's table. Set once, before any client exists.
extern const PJRT_Api* pw_under;

// PW_HAS reports whether the plugin's table is long enough to have this slot, and has a function there.
#define PW_HAS(slot) \
  (pw_under != NULL && pw_under->struct_size >= offsetof(PJRT_Api, slot) + sizeof(void*) && pw_under->slot != NULL)

// pw_unimplemented is the error of a slot that the plugin lacks. Errors are ours or the plugin's.
PJRT_Error* pw_unimplemented(const char* slot);

// ---- arrays, buffers (slab.c, buffer.c) ----

typedef struct pw_provenance pw_provenance;  // see run.h

// pw_array is one logical array: the shards of one output of one run, or one buffer that was made alone. If memory has
// a limit, the core counts it as one object, and learns once that it is gone: when the last shard has gone.
typedef struct pw_array {
  pw_object base;         // first
  _Atomic uint64_t gang;  // the gang that makes it, until that is launched; else 0
  uint64_t maker;         // the last gang of several devices that it depends on, on each of them; 0: none
  _Atomic bool moving;    // its bytes have not arrived yet, see reshard.c
  _Atomic(pw_provenance*) provenance;  // of the run under way that may fail to make it, or NULL
} pw_array;

// pw_buffer is a shard.
typedef struct pw_buffer {
  pw_slot slot;                 // first
  _Atomic int32_t refs;         // the handle, and every run that waits with it
  _Atomic int32_t pins;         // runs that wait with it, and PW_DELETED
  _Atomic int32_t exports;      // how many exported arrays have it: while there is one it is not donated
  _Atomic uint64_t donor;       // the last argument that donated it, see twice in execute.c
  _Atomic bool released;        // its bytes are no longer counted: deleted, donated or destroyed
  _Atomic bool comes;           // no computation on its device makes it, and it has not been seen to be there
  bool promise;                 // handed out before its run was launched
  PJRT_Buffer* under;           // NULL: it was never made, and its array's provenance says why
  PJRT_Device* device;
  PJRT_Memory* memory;
  pw_shape* shape;
  pw_array* array;
  _Atomic int64_t counted;  // bytes that its device's account counts for it
  struct pw_buffer* of;  // the buffer whose contents it shares, see capture.c; or NULL
  pp_symbol* symbol;     // what it stands for in a capture, or NULL
} pw_buffer;

// PW_DELETED, in pins: deleted by its owner, or donated to a run that waits. Runs that wait may still need the bytes;
// the last of them deletes them.
enum { PW_DELETED = 1 << 30 };
static inline bool pw_is_deleted(pw_buffer* b) {
  return atomic_load_explicit(&b->pins, memory_order_relaxed) & PW_DELETED;
}

static inline pw_buffer* pw_buffer_of(PJRT_Buffer* handle) { return (pw_buffer*)pw_slot_of(handle); }
// pw_unmade returns the error of a buffer that was never made; NULL for all others.
PJRT_Error* pw_unmade(pw_buffer* buffer);
// pw_ready writes an event that fires when the buffer's contents are ready, or have failed.
PJRT_Error* pw_ready(pw_buffer* buffer, PJRT_Event** event);
static inline PJRT_Buffer* pw_buffer_handle(pw_buffer* buffer) { return pw_slot_handle(&buffer->slot); }
// pw_buffers_new takes n slots at once, and pw_buffers_unused returns those of which nothing was made. False: memory is
// short.
bool pw_buffers_new(pw_buffer** out, size_t n);
void pw_buffers_unused(pw_buffer** slots, size_t n);
void pw_buffer_release(pw_buffer* buffer);  // its bytes are gone: donated or destroyed
// pw_buffer_count adds the bytes of a buffer to its device's account. pw_buffer_release subtracts them, or
// pw_buffer_uncount if a run will take them over.
void pw_buffer_count(pw_buffer* buffer, int64_t bytes);
void pw_buffer_uncount(pw_buffer* buffer);
void pw_buffer_drop(pw_buffer* buffer);     // drops one reference
// An array is made in two steps: a slot, which may fail, and then what it is.
bool pw_arrays_new(pw_array** out, size_t n);
void pw_arrays_unused(pw_array** slots, size_t n);
void pw_array_is(pw_array* array, uint64_t session, uint64_t object, int32_t shards);
void pw_buffer_unpin(pw_buffer* buffer);  // a run that waited with it has been launched
PJRT_Error* pw_delete_under(pw_buffer* buffer);
// pw_buffer_delete is what PJRT_Buffer_Delete does: the bytes go once no run waits with them.
PJRT_Error* pw_buffer_delete(pw_buffer* buffer);
void pw_array_drop(pw_array* array);  // drops one shard
// pw_waiting reports whether a gang whose end is watched is under way, and how many have ended.
bool pw_waiting(uint64_t* ended);
// pw_freed takes the objects of arrays whose last shard has gone, for the core to free: none until there is a full
// batch, unless all is set. If there are any, pw_tell_end follows when the core has freed them.
size_t pw_freed(pw_name* names, size_t room, bool all);

// pw_adopt makes a buffer of ours from one of the plugin's, and an object of its own in the core. It takes under; on an
// error under is destroyed.
PJRT_Error* pw_adopt(PJRT_Client* client, PJRT_Buffer* under, PJRT_Device* device, PJRT_Memory* memory,
                     PJRT_Buffer** handle);

// ---- clients, devices, memories (client.c) ----

typedef struct pw_memory {
  pw_memory_base base;
  PJRT_Memory* under;
  PJRT_Device** devices;
  size_t num_devices;
  const char* kind;
  size_t kind_size;
} pw_memory;

struct PJRT_Device {
  PJRT_Client* client;
  PJRT_Device* under;
  PJRT_DeviceDescription* description;  // the plugin's own
  int32_t index;                        // in client->devices; -1 where not addressable
  int id, local_id;
  PJRT_NamedValue* attributes;  // the plugin's own, slice_index and virtual_task_index
  size_t num_attributes;
  PJRT_Memory** memories;
  size_t num_memories;
  PJRT_Memory* default_memory;
  pw_account account;
  pw_device_time* time;  // NULL if not addressable
};

// pw_pass is never freed, so that objects left over from an ended session may use it.
typedef struct {
  // The core says that the session's runs of one device that read nothing unlaunched, and its new buffers, need no
  // place: its memory has no limit, and no queue is full.
  _Atomic uint32_t open;
  _Atomic uint32_t under_way;  // runs that have not ended; counted only where memory has a limit
  // Set before the first run: whether memory has a limit, and the longest wait for room, in nanoseconds.
  bool limited;
  int64_t memory_wait;
} pw_pass;
static inline bool pw_passes(pw_pass* pass) { return atomic_load_explicit(&pass->open, memory_order_acquire); }

struct PJRT_Client {
  PJRT_Client* next;  // list of open clients
  PJRT_Client* under;
  uint64_t session;
  pw_pass* pass;
  pw_device_times* times;  // by index
  char* version;
  PJRT_Device* device_structs;
  pw_memory* memory_structs;
  PJRT_Device** devices;
  size_t num_devices;
  PJRT_Device** addressable;
  size_t num_addressable;
  PJRT_Memory** memories;
  size_t num_memories;
};

PJRT_Error* pw_client_new(PJRT_Client* under, uint64_t session, pw_pass* pass, char* version, PJRT_Client** out);
void pw_room_made(void);  // something may fit now that did not
// pw_tell_begin begins to take names of arrays for the core to free. pw_tell_end ends that: the core has freed some, or
// there were none.
void pw_tell_begin(void);
void pw_tell_end(bool some);
// pw_in_use adds up the bytes of the arrays of all open clients by device, for at most room devices. It returns the
// number of devices.
size_t pw_in_use(int64_t* bytes, size_t room);
// pw_device_read writes the device time of each device of a session's client, and the bytes of its arrays, for at most
// room devices. It returns the number of devices.
size_t pw_device_read(uint64_t session, int64_t* ns, int64_t* bytes, size_t room);
void pw_client_free(PJRT_Client* client);
PJRT_Device* pw_device_of(PJRT_Client* client, PJRT_Device* under);
PJRT_Memory* pw_memory_of(PJRT_Client* client, PJRT_Memory* under);
// The open client that has this memory or device of the plugin's.
PJRT_Client* pw_client_with(PJRT_Memory* under);
PJRT_Device* pw_device_anywhere(PJRT_Device* under);
PJRT_Memory* pw_memory_kind(PJRT_Device* device, const char* kind, size_t size);
// pw_target finds the device and memory that a call names by either; both are NULL if it names none.
void pw_target(PJRT_Device* device, PJRT_Memory* memory, PJRT_Device** d, PJRT_Memory** m);

static inline PJRT_Client* pw_lower_client(PJRT_Client* c) { return c ? c->under : NULL; }
static inline PJRT_Device* pw_lower_device(PJRT_Device* d) { return d ? d->under : NULL; }
static inline PJRT_Memory* pw_lower_memory(PJRT_Memory* m) { return m ? ((pw_memory*)m)->under : NULL; }

// ---- executables (executable.c) ----

typedef struct {
  pw_shape* shape;
  int64_t bytes;  // of a shard
  char* kind;
  size_t kind_size;
  int64_t* minor_to_major;  // layout of the result, for buffers made before the run
} pw_output;

struct PJRT_LoadedExecutable {
  PJRT_LoadedExecutable* under;
  PJRT_Client* client;
  uint64_t session;
  pw_pass* pass;  // of the client
  _Atomic int32_t refs;  // the handle, and every run that waits for its turn
  uint64_t program;      // id in the core
  pw_program_time* time;
  char* name;
  bool donates;
  int64_t* donated;  // arguments that it donates, if the plugin describes arguments
  size_t num_donated;
  bool promises;    // its results can be handed out before it is launched
  bool collective;  // its shards wait for each other
  bool calls_back;  // names a host callback, which reads the run's context
  bool fails;       // it may fail while it runs
  bool places;      // some result is in another memory than the default one
  int64_t temp;     // bytes that it takes on each device while it runs, beside arguments and results
  int64_t code;     // bytes that its code takes on each device
  _Atomic bool closed;  // its handle was destroyed
  pw_port port;     // whether it is an export or import program, see reshard.c
  PJRT_Device** devices;  // one for each row of Execute
  size_t num_devices;
  pw_shape** params;   // of a shard's arguments
  int64_t num_params;  // -1 where the plugin does not describe them
  pw_output* outputs;
  size_t num_outputs;
  PJRT_Memory** memories;  // [device][output]
};

// pw_loaded_new makes a program of ours from a loaded one of the plugin's. It takes under.
PJRT_Error* pw_loaded_new(PJRT_Client* client, PJRT_LoadedExecutable* under, PJRT_LoadedExecutable** out);
void pw_loaded_drop(PJRT_LoadedExecutable* executable);
// pw_optimized returns the compiled program. The caller frees its code, which is NULL if the plugin does not provide
// it. An error says that memory is short.
PJRT_Error* pw_optimized(PJRT_Executable* executable, PJRT_Program* program);
static inline PJRT_LoadedExecutable* pw_lower_executable(PJRT_LoadedExecutable* e) { return e ? e->under : NULL; }
// pw_row_device returns the device of a row of Execute, which has only one if the caller names it.
static inline PJRT_Device* pw_row_device(const PJRT_LoadedExecutable* e, PJRT_Device* only, size_t row) {
  return only ? only : e->devices[row];
}

// ---- runs (execute.c) ----

// pw_cell says how far a gang is; shared with the core.
typedef struct {
  _Atomic uint32_t state;
} pw_cell;

// pw_turn is the frontend's request for one run's turn, made by one entry into Go.
typedef struct {
  uint64_t program;
  uint64_t session;
  const pw_name* freed;  // objects to free in their stores
  size_t num_freed;
  const uint64_t* after;  // gangs that make inputs and are not launched yet
  size_t num_after;
  const uint64_t* reads;  // gangs of which each device reads only what it made itself
  size_t num_reads;
  int32_t only;     // local index of the one device to run on, or -1
  bool nested;      // made inside a host callback of a computation, whose turn it uses
  uint64_t* objects;  // out: one object for each output
  size_t num_objects;
  int64_t taken;  // bytes on each device of the arguments whose memory the results take over
  // out:
  uint64_t gang;
  uint64_t computation;    // what to free when the run has ended, as an object; 0: nothing
  bool can_wait;           // with RESOURCE_EXHAUSTED: it would fit if it were alone
  pw_cell* cell;           // NULL, or the cell of the gang
  int32_t verdict;         // PW_NOW, PW_QUEUED, or a code of PJRT_Error_Code
  char* message;           // malloc'd; set with a code
} pw_turn;

enum { PW_NOW = 0, PW_QUEUED = -1 };

// Bits of a cell. The launching thread sets the first and the devices' completion the second; if they find the third,
// they notify the core.
enum { PW_LAUNCHED = 1, PW_DONE = 2, PW_WANTED = 4 };

typedef struct pw_run pw_run;  // a run that waits for its turn
bool pw_run_launch(pw_run* run, uint64_t gang);  // whether the devices have it now
void pw_run_fail(pw_run* run, PJRT_Error_Code code, const char* message);

// Execute contexts are the plugin's; a run that waits keeps its context past the caller's Destroy (context.c).
bool pw_context_hold(PJRT_ExecuteContext* context);  // false: no memory
void pw_context_drop(PJRT_ExecuteContext* context);
// An empty context for runs that come without one; NULL if there is none.
PJRT_ExecuteContext* pw_context_empty(void);
// pw_context_keep makes a context with the functions of one that this thread has just filled; NULL if it has none.
PJRT_ExecuteContext* pw_context_keep(PJRT_ExecuteContext* context, void** functions);

// ---- exported and imported arrays (reshard.c) ----

// pw_keep_exported prevents a run from donating exported arrays. It writes the list that options then have, which the
// caller frees, or NULL if the options are unchanged.
PJRT_Error* pw_keep_exported(pw_buffer** inputs, size_t num_devices, size_t num_args, PJRT_ExecuteOptions* options,
                             int64_t** list);

// ---- captures (capture.c) ----
extern const pp_frontend pw_frontend;

// ---- the table and its extensions (table_gen.c, extension.c) ----
const PJRT_Api* pw_embedded_api(void);  // always the same table
void pw_table_fill(PJRT_Api* table);
PJRT_Extension_Base* pw_extensions(bool profiled);

// pw_buffer_wait_on_stream makes a stream of the device's wait for a buffer, by the plugin's own function.
typedef PJRT_Error* (*pw_wait_on_stream)(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args*);
PJRT_Error* pw_buffer_wait_on_stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args* args, pw_wait_on_stream under);
// Whether all results have the default layout, as far as the plugin can tell.
bool pw_default_layouts(PJRT_Executable* executable);
PJRT_Error* pw_load_error(void);  // why there is no plugin

// ---- counters (stats.go): handles alive and entries into Go ----
typedef struct {
  _Atomic int64_t clients, executables, runs, provenances;
  _Atomic int64_t buffers, arrays;  // as of the last pw_count_slots
  _Atomic int64_t go_entries, reports, executes, puts, fetches, queued, moved, reshards;
} pw_counters;
extern pw_counters pw_count;
void pw_count_slots(void);  // writes how many buffers and arrays are alive
#define PW_COUNT(field, n) atomic_fetch_add_explicit(&pw_count.field, (n), memory_order_relaxed)

// ---- tracing (trace.c, trace.go) ----
extern _Atomic bool pw_tracing;  // set while there is a recording
int64_t pw_now(void);            // ns since the Unix epoch
// pw_trace_begin returns the time at which a recorded launch begins; 0 if there is no recording.
static inline int64_t pw_trace_begin(void) {
  return atomic_load_explicit(&pw_tracing, memory_order_relaxed) ? pw_now() : 0;
}
// pw_trace_run records a run whose launch began at begin and has ended, and returns its number; 0, which is none, if
// begin is 0. For each of its devices pw_trace_end must be called, once: with the times, by pw_clock, at which the last
// of what the run reads there came from elsewhere, 0 if all was there, and at which it was done.
uint64_t pw_trace_run(PJRT_LoadedExecutable* e, uint64_t gang, PJRT_Device* only, int64_t begin);
void pw_trace_end(uint64_t run, size_t device, int64_t came, int64_t done);

#endif  // PATHWAYS_CAPI_EMBEDDED_EMBEDDED_H_
