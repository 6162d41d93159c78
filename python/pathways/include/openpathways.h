// The stable C API of Open Pathways: devices of this process or of a cluster, for
// programs that are not JAX. It is served by libpathways.so.
//
// Handles. A handle is a number: what kind of thing it names, its place and its
// generation. 0 names nothing. A handle that was dropped, is of another kind or was
// never given is an INVALID_ARGUMENT, not a crash. Whoever is given a handle drops
// it, with pathways_drop. What a session made ends with it, but for errors, futures
// and views.
//
// Errors. A function that can fail gives a pathways_error: 0, or a handle that tells
// code and message. A call that fails writes no result, takes over nothing of its
// caller's and leaves nothing to drop but the error.
//
// Structs. Options and infos begin with struct_size, which the caller sets to
// sizeof of the struct as it was compiled with; fields are only ever added at the
// end. All other fields that are not needed are 0.
//
// Threads. Every function may be called from any thread, several at once, with one
// handle too; and from callbacks. Callbacks run one after another on a thread of the
// library that holds no lock: one may call anything here, and wait, but not for
// another callback. In a child made by fork() every call gives FAILED_PRECONDITION.
//
// Time. Only session_open, slice_open, slice_renew, compile, future_wait, array_view,
// array_to_dlpack and array_to_arrow wait for others; putting and reading take as long as copying. An array may be used
// before its contents exist; if making them fails, whatever waits for them or is
// made of them gives that error.
#ifndef OPENPATHWAYS_H_
#define OPENPATHWAYS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t pathways_error;
typedef uint64_t pathways_session;
typedef uint64_t pathways_executable;
typedef uint64_t pathways_array;
typedef uint64_t pathways_future;
typedef uint64_t pathways_view;
typedef uint64_t pathways_slice;
typedef uint64_t pathways_program;

enum { PATHWAYS_MAX_DIMS = 32 };

// ---- The library ----

enum { PATHWAYS_API_MAJOR = 0, PATHWAYS_API_MINOR = 2 };

// pathways_api_version gives the version of this API that the library has, major in
// the upper 16 bits and minor in the lower. Of one major version, a later minor
// version has all that an earlier one has.
uint32_t pathways_api_version(void);

// pathways_has_feature says whether the library has a feature: 1 or 0. Features are
// "embedded", "cluster", "view", "dlpack", "arrow", "slices", "programs".
int pathways_has_feature(const char* name);

// pathways_drop gives a handle up. A session ends: its executables, arrays, slices and
// programs are no more, for every thread; what is under way is finished or fails, and its futures
// tell. What another thread is in the middle of with a handle is not disturbed.
pathways_error pathways_drop(uint64_t handle);

// ---- Errors ----

// The codes are those of absl and gRPC.
typedef enum {
  PATHWAYS_OK = 0,
  PATHWAYS_CANCELLED = 1,
  PATHWAYS_UNKNOWN = 2,
  PATHWAYS_INVALID_ARGUMENT = 3,
  PATHWAYS_DEADLINE_EXCEEDED = 4,
  PATHWAYS_NOT_FOUND = 5,
  PATHWAYS_ALREADY_EXISTS = 6,
  PATHWAYS_PERMISSION_DENIED = 7,
  PATHWAYS_RESOURCE_EXHAUSTED = 8,
  PATHWAYS_FAILED_PRECONDITION = 9,
  PATHWAYS_ABORTED = 10,
  PATHWAYS_OUT_OF_RANGE = 11,
  PATHWAYS_UNIMPLEMENTED = 12,
  PATHWAYS_INTERNAL = 13,
  PATHWAYS_UNAVAILABLE = 14,
  PATHWAYS_DATA_LOSS = 15,
  PATHWAYS_UNAUTHENTICATED = 16
} pathways_code;

// pathways_error_code gives an error's code: PATHWAYS_OK for 0, and
// PATHWAYS_INVALID_ARGUMENT for what is no error's handle.
pathways_code pathways_error_code(pathways_error error);

// pathways_error_message gives an error's text, UTF-8, which lives until the error
// is dropped; "" for 0. It is never NULL.
const char* pathways_error_message(pathways_error error);

// ---- Sessions and devices ----

