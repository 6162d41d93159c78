// The C side of device/pjrt: one function for each slot of the PJRT table, taking plain arguments. Each builds its
// zeroed argument struct on the C stack, checks that the plugin's table has the slot, and calls it. No function keeps a
// pointer into Go memory after it returns unless its comment says so.
#ifndef PATHWAYS_DEVICE_PJRT_DRIVER_H_
#define PATHWAYS_DEVICE_PJRT_DRIVER_H_

#include <stdlib.h>

#include "pjrt_abi.h"

// The outcome of a call. At most one field is set. The caller owns error and passes it to pwdrv_error_destroy; missing
// is the name of a slot that the plugin lacks, a static text; lacks is the size of an allocation that failed, in bytes.
typedef struct {
  PJRT_Error* error;
  const char* missing;
  size_t lacks;
} pwdrv_status;

// Bytes that someone else owns; each function says how long they are valid.
typedef struct {
  const char* data;
  size_t size;
} pwdrv_bytes;

#ifdef PWDRV_INVARIANTS
int64_t pwdrv_alloc_fails_after(int64_t n);  // see invariants_on.go
#endif

#define PWDRV_HAS(api, slot) \
  ((api)->struct_size >= offsetof(PJRT_Api, slot) + sizeof((api)->slot) && (api)->slot != NULL)

// Errors. The message lives until the error is destroyed.
void pwdrv_error_read(const PJRT_Api* api, PJRT_Error* error, int* code, pwdrv_bytes* message);
void pwdrv_error_destroy(const PJRT_Api* api, PJRT_Error* error);

// Objects that plugins have made for this package and that it has not returned, of all clients.
enum { PWDRV_KINDS = 8 };
void pwdrv_counts_read(int64_t counts[PWDRV_KINDS]);  // in the order of call.h

// Plugin. An opened library is never closed: XLA does not support it. On failure reason holds a sentence, cut to its
// size, and NULL is returned.
void* pwdrv_open(const char* path, char* reason, size_t reason_size);
const PJRT_Api* pwdrv_table(void* library, char* reason, size_t reason_size);
const char* pwdrv_self(void);  // path of the object that contains this code, or NULL
int pwdrv_loads(const char* name);  // whether dlopen finds a library of this name
int pwdrv_has_extension(const PJRT_Api* api, int type);
pwdrv_status pwdrv_initialize(const PJRT_Api* api);
void pwdrv_teach_malloc(void);  // for devices whose memory is malloc's, see heap.c
void pwdrv_sort_small_blocks(void);  // the same, in a process that does nothing else

// Has the library that contains an address call other functions by these names; keep.c says which and why. Returns
// whether large blocks of its memory are kept from now on when it frees them. The first call decides for the process
// whether they lie, if possible, in memory that other processes may map.
bool pwdrv_keep_blocks_of(const void* inside, bool shared);
typedef struct {
  int file;  // that other processes may map; -1 if there is none
  char* base;
  size_t span;
} pwdrv_range;
pwdrv_range pwdrv_keep_shared(void);
// Offers the system blocks that were kept for so many milliseconds, and returns to it those that were kept for so many.
// Memory that may be shared is not offered.
void pwdrv_keep_tidy(uint32_t offered_after, uint32_t returned_after);
typedef struct {
  size_t used, kept, most;  // bytes; of used and kept together, there were never more than most
} pwdrv_kept;
pwdrv_kept pwdrv_keep_read(void);
void* pwdrv_keep_aligned_alloc(size_t alignment, size_t size);  // what the library calls from then on, for tests
void* pwdrv_keep_realloc(void* block, size_t size);
void pwdrv_keep_free(void* block);

// A function that a library imports, and the one that it calls instead.
typedef struct {
  const char* name;
  void* function;
  int places;  // in which the library has it, set by pwdrv_replace_imports
} pwdrv_import;
// Has the library that contains an address call other functions. Returns false if the system lets some stay. imports.c
bool pwdrv_replace_imports(const void* inside, pwdrv_import* imports, size_t count);
pwdrv_status pwdrv_attributes(const PJRT_Api* api, const PJRT_NamedValue** values, size_t* count);

// Named values. The getters read one of an array that the plugin owns.
const PJRT_NamedValue* pwdrv_named_at(const PJRT_NamedValue* values, size_t i);
pwdrv_bytes pwdrv_named_string(const PJRT_NamedValue* v);
int64_t pwdrv_named_int(const PJRT_NamedValue* v);
const int64_t* pwdrv_named_ints(const PJRT_NamedValue* v);
float pwdrv_named_float(const PJRT_NamedValue* v);
bool pwdrv_named_bool(const PJRT_NamedValue* v);

