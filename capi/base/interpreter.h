// A Python that this library may be loaded into: its Ctrl-C, heard where a call of the
// library takes long on Python's first thread, and the line that it is at. By Python's
// own functions, looked up when they are needed; where there is no Python, nothing is
// ever heard.
#ifndef PATHWAYS_CAPI_BASE_INTERPRETER_H_
#define PATHWAYS_CAPI_BASE_INTERPRETER_H_

#include <stdbool.h>

// What a handler of signals of Python's has raised, where the calling thread is that
// of the handlers; else NULL. The caller gives what it got to pw_python_raise.
void* pw_python_interrupted(void);
// Python's KeyboardInterrupt, to be given to pw_python_raise or pw_python_drop; NULL
// where there is no Python.
void* pw_python_keyboard_interrupt(void);
// Has Python raise the exception on this thread as soon as it is back there.
void pw_python_raise(void* exception);
// Reports whether Python finalizes: a thread but the main one that takes the GIL then ends, up to 3.13 by unwinding
// its stack, which ends the process where a function on it is noexcept.
bool pw_python_finalizes(void);
void pw_python_drop(void* exception);

// pw_python_line writes "file:line" of the calling thread's innermost frame that is not
// of the others, and gives the length, or 0. It runs no code of Python's, in which a
// Ctrl-C that has come meanwhile would be raised, and lost.
int pw_python_line(char* text, int size);
// Says how names of files begin that are not the user's, one a line. Before the first
// use of pw_python_line.
void pw_python_others(const char* prefixes);

#endif  // PATHWAYS_CAPI_BASE_INTERPRETER_H_