typedef struct {
  size_t struct_size;
  // Of a cluster: tcp:host:port or unix:/path of its controller, or local:WxD, a
  // cluster in this process with W workers of D devices each. "" is this process's own devices, and
  // NULL is what PATHWAYS_ADDRESS says, or this process's own.
  const char* address;
  int32_t devices;       // exactly so many, of this process's own where the plugin lets one choose; 0: all there are
  int64_t memory_limit;  // bytes a device, of this process's own; 0: none
} pathways_session_options;

// pathways_session_open begins a session. Options may be NULL. It waits until the
// cluster has answered. The plugin of this process's devices is that of
// PATHWAYS_PLUGIN, or is found where PATHWAYS_PLUGIN_DIRS says.
//
// Errors: NOT_FOUND without a plugin, UNAVAILABLE without a cluster.
pathways_error pathways_session_open(const pathways_session_options* options, pathways_session* session);

typedef struct {
  size_t struct_size;
  int32_t num_devices;
  int32_t cluster;    // 1: the devices are a cluster's
  char platform[32];  // "cpu", "cuda", "tpu"
  int64_t arrays;     // that are alive
  int64_t executables;
  int64_t runs;     // of pathways_run since the session began, recorded ones too
  int64_t puts;     // shards brought from this process's memory
  int64_t fetches;  // shards read into it
} pathways_session_info_t;

// pathways_session_info tells of a session.
pathways_error pathways_session_info(pathways_session session, pathways_session_info_t* info);

typedef struct {
  size_t struct_size;
  int32_t id;         // what device lists name it by
  int32_t on_host;    // 1: its memory is this process's, and can be looked at
  char kind[64];      // such as "cpu" or the accelerator's model
  char worker[64];    // the process that has it; "" for this one
  int64_t bytes_in_use;  // -1: not known
} pathways_device_info_t;

// pathways_device_info tells of a device by its place, 0 to num_devices - 1.
pathways_error pathways_device_info(pathways_session session, int32_t device, pathways_device_info_t* info);

// ---- Slices ----

// A slice is devices that are granted to a session together: those that the fewest
// slices of all sessions have, of one worker where that can be, else of one island.
// What is not granted can be used as well; a grant keeps users out of each other's way.
typedef struct {
  size_t struct_size;
  int32_t devices;          // how many; 0: as many as the topology has
  size_t num_topology;
  const int64_t* topology;  // sizes; along the last dimension devices are neighbours. NULL: none
  const char* island;       // its name; NULL or "": any
  const char* kind;         // of the devices, as their info says; NULL or "": any
} pathways_slice_options;

// pathways_slice_open asks for a slice and waits for the answer. The grant ends when
// the slice is dropped, or with its session.
//
// Errors: INVALID_ARGUMENT for what is not there or makes no sense,
// RESOURCE_EXHAUSTED where there are too few such devices.
pathways_error pathways_slice_open(pathways_session session, const pathways_slice_options* options, pathways_slice* slice);

// pathways_slice_devices gives the ids of a slice's devices, as many as there is room
// for, row by row in its topology.
pathways_error pathways_slice_devices(pathways_slice slice, int32_t* devices, size_t room);

// pathways_slice_renew asks for the devices again, by what the slice was opened with:
// for others where a worker was lost, or where fewer slices have them. Arrays and
// executables stay where they are. It waits; with an error the slice is as it was.
pathways_error pathways_slice_renew(pathways_slice slice);

// ---- Executables ----

// pathways_tiles says how an array lies on devices. Dimension d is cut into tiles[d] equal parts. Part
// p, counted row by row, is shard p; where there are n times as many shards as
// parts, shards p*n to p*n + n-1 are copies of it.
typedef struct {
  size_t num_dims;
  const int64_t* tiles;  // NULL: each shard is the whole array
} pathways_tiles;

typedef struct {
  size_t struct_size;
  const char* code;  // StableHLO as MLIR, text or bytecode
  size_t code_size;
  const int32_t* devices;  // ids, replica by replica; NULL: the first ones
  size_t num_devices;      // num_replicas * num_partitions, or 0 for NULL
  int32_t num_replicas;    // 0: 1
  int32_t num_partitions;  // 0: 1; the program says by mhlo.sharding how arrays lie
  int32_t shardy;          // 1: it says so in Shardy's dialect
  // How results lie, for pathways_array_read of whole arrays: one each, or NULL where
  // it does not matter. On one device it is known.
  const pathways_tiles* outputs;
  size_t num_outputs;
  // A serialized xla.CompileOptionsProto to start from, for options of XLA.
  const void* xla_options;
  size_t xla_options_size;
} pathways_compile_options;

