#include "telling.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "interpreter.h"

static _Atomic(pr_telling) told;
static pthread_rwlock_t calling = PTHREAD_RWLOCK_INITIALIZER;  // read-locked while told is called

// Once it returns, nobody is in the function that was set before, nor will be: calls hold the lock to read, and those
// that come later see the new one.
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