// An array of options in C memory, with everything they point to. add copies its arguments.
typedef struct pwdrv_options pwdrv_options;
// Options. NULL and false: memory is short.
pwdrv_options* pwdrv_options_new(size_t capacity);
bool pwdrv_options_string(pwdrv_options* o, const char* name, size_t name_size, const char* value, size_t size);
bool pwdrv_options_int(pwdrv_options* o, const char* name, size_t name_size, int64_t value);
bool pwdrv_options_ints(pwdrv_options* o, const char* name, size_t name_size, const int64_t* value, size_t count);
bool pwdrv_options_float(pwdrv_options* o, const char* name, size_t name_size, float value);
bool pwdrv_options_bool(pwdrv_options* o, const char* name, size_t name_size, bool value);
void pwdrv_options_free(pwdrv_options* o);

// Callbacks of the rendezvous store with their user arguments, in the plugin's form. All are NULL if there is no store.
// The plugin keeps them for the client's life.
typedef struct {
  void *get, *get_arg, *put, *put_arg, *try_get, *try_get_arg;
} pwdrv_store;
pwdrv_store pwdrv_go_store(uintptr_t handle);  // callbacks into Go
PJRT_Error* pwdrv_make_error(PJRT_CallbackError* make, int code, const char* message, size_t size);

// Client.
pwdrv_status pwdrv_client_create(const PJRT_Api* api, pwdrv_options* o, pwdrv_store store, PJRT_Client** out);
pwdrv_status pwdrv_client_destroy(const PJRT_Api* api, PJRT_Client* client);
pwdrv_status pwdrv_client_platform(const PJRT_Api* api, PJRT_Client* client, pwdrv_bytes* name, pwdrv_bytes* version);
pwdrv_status pwdrv_client_devices(const PJRT_Api* api, PJRT_Client* client, PJRT_Device* const** out, size_t* count);
pwdrv_status pwdrv_device_describe(const PJRT_Api* api, PJRT_Device* device, int* id, pwdrv_bytes* kind);
pwdrv_status pwdrv_device_attributes(const PJRT_Api* api, PJRT_Device* device, const PJRT_NamedValue** out,
                                     size_t* count);
pwdrv_status pwdrv_device_memories(const PJRT_Api* api, PJRT_Device* device, PJRT_Memory* const** out, size_t* count,
                                   PJRT_Memory** fallback);
pwdrv_status pwdrv_memory_describe(const PJRT_Api* api, PJRT_Memory* memory, int* id, pwdrv_bytes* kind,
                                    pwdrv_bytes* text, pwdrv_bytes* debug);
// limit is -1 if the plugin does not report it.
pwdrv_status pwdrv_device_stats(const PJRT_Api* api, PJRT_Device* device, int64_t* in_use, int64_t* limit);

// From map to unmap, devices read and write this memory themselves.
pwdrv_status pwdrv_dma_map(const PJRT_Api* api, PJRT_Client* client, void* data, size_t size);
pwdrv_status pwdrv_dma_unmap(const PJRT_Api* api, PJRT_Client* client, void* data);

// Events. settle asks whether event has fired: if so it sets fired and error (which the caller owns) and destroys the
// event. watch has pathwaysDriverFired(handle, error) called once, on a thread of the plugin or before it returns; it
// does not destroy the event.
pwdrv_status pwdrv_event_settle(const PJRT_Api* api, PJRT_Event* event, bool* fired, PJRT_Error** error);
pwdrv_status pwdrv_event_watch(const PJRT_Api* api, PJRT_Event* event, uintptr_t handle);
void pwdrv_event_destroy(const PJRT_Api* api, PJRT_Event* event);

// Buffers. data and dst may be Go memory; the plugin reads data after from_host
// returns unless semantics is "during call", and writes dst until event fires.
pwdrv_status pwdrv_from_host(const PJRT_Api* api, PJRT_Client* client, const void* data, int type, const int64_t* dims,
                             size_t num_dims, int semantics, PJRT_Device* device, PJRT_Memory* memory,
                             PJRT_Event** done, PJRT_Buffer** out);
// pwdrv_zeros returns PWDRV_ZEROS bytes that are 0, which are never freed.
enum { PWDRV_ZEROS = 128 << 10 };
const void* pwdrv_zeros(void);
pwdrv_status pwdrv_failed_buffer(const PJRT_Api* api, PJRT_Client* client, int code, const char* message,
                                 size_t message_size, int type, const int64_t* dims, size_t num_dims,
                                 PJRT_Memory* memory, PJRT_Buffer** out);
