// The memory of XLA's CPU devices is malloc's. glibc gives large blocks back to the
// system when they are freed, and each next one is paid for by faulting in its
// pages again: up to a sixth of a training step's time, by the luck of which blocks
// were freed first. For glibc learns: after a block that was mapped by itself is
// freed, blocks of that size come from the heap, of which it then keeps twice as
// much; the largest size it learns is 32 MiB. So it is taught that size at once.
//
// A process that frees one such block anywhere ends in the same state. What the user
// set by MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES or mallopt
// holds, since glibc then does not learn; another allocator takes no notice.
#include <stdlib.h>

#include "door.h"

enum { kLearnt = 32 << 20 };  // on machines of 64 bits

void pw_keep_memory(const PJRT_Client* client) {
  PW_ARGS(PJRT_Client_PlatformName_Args, name);
  name.client = client->under;
  PJRT_Error* err = pw_under->PJRT_Client_PlatformName(&name);
  if (err) pw_error_free(err);
  if (err || name.platform_name_size != 3 || memcmp(name.platform_name, "cpu", 3) != 0) return;
  // With its header, rounded up to whole pages of 64 KiB at most, no more than that.
  void* volatile block = malloc(kLearnt - (128 << 10));
  free(block);
}
