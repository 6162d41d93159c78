package pjrt

/*
#include "door.h"

const PJRT_Api* GetPjrtApi(void);
*/
import "C"

import "unsafe"

// Table is the function table that GetPjrtApi gives to clients, a PJRT_Api*: for
// clients written in Go that are linked with the door, such as its tests.
func Table() unsafe.Pointer { return unsafe.Pointer(C.GetPjrtApi()) }
