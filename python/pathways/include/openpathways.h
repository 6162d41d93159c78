// The stable C API of Open Pathways, in libpathways.so: devices of this process or of
// a cluster, for programs that do not use JAX.
//
// Handles. A handle is a number that encodes the kind of an object, its slot and its
// generation. 0 stands for no object. A handle that was dropped, has another kind or
// never existed causes INVALID_ARGUMENT, not a crash. The caller that receives a handle
// must drop it with pathways_drop. All objects of a session end with it, except errors,
// futures and views.
//
// Errors. A function that can fail returns a pathways_error: 0, or a handle that has a
// code and a message. A call that fails writes no result, does not take ownership of
// anything, and leaves only the error to drop.
//
// Structs. Option and info structs begin with struct_size, which the caller sets to the
// sizeof of the struct that it was compiled with; later versions only add fields at the
// end. Fields that are not needed must be 0.
//
// Threads. Every function may be called from any thread, by several threads at once,
// even with the same handle, and from callbacks. Callbacks run one at a time on a thread
// of the library that holds no lock. A callback may call any function and may wait, but
// not for another callback. In a child process made by fork(), every call returns
// FAILED_PRECONDITION.
//
// Time. Only session_open, slice_open, slice_renew, compile, future_wait, array_view,
// array_to_dlpack and array_to_arrow wait for other threads or processes. Copies to and
// from host memory take as long as the copy. An array may be used before its contents
// exist; if making them fails, everything that depends on them fails with that error.
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

enum { PATHWAYS_API_MAJOR = 0, PATHWAYS_API_MINOR = 4 };

// pathways_api_version returns the version of the API that the library implements: the
// major version in the upper 16 bits and the minor version in the lower 16. Within a
// major version, a later minor version has everything that an earlier one has.
uint32_t pathways_api_version(void);

// pathways_has_feature returns 1 if the library has a feature, and 0 otherwise. Features
// are "embedded", "cluster", "view", "dlpack", "arrow", "slices", "programs".
int pathways_has_feature(const char* name);

// pathways_drop releases a handle. Dropping a session ends it and frees its executables,
// arrays, slices and programs, for every thread; operations in flight finish or fail, as
// their futures report. Calls of other threads that are using the handle complete
// normally.
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

// pathways_error_code returns an error's code: PATHWAYS_OK for 0, and
// PATHWAYS_INVALID_ARGUMENT for a handle that is not an error's.
pathways_code pathways_error_code(pathways_error error);

// pathways_error_message returns an error's message in UTF-8, which is valid until the
// error is dropped; "" for 0. It never returns NULL.
const char* pathways_error_message(pathways_error error);

// ---- Sessions and devices ----

typedef struct {
  size_t struct_size;
  // The cluster: tcp:host:port or unix:/path of its controller, or local:WxD for a
  // cluster in this process with W workers of D devices each. "" means this process's own
  // devices; NULL means the value of PATHWAYS_ADDRESS or, if that is not set, this
  // process's own devices.
  const char* address;
  int32_t devices;       // exact number; in this process, only if the plugin supports a choice. 0 means all
  int64_t memory_limit;  // bytes per device, in this process only; 0 means no limit
  // Since minor version 4:
  int32_t elastic;       // 1: the cluster may have fewer devices yet; workers that join serve the others
  const char* platform;  // which of a cluster's devices: "cpu", "cuda", "tpu"; NULL leaves the choice to the cluster
} pathways_session_options;

// pathways_session_open begins a session. options may be NULL. It blocks until the
// cluster has answered. The plugin for this process's devices is the one that
// PATHWAYS_PLUGIN names, or else one in the directories of PATHWAYS_PLUGIN_DIRS.
//
// An elastic session has as many devices as it asks for, while the cluster has at least
// one. Using a device that has no worker yet fails with NOT_FOUND.
//
// Errors: NOT_FOUND if there is no plugin, UNAVAILABLE if there is no cluster.
pathways_error pathways_session_open(const pathways_session_options* options, pathways_session* session);

