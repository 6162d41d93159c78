// What XLA's partitioner asks of Python, and how programs get their answers: the C contract of package partition.
#ifndef PATHWAYS_CAPI_PARTITION_PARTITION_H_
#define PATHWAYS_CAPI_PARTITION_PARTITION_H_

#include <stdbool.h>
#include <stddef.h>

// --- for the frontends ---

// Reports whether a program, as text or bytecode, may have a call for which XLA's partitioner asks Python, or that the
// plugin's partitioner may refuse but jaxlib's does not. It searches the program once for each kind of such calls.
bool pw_partition_asks(const char* code, size_t size);

// A program that has been partitioned: malloc'd; NULL if the program can stay as it is.
typedef struct {
  char *code, *options;
  size_t code_size, options_size;
} pw_partitioned;

#define PW_PARTITIONED_FORMAT "hlo"

// Partitions a program for which pw_partition_asks returns true. It may call Python, so the caller must not hold a
// lock. It returns an absl code; if that is not 0, *message is the text, malloc'd.
int pwGoPartition(char* format, size_t format_size, char* code, size_t code_size, char* options, size_t options_size,
                  pw_partitioned* out, char** message);

// Reports whether a plugin refused a program with this text because its partitioner would have had to ask Python. *said
// is then the error text, malloc'd; NULL if memory is short.
bool pw_partition_refused(const char* text, size_t size, char** said);

#define PW_PARTITION_PLACED                                                                                         \
  "on CPU devices a program's results are in the default memory, and this one places them by a memory kind: leave " \
  "the kind out of out_shardings and of jax.device_put inside of jax.jit, give compute_on "                         \
  "out_memory_spaces=jax.memory.Space.Device, and move the result with jax.device_put outside of jax.jit"

// --- for the Python package ---

// Compiles a program on jaxlib's own CPU client, for as many devices as its compile options say, and has XLA dump the
// modules before and after its pass spmd-partitioning into a directory of the call's own. Returns 1 if that succeeded,
// 0 after pathways_partition_fail, and -1 if the user interrupted it. It takes the GIL itself, and is called on the
// thread that compiles.
typedef struct pw_partition_call pw_partition_call;
typedef int (*pw_partitioner)(pw_partition_call* call, const char* code, size_t code_size, const char* options,
                              size_t options_size, const char* directory);

// Sets the function that partitions; NULL: none. When it returns, the previous one is no longer called.
void pathways_set_partitioner(pw_partitioner partitioner) __attribute__((visibility("default")));

// Sets the error of a call, "CODE: text" (copied).
void pathways_partition_fail(pw_partition_call* call, const char* text) __attribute__((visibility("default")));

// --- within the package ---

// Reports whether a program stays correct without Python's answers: XLA then gathers what it could have split.
bool pw_partition_optional(const char* code, size_t size);

enum { PW_PARTITION_FAILED, PW_PARTITION_DONE, PW_PARTITION_NO_PARTITIONER, PW_PARTITION_INTERRUPTED };

// Calls the function that partitions. *error is a refusal (see base.h) if that failed.
int pw_partition_call_python(const char* code, size_t code_size, const char* options, size_t options_size,
                             const char* directory, char** error);

#endif  // PATHWAYS_CAPI_PARTITION_PARTITION_H_
