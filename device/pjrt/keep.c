// Large blocks of a plugin's memory, kept when they are freed for the next ones of their size.
//
// XLA's CPU devices take the memory of each result from the C library, and free it when the array is deleted. The C
// library returns blocks above 32 MiB, and ends of threads' heaps, to the system, and the next result pays for faulting
// that memory in again: at 1 to 3 GB/s, where writing memory that is there reaches 10 to 20. So the plugin's calls for
// aligned memory, which is what XLA asks for, and its calls of free come here (imports.c). Blocks of 2 MiB and more lie
// in a range of addresses of their own, in huge pages where the system has them; all others are the C library's, as is
// what the rest of the process allocates.
//
// What is guaranteed:
//   - Memory in use and kept together is never more than what was in use at once since the process started (most): when
//     a block takes memory that was not kept, kept blocks are returned to the system until that is true. So a process
//     needs no more memory than without this, whatever the sizes that it asks for in turn.
//   - What is kept for long goes back to the system in two steps, after the times that pwdrv_keep_tidy is told. First
//     it is offered (MADV_FREE): the system takes it when it needs memory, before anything else, and counts it as free;
//     if it did not, the next block there finds its pages. Then it is returned, needed or not.
//   - Blocks do not overlap: each lies in a slot, whose place and size never change. A slot is in use, kept, offered
//     (which counts as kept), or empty: addresses without memory. Only a slot that is in no list is offered or emptied,
//     so that it is not used meanwhile.
//   - If there is no range, or no room in it, the C library is asked.
//
// A process that only computes (shared) has the range in a file of memory, which other processes of the host may map
// to read results where they lie (transport/collective/lent.go). That is done only where the kernel makes huge pages of
// it, from Linux 6.1 on: blocks get them when they are made. There is no MADV_FREE for such memory, so what is kept for
// long is returned at once.
//
// The lock is held for some loads and stores, never for a call of the system, and by a fork, so that it is free in the
// child.
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum {
  kPageBits = 21,   // of a huge page, of which slots are made
  kSteps = 4,       // sizes of slots between a power of two and the next
  kClasses = 96,    // sizes of slots: enough for kMostAddresses
  kTimesMemory = 8, // addresses, as a multiple of the machine's memory
  // Advice of Linux 5.14 and 6.1, which C libraries may not know yet.
  kPopulateWrite = 23,
  kCollapse = 25
};
static const size_t kPage = (size_t)1 << kPageBits;
static const size_t kMostAddresses = (size_t)1 << 44;
// Of a shared range, which up to 63 other processes map, who have 2^47 bytes of addresses each.
static const size_t kMostShared = (size_t)1 << 40;

// A slot is named by its first page; page 0 is never one, so 0 is none. One that is not in use is in a list.
typedef struct {
  uint32_t newer, older;
  uint32_t pages;
  uint32_t freed;  // when, in milliseconds
  uint32_t huge;   // of a shared range: pages, from the first on, that are huge or were asked to be
  bool in_use;
} slot;

typedef struct {
  uint32_t newest, oldest;
} list;

static struct {
  pthread_mutex_t lock;  // guards all below but base, span, file and slots, which are set before any block is
  char* base;
  size_t span;
  size_t memory;  // of the machine
  int file;       // that the range lies in; -1 if it is this process's alone
  bool forked;    // from the process that the range belongs to
  slot* slots;                 // by page
  uint32_t pages, top;         // of the range; the first that was never in a slot
  list kept[kClasses], offered[kClasses], empty[kClasses];
  size_t used, keeps, most;    // pages; keeps are those of kept and offered
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1, .top = 1};

static void lock(void) { pthread_mutex_lock(&heap.lock); }
static void unlock(void) { pthread_mutex_unlock(&heap.lock); }

// A child has the same memory as its parent where that is shared, and must neither use nor free it.
static void unlock_child(void) {
  heap.forked = heap.file >= 0;
  unlock();
}

// Makes pages of a shared range huge, as far as the kernel has such ones. There has to be a page to begin with.
static bool widen(char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPage)
    if (madvise(from + at, 1, kPopulateWrite) != 0) return false;
  return madvise(from, bytes, kCollapse) == 0;
}

static void give_back(char* from, size_t bytes) { madvise(from, bytes, heap.file < 0 ? MADV_DONTNEED : MADV_REMOVE); }

