// The C API of Open Pathways.
//
// Texts are UTF-8. A char* result is malloc'd, belongs to the caller and is
// freed with pathways_free. A function that can fail returns NULL, or
// "CODE: text" with a code of absl. Every function may be called from any
// thread; in a child made by fork() each answers FAILED_PRECONDITION.
#ifndef PATHWAYS_CAPI_PYTHON_PATHWAYS_H_
#define PATHWAYS_CAPI_PYTHON_PATHWAYS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Says where packages with PJRT plugins are installed: directories separated by
// colons. Has effect until the plugin is looked for. Returns 0.
int pathways_plugin_dirs(const char* directories);

// Says whose devices the PJRT clients made from now on have: those of the cluster
// that address names, or, for NULL or "", those of this process. Before it is
// called, the environment's PATHWAYS_ADDRESS says so. FAILED_PRECONDITION as long
// as clients of the other kind live: their handles go through the same table.
//
// An address is tcp:host:port or unix:/path of a controller; local:WxD, a cluster
// in this process with W workers of D devices each; or sim:WxD, the same with
// simulated devices.
//
// Versions is a JSON object of what the processes of a cluster must agree in, such
// as {"jax": "0.12.0"}; NULL where there is nothing to compare.
char* pathways_set_cluster(const char* address, const char* versions);

// Says why the client made last cannot be used any more, if it is a cluster's and has lost its session: with the
// code and the text that its calls fail with.
char* pathways_lost(void);

// What this library is and which plugin it uses, as a JSON object: version, go,
// pjrt {major, minor}, plugin {path, kind, why, pjrt_version, attributes},
// candidates [{path, kind, chosen, note}], error.
char* pathways_info(void);

// Counters as a JSON object: go_entries, executes, puts, fetches, reshards,
// queued, moved, sessions, bytes_in_use by device, and live handles by kind.
char* pathways_stats(void);

// Records gangs by device from start to stop, of this process and of the clusters
// it uses, and writes them to a file that Perfetto and chrome://tracing open.
char* pathways_trace_start(const char* path);
char* pathways_trace_stop(void);

// Ends submission: runs that wait for their turn fail with CANCELLED, what is
// being launched is waited for at most so long. Clients stay until they are
// destroyed, and new ones may be made.
char* pathways_shutdown(int64_t timeout_ms);

// The same at the end of the process, where nobody can read results any more: on a
// cluster only work with effects (functions of this process, handlers that it has
// registered) is waited for, and other work is dropped after a moment, without an error.
char* pathways_exit(int64_t timeout_ms);

// Has errors, and computations that have to wait, name the line of Python that called: the innermost whose file does
// not begin with one of these, one a line. NULL unsets it; that is due before Python goes away.
void pathways_locate_python(const char* others);

// Says who is told of compiles that take long, on a cluster: program, worker, seconds
// so far, and how, 0 for under way, 1 for done, 2 for failed, 3 for given up. It gives
// 1 where a KeyboardInterrupt of Python's came to it, which the call then raises, and
// gives the compile up; else 0. It is called at growing intervals on the thread that
// asked for the compile. NULL unsets it; that is due before what it calls into goes
// away.
void pathways_set_compiling(int (*compiling)(const char* program, const char* worker, double seconds, int how));

// Runs the command line of Open Pathways and gives its exit code; argv is without
// the program's name. Environment is a JSON object on the program around it: self,
// the command that starts another process like this one, as a list; versions, an
// object of what the processes of a cluster must agree in; imported, a list of the
// modules of --import; elsewhere, an object of commands that the program runs
// itself, with a line on each for --help. Blocks
// until the command ends, which may be at SIGTERM or SIGINT: it takes them over.
int pathways_main(int argc, char** argv, const char* environment);

// ---- Arrays out of a PJRT client and in again, and from one sharding to another.
//
// Programs of two names are not run. One named jit___pathways_export takes arrays
// and gives none: when it is executed, the arrays are held under numbers that its
// thread is told of. One named jit___pathways_import takes none: when it is
// executed, it gives arrays that its thread named before. What the two would compute
// is all the same; the second's results have the shardings, types and shapes that
// the arrays must have. Neither waits for any array's contents, and errors of those
// travel with them.

// Gives the numbers of what the latest export on this thread holds, one an argument,
// and how many there are: 0 where there was none since the last call. They are held
// until they are released; where room is too small, they are released at once.
size_t pathways_exported(uint64_t* arrays, size_t room);

// Says which arrays the next import on this thread gives, one a result. It takes
// them: they are held no more, also where the import fails. An array that was
// exported cannot be imported as it is, since its client still has it.
void pathways_import(const uint64_t* arrays, size_t n);