pwdrv_status pwdrv_to_host(const PJRT_Api* api, PJRT_Buffer* buffer, void* dst, size_t size, size_t num_dims,
                           PJRT_Event** event);
pwdrv_status pwdrv_copy_to_memory(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out);
pwdrv_status pwdrv_copy_to_device(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Device* device, PJRT_Buffer** out);
pwdrv_status pwdrv_buffer_bytes(const PJRT_Api* api, PJRT_Buffer* buffer, size_t* bytes);
// order has room for num_dims dimensions, the minor one first.
pwdrv_status pwdrv_buffer_order(const PJRT_Api* api, PJRT_Buffer* buffer, int64_t* order, size_t num_dims);
pwdrv_status pwdrv_buffer_pointer(const PJRT_Api* api, PJRT_Buffer* buffer, void** pointer);
pwdrv_status pwdrv_buffer_ready(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Event** event);
pwdrv_status pwdrv_buffer_deleted(const PJRT_Api* api, PJRT_Buffer* buffer, bool* deleted);
pwdrv_status pwdrv_buffer_destroy(const PJRT_Api* api, PJRT_Buffer* buffer);

// Pieces of arrays. rows says whether a buffer's elements lie row by row on its device, and in no tiles.
typedef PJRT_AsyncHostToDeviceTransferManager pwdrv_incoming;
pwdrv_status pwdrv_buffer_rows(const PJRT_Api* api, PJRT_Buffer* buffer, size_t num_dims, bool* rows);
// Reads size bytes of the device's own. dst may be Go memory; the plugin writes it until event fires.
pwdrv_status pwdrv_slice(const PJRT_Api* api, PJRT_Buffer* buffer, void* dst, int64_t offset, int64_t size,
                         PJRT_Event** event);
// Makes a buffer without contents, and what writes them. If only the second call fails, manager is set nonetheless.
pwdrv_status pwdrv_receive(const PJRT_Api* api, PJRT_Client* client, int type, const int64_t* dims, size_t num_dims,
                           PJRT_Memory* memory, pwdrv_incoming** manager, PJRT_Buffer** out);
// Writes size bytes, which the plugin reads until event fires. Last says that no further call follows.
pwdrv_status pwdrv_incoming_write(const PJRT_Api* api, pwdrv_incoming* manager, const void* data, int64_t offset,
                                  int64_t size, bool last, PJRT_Event** event);
// Fails the buffer. It is not called after the last piece, or twice.
pwdrv_status pwdrv_incoming_fail(const PJRT_Api* api, pwdrv_incoming* manager, int code, const char* message,
                                 size_t message_size);
pwdrv_status pwdrv_incoming_destroy(const PJRT_Api* api, pwdrv_incoming* manager);

// Executables. What is read of a PJRT_Executable lives as long as it does.
pwdrv_status pwdrv_compile(const PJRT_Api* api, PJRT_Client* client, const char* format, size_t format_size,
                           const char* code, size_t code_size, const char* options, size_t options_size,
                           PJRT_LoadedExecutable** out);
pwdrv_status pwdrv_load(const PJRT_Api* api, PJRT_Client* client, const char* bytes, size_t size,
                        PJRT_LoadedExecutable** out);
pwdrv_status pwdrv_loaded_destroy(const PJRT_Api* api, PJRT_LoadedExecutable* loaded);
pwdrv_status pwdrv_loaded_devices(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, PJRT_Device* const** out,
                                  size_t* count);
pwdrv_status pwdrv_loaded_executable(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, PJRT_Executable** out);
pwdrv_status pwdrv_executable_destroy(const PJRT_Api* api, PJRT_Executable* executable);
pwdrv_status pwdrv_executable_name(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_bytes* name);
pwdrv_status pwdrv_executable_fingerprint(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_bytes* print);
pwdrv_status pwdrv_executable_num_outputs(const PJRT_Api* api, PJRT_Executable* executable, size_t* count);
// dims holds the dimensions of all outputs one after the other, ranks how many each has.
pwdrv_status pwdrv_executable_outputs(const PJRT_Api* api, PJRT_Executable* executable, const PJRT_Buffer_Type** types,
                                      const int64_t** dims, const size_t** ranks);
pwdrv_status pwdrv_executable_memory_kinds(const PJRT_Api* api, PJRT_Executable* executable, const char* const** kinds,
                                           const size_t** sizes);
