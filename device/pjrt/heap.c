// The memory of XLA's CPU devices is malloc's, and glibc's habits cost them twice.
// Another allocator takes no notice of what is done here.
//
// It gives large blocks back to the system when they are freed, and each next one is
// paid for by faulting in its pages again: up to a sixth of a training step's time, by
// the luck of which blocks were freed first. For glibc learns: after a block that was
// mapped by itself is freed, blocks of that size come from the heap, of which it then
// keeps twice as much; the largest size it learns is 32 MiB. So it is taught that size
// at once. A process that frees one such block anywhere ends in the same state. What
// the user set by MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES or
// mallopt holds, since glibc then does not learn.
//
// It keeps small blocks that were freed in lists of their own, and sorts all of these
// into the others whenever it is asked for a large one. A computation takes both by
// turns: 6 % of the time that a worker has for a small one went into that. So small
// blocks are sorted when they are freed; each thread still keeps some. That is for
// workers: Python, which frees small ones all the time, lost 2 % by it.
#include <malloc.h>
#include <string.h>

#include "driver.h"

enum { kLearnt = 32 << 20 };  // on machines of 64 bits

void pwdrv_teach_malloc(void) {
  // With its header, rounded up to whole pages of 64 KiB at most, no more than that.
  void* volatile block = malloc(kLearnt - (128 << 10));
  free(block);
}

void pwdrv_sort_small_blocks(void) {
#ifdef M_MXFAST
  const char* tunables = getenv("GLIBC_TUNABLES");
  if (tunables == NULL || strstr(tunables, "glibc.malloc.mxfast") == NULL) mallopt(M_MXFAST, 0);
#endif
}
