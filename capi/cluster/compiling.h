// Reports to the user on compiles that take long.
#ifndef PATHWAYS_CAPI_CLUSTER_COMPILING_H_
#define PATHWAYS_CAPI_CLUSTER_COMPILING_H_

// pr_compiling is called with what is compiled, where, for how many seconds, and its state: PR_COMPILING, or how it
// ended. It returns 1 if the user has interrupted it, else 0.
typedef int (*pr_compiling)(const char* program, const char* worker, double seconds, int how);
enum { PR_COMPILING, PR_COMPILED, PR_FAILED, PR_GIVEN_UP };

// Sets the function that is called; NULL: none. When this returns, the previous function is not called any more: a
// thread may be left behind in a compile while Python ends.
void pathways_set_compiling(pr_compiling compiling) __attribute__((visibility("default")));

// Calls the function. Returns Python's KeyboardInterrupt if the user has interrupted it, for pw_python_raise or
// pw_python_drop; else NULL.
void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how);

#endif  // PATHWAYS_CAPI_CLUSTER_COMPILING_H_
