// GetPjrtApi: one table, which shows either the frontend of this process's devices or that of a cluster. Clients keep
// its address, so its contents change, and only while there is no client.
#include "table.h"

#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "pjrt_abi.h"

const PJRT_Api* pw_embedded_api(void);  // capi/embedded
const PJRT_Api* pr_api(void);           // capi/cluster

static PJRT_Api shown;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the choice
static const PJRT_Api* chosen;                          // the table that is shown; NULL before the first choice

// choose shows a table. The caller holds mu.
static char* choose(const char* address, const char* versions) {
  const PJRT_Api* now = *address ? pr_api() : NULL;
  char* refusal = pwGoCluster((char*)address, (char*)versions, chosen != NULL && (now == NULL) != (chosen != pr_api()));
  if (refusal) return refusal;
  if (now == NULL) now = pw_embedded_api();
  if (now != chosen) shown = *now;
  chosen = now;
  return NULL;
}

char* pw_choose(const char* address, const char* versions) {
  pthread_mutex_lock(&mu);
  char* refusal = choose(address, versions);
  pthread_mutex_unlock(&mu);
  return refusal;
}

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi(void) {
  pthread_mutex_lock(&mu);
  if (chosen == NULL) {
    const char* address = getenv("PATHWAYS_ADDRESS");
    free(choose(address ? address : "", ""));
  }
  pthread_mutex_unlock(&mu);
  return &shown;
}
