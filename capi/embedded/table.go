package embedded

/*
#include "embedded.h"
*/
import "C"

import "unsafe"

// Table returns the function table of this frontend, a PJRT_Api* that is always valid: what GetPjrtApi shows to
// clients, and what clients written in Go use, such as tests.
func Table() unsafe.Pointer { return unsafe.Pointer(C.pw_embedded_api()) }