typedef struct {
  size_t struct_size;
  int32_t num_devices;
  int32_t cluster;    // 1 if the devices are a cluster's, else 0
  char platform[32];  // "cpu", "cuda", "tpu"
  int64_t arrays;     // live arrays
  int64_t executables;
  int64_t runs;     // calls of pathways_run since the session began, including captured ones
  int64_t puts;     // shards copied from this process's memory
  int64_t fetches;  // shards copied to it
} pathways_session_info_t;

// pathways_session_info describes a session.
pathways_error pathways_session_info(pathways_session session, pathways_session_info_t* info);

typedef struct {
  size_t struct_size;
  int32_t id;         // its number in lists of devices
  int32_t on_host;    // 1 if its memory is in this process and can be viewed, else 0
  char kind[64];      // such as "cpu" or the accelerator's model
  char worker[64];    // the worker that had it when the session began; "" for none, or this process
  int64_t bytes_in_use;  // -1 if unknown
} pathways_device_info_t;

// pathways_device_info describes a device, by its index from 0 to num_devices - 1.
pathways_error pathways_device_info(pathways_session session, int32_t device, pathways_device_info_t* info);

// ---- Slices ----

// A slice is a set of devices that are granted to a session together: those that the
// fewest slices of all sessions have, from one worker if possible, else from one island.
// Unless they are in an exclusive slice of another session, a session can also use
// devices that it was not granted.
typedef struct {
  size_t struct_size;
  int32_t devices;          // number of devices; 0 means as many as the topology has
  size_t num_topology;
  const int64_t* topology;  // sizes; devices along the last dimension are neighbors. NULL means none
  const char* island;       // its name; NULL or "" means any
  const char* kind;         // as in pathways_device_info_t; NULL or "" means any
  // Since minor version 3:
  int32_t exclusive;        // 1: no other slice has the devices, and no other session uses them
  int32_t priority;         // -100 to 100, of requests that wait
  int64_t wait_ns;          // how long to wait for devices that others have; 0: not at all, -1: without end
} pathways_slice_options;

// pathways_slice_open asks for a slice and blocks until the answer comes. The grant ends
// when the slice is dropped, or with its session. A request that has to wait has a place
// in a queue: each user's first before anyone's second. The priority orders those of one
// user, and every minute of waiting counts as one priority more. Dropping the session ends the wait.
//
// Errors: INVALID_ARGUMENT for an unknown island or kind, or invalid options;
// RESOURCE_EXHAUSTED if there are too few such devices, or others have them.
pathways_error pathways_slice_open(pathways_session session, const pathways_slice_options* options,
                                   pathways_slice* slice);

// pathways_slice_devices writes the ids of a slice's devices, at most room of them, in
// row-major order of its topology.
pathways_error pathways_slice_devices(pathways_slice slice, int32_t* devices, size_t room);

// pathways_slice_renew asks for devices again, with the options that the slice was opened
// with: it replaces devices of lost workers, and others if there are devices with fewer
// slices. Arrays and executables do not move. It blocks until the answer comes; on an
// error the slice does not change.
pathways_error pathways_slice_renew(pathways_slice slice);

// ---- Executables ----

// pathways_tiles describes how an array is distributed over devices. Dimension d is cut
// into tiles[d] equal parts. Part p, counted in row-major order, is shard p; if there are
// n times as many shards as parts, shards p*n to p*n + n-1 are copies of it.
typedef struct {
  size_t num_dims;
  const int64_t* tiles;  // NULL means that each shard is the whole array
} pathways_tiles;

