// Ctrl-C in a Python program that waits in this library, and words to its user.
#ifndef PATHWAYS_CAPI_INTERRUPT_H_
#define PATHWAYS_CAPI_INTERRUPT_H_

#include <stdbool.h>

// Whether the calling thread is that of Python's signal handlers, and one of them
// has raised. Where it has, Python raises the same again as soon as the thread is
// back in it. The caller does not hold the GIL.
bool pr_interrupted(void);

// Told of compiles that take long: what, where, for how many seconds, and how it is:
// PR_COMPILING, or how it ended. Gives 1 where it was interrupted.
typedef int (*pr_compiling)(const char* program, const char* worker, double seconds, int how);
enum { PR_COMPILING, PR_COMPILED, PR_FAILED, PR_GIVEN_UP };

// Says who is told; NULL, nobody.
void pathways_set_compiling(pr_compiling compiling) __attribute__((visibility("default")));

bool pr_tells_compiling(void);
// True where who was told says that it was interrupted.
bool pr_tell_compiling(const char* program, const char* worker, double seconds, int how);

#endif  // PATHWAYS_CAPI_INTERRUPT_H_
