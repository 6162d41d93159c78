// Slots for what frontends hand out by the thousand: buffers, and the arrays that they are shards of. A slot is never
// returned to the allocator, so a stale handle can always be read; the slot's generation shows that it is stale.
//
// Each thread keeps some free slots of its own, which it takes without a lock. Every function may be called from any
// thread.
#ifndef PATHWAYS_CAPI_BASE_SLAB_H_
#define PATHWAYS_CAPI_BASE_SLAB_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pjrt_abi.h"

// pw_slot begins the struct that lies in a slot.
typedef struct pw_slot {
  struct pw_slot* next;         // free list, or a list of the slot's owner
  _Atomic uint16_t generation;  // handles carry it in their upper 16 bits; never 0
} pw_slot;

typedef struct {
  size_t size;          // of a slot, in bytes
  pthread_mutex_t mu;   // guards the next three
  pw_slot* free;
  size_t slots, unused;  // in all, and in free
  _Atomic size_t place;  // index in the list of all slabs; 0 until the first slot is taken
} pw_slab;
#define PW_SLAB(type) {.size = sizeof(type), .mu = PTHREAD_MUTEX_INITIALIZER}

// pw_slab_take writes n free slots to out, a list of pointers. A slot that is taken for the first time is zero except
// for its generation; others are as they were left. It returns false, and takes none, if memory is short.
bool pw_slab_take(pw_slab* slab, void* out, size_t n);
// pw_slab_put frees a slot, first for the calling thread.
void pw_slab_put(pw_slab* slab, pw_slot* slot);
// pw_slab_put_all frees a list of slots, for all threads.
void pw_slab_put_all(pw_slab* slab, pw_slot* first, pw_slot* last);

// pw_slab_taken returns how many slots are taken. Slots that other threads take or put meanwhile may count or not.
size_t pw_slab_taken(pw_slab* slab);

static inline PJRT_Buffer* pw_slot_handle(pw_slot* slot) {
  return (PJRT_Buffer*)((uintptr_t)slot | (uintptr_t)slot->generation << 48);
}

// pw_slot_of returns the slot of a handle; NULL if the handle was destroyed, or was never one of ours.
static inline pw_slot* pw_slot_of(const PJRT_Buffer* handle) {
  pw_slot* slot = (pw_slot*)((uintptr_t)handle & 0xffffffffffffu);
  uint16_t generation = (uintptr_t)handle >> 48;
  return generation == 0 || slot == NULL || slot->generation != generation ? NULL : slot;
}

// pw_slot_end makes a slot's handles stale. It returns false if another thread has done so.
static inline bool pw_slot_end(pw_slot* slot) {
  uint16_t generation = slot->generation, next = (uint16_t)(generation + 1);
  if (next == 0) next = 1;  // 0 would make a handle that looks like a plain pointer
  return atomic_compare_exchange_strong(&slot->generation, &generation, next);
}

#endif  // PATHWAYS_CAPI_BASE_SLAB_H_
