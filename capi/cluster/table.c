// The function table, which is always the same.
#include <pthread.h>

#include "cluster.h"

pr_counters pr_count;

PJRT_Error* pr_unimplemented(const char* slot) {
  return pw_error(PJRT_Error_Code_UNIMPLEMENTED, "%s is not available on devices of a cluster", slot);
}

static PJRT_Api table;

static void make(void) {
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.extension_start = pr_extensions();
  table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  table.pjrt_api_version.minor_version = PW_ABI_MINOR;
  pr_table_fill(&table);
}

const PJRT_Api* pr_api(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make);
  return &table;
}

PJRT_Error* pr_PJRT_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args* args) {
  (void)args;  // there are none
  return NULL;
}
