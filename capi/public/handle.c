// Handles. A slot is never returned to the allocator, so any number can be looked up; its generation, which a drop
// changes, shows whether the handle is stale.
//
// Generation and references are one word. find adds a reference only to a word that has the handle's generation and a
// reference, in one exchange, so an object lives as long as a call uses it. retire changes the generation, once: the
// thread whose exchange succeeds has the handle's reference, and a second drop of the handle finds it stale. The thread
// that takes away the last reference destroys the object, and only then is the slot free again; until another object
// has it, its word has no reference, and find refuses it.
//
// No lock is held while an object is destroyed. A session's mu guards its list alone; mu guards the free slots.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "public.h"

// A handle: kind in the upper 4 bits, slot in the next 28, generation in the lower 32.
enum { kSlab = 1024, kSlabs = 1 << 18 };

typedef struct {
  _Atomic uint64_t word;  // generation in the upper 32 bits, references in the lower
  pc_object* _Atomic object;
  uint32_t free;  // the next free slot
} slot;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards what is free and grows
static uint32_t first_free;                              // 0: none
static uint32_t num_slots = 1;                           // slot 0 is never used
static slot* _Atomic slabs[kSlabs];

static const char* const names[] = {"nothing",  "an error", "a session", "an executable", "an array",
                                    "a future", "a view",   "a slice",   "a program"};

static slot* slot_at(uint32_t index) {
  if (index == 0 || index / kSlab >= kSlabs) return NULL;
  slot* slab = atomic_load_explicit(&slabs[index / kSlab], memory_order_acquire);
  return slab ? &slab[index % kSlab] : NULL;
}

// seed is the first generation of a process, so that handles of another process are not mistaken for its own.
static uint32_t seed(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint32_t)now.tv_nsec * 2654435761u ^ (uint32_t)now.tv_sec ^ (uint32_t)getpid() << 16;
}

// take returns a free slot; 0 if memory is short.
static uint32_t take(void) {
  pthread_mutex_lock(&mu);
  uint32_t index = first_free;
  if (index) {
    first_free = slot_at(index)->free;
  } else if (num_slots < (uint32_t)kSlab * (kSlabs - 1)) {  // the last slot's number is that of PC_NO_MEMORY
    index = num_slots;
    if (atomic_load_explicit(&slabs[index / kSlab], memory_order_relaxed) == NULL) {
      slot* slab = pw_zeros(kSlab, sizeof *slab);
      uint32_t generation = seed();
      for (size_t i = 0; slab && i < kSlab; i++) slab[i].word = (uint64_t)generation << 32;
      atomic_store_explicit(&slabs[index / kSlab], slab, memory_order_release);
      if (slab == NULL) index = 0;
    }
    num_slots += index != 0;
  }
  pthread_mutex_unlock(&mu);
  return index;
}

// end_object destroys an object that no longer has a slot.
static void end_object(pc_object* o) {
  switch (o->kind) {
    case PC_ERROR: pc_error_destroy(o); break;
    case PC_SESSION: pc_session_destroy(o); break;
    case PC_EXECUTABLE: pc_executable_destroy(o); break;
    case PC_ARRAY: pc_array_destroy(o); break;
    case PC_FUTURE: pc_future_destroy(o); break;
    case PC_VIEW: pc_view_destroy(o); break;
    case PC_SLICE: pc_slice_destroy(o); break;
    case PC_PROGRAM: pc_program_destroy(o); break;
  }
}

static void destroy(pc_object* o) {
  slot* s = slot_at(o->slot);
  uint32_t index = o->slot;
  pc_session* session = o->session;
  if (session) {
    pthread_mutex_lock(&session->mu);
    if (o->previous) o->previous->next = o->next;
    else if (session->first == o) session->first = o->next;
    if (o->next) o->next->previous = o->previous;
    pthread_mutex_unlock(&session->mu);
  }
  atomic_store_explicit(&s->object, NULL, memory_order_relaxed);
  end_object(o);
  pthread_mutex_lock(&mu);
  s->free = first_free;
  first_free = index;
  pthread_mutex_unlock(&mu);
  if (session) pc_let(session);
}

static bool listed(pc_kind kind) {
  return kind == PC_EXECUTABLE || kind == PC_ARRAY || kind == PC_SLICE || kind == PC_PROGRAM;
}

pathways_error pc_new(pc_object* o, pc_kind kind, pc_session* session, uint64_t* handle) {
  o->kind = kind;
  o->session = session;
  o->slot = take();
  if (o->slot == 0) {
    end_object(o);
    return kind == PC_ERROR
               ? PC_NO_MEMORY
               : pc_fail(PATHWAYS_RESOURCE_EXHAUSTED, "this process has no memory left for another handle");
  }
  slot* s = slot_at(o->slot);
  uint64_t word = atomic_load_explicit(&s->word, memory_order_relaxed);
  o->generation = (uint32_t)(word >> 32);
  uint64_t mine = (uint64_t)kind << 60 | (uint64_t)o->slot << 32 | o->generation;
  bool ended = false;
  if (session) {
    pc_hold(&session->base);
    if (listed(kind)) {
      pthread_mutex_lock(&session->mu);
      ended = session->ended;
    }
  }
  atomic_store_explicit(&s->object, o, memory_order_relaxed);
  atomic_store_explicit(&s->word, (word & ~0xffffffffull) | 1, memory_order_release);
  if (session && listed(kind)) {
    if (!ended) {
      o->next = session->first;
      if (session->first) session->first->previous = o;
      session->first = o;
    }
    pthread_mutex_unlock(&session->mu);
  }
  if (ended) {
    pathways_drop(mine);
    return pc_fail(PATHWAYS_CANCELLED, "the session was dropped in the middle of this call");
  }
  *handle = mine;
  return 0;
}

