// Ctrl-C of a Python that this library may be loaded into: heard where a call of the
// library takes long on Python's first thread. By Python's stable ABI, looked up when
// it is needed; where there is no Python, nothing is ever heard.
#ifndef PATHWAYS_CAPI_PYTHON_H_
#define PATHWAYS_CAPI_PYTHON_H_

// What a handler of signals of Python's has raised, where the calling thread is that
// of the handlers; else NULL. The caller gives what it got to pw_python_raise.
void* pw_python_interrupted(void);
// Python's KeyboardInterrupt, to be given to pw_python_raise or pw_python_drop; NULL
// where there is no Python.
void* pw_python_keyboard_interrupt(void);
// Has Python raise the exception on this thread as soon as it is back there.
void pw_python_raise(void* exception);
void pw_python_drop(void* exception);

#endif  // PATHWAYS_CAPI_PYTHON_H_
