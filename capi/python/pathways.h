// The C API of Open Pathways.
//
// Texts are UTF-8. A char* result is malloc'd, belongs to the caller and is freed with pathways_free. A function that
// can fail returns NULL, or "CODE: text" with a code of absl. Every function may be called from any thread; in a child
// made by fork() each returns FAILED_PRECONDITION.
#ifndef PATHWAYS_CAPI_PYTHON_PATHWAYS_H_
#define PATHWAYS_CAPI_PYTHON_PATHWAYS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets where packages with PJRT plugins are installed: directories separated by colons. It has an effect only before
// the plugin is looked for. Returns 0.
int pathways_plugin_dirs(const char* directories);

// Sets whose devices the PJRT clients made from now on have: those of the cluster at address or, for NULL or "", those
// of this process. Before it is called, the environment's PATHWAYS_ADDRESS decides. FAILED_PRECONDITION as long as
// there are clients of the other kind: their handles go through the same table.
//
// An address is tcp:host:port or unix:/path of a controller; local:WxD, a cluster in this process with W workers of D
// devices each; or sim:WxD, the same with simulated devices.
//
// Versions is a JSON object of what the processes of a cluster must agree in, such as {"jax": "0.12.0"}; NULL if there
// is nothing to compare.
char* pathways_set_cluster(const char* address, const char* versions);

// Says why the client made last cannot be used any more, if it is a cluster's and has lost its session: with the
// code and the text that its calls fail with.
char* pathways_lost(void);

// The events of this process's sessions on clusters after the one with this number, as a JSON object: last, and moments
// [{number, kind, at, worker, devices, reason}]. If there are none, it waits for timeout_ms at most.
char* pathways_moments(uint64_t after, int64_t timeout_ms);

// What this library is and which plugin it uses, as a JSON object: version, go,
// pjrt {major, minor}, plugin {path, kind, why, pjrt_version, attributes},
// candidates [{path, kind, chosen, note}], error.
char* pathways_info(void);

// Counters as a JSON object: go_entries, executes, puts, fetches, reshards,
// queued, moved, sessions, bytes_in_use by device, and live handles by kind.
char* pathways_stats(void);

// Describes the sessions on devices of this process, as a JSON object of the form that docs/guides/status.schema.json
// describes: each session is an island of one worker.
char* pathways_status(void);

// Records gangs by device from start to stop, of this process and of the clusters that it uses, and writes them to a
// file that Perfetto and chrome://tracing open.
char* pathways_trace_start(const char* path);
char* pathways_trace_stop(void);

// Ends submission: runs that wait for their turn fail with CANCELLED, and it waits for those that are being launched,
// for timeout_ms at most. Clients stay until they are destroyed, and new ones may be made.
char* pathways_shutdown(int64_t timeout_ms);

// The same at the end of the process, when results can no longer be read: on a cluster it waits only for work with
// effects (functions of this process, handlers that it has registered), and drops other work after a moment, without an
// error.
char* pathways_exit(int64_t timeout_ms);

// Makes errors, and computations that have to wait, name the line of Python that called: the innermost frame whose file
// does not begin with one of these prefixes, one a line. NULL unsets it, which must happen before Python ends.
void pathways_locate_python(const char* others);

// Sets the function that is called with a line for the user when something takes long on a cluster, such as a compile.
// It returns 1 if it received a KeyboardInterrupt, which a compile then raises, giving up; else 0. It is called at
// growing intervals, on the thread that asked for the compile, or on another one. NULL unsets it, which must happen
// before what it calls into ends.
void pathways_set_telling(int (*telling)(const char* line));

// Runs the command line of Open Pathways and returns its exit code; argv is without the program's name. Environment is
// a JSON object that describes the calling program: self, the command that starts another process like this one, as a
// list; versions, an object of what the processes of a cluster must agree in; imported, a list of the modules of
// --import; elsewhere, an object of commands that the program runs itself, with a line on each for --help. It blocks
// until the command ends, which may be at SIGTERM or SIGINT: it handles both.
int pathways_main(int argc, char** argv, const char* environment);

// ---- Arrays out of a PJRT client and into one, and from one sharding to another.
//
// Programs of two names are not run. One named jit___pathways_export takes arrays and returns none: executing it
// exports the arrays under numbers, which its thread can read. One named jit___pathways_import takes none: executing it
// returns arrays that its thread named before. What the two programs would compute does not matter; the results of the
// second have the shardings, types and shapes that the arrays must have. Neither waits for an array's contents; errors
// travel with the arrays.

// Writes the numbers of the arrays of this thread's latest export, one for each argument, and returns how many there
// are: 0 if there was no export since the last call. They stay exported until they are released; if room is too small,
// they are released at once.
size_t pathways_exported(uint64_t* arrays, size_t room);

// Sets the arrays that the next import on this thread returns, one for each result. It takes them even if the import
// fails: their numbers are no longer valid. An array that was exported cannot be imported as it is, since its client
// still has it.
void pathways_import(const uint64_t* arrays, size_t n);

void pathways_release(const uint64_t* arrays, size_t n);

