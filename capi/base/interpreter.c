#define _GNU_SOURCE
#include "interpreter.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

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
  void* (*frame)(void);
  void* (*back)(void* frame);
  void* (*code)(void* frame);
  int (*line)(void* frame);
  void* (*attribute)(void* object, const char* name);
  const char* (*text)(void* object, ptrdiff_t* size);
  void** keyboard_interrupt;
  // These may be missing.
  int (*holds)(void);
  void* (*save)(void);
  void (*restore)(void* thread);
  void* (*interpreter)(void);
  void* (*first)(void* interpreter);
  void* (*next)(void* thread);
  void* (*state)(void);
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
      {"PyEval_GetFrame", &python.frame},           {"PyFrame_GetBack", &python.back},
      {"PyFrame_GetCode", &python.code},            {"PyFrame_GetLineNumber", &python.line},
      {"PyObject_GetAttrString", &python.attribute}, {"PyUnicode_AsUTF8AndSize", &python.text},
  };
  has_python = true;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    void* symbol = dlsym(RTLD_DEFAULT, all[i].name);
    *(void**)all[i].into = symbol;
    if (symbol == NULL) has_python = false;
  }
  python.holds = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  python.save = (void* (*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
  python.restore = (void (*)(void*))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
  python.interpreter = (void* (*)(void))dlsym(RTLD_DEFAULT, "PyInterpreterState_Get");
  python.first = (void* (*)(void*))dlsym(RTLD_DEFAULT, "PyInterpreterState_ThreadHead");
  python.next = (void* (*)(void*))dlsym(RTLD_DEFAULT, "PyThreadState_Next");
  python.state = (void* (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
}

static bool present(void) {
  pthread_once(&looked, look);
  return has_python && python.is_initialized();
}

bool pw_python_finalizes(void) {
  pthread_once(&looked, look);
  return has_python && !python.is_initialized();  // it was initialized when this library was loaded
}

void* pw_python_unlock(void) {
  return present() && python.holds && python.save && python.restore && python.holds() ? python.save() : NULL;
}

void pw_python_relock(void* unlocked) {
  if (unlocked) python.restore(unlocked);
}

size_t pw_python_threads(void) {
  if (!present() || python.interpreter == NULL || python.first == NULL || python.next == NULL) return 0;
  size_t n = 0;
  int state = python.ensure();
  for (void* t = python.first(python.interpreter()); t; t = python.next(t)) n++;
  python.release(state);
  return n;
}

// is_first reports whether this is the thread on which Python runs handlers of signals, and finalizes.
static bool is_first(void) { return syscall(SYS_gettid) == getpid(); }

static _Atomic bool leaves;

void pw_python_leaves(void) { atomic_store(&leaves, true); }

enum { kEnding = 5 };  // seconds that a busy machine may need from then on until Python finalizes

void pw_python_stay(void) {
  if (!atomic_load(&leaves) || is_first()) return;
  pthread_once(&looked, look);
  if (python.state == NULL || python.state() == NULL) return;
  void* unlocked = pw_python_unlock();
  for (int left = kEnding; left > 0 || pw_python_finalizes(); left--) sleep(1);
  pw_python_relock(unlocked);
}

void* pw_python_interrupted(void) {
  if (!is_first() || !present()) return NULL;
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

// Prefixes of the names of foreign files, except packages that are installed below them: strings one after the other,
// and an empty one. Set once and never freed, since a thread may be reading it.
static const char* _Atomic others = "";

static bool of_others(const char* file) {
  for (const char* o = atomic_load(&others); *o; o += strlen(o) + 1)
    if (strncmp(file, o, strlen(o)) == 0 && strstr(file + strlen(o), "-packages/") == NULL) return true;
  return false;
}

void pw_python_others(const char* prefixes) {
  size_t size = strlen(prefixes);
  char* all = pw_zeros(1, size + 2);
  if (all == NULL) return;  // foreign lines are taken for the user's
  memcpy(all, prefixes, size);
  for (size_t i = 0; i < size; i++)
    if (all[i] == '\n') all[i] = 0;
  atomic_store(&others, all);
}

int pw_python_line(char* text, int size) {
  if (!present()) return 0;
  int said = 0, state = python.ensure();
  void* frame = python.frame();
  if (frame) python.incref(frame);
  while (frame && said == 0) {
    void* code = python.code(frame);
    void* name = python.attribute(code, "co_filename");
    const char* file = name ? python.text(name, NULL) : NULL;
    if (file == NULL) python.clear();
    else if (!of_others(file)) said = snprintf(text, (size_t)size, "%s:%d", file, python.line(frame));
    if (name) python.decref(name);
    python.decref(code);
    void* outer = said ? NULL : python.back(frame);
    python.decref(frame);
    frame = outer;
  }
  if (frame) python.decref(frame);
  python.release(state);
  return said < size ? said : size - 1;
}