// pathways_compile compiles a program and loads it. It waits.
//
// Errors: INVALID_ARGUMENT, with the compiler's words, for a bad program.
pathways_error pathways_compile(pathways_session session, const pathways_compile_options* options,
                                pathways_executable* executable);

typedef struct {
  size_t struct_size;
  int32_t num_devices;  // shards that each argument and result has
  int32_t num_outputs;
  char name[128];
} pathways_executable_info_t;

pathways_error pathways_executable_info(pathways_executable executable, pathways_executable_info_t* info);

// ---- Arrays ----

// Types of elements. Those narrower than a byte take a byte each in host memory.
typedef enum {
  PATHWAYS_BOOL = 1,  // a byte, 0 or 1
  PATHWAYS_S8 = 2,
  PATHWAYS_S16 = 3,
  PATHWAYS_S32 = 4,
  PATHWAYS_S64 = 5,
  PATHWAYS_U8 = 6,
  PATHWAYS_U16 = 7,
  PATHWAYS_U32 = 8,
  PATHWAYS_U64 = 9,
  PATHWAYS_F16 = 10,
  PATHWAYS_F32 = 11,
  PATHWAYS_F64 = 12,
  PATHWAYS_BF16 = 13,
  PATHWAYS_C64 = 14,   // two f32
  PATHWAYS_C128 = 15,  // two f64
  PATHWAYS_F8E5M2 = 16,
  PATHWAYS_F8E4M3FN = 17,
  PATHWAYS_F8E4M3B11FNUZ = 18,
  PATHWAYS_F8E5M2FNUZ = 19,
  PATHWAYS_F8E4M3FNUZ = 20,
  PATHWAYS_S4 = 21,
  PATHWAYS_U4 = 22,
  PATHWAYS_S2 = 24,
  PATHWAYS_U2 = 25,
  PATHWAYS_F8E4M3 = 26,
  PATHWAYS_F8E3M4 = 27,
  PATHWAYS_F8E8M0FNU = 28,
  PATHWAYS_F4E2M1FN = 29
} pathways_type;

typedef enum {
  // The bytes are copied before the call returns.
  PATHWAYS_COPY = 0,
  // The bytes stay as they are until `released` is called, which is to free them or
  // to say that they may change. Where the device can, they become its memory with
  // no copy: on the host, if aligned to 64 bytes and dense.
  PATHWAYS_BORROW = 1,
  // As PATHWAYS_BORROW, and FAILED_PRECONDITION where they cannot become the device's.
  PATHWAYS_BORROW_OR_FAIL = 2
} pathways_host_mode;

typedef struct {
  size_t struct_size;
  const void* data;
  pathways_type type;
  pathways_host_mode mode;
  size_t num_dims;
  const int64_t* dims;          // of the whole array
  const int64_t* byte_strides;  // NULL: dense, the last dimension fastest
  pathways_tiles tiles;         // {0, NULL}: each device has the whole array
  const int32_t* devices;       // ids, one a shard; NULL: device 0
  size_t num_devices;
  // Called once, on the library's thread, when the data is not needed any more; not
  // called where the call fails. May be NULL, for data that lives for ever. Not for
  // PATHWAYS_COPY.
  void (*released)(void* arg);
  void* released_arg;
} pathways_host_options;

// pathways_array_from_host makes an array of bytes in this process's memory.
pathways_error pathways_array_from_host(pathways_session session, const pathways_host_options* options,
                                        pathways_array* array);

typedef struct {
  size_t struct_size;
  pathways_type type;
  int32_t num_shards;
  int32_t num_dims;
  int32_t tiled;                          // 1: it is known how the shards lie
  int64_t dims[PATHWAYS_MAX_DIMS];        // of the whole array; those of a shard where that is not known
  int64_t shard_dims[PATHWAYS_MAX_DIMS];  // every shard has the same
  int64_t tiles[PATHWAYS_MAX_DIMS];       // parts a dimension
  int64_t bytes;                          // of dims, in host memory
  int64_t shard_bytes;
} pathways_array_info_t;

