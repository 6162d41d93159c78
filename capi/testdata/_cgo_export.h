// What Go exports to the C of capi/export, as the tests of that C define it.
#include <stddef.h>
#include <stdint.h>

extern char* pwGoPlan(size_t num_dims, int64_t* dims, size_t num_from, int64_t* from, size_t num_to, int64_t* to,
                      char* memory, uint64_t* plan);
extern void pwGoPlanFree(uint64_t plan);
