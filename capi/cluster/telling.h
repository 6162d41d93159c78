// Reports to the user on what takes long.
#ifndef PATHWAYS_CAPI_CLUSTER_TELLING_H_
#define PATHWAYS_CAPI_CLUSTER_TELLING_H_

// pr_telling is called with a line for the user. It returns 1 if the user has interrupted it, else 0.
typedef int (*pr_telling)(const char* line);

// Sets the function that is called; NULL: none. When this returns, the previous function is not called any more: a
// thread may be left behind in a compile while Python ends.
void pathways_set_telling(pr_telling telling) __attribute__((visibility("default")));

// Calls the function. Returns Python's KeyboardInterrupt if the user has interrupted it, for pw_python_raise or
// pw_python_drop; else NULL.
void* pr_tell(const char* line);

#endif  // PATHWAYS_CAPI_CLUSTER_TELLING_H_
