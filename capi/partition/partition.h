// What plugins for CPUs leave to Python when they compile: the C contract of package partition.
#ifndef PATHWAYS_CAPI_PARTITION_PARTITION_H_
#define PATHWAYS_CAPI_PARTITION_PARTITION_H_

#include <stdbool.h>
#include <stddef.h>

// --- for the frontends ---

// Reports whether a program, as text or bytecode, may have a call for which XLA's partitioner asks Python, that the
// plugin's partitioner may refuse but jaxlib's does not, or an operation that Python replaces. It searches the program
// once for each kind of these.
bool pw_partition_asks(const char* code, size_t size);

// The program to compile, from malloc; NULL if it is the one that was given.
typedef struct {
  char *format, *code, *options;
  size_t code_size, options_size;
} pw_partitioned;

// Prepares a program for which pw_partition_asks returns true. asks says whether the plugin's partitioner asks Python
// itself; operations are then replaced, and no more. It may call Python, so the caller must not hold a lock. It returns
// an absl code; if that is not 0, *message is the text, malloc'd.
int pwGoPartition(char* format, size_t format_size, char* code, size_t code_size, char* options, size_t options_size,
                  bool asks, pw_partitioned* out, char** message);

// Returns the error of a program that a plugin refused with this text because of something that Python does for others,
// malloc'd; NULL if that was not why.
char* pwGoRefused(char* text, size_t size);

// --- for the Python package ---

// Compiles a program on jaxlib's own CPU client, for as many devices as its compile options say, and has XLA dump the
// modules before and after its pass spmd-partitioning into a directory of the call's own. Returns 1 if that succeeded,
// 0 after pathways_partition_fail, and -1 if the user interrupted it. It takes the GIL itself, and is called on the
// thread that compiles.
typedef struct pw_partition_call pw_partition_call;
typedef int (*pw_partitioner)(pw_partition_call* call, const char* code, size_t code_size, const char* options,
                              size_t options_size, const char* directory);

// Writes a program with others in place of the operations that plugins refuse. Returns 1 after pathways_partition_give
// or if the program has none, else as a pw_partitioner, and is called as one.
typedef int (*pw_replacer)(pw_partition_call* call, const char* code, size_t code_size);

// Sets these functions; NULL: none. When it returns, the previous ones are no longer called.
void pathways_set_partitioner(pw_partitioner partitioner, pw_replacer replacer) __attribute__((visibility("default")));

// Sets the program that a call returns (copied).
void pathways_partition_give(pw_partition_call* call, const char* code, size_t size)
    __attribute__((visibility("default")));

// Sets the error of a call, "CODE: text" (copied).
void pathways_partition_fail(pw_partition_call* call, const char* text) __attribute__((visibility("default")));

// --- within the package ---

// Reports whether a program may have operations that Python replaces. These are collectives, and calls that place an
// array in a memory. On a CPU, whose memories are all the host's, such calls change nothing; the memories of arguments
// and results are also said by their types. Older compilers for CPUs refuse them.
bool pw_partition_replaces(const char* code, size_t size);

// Reports whether a program may have calls for which Python partitions it.
bool pw_partition_partitions(const char* code, size_t size);

// Reports whether a program stays correct without Python's answers: XLA then gathers what it could have split.
bool pw_partition_optional(const char* code, size_t size);

enum { PW_PARTITION_FAILED, PW_PARTITION_DONE, PW_PARTITION_NO_PARTITIONER, PW_PARTITION_INTERRUPTED };

struct pw_partition_call {
  char* error;  // a refusal (see base.h) if the call failed
  char* code;   // of pathways_partition_give
  size_t code_size;
};

// Calls the function that partitions or, if directory is NULL, the one that replaces operations. The caller frees the
// code, and the error by pw_refusal_free.
int pw_partition_call_python(const char* code, size_t code_size, const char* options, size_t options_size,
                             const char* directory, pw_partition_call* call);

#endif  // PATHWAYS_CAPI_PARTITION_PARTITION_H_