pathways_error pathways_array_info(pathways_array array, pathways_array_info_t* info);

// pathways_array_devices gives the ids of the devices that an array's shards are on,
// as many as there is room for, in the order of shards.
pathways_error pathways_array_devices(pathways_array array, int32_t* devices, size_t room);

// pathways_array_ready gives a future of an array's contents.
pathways_error pathways_array_ready(pathways_array array, pathways_future* future);

enum { PATHWAYS_WHOLE = -1 };

// pathways_array_read copies a shard, or with PATHWAYS_WHOLE the whole array, to
// data, dense with the last dimension fastest. Data is written until the future is
// ready, and must stay until then.
//
// Errors: FAILED_PRECONDITION for the whole of an array of which it is not known how
// its shards lie; INVALID_ARGUMENT where size is not exactly what it takes.
pathways_error pathways_array_read(pathways_array array, int32_t shard, void* data, size_t size, pathways_future* future);

// pathways_array_copy copies an array to other devices, as many as it has shards.
pathways_error pathways_array_copy(pathways_array array, const int32_t* devices, size_t num_devices, pathways_array* copy);

// pathways_array_view gives the address of a shard's bytes, dense with the last
// dimension fastest. Of a CPU device in this process, that is where the bytes are; of a CPU
// device of a cluster, where they have come to. It waits for the contents. The bytes stay,
// unchanged, until the view is dropped, whatever becomes of array and session; as long,
// they are not donated.
//
// Errors: FAILED_PRECONDITION where the device is no CPU, or the bytes are not dense.
pathways_error pathways_array_view(pathways_array array, int32_t shard, pathways_view* view, const void** data);

// ---- DLPack ----

// pathways_array_from_dlpack makes an array of a tensor in this process's memory: a
// DLManagedTensor*, or a DLManagedTensorVersioned* of version 1 where versioned is
// 1. Options say mode, tiles and devices as for pathways_array_from_host, and have
// all else 0; NULL is PATHWAYS_COPY to device 0. The tensor is taken over, and its deleter
// called when it is not needed any more, with PATHWAYS_COPY before this returns.
//
// Errors: INVALID_ARGUMENT for another device than the host, several lanes,
// elements that share bytes, and types that are no array's.
pathways_error pathways_array_from_dlpack(pathways_session session, void* tensor, int versioned,
                                          const pathways_host_options* options, pathways_array* array);

// pathways_array_to_dlpack gives a shard as a DLManagedTensor*, or as a
// DLManagedTensorVersioned* that is marked read-only, where versioned is 1. It is a
// view, see pathways_array_view, until its deleter is called, from any thread.
pathways_error pathways_array_to_dlpack(pathways_array array, int32_t shard, int versioned, void** tensor);

// ---- Arrow ----

// These are the structs of the Arrow C data interface, as the headers of Arrow's
// libraries define them.
struct ArrowArray;
struct ArrowSchema;

// pathways_arrays_from_arrow makes arrays of Arrow data: one of numbers or booleans
// [n], of fixed-size lists [n, size], or of arrow.fixed_shape_tensor [n, shape...];
// of a record batch, one for each of its columns. A stream's batches come one by
// one. Options are as for pathways_array_from_dlpack. The data is taken over, and
// released when no array needs it any more, with PATHWAYS_COPY before this returns;
// the schema is only read. Booleans, which Arrow has as bits, are copied.
//
// Errors: INVALID_ARGUMENT for nulls, dictionaries, types that are no numbers, and
// data that contradicts itself; FAILED_PRECONDITION as pathways_array_from_host.
pathways_error pathways_arrays_from_arrow(pathways_session session, struct ArrowArray* data,
                                          const struct ArrowSchema* schema, const pathways_host_options* options,
                                          pathways_array* arrays, size_t num_arrays);

// pathways_array_to_arrow gives a shard to Arrow: [n] as numbers or booleans, more
// dimensions as arrow.fixed_shape_tensor. It is a view, see pathways_array_view,
// until it is released, from any thread; booleans are a copy.
//
// Errors: INVALID_ARGUMENT for a scalar and for types that Arrow does not have.
pathways_error pathways_array_to_arrow(pathways_array array, int32_t shard, struct ArrowArray* data,
                                       struct ArrowSchema* schema);

