// The Python that this library may be loaded into: Ctrl-C, which calls that take long on Python's first thread check
// for, and the line that a thread is at. Python's own functions are looked up when they are first needed. Without a
// Python there is never a Ctrl-C and never a line.
#ifndef PATHWAYS_CAPI_BASE_INTERPRETER_H_
#define PATHWAYS_CAPI_BASE_INTERPRETER_H_

#include <stdbool.h>
#include <stddef.h>

// pw_python_interrupted returns what a Python signal handler has raised if the calling thread is the one that runs
// handlers, else NULL. The caller passes it to pw_python_raise.
void* pw_python_interrupted(void);
// Python's KeyboardInterrupt, to be passed to pw_python_raise or pw_python_drop; NULL without a Python.
void* pw_python_keyboard_interrupt(void);
// Has Python raise the exception on this thread as soon as the thread returns to it.
void pw_python_raise(void* exception);
// Reports whether Python is finalizing. A thread other than the main one that takes the GIL then ends; up to Python
// 3.13 by unwinding its stack, which ends the process if a function on it is noexcept.
bool pw_python_finalizes(void);
void pw_python_drop(void* exception);

// pw_python_leaves says that the process is about to end, in which errors tell threads nothing that they could act on.
// From then on pw_python_stay keeps a thread of Python's, other than the first, for some seconds, and for good if
// Python finalizes meanwhile: it would print a traceback in a correct program, or take the GIL too late, as above.
void pw_python_leaves(void);
void pw_python_stay(void);

// pw_python_unlock releases Python's lock if the calling thread holds it, so that other threads go on while it waits.
// pw_python_relock takes the lock again, with what pw_python_unlock has returned.
void* pw_python_unlock(void);
void pw_python_relock(void* unlocked);
// pw_python_threads returns the number of Python's threads, the calling one included; 0 without a Python.
size_t pw_python_threads(void);

// pw_python_line writes "file:line" of the calling thread's innermost frame outside of the foreign files (see below),
// and returns the length, or 0. It runs no Python code, in which a pending Ctrl-C would be raised, and lost.
int pw_python_line(char* text, int size);
// Sets how the names of foreign files begin, one prefix a line: files that are not the user's program. Called before
// the first pw_python_line.
void pw_python_others(const char* prefixes);

#endif  // PATHWAYS_CAPI_BASE_INTERPRETER_H_
