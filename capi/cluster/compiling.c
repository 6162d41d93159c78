#include "compiling.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "interpreter.h"

static _Atomic(pr_compiling) told;
static pthread_rwlock_t telling = PTHREAD_RWLOCK_INITIALIZER;  // read-locked while told is called

void pathways_set_compiling(pr_compiling compiling) {
  atomic_store(&told, compiling);
  pthread_rwlock_wrlock(&telling);
  pthread_rwlock_unlock(&telling);
}

void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how) {
  pthread_rwlock_rdlock(&telling);
  pr_compiling compiling = atomic_load(&told);
  void* exception = NULL;
  if (compiling && compiling(program, worker, seconds, how)) exception = pw_python_keyboard_interrupt();
  pthread_rwlock_unlock(&telling);
  return exception;
}
