package cluster

/*
#include <stdlib.h>
#include "telling.h"
#include "interpreter.h"
*/
import "C"

import "unsafe"

// tell shows the user a line. It returns the Python exception that signal handlers have raised meanwhile, or nil.
func tell(line string) unsafe.Pointer {
	text := C.CString(line)
	defer C.free(unsafe.Pointer(text))
	return C.pr_tell(text)
}
