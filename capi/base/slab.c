// A slot is in one place at a time: with the caller that took it, in the cache of one thread, or in its slab's list of
// free slots. A cache is its thread's alone, so that thread takes and puts slots there without a lock; mu of the slab
// guards the list, from which a thread takes a batch at once and to which it returns one. A thread that ends returns
// its cache.
//
// A slab gets its index with its first slot. Before, its caches are those of index 0, which stay empty, so take_more
// meets every such slab. Threads without memory for caches use the list alone.
//
// pw_slab_taken subtracts what lies in lists and caches from all slots. Each cache says how many slots it has by a
// number that its thread alone writes; so slots that move meanwhile may count or not, and no others.
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
  _Atomic size_t n;  // less than 2 * kBatch; the thread alone writes it
} cache;

// caches are those of one thread, by the index of their slab. That of index 0 stays empty.
typedef struct caches {
  struct caches *prev, *next;
  cache of[kSlabs];
} caches;

static caches* all;  // of threads that have not ended; under mu
// Every run reads it several times: the model of pp_capturing, see capi/capture/record.c.
static __thread caches* mine __attribute__((tls_model("initial-exec")));

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count(cache* c, size_t n) { atomic_store_explicit(&c->n, n, memory_order_relaxed); }
static size_t counted(const cache* c) { return atomic_load_explicit(&c->n, memory_order_relaxed); }

static void end_thread(void* ended) {
  caches* m = ended;
  for (size_t i = 1; i < kSlabs; i++) {
    cache* c = &m->of[i];
    pw_slot *first = c->first, *last = first;
    if (first == NULL) continue;
    while (last->next) last = last->next;
    pw_slab_put_all(slabs[i], first, last);
  }
  pthread_mutex_lock(&mu);
  if (m->prev) m->prev->next = m->next;
  else all = m->next;
  if (m->next) m->next->prev = m->prev;
  pthread_mutex_unlock(&mu);
  free(m);
  mine = NULL;  // destructors that run later on this thread may still come here, and make new ones
}

static void make_key(void) { pthread_key_create(&ending, end_thread); }

// begin_thread makes the calling thread's caches; NULL if memory is short. No call fails for that, so this is not
// pw_zeros, by which tests have each allocation of a call fail and expect the call to.
static __attribute__((noinline)) caches* begin_thread(void) {
  pthread_once(&once, make_key);
  caches* m = calloc(1, sizeof *m);
  if (m == NULL || pthread_setspecific(ending, m) != 0) {
    free(m);
    return NULL;
  }
  pthread_mutex_lock(&mu);
  m->next = all;
  if (all) all->prev = m;
  all = m;
  pthread_mutex_unlock(&mu);
  return mine = m;
}

static inline cache* cache_of(const pw_slab* s) {
  caches* m = __builtin_expect(mine != NULL, 1) ? mine : begin_thread();
  return m ? &m->of[atomic_load_explicit(&s->place, memory_order_acquire)] : NULL;
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
  s->slots += kSlots;
  s->unused += kSlots;
  return true;
}

// fill moves a batch of free slots to a thread that has none.
static bool fill(pw_slab* s, cache* c) {
  pthread_mutex_lock(&s->mu);
  for (size_t i = 0; i < kBatch && (s->free || grow(s)); i++) {
    pw_slot* slot = s->free;
    s->free = slot->next;
    s->unused--;
    slot->next = c->first;
    c->first = slot;
    count(c, counted(c) + 1);
  }
  pthread_mutex_unlock(&s->mu);
  return c->first != NULL;
}

// take_more is pw_slab_take for a thread that has no free slot: it returns one, or NULL.
static pw_slot* take_more(pw_slab* s, cache** c) {
  if (atomic_load_explicit(&s->place, memory_order_relaxed) == 0) {
    register_slab(s);
    *c = cache_of(s);
  }
  cache own = {0};  // of a thread that has no caches
  if ((*c == NULL || (*c)->first == NULL) && !fill(s, *c ? *c : &own)) return NULL;
  cache* from = *c ? *c : &own;
  pw_slot* slot = from->first;
  from->first = slot->next;
  count(from, counted(from) - 1);
  if (own.first) {
    pw_slot* last = own.first;
    while (last->next) last = last->next;
    pw_slab_put_all(s, own.first, last);
  }
  return slot;
}

bool pw_slab_take(pw_slab* s, void* out, size_t n) {
  pw_slot** slots = out;
  cache* c = cache_of(s);
  for (size_t i = 0; i < n; i++) {
    if (c && c->first) {
      slots[i] = c->first;
      c->first = c->first->next;
      count(c, counted(c) - 1);
    } else if ((slots[i] = take_more(s, &c)) == NULL) {
      while (i-- > 0) pw_slab_put(s, slots[i]);
      return false;
    }
  }
  return true;
}

void pw_slab_put(pw_slab* s, pw_slot* slot) {
  cache* c = cache_of(s);
  if (c == NULL) {
    pw_slab_put_all(s, slot, slot);
    return;
  }
  slot->next = c->first;
  c->first = slot;
  count(c, counted(c) + 1);
  if (counted(c) < 2 * kBatch) return;
  pw_slot* last = slot;
  for (int i = 1; i < kBatch; i++) last = last->next;
  c->first = last->next;
  count(c, counted(c) - kBatch);
  pw_slab_put_all(s, slot, last);
}

void pw_slab_put_all(pw_slab* s, pw_slot* first, pw_slot* last) {
  size_t n = 1;
  for (pw_slot* slot = first; slot != last; slot = slot->next) n++;
  pthread_mutex_lock(&s->mu);
  last->next = s->free;
  s->free = first;
  s->unused += n;
  pthread_mutex_unlock(&s->mu);
}

size_t pw_slab_taken(pw_slab* s) {
  size_t place = atomic_load_explicit(&s->place, memory_order_acquire);
  pthread_mutex_lock(&mu);
  pthread_mutex_lock(&s->mu);
  size_t taken = s->slots - s->unused;
  for (const caches* m = all; m; m = m->next) taken -= counted(&m->of[place]);
  pthread_mutex_unlock(&s->mu);
  pthread_mutex_unlock(&mu);
  return (ptrdiff_t)taken < 0 ? 0 : taken;
}