void pathways_release(const uint64_t* arrays, size_t n);

// Makes a plan of how arrays of one shape move from some shards to others. From and
// to are lists of 1 + 2 num_dims numbers a shard: its device's ID, its start in the
// array along each dimension, and its size. From is in the order of the exporting
// program's devices, to in that of the importing one's. Memory is the kind of memory
// that the array goes to; NULL or "" is the devices' default.
char* pathways_plan(size_t num_dims, const int64_t* dims, size_t num_from, const int64_t* from, size_t num_to,
                    const int64_t* to, const char* memory, uint64_t* plan);
void pathways_plan_free(uint64_t plan);

// Makes, of an array that is held, one of the same elements in other shards, as the
// plan says. It is held under the number out; the first one stays held too.
// UNIMPLEMENTED in this process for elements that are no whole bytes.
char* pathways_reshard(uint64_t array, uint64_t plan, uint64_t* out);

// ---- Slices: devices that a session is granted together, so that it keeps out of
// others' way. What is not granted can be used as well.

typedef struct {
  uint64_t session, number;
} pathways_slice_name;

// Asks for a slice of the devices of the PJRT client made last, and waits for the
// answer. Topology is num_topology sizes whose product is devices, or none: the last
// dimension lies on neighbours. Island and kind say of what the devices are to be;
// NULL or "" is any. Granted has room for them: their places in the client's list.
// INVALID_ARGUMENT for what is not there, RESOURCE_EXHAUSTED where there are too few.
char* pathways_slice_grant(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                           const char* kind, pathways_slice_name* slice, uint32_t* granted);

// Asks for the devices of a slice again, by what it was granted by: for others where
// a worker was lost, or where fewer have them. An error leaves the slice as it is.
char* pathways_slice_remap(pathways_slice_name slice, uint32_t* devices, size_t num_devices);

// Ends a grant; it ends with its client, too. It does nothing where there is none.
void pathways_slice_release(pathways_slice_name slice);

// ---- Programs: what one thread asks of a client, recorded and played again.
//
// From begin to end, what the thread has a PJRT client run and move is not done but
// recorded: each computation, copy and reshard becomes a node, and its results are
// buffers without contents. Arrays that exist otherwise are kept as constants.
// Reading an array without contents is FAILED_PRECONDITION, then and later, and a
// capture in which one was read gives no program.

// Begins a capture on this thread. FAILED_PRECONDITION where one has begun.
char* pathways_capture_begin(void);

// Says that the n results of the next import on this thread are inputs of the
// program; they follow those announced before. Donated has n flags: an input that
// is, may be donated by what reads it. NULL: none is.
char* pathways_capture_inputs(size_t n, const uint8_t* donated);

// Ends the thread's capture and gives the program. Its results are the arrays that
// were exported meanwhile and are named here; they stay held. Results has n numbers:
// of each array which result of the program it is, or -1 where it is an array with
// contents that the program neither made nor was given. With an error the capture
// goes on.
char* pathways_capture_end(const uint64_t* arrays, size_t n, int32_t* results, uint64_t* program);

// Whether a held array is one without contents: an input or a result of what was
// recorded.
int32_t pathways_capture_made(uint64_t array);

// The line that first read an array without contents, or asked whether it is ready, in
// the thread's capture; empty where it is not known, NULL where none did.
char* pathways_capture_read(void);

// Ends the thread's capture, if there is one, without a program.
void pathways_capture_drop(void);

// Runs a program with n held arrays, one an input, of the shards that the inputs have.
// It takes them: they are held no more, also where it fails. It gives m new ones, to
// be imported or released, and waits for nothing. A node that fails gives its error to
// its results and all that depend on them. ABORTED where the program calls functions
// of its maker that are no more; capture it again. Any number of threads may run one.
char* pathways_program_run(uint64_t program, const uint64_t* arrays, size_t n, uint64_t* results, size_t m);

// Describes a program as a JSON object: values [{node, output, bytes, shard, devices,
// donated}], where node is -1 for an input; nodes [{kind, name, location, devices, gives,
// reads [{value, bytes}], constant_bytes}], in their order, of kind execute, copy or
// reshard; inputs [value]; outputs [{reads, constant_bytes}]; capture_ns; compile_ns.
char* pathways_program_describe(uint64_t program);

// Frees a program, once the runs that have begun are through with it.
void pathways_program_free(uint64_t program);

void pathways_free(char* text);

#ifdef __cplusplus
}
#endif

#endif  // PATHWAYS_CAPI_PYTHON_PATHWAYS_H_
