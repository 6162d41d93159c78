// Forks: Go does not run in the child of a fork, so every call there is refused.
#include <pthread.h>
#include <string.h>

#include "base.h"

bool pw_forked;
_Atomic uint64_t pw_forks;

static void forking(void) { atomic_fetch_add(&pw_forks, 1); }
static void forked(void) { pw_forked = true; }

// Go runs as soon as the library is loaded, so forks are watched from then on.
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(forking, NULL, forked); }

PJRT_Error* pw_forked_error(void) {
  return pw_error(
      PJRT_Error_Code_FAILED_PRECONDITION,
      "this process was made by fork() after Open Pathways was loaded, and its threads stayed behind in the "
      "parent; start processes with multiprocessing.get_context(\"spawn\")");
}

char* pw_forked_refusal(void) {
  return pw_refusal(pw_copy_text(
      "FAILED_PRECONDITION: this process was made by fork() after Open Pathways was loaded; start processes "
      "with multiprocessing.get_context(\"spawn\")"));
}
