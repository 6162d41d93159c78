#ifndef PATHWAYS_CAPI_PYTHON_TABLE_H_
#define PATHWAYS_CAPI_PYTHON_TABLE_H_

// pw_choose is pathways_set_cluster.
char* pw_choose(const char* address, const char* versions);

#endif  // PATHWAYS_CAPI_PYTHON_TABLE_H_
