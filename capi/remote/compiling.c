#define _GNU_SOURCE
#include "compiling.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

static _Atomic(pr_compiling) told;

void pathways_set_compiling(pr_compiling compiling) { atomic_store(&told, compiling); }

// What is used of Python where there is one in this process: its stable ABI.
static struct {
  int (*is_initialized)(void);
  int (*ensure)(void);
  void (*release)(int);
  int (*check_signals)(void);
  void* (*occurred)(void);
  int (*set_async)(unsigned long thread, void* exception);
  void (*clear)(void);
  void (*incref)(void*);
  void (*decref)(void*);
  void** keyboard_interrupt;
} python;
static bool has_python;
static pthread_once_t looked = PTHREAD_ONCE_INIT;

static void look(void) {
  struct {
    const char* name;
    void* into;
  } const all[] = {
      {"Py_IsInitialized", &python.is_initialized}, {"PyGILState_Ensure", &python.ensure},
      {"PyGILState_Release", &python.release},      {"PyErr_CheckSignals", &python.check_signals},
      {"PyErr_Occurred", &python.occurred},         {"PyThreadState_SetAsyncExc", &python.set_async},
      {"PyErr_Clear", &python.clear},               {"Py_IncRef", &python.incref},
      {"Py_DecRef", &python.decref},                {"PyExc_KeyboardInterrupt", &python.keyboard_interrupt},
  };
  has_python = true;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    void* symbol = dlsym(RTLD_DEFAULT, all[i].name);
    *(void**)all[i].into = symbol;
    if (symbol == NULL) has_python = false;
  }
}

void* pr_tell_compiling(const char* program, const char* worker, double seconds, int how) {
  pr_compiling compiling = atomic_load(&told);
  if (compiling == NULL || compiling(program, worker, seconds, how) == 0) return NULL;
  pthread_once(&looked, look);
  if (!has_python || !python.is_initialized()) return NULL;
  int state = python.ensure();
  void* exception = *python.keyboard_interrupt;
  python.incref(exception);
  python.release(state);
  return exception;
}

void* pr_interrupted(void) {
  if (gettid() != getpid()) return NULL;  // handlers run on the first thread alone
  pthread_once(&looked, look);
  if (!has_python || !python.is_initialized()) return NULL;
  void* exception = NULL;
  int state = python.ensure();
  if (python.check_signals() != 0) {
    exception = python.occurred();  // its type
    python.incref(exception);
    python.clear();
  }
  python.release(state);
  return exception;
}

void pr_raise(void* exception) {
  int state = python.ensure();
  python.set_async((unsigned long)pthread_self(), exception);
  python.decref(exception);
  python.release(state);
}

void pr_drop(void* exception) {
  int state = python.ensure();
  python.decref(exception);
  python.release(state);
}
