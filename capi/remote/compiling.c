#include "compiling.h"

#include <stdatomic.h>
#include <stddef.h>

#include "python.h"

static _Atomic(pr_compiling) told;

void pathways_set_compiling(pr_compiling compiling) { atomic_store(&told, compiling); }

void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how) {
  pr_compiling compiling = atomic_load(&told);
  if (compiling == NULL || compiling(program, worker, seconds, how) == 0) return NULL;
  return pw_python_keyboard_interrupt();
}