// Makes a plan of how arrays of one shape move from some shards to others. From and to are lists of 1 + 2 num_dims
// numbers for each shard: its device's ID, its start in the array along each dimension, and its size. From is in the
// order of the exporting program's devices, to in that of the importing one's. Memory is the kind of memory of the
// destination; NULL or "" is the devices' default.
char* pathways_plan(size_t num_dims, const int64_t* dims, size_t num_from, const int64_t* from, size_t num_to,
                    const int64_t* to, const char* memory, uint64_t* plan);
void pathways_plan_free(uint64_t plan);

// Makes, from an exported array, an array of the same elements in other shards, as the plan says. It is exported under
// the number out; the first one stays exported too. UNIMPLEMENTED in this process for elements smaller than a byte.
char* pathways_reshard(uint64_t array, uint64_t plan, uint64_t* out);

// ---- Slices: devices that are granted to a session together, so that sessions use different ones. Unless they are in
// an exclusive slice of another session, a session can also use devices that it was not granted.

typedef struct {
  uint64_t session, number;
} pathways_slice_name;

// Asks for a slice of the devices of the newest PJRT client, and returns at once. Topology is num_topology sizes whose
// product is devices, or none: devices along the last dimension are neighbors. Island and kind restrict the devices;
// NULL or "" means any. No one else uses the devices of an exclusive slice while it has them. Wait is how many seconds
// the request waits for devices that others have: 0 is not at all, infinity without end. Of the user's own
// requests that wait, those of a higher priority come first.
char* pathways_slice_ask(int64_t devices, const int64_t* topology, size_t num_topology, const char* island,
                         const char* kind, bool exclusive, double wait, int32_t priority, pathways_slice_name* slice);

// Waits for a slice that was asked for, for so many seconds at most. When it was granted, position is 0 and devices has
// their indices in the client's list. Otherwise position is the request's place in the queue, beginning with 1, and
// lacks tells people which sessions have the devices that it lacks; the caller frees it.
// INVALID_ARGUMENT if there is no such island, kind or topology, RESOURCE_EXHAUSTED if there are too few devices.
char* pathways_slice_wait(pathways_slice_name slice, double seconds, uint32_t* devices, size_t num_devices,
                          int64_t* position, char** lacks);

// Asks for the devices of a slice again, as it was granted: others replace those of a lost worker, and those that more
// slices have. On an error the slice does not change.
char* pathways_slice_remap(pathways_slice_name slice, uint32_t* devices, size_t num_devices);

// Ends a grant or cancels a request; both also end with their client. It does nothing if there is none.
void pathways_slice_release(pathways_slice_name slice);

// ---- Programs: what one thread asks of a client, recorded and played again.
//
// From begin to end, what the thread has a PJRT client run and move is recorded instead of done: each computation, copy
// and reshard becomes a node, and its results are buffers without contents. Arrays with contents are kept as constants.
// Reading an array without contents is FAILED_PRECONDITION, then and later, and a capture in which one was read does
// not become a program.

// Begins a capture on this thread. FAILED_PRECONDITION if it is already capturing.
char* pathways_capture_begin(void);

// Declares that the n results of the next import on this thread are inputs of the program; they follow those declared
// before. Donated has n flags: whether what reads an input may donate it. NULL: none may be donated.
char* pathways_capture_inputs(size_t n, const uint8_t* donated);

// Ends the thread's capture and writes the program. Its results are the arrays named here, which were exported
// meanwhile and stay exported. Results gets n numbers: for each array, which result of the program it is, or -1 if it
// is an array with contents that the program neither made nor took as an input. On an error the capture continues.
char* pathways_capture_end(const uint64_t* arrays, size_t n, int32_t* results, uint64_t* program);

// Reports whether an exported array has no contents: an input or a result of what was recorded.
int32_t pathways_capture_made(uint64_t array);

// Returns the line that first read an array without contents, or asked whether it is ready, in the thread's capture;
// empty if the line is not known, NULL if there was no such read.
char* pathways_capture_read(void);

// Ends the thread's capture, if there is one, without a program.
void pathways_capture_drop(void);

// Runs a program with n exported arrays, one for each input, with shards like the input's. It takes them even if it
// fails. It returns m new exported arrays, to be imported or released, and does not wait. If a node fails, its results
// and everything that depends on them have its error. ABORTED if the program calls Python functions that no longer
// exist: capture it again. Any number of threads may run a program.
char* pathways_program_run(uint64_t program, const uint64_t* arrays, size_t n, uint64_t* results, size_t m);

// Describes a program as a JSON object: values [{node, output, bytes, shard, devices,
// donated}], where node is -1 for an input; nodes [{kind, name, location, devices, makes,
// reads [{value, bytes}], constant_bytes}], in their order, of kind execute, copy or
// reshard; inputs [value]; outputs [{reads, constant_bytes}]; capture_ns; compile_ns.
char* pathways_program_describe(uint64_t program);

// Frees a program after the runs that have begun are done with it.
void pathways_program_free(uint64_t program);

void pathways_free(char* text);

// To be called before the error that a function returned is raised: while the process ends, a thread other than the
// first stays here, since it would print a traceback in a correct program.
void pathways_refused(void);

#ifdef __cplusplus
}
#endif

#endif  // PATHWAYS_CAPI_PYTHON_PATHWAYS_H_
