#define _GNU_SOURCE
#include "python.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

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

static bool present(void) {
  pthread_once(&looked, look);
  return has_python && python.is_initialized();
}

void* pw_python_interrupted(void) {
  if (gettid() != getpid() || !present()) return NULL;  // handlers run on the first thread alone
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

void* pw_python_keyboard_interrupt(void) {
  if (!present()) return NULL;
  int state = python.ensure();
  void* exception = *python.keyboard_interrupt;
  python.incref(exception);
  python.release(state);
  return exception;
}

void pw_python_raise(void* exception) {
  int state = python.ensure();
  python.set_async((unsigned long)pthread_self(), exception);
  python.decref(exception);
  python.release(state);
}

void pw_python_drop(void* exception) {
  int state = python.ensure();
  python.decref(exception);
  python.release(state);
}
