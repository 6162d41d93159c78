package embedded

/*
#include "embedded.h"
*/
import "C"

import "unsafe"

// Table is the function table of this door, a PJRT_Api* that lives for ever: what
// GetPjrtApi shows to clients, and what clients written in Go use, such as tests.
func Table() unsafe.Pointer { return unsafe.Pointer(C.pw_embedded_api()) }
