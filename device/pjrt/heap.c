// The memory of XLA's CPU devices is malloc's, and two defaults of glibc make it slow. Other allocators ignore the
// calls in this file.
//
// glibc returns large blocks to the system when they are freed, and the next one pays for faulting in its pages again:
// up to a sixth of a training step's time, depending on which blocks were freed first. For glibc adapts: after a block
// that was mapped by itself is freed, blocks of that size come from the heap, of which it then keeps twice as much; the
// largest size it adapts to is 32 MiB. So this sets that size at once. A process that frees one such block anywhere
// ends up in the same state. Values that the user set by MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES
// or mallopt stay, since glibc then does not adapt.
//
// glibc keeps freed small blocks in lists of their own, and merges all of them whenever it is asked for a large block.
// A computation allocates both by turns: 6 % of a worker's time for a small computation went into that. So small blocks
// are merged when they are freed; each thread still keeps some. That is for workers only: Python, which frees small
// blocks all the time, became 2 % slower.
#include <malloc.h>
#include <string.h>

#include "driver.h"

enum { kLearned = 32 << 20 };  // on machines of 64 bits

void pwdrv_teach_malloc(void) {
  // Including the header, and rounded up to whole pages of 64 KiB at most, it is no larger.
  void* volatile block = malloc(kLearned - (128 << 10));
  free(block);
}

void pwdrv_sort_small_blocks(void) {
#ifdef M_MXFAST
  const char* tunables = getenv("GLIBC_TUNABLES");
  if (tunables == NULL || strstr(tunables, "glibc.malloc.mxfast") == NULL) mallopt(M_MXFAST, 0);
#endif
}