typedef struct {
  size_t struct_size;
  const char* code;  // StableHLO as MLIR, text or bytecode
  size_t code_size;
  const int32_t* devices;  // ids, replica by replica; NULL means the first ones
  size_t num_devices;      // num_replicas * num_partitions, or 0 for NULL
  int32_t num_replicas;    // 0 means 1
  int32_t num_partitions;  // 0 means 1; the program's mhlo.sharding attributes distribute its arrays
  int32_t shardy;          // 1 if the program uses Shardy's dialect instead, else 0
  // The layout of each result, so that pathways_array_read can read whole arrays; NULL
  // if that is not needed. On one device the layouts are known.
  const pathways_tiles* outputs;
  size_t num_outputs;
  // A serialized xla.CompileOptionsProto to start from, for options of XLA.
  const void* xla_options;
  size_t xla_options_size;
} pathways_compile_options;

// pathways_compile compiles a program, loads it, and blocks until that is done.
//
// Errors: INVALID_ARGUMENT, with the compiler's message, for a bad program.
pathways_error pathways_compile(pathways_session session, const pathways_compile_options* options,
                                pathways_executable* executable);

typedef struct {
  size_t struct_size;
  int32_t num_devices;  // number of shards of each argument and result
  int32_t num_outputs;
  char name[128];
} pathways_executable_info_t;

pathways_error pathways_executable_info(pathways_executable executable, pathways_executable_info_t* info);

// ---- Arrays ----

// Element types. Elements narrower than a byte take a byte each in host memory.
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
  // The caller does not change or free the bytes until `released` is called. If the
  // device can use them in place, they become its memory without a copy: on the host, if
  // they are dense and aligned to 64 bytes.
  PATHWAYS_BORROW = 1,
  // Like PATHWAYS_BORROW, but FAILED_PRECONDITION if the device cannot use them in place.
  PATHWAYS_BORROW_OR_FAIL = 2
} pathways_host_mode;

typedef struct {
  size_t struct_size;
  const void* data;
  pathways_type type;
  pathways_host_mode mode;
  size_t num_dims;
  const int64_t* dims;          // of the whole array
  const int64_t* byte_strides;  // NULL means dense, the last dimension fastest
  pathways_tiles tiles;         // {0, NULL} means that each device has the whole array
  const int32_t* devices;       // ids, one per shard; NULL means device 0
  size_t num_devices;
  // Called once, on the library's thread, when the data is no longer needed; not called
  // if the call fails. It may be NULL for data that is never freed. Not for
  // PATHWAYS_COPY.
  void (*released)(void* arg);
  void* released_arg;
} pathways_host_options;

// pathways_array_from_host makes an array from bytes in this process's memory.
pathways_error pathways_array_from_host(pathways_session session, const pathways_host_options* options,
                                        pathways_array* array);

typedef struct {
  size_t struct_size;
  pathways_type type;
  int32_t num_shards;
  int32_t num_dims;
  int32_t tiled;                          // 1 if the positions of the shards are known, else 0
  int64_t dims[PATHWAYS_MAX_DIMS];        // of the whole array, or of a shard if tiled is 0
  int64_t shard_dims[PATHWAYS_MAX_DIMS];  // the same for every shard
  int64_t tiles[PATHWAYS_MAX_DIMS];       // parts per dimension
  int64_t bytes;                          // of an array of dims, in host memory
  int64_t shard_bytes;
} pathways_array_info_t;

pathways_error pathways_array_info(pathways_array array, pathways_array_info_t* info);

// pathways_array_devices writes the ids of the devices of an array's shards, at most room
// of them, in the order of shards.
pathways_error pathways_array_devices(pathways_array array, int32_t* devices, size_t room);

// pathways_array_ready returns a future that is ready when an array's contents are.
pathways_error pathways_array_ready(pathways_array array, pathways_future* future);

enum { PATHWAYS_WHOLE = -1 };

// pathways_array_read copies a shard, or with PATHWAYS_WHOLE the whole array, to data,
// dense with the last dimension fastest. The library writes to data until the future is
// ready, so it must stay valid until then.
//
// Errors: FAILED_PRECONDITION for the whole of an array whose layout is not known;
// INVALID_ARGUMENT if size is not exactly the number of bytes.
pathways_error pathways_array_read(pathways_array array, int32_t shard, void* data, size_t size,
                                   pathways_future* future);