// ---- Runs ----

typedef struct {
  size_t struct_size;
  const int32_t* keep;  // arguments that are not donated, although the program would
  size_t num_keep;
} pathways_run_options;

// pathways_run runs a program; it returns before that has ended, often before it has
// begun. Inputs have a shard on each of the executable's devices; on a single
// device, an array of one shard is brought there from wherever it is. Options may be
// NULL; so may done, a future of the run's end on all devices.
//
// Errors: INVALID_ARGUMENT for arrays of another number, shape, type or session than
// the program takes.
pathways_error pathways_run(pathways_executable executable, const pathways_run_options* options,
                            const pathways_array* inputs, size_t num_inputs, pathways_array* outputs,
                            size_t num_outputs, pathways_future* done);

// ---- Programs ----

// A program is a graph of runs and copies on any devices of a session: captured once,
// and played from one call. On a cluster a play is one message for every 4096 nodes.
//
// From pathways_program_begin to pathways_program_end, what the calling thread does
// with pathways_run, and with pathways_array_copy of what that gives, is not done but
// recorded, and the arrays that it gives have no contents: reading one is
// FAILED_PRECONDITION, then and later. Arrays that have contents are constants of the
// program, which keeps them. Executables and arrays may be dropped once they are
// recorded. A capture is its thread's alone: another thread runs as ever, and a thread
// that ends gives its capture up.

// pathways_program_begin begins a capture on this thread, of one session's calls.
//
// Errors: FAILED_PRECONDITION where one has begun.
pathways_error pathways_program_begin(pathways_session session);

// pathways_program_input gives the next input of the program that this thread
// captures, as an array without contents. Options say type, dims, tiles and devices
// as for pathways_array_from_host, and have all else 0.
//
// Errors: FAILED_PRECONDITION where this thread captures nothing.
pathways_error pathways_program_input(const pathways_host_options* options, pathways_array* array);

// pathways_program_end ends the capture of this thread and gives the program, whose
// results are these arrays, one or more: results of what was recorded, inputs or
// constants. With an error the capture goes on.
//
// Errors: FAILED_PRECONDITION where this thread captures nothing, and for arrays
// without contents of another capture; INVALID_ARGUMENT for arrays of another session,
// or of one that has ended.
pathways_error pathways_program_end(const pathways_array* outputs, size_t num_outputs, pathways_program* program);

// pathways_program_abandon ends the capture of this thread, if there is one, without
// a program.
pathways_error pathways_program_abandon(void);

typedef struct {
  size_t struct_size;
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_nodes;  // runs and copies, whatever the number of shards
} pathways_program_info_t;

pathways_error pathways_program_info(pathways_program program, pathways_program_info_t* info);

// pathways_program_play plays a program with arrays like its inputs, which stay the
// caller's and are not donated. It waits for nothing; a node that fails gives its
// error to its results and to all that depends on them. Any number of threads may
// play one, but none that captures.
//
// Errors: INVALID_ARGUMENT for another number of arrays, or one of another shape,
// type, session, or on other devices, than the input; FAILED_PRECONDITION on a thread
// that captures.
pathways_error pathways_program_play(pathways_program program, const pathways_array* inputs, size_t num_inputs,
                                     pathways_array* outputs, size_t num_outputs);

// ---- Futures ----

// pathways_future_wait waits until a future is ready and gives the error of what it
// stands for, as often as it is asked. DEADLINE_EXCEEDED when timeout_ns have passed
// before; 0 only looks, and less than 0 waits without end: what it
// waits for ends by itself when the process that has to do it dies.
pathways_error pathways_future_wait(pathways_future future, int64_t timeout_ns);

// pathways_future_then has a function called when a future is ready, on the
// library's thread, also where it is ready already or dropped before. Error is
// 0 or what the future failed with, and belongs to the function.
pathways_error pathways_future_then(pathways_future future, void (*then)(pathways_error error, void* arg), void* arg);

#ifdef __cplusplus
}
#endif

#endif  // OPENPATHWAYS_H_
