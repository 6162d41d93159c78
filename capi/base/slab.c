#include "slab.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"

enum {
  kSlots = 512,  // allocated together: 64 KiB at most
  kBatch = 32,   // slots that a thread takes or returns at once
  kSlabs = 8,    // of all frontends, plus one
};

// Slabs by their index. Index 0 stands for slabs of which no slot was ever taken.
static pw_slab* slabs[kSlabs];
static size_t num_slabs = 1;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the list

// cache is the free slots of one slab that a thread keeps.
typedef struct {
  pw_slot* first;
  size_t n;  // less than 2 * kBatch
} cache;

// The calling thread's caches, by the index of their slab. That of index 0 stays empty.
static __thread struct {
  cache of[kSlabs];
  bool known;  // the thread's end frees the caches
} mine;

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_thread(void* unused) {
  (void)unused;
  for (size_t i = 1; i < kSlabs; i++) {
    cache* c = &mine.of[i];
    pw_slot *first = c->first, *last = first;
    if (first == NULL) continue;
    while (last->next) last = last->next;
    pw_slab_put_all(slabs[i], first, last);
    *c = (cache){0};
  }
  mine.known = false;  // destructors that run later on this thread may still come here
}

static void make_key(void) { pthread_key_create(&ending, end_thread); }

static cache* cache_of(const pw_slab* s) {
  if (!mine.known) {
    pthread_once(&once, make_key);
    mine.known = pthread_setspecific(ending, &mine) == 0;
  }
  return &mine.of[atomic_load_explicit(&s->place, memory_order_acquire)];
}

// register_slab assigns an index to a slab.
static void register_slab(pw_slab* s) {
  pthread_mutex_lock(&mu);
  if (atomic_load_explicit(&s->place, memory_order_relaxed) == 0) {
    if (num_slabs == kSlabs) abort();  // kSlabs is too small for the number of frontends
    slabs[num_slabs] = s;
    atomic_store_explicit(&s->place, num_slabs++, memory_order_release);
  }
  pthread_mutex_unlock(&mu);
}

// grow makes new slots, under the slab's lock.
static bool grow(pw_slab* s) {
  enum { kLine = 64 };  // bytes of a cache line
  size_t bytes = (kSlots * s->size + kLine - 1) / kLine * kLine;
  char* slots = pw_aligned(kLine, bytes);
  if (slots == NULL) return false;
  memset(slots, 0, bytes);
  for (size_t i = kSlots; i-- > 0;) {
    pw_slot* slot = (pw_slot*)(slots + i * s->size);
    slot->generation = 1;
    slot->next = s->free;
    s->free = slot;
  }
  return true;
}

// fill moves a batch of free slots to a thread that has none.
static bool fill(pw_slab* s, cache* c) {
  pthread_mutex_lock(&s->mu);
  for (size_t i = 0; i < kBatch && (s->free || grow(s)); i++) {
    pw_slot* slot = s->free;
    s->free = slot->next;
    slot->next = c->first;
    c->first = slot;
    c->n++;
  }
  pthread_mutex_unlock(&s->mu);
  return c->n > 0;
}

bool pw_slab_take(pw_slab* s, void* out, size_t n) {
  pw_slot** slots = out;
  cache* c = cache_of(s);
  for (size_t i = 0; i < n; i++) {
    if (c->first == NULL) {
      if (atomic_load_explicit(&s->place, memory_order_relaxed) == 0) {
        register_slab(s);
        c = cache_of(s);
      }
      if (c->first == NULL && !fill(s, c)) {
        while (i-- > 0) pw_slab_put(s, slots[i]);
        return false;
      }
    }
    slots[i] = c->first;
    c->first = c->first->next;
    c->n--;
  }
  return true;
}

void pw_slab_put(pw_slab* s, pw_slot* slot) {
  cache* c = cache_of(s);
  slot->next = c->first;
  c->first = slot;
  if (++c->n < 2 * kBatch) return;
  pw_slot* last = slot;
  for (int i = 1; i < kBatch; i++) last = last->next;
  c->first = last->next;
  c->n -= kBatch;
  pw_slab_put_all(s, slot, last);
}

void pw_slab_put_all(pw_slab* s, pw_slot* first, pw_slot* last) {
  pthread_mutex_lock(&s->mu);
  last->next = s->free;
  s->free = first;
  pthread_mutex_unlock(&s->mu);
}