// pathways_array_copy copies an array to other devices, as many as it has shards.
pathways_error pathways_array_copy(pathways_array array, const int32_t* devices, size_t num_devices,
                                   pathways_array* copy);

// pathways_array_view returns the address of a shard's bytes, dense with the last
// dimension fastest: for a CPU device in this process, the device's own memory; for a CPU
// device of a cluster, the copy in this process. It blocks until the contents exist. The
// bytes stay valid and unchanged until the view is dropped, even if the array is dropped
// or the session ends. While there is a view, they cannot be donated.
//
// Errors: FAILED_PRECONDITION if the device is not a CPU, or the bytes are not dense.
pathways_error pathways_array_view(pathways_array array, int32_t shard, pathways_view* view, const void** data);

// ---- DLPack ----

// pathways_array_from_dlpack makes an array from a tensor in this process's memory: a
// DLManagedTensor*, or, if versioned is 1, a DLManagedTensorVersioned* of version 1.
// options sets mode, tiles and devices as for pathways_array_from_host, and all other
// fields must be 0; NULL means PATHWAYS_COPY to device 0. The library takes ownership of
// the tensor and calls its deleter when the tensor is no longer needed; with
// PATHWAYS_COPY, before this returns.
//
// Errors: INVALID_ARGUMENT for tensors on other devices than the host, several lanes,
// elements that share bytes, and unsupported types.
pathways_error pathways_array_from_dlpack(pathways_session session, void* tensor, int versioned,
                                          const pathways_host_options* options, pathways_array* array);

// pathways_array_to_dlpack returns a shard as a DLManagedTensor*, or, if versioned is 1,
// as a DLManagedTensorVersioned* that is marked read-only. The tensor is a view, see
// pathways_array_view, until its deleter is called, from any thread.
pathways_error pathways_array_to_dlpack(pathways_array array, int32_t shard, int versioned, void** tensor);

// ---- Arrow ----

// These are the structs of the Arrow C data interface, as the headers of Arrow's
// libraries define them.
struct ArrowArray;
struct ArrowSchema;

// pathways_arrays_from_arrow makes arrays from Arrow data: one array [n] from numbers or
// booleans, [n, size] from fixed-size lists, or [n, shape...] from
// arrow.fixed_shape_tensor; from a record batch, one array per column. Call it once per
// batch of a stream. Options are as for pathways_array_from_dlpack. The library takes
// ownership of the data and releases it when no array needs it any more; with
// PATHWAYS_COPY, before this returns. It only reads the schema. Booleans are copied,
// since Arrow stores them as bits.
//
// Errors: INVALID_ARGUMENT for nulls, dictionaries, types other than numbers, and
// inconsistent data; FAILED_PRECONDITION as for pathways_array_from_host.
pathways_error pathways_arrays_from_arrow(pathways_session session, struct ArrowArray* data,
                                          const struct ArrowSchema* schema, const pathways_host_options* options,
                                          pathways_array* arrays, size_t num_arrays);

// pathways_array_to_arrow exports a shard as Arrow data: [n] as numbers or booleans, more
// dimensions as arrow.fixed_shape_tensor. The data is a view, see pathways_array_view,
// until it is released, from any thread; booleans are a copy.
//
// Errors: INVALID_ARGUMENT for a scalar, and for types that Arrow does not have.
pathways_error pathways_array_to_arrow(pathways_array array, int32_t shard, struct ArrowArray* data,
                                       struct ArrowSchema* schema);

// ---- Runs ----

typedef struct {
  size_t struct_size;
  const int32_t* keep;  // arguments not to donate, although the program can
  size_t num_keep;
} pathways_run_options;

