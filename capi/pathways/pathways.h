// The C API of Open Pathways.
//
// Texts are UTF-8. A char* result is malloc'd, belongs to the caller and is
// freed with pathways_free. A function that can fail returns NULL, or
// "CODE: text" with a code of absl. Every function may be called from any
// thread; in a child made by fork() each answers FAILED_PRECONDITION.
#ifndef PATHWAYS_H_
#define PATHWAYS_H_

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

// What this library is and which plugin it uses, as a JSON object: version, go,
// pjrt {major, minor}, plugin {path, kind, why, pjrt_version, attributes},
// candidates [{path, kind, chosen, note}], error.
char* pathways_info(void);

// Counters as a JSON object: go_entries, executes, puts, queued, moved,
// sessions, bytes_in_use by device, and live handles by kind.
char* pathways_stats(void);

// Records gangs by device from start to stop, and writes them to a file that
// Perfetto and chrome://tracing open.
char* pathways_trace_start(const char* path);
char* pathways_trace_stop(void);

// Ends submission: runs that wait for their turn fail with CANCELLED, what is
// being launched is waited for at most so long. Clients stay until they are
// destroyed, and new ones may be made.
char* pathways_shutdown(int64_t timeout_ms);

// Says who can tell where the program of this process is: locate writes
// "file:line" of the code that called, at most size bytes with a zero behind, and
// gives the length, or 0. It is asked for errors and for computations that have to
// wait. NULL unsets it; that is due before what it calls into goes away.
void pathways_set_locate(int (*locate)(char* text, int size));

// Runs the command line of Open Pathways and gives its exit code; argv is without
// the program's name. Environment is a JSON object on the program around it: self,
// the command that starts another process like this one, as a list; versions, an
// object of what the processes of a cluster must agree in; elsewhere, an object of
// commands that the program runs itself, with a line on each for --help. Blocks
// until the command ends, which may be at SIGTERM or SIGINT: it takes them over.
int pathways_main(int argc, char** argv, const char* environment);

void pathways_free(char* text);

#ifdef __cplusplus
}
#endif

#endif  // PATHWAYS_H_
