#include "telling.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "interpreter.h"

static _Atomic(pr_telling) told;
static pthread_rwlock_t calling = PTHREAD_RWLOCK_INITIALIZER;  // read-locked while told is called

// Once this returns, the previous function is not running and will not be called again: a call holds the read lock, and
// later calls load the new function.
void pathways_set_telling(pr_telling telling) {
  atomic_store(&told, telling);
  pthread_rwlock_wrlock(&calling);
  pthread_rwlock_unlock(&calling);
}

void* pr_tell(const char* line) {
  pthread_rwlock_rdlock(&calling);
  pr_telling telling = atomic_load(&told);
  void* exception = NULL;
  if (telling && telling(line)) exception = pw_python_keyboard_interrupt();
  pthread_rwlock_unlock(&calling);
  return exception;
}
