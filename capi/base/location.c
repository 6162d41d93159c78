// Where the user's program made a call.
#include <stdio.h>

#include "base.h"

static _Atomic(pw_locate) locator;

void pw_set_locate(pw_locate locate) { atomic_store(&locator, locate); }

int pw_location(const PJRT_ExecuteOptions* options, char* text, int size) {
  const char* at = options && PW_COVERS(options, call_location) ? options->call_location : NULL;
  if (at && *at) return snprintf(text, (size_t)size, "%s", at);
  pw_locate locate = atomic_load(&locator);
  return locate ? locate(text, size) : 0;
}