// Puts a file of memory at the range, if it can have huge pages. Page 0 is in no slot, so it serves to try.
static int share(char* base, size_t span) {
  char enabled[64] = "";  // the administrator's wish, for which the kernel does not look here
  FILE* f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  if (f == NULL) return -1;
  if (fgets(enabled, sizeof enabled, f) == NULL) enabled[0] = 0;
  fclose(f);
  if (strstr(enabled, "[never]") != NULL) return -1;
  int file = memfd_create("pathways-heap", MFD_CLOEXEC);
  if (file < 0) return -1;
  const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  if (ftruncate(file, (off_t)span) == 0 && mmap(base, span, PROT_READ | PROT_WRITE, flags, file, 0) == base) {
    if (widen(base, kPage)) {
      madvise(base, kPage, MADV_REMOVE);
      madvise(base, span, MADV_DONTDUMP);  // a core dump would make pages of all of it
      return file;
    }
    mmap(base, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  close(file);
  return -1;
}

static void reserve(bool shared) {
  long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return;
  heap.memory = (size_t)pages * (size_t)bytes;
  size_t span = heap.memory * kTimesMemory;
  if (span > kMostAddresses) span = kMostAddresses;
  if (shared && span > kMostShared) span = kMostShared;
  span &= ~(kPage - 1);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* range = mmap(NULL, span + kPage, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (range == MAP_FAILED) return;  // a limit of addresses, or a system that reserves memory for all of them
  slot* slots = mmap(NULL, (span >> kPageBits) * sizeof(slot), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (slots == MAP_FAILED) {
    munmap(range, span + kPage);
    return;
  }
  char* base = (char*)(((uintptr_t)range + kPage - 1) & ~(uintptr_t)(kPage - 1));
  if (shared) heap.file = share(base, span);
  if (heap.file < 0) madvise(base, span, MADV_HUGEPAGE);  // a hint
  heap.slots = slots;
  heap.pages = (uint32_t)(span >> kPageBits);
  heap.span = span;
  heap.base = base;
  pthread_atfork(lock, unlock, unlock_child);
}

static void reserve_own(void) { reserve(false); }
static void reserve_shared(void) { reserve(true); }

static bool is_kept_here(const void* block) { return (size_t)((const char*)block - heap.base) < heap.span; }

static uint32_t now(void) {  // in milliseconds; it wraps
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint32_t)t.tv_sec * 1000 + (uint32_t)(t.tv_nsec / 1000000);
}

// Rounds a number of pages up to the size of a slot: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 … Returns its class.
static int class_of(size_t pages, uint32_t* size) {
  int shift = pages <= kSteps ? 0 : 61 - __builtin_clzll((unsigned long long)(pages - 1));
  size_t steps = ((pages - 1) >> shift) + 1;
  *size = (uint32_t)(steps << shift);
  return shift * kSteps + (int)steps - 1;
}

static void push(list* l, uint32_t at) {
  slot* s = &heap.slots[at];
  s->newer = 0;
  s->older = l->newest;
  *(l->newest != 0 ? &heap.slots[l->newest].newer : &l->oldest) = at;
  l->newest = at;
}

static uint32_t take(list* l, uint32_t at) {
  const slot* s = &heap.slots[at];
  *(s->newer != 0 ? &heap.slots[s->newer].older : &l->newest) = s->older;
  *(s->older != 0 ? &heap.slots[s->older].newer : &l->oldest) = s->newer;
  return at;
}

// Takes the slot of some lists, kept or offered, that was freed first, if that was so long ago. Returns 0 if none was.
static uint32_t take_oldest(list* lists, uint32_t time, uint32_t age) {
  list* from = NULL;
  for (int c = 0; c < kClasses; c++) {
    uint32_t at = lists[c].oldest;
    if (at != 0 && time - heap.slots[at].freed >= age) {
      age = time - heap.slots[at].freed;
      from = &lists[c];
    }
  }
  if (from == NULL) return 0;
  uint32_t at = take(from, from->oldest);
  heap.keeps -= heap.slots[at].pages;
  return at;
}

// Returns the memory of slots to the system. They are chained by older, and in no list.
static void empty(uint32_t chain) {
  while (chain != 0) {
    uint32_t at = chain, size;
    list* to = &heap.empty[class_of(heap.slots[at].pages, &size)];
    chain = heap.slots[at].older;
    give_back(heap.base + (size_t)at * kPage, (size_t)size * kPage);
    heap.slots[at].huge = 0;
    lock();
    push(to, at);
    unlock();
  }
}

// Offers the memory of a slot that is in no list. The list stays in the order of freeing, since the oldest come first.
static void offer(uint32_t at) {
  uint32_t size;
  list* to = &heap.offered[class_of(heap.slots[at].pages, &size)];
  madvise(heap.base + (size_t)at * kPage, (size_t)size * kPage, MADV_FREE);  // where it is unknown, the memory stays
  lock();
  push(to, at);
  heap.keeps += size;
  unlock();
}

static uint32_t chained(uint32_t at, uint32_t chain) {
  heap.slots[at].older = chain;
  return at;
}

// Returns a block of so many pages, or NULL if there is no room.
static void* allocate(size_t pages) {
  uint32_t size, at = 0, chain = 0;
  int class = class_of(pages, &size);
  lock();
  list *kept = &heap.kept[class], *offered = &heap.offered[class], *none = &heap.empty[class];
  if (kept->newest != 0 || offered->newest != 0) {
    list* from = kept->newest != 0 ? kept : offered;
    at = take(from, from->newest);
    heap.keeps -= size;
  } else if (none->newest != 0) {
    at = take(none, none->newest);
  } else if (heap.pages - heap.top >= size) {
    at = heap.top;
    heap.top += size;
    heap.slots[at].pages = size;
  }
  if (at != 0) {
    heap.slots[at].in_use = true;
    heap.used += size;
    if (heap.most < heap.used) heap.most = heap.used;
    for (uint32_t time = now(), old; heap.used + heap.keeps > heap.most;) {
      old = take_oldest(heap.offered, time, 0);
      if (old == 0) old = take_oldest(heap.kept, time, 0);
      if (old == 0) break;
      chain = chained(old, chain);
    }
  }
  unlock();
  empty(chain);
  if (at == 0) return NULL;
  char* block = heap.base + (size_t)at * kPage;
  slot* s = &heap.slots[at];
  if (heap.file >= 0 && s->huge < pages) {
    widen(block + s->huge * kPage, (pages - s->huge) * kPage);
    s->huge = (uint32_t)pages;
  }
  return block;
}

static void release(void* block) {
  if (heap.forked) return;
  size_t offset = (size_t)((char*)block - heap.base);
  uint32_t at = (uint32_t)(offset >> kPageBits), size, time = now();
  slot* s = &heap.slots[at];
  lock();
  if ((offset & (kPage - 1)) != 0 || !s->in_use) abort();  // as the C library does when it is told to free what is not
  s->in_use = false;
  s->freed = time;
  push(&heap.kept[class_of(s->pages, &size)], at);
  heap.used -= size;
  heap.keeps += size;
  unlock();
}

static void* large(size_t alignment, size_t size) {
  // The C library refuses more than the machine has, which this allocator would promise.
  if (heap.forked || size < kPage || alignment > kPage || size > heap.memory) return NULL;
  return allocate((size + kPage - 1) >> kPageBits);
}

void* pwdrv_keep_aligned_alloc(size_t alignment, size_t size) {
  void* block = large(alignment, size);
  return block != NULL ? block : aligned_alloc(alignment, size);
}

static int keep_posix_memalign(void** to, size_t alignment, size_t size) {
  void* block = large(alignment, size);
  if (block == NULL) return posix_memalign(to, alignment, size);
  *to = block;
  return 0;
}

void pwdrv_keep_free(void* block) {
  if (is_kept_here(block)) {
    release(block);
  } else {
    free(block);
  }
}

void* pwdrv_keep_realloc(void* block, size_t size) {
  if (!is_kept_here(block)) return realloc(block, size);
  size_t room = (size_t)heap.slots[(size_t)((char*)block - heap.base) >> kPageBits].pages * kPage;
  void* moved = NULL;
  if (size > 0) {
    moved = malloc(size);
    if (moved == NULL) return NULL;
    memcpy(moved, block, size < room ? size : room);
  }
  release(block);
  return moved;
}

static size_t keep_usable_size(void* block) {
  if (!is_kept_here(block)) return malloc_usable_size(block);
  return (size_t)heap.slots[(size_t)((char*)block - heap.base) >> kPageBits].pages * kPage;
}

bool pwdrv_keep_blocks_of(const void* inside, bool shared) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, shared ? reserve_shared : reserve_own);
  if (heap.base == NULL) return false;
  // The functions that free come first, so that no block is made that the C library would be asked to free. These also
  // take its own.
  pwdrv_import frees[] = {{"free", (void*)pwdrv_keep_free, 0},
                          {"realloc", (void*)pwdrv_keep_realloc, 0},
                          {"malloc_usable_size", (void*)keep_usable_size, 0}};
  if (!pwdrv_replace_imports(inside, frees, sizeof frees / sizeof *frees) || frees[0].places == 0) return false;
  pwdrv_import makes[] = {{"aligned_alloc", (void*)pwdrv_keep_aligned_alloc, 0},
                          {"memalign", (void*)pwdrv_keep_aligned_alloc, 0},
                          {"posix_memalign", (void*)keep_posix_memalign, 0}};
  pwdrv_replace_imports(inside, makes, sizeof makes / sizeof *makes);
  return makes[0].places + makes[1].places + makes[2].places > 0;
}

void pwdrv_keep_tidy(uint32_t offered_after, uint32_t returned_after) {
  uint32_t chain = 0, old, time = now();
  if (heap.forked) return;
  while (heap.file < 0) {
    lock();
    old = take_oldest(heap.kept, time, offered_after);
    unlock();
    if (old == 0) break;
    offer(old);
  }
  lock();
  list* last = heap.file < 0 ? heap.offered : heap.kept;
  while ((old = take_oldest(last, time, returned_after)) != 0) chain = chained(old, chain);
  unlock();
  empty(chain);
}

pwdrv_range pwdrv_keep_shared(void) {
  return heap.file < 0 ? (pwdrv_range){-1, NULL, 0} : (pwdrv_range){heap.file, heap.base, heap.span};
}

pwdrv_kept pwdrv_keep_read(void) {
  lock();
  pwdrv_kept got = {heap.used * kPage, heap.keeps * kPage, heap.most * kPage};
  unlock();
  return got;
}