// pathways_run submits a run of a program and returns before it has ended, often before
// it has begun. Inputs must have a shard on each of the executable's devices; for a
// single device, an array of one shard is copied there from its device. options may be
// NULL. done may be NULL; otherwise it receives a future that is ready when the run has
// ended on all devices.
//
// Errors: INVALID_ARGUMENT if the number of arrays, or a shape, type or session, is not
// what the program expects.
pathways_error pathways_run(pathways_executable executable, const pathways_run_options* options,
                            const pathways_array* inputs, size_t num_inputs, pathways_array* outputs,
                            size_t num_outputs, pathways_future* done);

// ---- Programs ----

// A program is a graph of runs and copies on any devices of a session: captured once,
// and then played by one call. On a cluster a play is one message per 4096 nodes.
//
// From pathways_program_begin to pathways_program_end, the library records the calling
// thread's calls of pathways_run, and of pathways_array_copy on their results, instead of
// carrying them out. The arrays that these calls return have no contents: reading one
// returns FAILED_PRECONDITION, even later. Arrays that have contents become constants of
// the program, which keeps them. Executables and arrays may be dropped once they are
// recorded. A capture affects only its own thread. If the thread ends, its capture is
// abandoned.

// pathways_program_begin begins a capture of one session's calls on this thread.
//
// Errors: FAILED_PRECONDITION if this thread is already capturing.
pathways_error pathways_program_begin(pathways_session session);

// pathways_program_input adds an input to the program that this thread captures, and
// returns it as an array without contents. options sets type, dims, tiles and devices as
// for pathways_array_from_host; all other fields must be 0.
//
// Errors: FAILED_PRECONDITION if this thread is not capturing.
pathways_error pathways_program_input(const pathways_host_options* options, pathways_array* array);

// pathways_program_end ends the capture of this thread and returns the program. Its
// results are outputs, one array or more: results of recorded calls, inputs or constants.
// On an error the capture continues.
//
// Errors: FAILED_PRECONDITION if this thread is not capturing, and for arrays without
// contents of another capture; INVALID_ARGUMENT for arrays of another session, or of one
// that has ended.
pathways_error pathways_program_end(const pathways_array* outputs, size_t num_outputs, pathways_program* program);

// pathways_program_abandon ends the capture of this thread, if there is one, without
// making a program.
pathways_error pathways_program_abandon(void);

typedef struct {
  size_t struct_size;
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_nodes;  // runs and copies, independent of the number of shards
} pathways_program_info_t;

pathways_error pathways_program_info(pathways_program program, pathways_program_info_t* info);

// pathways_program_play plays a program on arrays that match its inputs; they are not
// donated. It does not block. If a node fails, its results and everything that depends on
// them fail with its error. Any number of threads may play a program at once, except
// threads that are capturing.
//
// Errors: INVALID_ARGUMENT if the number of arrays, or the shape, type, session or devices
// of one of them, does not match the inputs; FAILED_PRECONDITION on a thread that is
// capturing; DATA_LOSS if a constant of the program was lost with its worker, or was
// being made then: make it again, and capture the program again. A program without
// such constants goes on when another worker has taken the place.
pathways_error pathways_program_play(pathways_program program, const pathways_array* inputs, size_t num_inputs,
                                     pathways_array* outputs, size_t num_outputs);

// ---- Futures ----

// pathways_future_wait blocks until a future is ready, and returns the error that its
// operation ended with. It may be called repeatedly. It returns DEADLINE_EXCEEDED if
// timeout_ns have passed before that. A timeout of 0 does not block; a negative one means
// no limit, which is safe: if the process that carries out the operation dies, the future
// becomes ready with an error.
pathways_error pathways_future_wait(pathways_future future, int64_t timeout_ns);

// pathways_future_then arranges that then is called when a future is ready, on the
// library's thread, even if the future is ready already or is dropped before. error is 0
// or the future's error; then must drop it.
pathways_error pathways_future_then(pathways_future future, void (*then)(pathways_error error, void* arg), void* arg);

#ifdef __cplusplus
}
#endif

#endif  // OPENPATHWAYS_H_