static pathways_error stale_handle(uint64_t handle, pc_kind want) {
  unsigned kind = (unsigned)(handle >> 60);
  if (handle == 0) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "a handle is 0: expected that of %s", names[want]);
  if (kind == 0 || kind > PC_LAST)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "%#llx is no handle: expected that of %s", (unsigned long long)handle,
                   names[want]);
  return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                 "the handle %#llx of %s was dropped, ended with its session, or is of another process",
                 (unsigned long long)handle, names[kind]);
}

// find returns the slot of a handle with one more reference, or NULL.
static slot* find(uint64_t handle) {
  slot* s = slot_at((uint32_t)(handle >> 32) & 0xfffffff);
  if (s == NULL) return NULL;
  uint64_t word = atomic_load_explicit(&s->word, memory_order_acquire);
  do {
    if ((uint32_t)(word >> 32) != (uint32_t)handle || (uint32_t)word == 0) return NULL;
  } while (
      !atomic_compare_exchange_weak_explicit(&s->word, &word, word + 1, memory_order_acq_rel, memory_order_acquire));
  return s;
}

pathways_error pc_get(uint64_t handle, pc_kind kind, void* out) {
  PC_TRY(kind == PC_ERROR ? 0 : pc_forked());
  slot* s = find(handle);
  if (s == NULL) return stale_handle(handle, kind);
  pc_object* o = atomic_load_explicit(&s->object, memory_order_relaxed);
  pc_kind is = o->kind;
  if (is != kind || is != handle >> 60) {
    pc_let(o);
    if (is != handle >> 60) return stale_handle(handle, kind);
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "a handle is that of %s: expected that of %s", names[is], names[kind]);
  }
  *(pc_object**)out = o;
  return 0;
}

void pc_hold(pc_object* o) { atomic_fetch_add_explicit(&slot_at(o->slot)->word, 1, memory_order_relaxed); }

void pc_let(void* object) {
  pc_object* o = object;
  if ((uint32_t)atomic_fetch_sub_explicit(&slot_at(o->slot)->word, 1, memory_order_acq_rel) == 1) destroy(o);
}

void pc_let_later(pc_object* o) {
  slot* s = slot_at(o->slot);
  uint64_t word = atomic_load_explicit(&s->word, memory_order_relaxed);
  while ((uint32_t)word > 1)
    if (atomic_compare_exchange_weak_explicit(&s->word, &word, word - 1, memory_order_acq_rel, memory_order_relaxed))
      return;
  pc_later(pc_let, o);
}

// retire makes a handle stale, once, and leaves its reference to the caller.
static bool retire(slot* s, uint32_t generation) {
  uint64_t word = atomic_load_explicit(&s->word, memory_order_acquire);
  do {
    if ((uint32_t)(word >> 32) != generation || (uint32_t)word == 0) return false;
  } while (!atomic_compare_exchange_weak_explicit(&s->word, &word, word + (1ull << 32), memory_order_acq_rel,
                                                  memory_order_acquire));
  return true;
}

pathways_error pathways_drop(uint64_t handle) {
  pc_kind kind = (pc_kind)(handle >> 60);
  if (handle == PC_NO_MEMORY) return 0;
  if (kind != PC_ERROR) PC_TRY(pc_forked());
  slot* s = find(handle);
  if (s == NULL) return stale_handle(handle, kind >= PC_ERROR && kind <= PC_LAST ? kind : PC_ARRAY);
  pc_object* o = atomic_load_explicit(&s->object, memory_order_relaxed);
  bool mine = o->kind == kind && retire(s, (uint32_t)handle);
  if (mine) {
    if (kind == PC_SESSION) pc_end((pc_session*)o);
    pc_let(o);  // the handle's reference
  }
  pc_let(o);
  return mine ? 0 : stale_handle(handle, kind >= PC_ERROR && kind <= PC_LAST ? kind : PC_ARRAY);
}

void pc_discard(uint64_t handle) {
  pathways_error err = pathways_drop(handle);
  if (err) pathways_drop(err);
}

void pc_end(pc_session* session) {
  pthread_mutex_lock(&session->mu);
  session->ended = true;
  for (;;) {
    pc_object* o = session->first;
    if (o == NULL) break;
    // Objects that are being destroyed remove themselves from the list; so does one whose handle another thread drops.
    session->first = o->next;
    if (o->next) o->next->previous = NULL;
    o->next = o->previous = NULL;
    slot* s = slot_at(o->slot);
    bool mine = retire(s, o->generation);
    pthread_mutex_unlock(&session->mu);
    if (mine) pc_let(o);
    pthread_mutex_lock(&session->mu);
  }
  pthread_mutex_unlock(&session->mu);
}