// stats: argument, output, alias, temporary and code bytes, in the device's memory.
pwdrv_status pwdrv_executable_stats(const PJRT_Api* api, PJRT_Executable* executable, int64_t stats[5]);
// The next two return bytes in C memory that the caller frees.
// Writes the compiled program into room of size bytes. Without room, size becomes the size that it needs. The format
// lives as long as the plugin.
pwdrv_status pwdrv_executable_program(const PJRT_Api* api, PJRT_Executable* executable, char* room, size_t* size,
                                      pwdrv_bytes* format);
// The bytes are the plugin's until drop.
typedef struct {
  pwdrv_bytes bytes;
  PJRT_SerializedExecutable* owner;
  void (*drop)(PJRT_SerializedExecutable*);
} pwdrv_serialized;
pwdrv_status pwdrv_executable_serialize(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_serialized* out);
void pwdrv_serialized_drop(pwdrv_serialized serialized);

// The arrays of one execution, in one block of C memory: args has one row of num_args for each device, outputs one row
// of num_outputs.
typedef struct {
  size_t devices, num_args, num_outputs;
  PJRT_Buffer **args, **outputs;
  PJRT_Buffer **const *arg_rows, **const *output_rows;
  PJRT_Event** events;
  PJRT_Error** errors;  // of events that have fired
  bool* fired;
  int64_t* kept;  // indices of arguments that are not donated; room for num_args
} pwdrv_launch;

pwdrv_launch* pwdrv_launch_new(size_t devices, size_t num_args, size_t num_outputs);  // NULL: no memory

// Runs an executable. If an argument is deleted nothing is started, and deleted is its index in args; otherwise -1. On
// success outputs are set, and for each device an event or, if it has fired already, its error.
pwdrv_status pwdrv_execute(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, pwdrv_launch* l, int launch_id,
                           size_t num_kept, PJRT_Device* only, PJRT_ExecuteContext* context, int64_t* deleted);

pwdrv_status pwdrv_context_create(const PJRT_Api* api, PJRT_ExecuteContext** out);
pwdrv_status pwdrv_context_destroy(const PJRT_Api* api, PJRT_ExecuteContext* context);

// Collectives. A call of the registered custom call target calls pathwaysDriverCollective on a thread of the plugin.
typedef struct {
  void* data;
  size_t size;
} pwdrv_part;

// One call. It is valid until pathwaysDriverCollective returns; what it points to lives longer.
typedef struct {
  const void* api;    // the plugin's XLA_FFI_Api
  uintptr_t client;   // of pwdrv_context_client; 0 if the execution has none
  int32_t launch;     // of pwdrv_execute
  int local;          // device
  pwdrv_bytes spec;   // lives as long as the executable
  size_t operands, results;
  pwdrv_part* parts;  // operands, then results; what they point to is valid until the call ends
  void* future;       // out: if it is set, pwdrv_future_finish ends the call
} pwdrv_collective;

// Registers the target for the CPU. missing names what the plugin lacks; code is 0, or the code of the plugin's
// refusal, whose message the caller frees.
pwdrv_status pwdrv_collectives_register(const PJRT_Api* api, const char* target, int* code, char** message);
// Makes calls of executions in the context name a client. The target must be registered.
pwdrv_status pwdrv_context_client(const PJRT_Api* api, PJRT_ExecuteContext* context, uintptr_t client);
// Both return errors that the Go side of a call returns.
void* pwdrv_future_create(const void* ffi, void** error);
void* pwdrv_collective_error(const void* ffi, int code, const char* message);
// Ends a call, with an error if code is not 0. The rest of the program may run before it returns. It is called once for
// each future.
void pwdrv_future_finish(const void* ffi, void* future, int code, const char* message);

// Host calls. A call of a target of jaxlib's callbacks, in an execution without Python functions of its own, calls
// pathwaysDriverHostCall on a thread of the plugin.
typedef struct {
  uint32_t type;  // XLA_FFI_DataType
  const int64_t* dims;
  size_t rank, size;  // bytes
  void* data;
} pwdrv_value;

// One call. It is valid until pathwaysDriverHostCall returns; what it points to lives longer.
typedef struct {
  const void* api;    // the plugin's XLA_FFI_Api
  uintptr_t client;   // of pwdrv_context_client
  int32_t launch;     // of pwdrv_execute
  int local;          // device
  uint64_t index;
  size_t arguments, results;
  pwdrv_value* values;  // arguments, then results; what they point to is valid until the call ends
  void* future;         // out, as in pwdrv_collective
} pwdrv_host_call;

// Registers the targets for the CPU, with pw_ffi_host_call.
pwdrv_status pwdrv_host_calls_register(const PJRT_Api* api, int* code, char** message);

#endif  // PATHWAYS_DEVICE_PJRT_DRIVER_H_
