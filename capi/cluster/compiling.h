// Words to the user on compiles that take long.
#ifndef PATHWAYS_CAPI_CLUSTER_COMPILING_H_
#define PATHWAYS_CAPI_CLUSTER_COMPILING_H_

// Told what is compiled, where, for how many seconds, and how it is: PR_COMPILING, or
// how it ended. Gives 1 where the user interrupted it, else 0.
typedef int (*pr_compiling)(const char* program, const char* worker, double seconds, int how);
enum { PR_COMPILING, PR_COMPILED, PR_FAILED, PR_GIVEN_UP };

// Says who is told; NULL, nobody. When it returns, who was told before is not called
// any more: a thread may be left behind in a compile while Python ends.
void pathways_set_compiling(pr_compiling compiling) __attribute__((visibility("default")));

// Gives Python's KeyboardInterrupt where the user interrupted what was told, to be
// given to pw_python_raise or pw_python_drop, else NULL.
void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how);

#endif  // PATHWAYS_CAPI_CLUSTER_COMPILING_H_
