// Words to the user on compiles that take long.
#ifndef PATHWAYS_CAPI_COMPILING_H_
#define PATHWAYS_CAPI_COMPILING_H_

// Told what is compiled, where, for how many seconds, and how it is: PR_COMPILING, or
// how it ended. Gives 1 where the user interrupted it, else 0.
typedef int (*pr_compiling)(const char* program, const char* worker, double seconds, int how);
enum { PR_COMPILING, PR_COMPILED, PR_FAILED, PR_GIVEN_UP };

// Says who is told; NULL, nobody.
void pathways_set_compiling(pr_compiling compiling) __attribute__((visibility("default")));

// Gives Python's KeyboardInterrupt where the user interrupted what was told, to be
// given to pr_raise or pr_drop, else NULL.
void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how);

// What a handler of signals of Python's has raised, where the calling thread is that
// of the handlers; else NULL. The caller does not hold the GIL, and gives what it got
// to pr_raise.
void* pr_interrupted(void);
// Has Python raise the same on this thread as soon as it is back there.
void pr_raise(void* exception);
void pr_drop(void* exception);

#endif  // PATHWAYS_CAPI_COMPILING_H_
