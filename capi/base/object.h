// What every frontend keeps of one logical array: the name under which the core counts it, and how many of its shards
// are alive. After the last one has gone, the core learns of it with the next entry into Go.
#ifndef PATHWAYS_CAPI_BASE_OBJECT_H_
#define PATHWAYS_CAPI_BASE_OBJECT_H_

#include "slab.h"

// pw_name names an object of a session: in this process's store, or in the cluster.
typedef struct {
  uint64_t session, number;
} pw_name;

// pw_object begins the struct that a frontend keeps of an array.
typedef struct {
  pw_slot slot;          // first; links the objects that have gone
  _Atomic int32_t live;  // shards not yet destroyed, deleted or donated
  pw_name name;          // number 0: the core does not know it
  int64_t bytes;         // of all shards, where the frontend counts them
} pw_object;

static inline void pw_object_is(pw_object* o, pw_name name, int32_t shards, int64_t bytes) {
  o->name = name;
  o->bytes = bytes;
  atomic_store_explicit(&o->live, shards, memory_order_relaxed);
}

// pw_object_hold adds a shard. It returns false if the last one has gone.
bool pw_object_hold(pw_object* object);

// pw_object_drop releases a shard. It returns whether that was the last one: the caller then passes the object to
// pw_departed_add.
static inline bool pw_object_drop(pw_object* object) {
  return atomic_fetch_sub_explicit(&object->live, 1, memory_order_acq_rel) == 1;
}

// pw_object_drop_alone is pw_object_drop for a shard that no other thread uses any more, and so none adds another
// through it.
static inline bool pw_object_drop_alone(pw_object* object) {
  if (atomic_load_explicit(&object->live, memory_order_acquire) != 1) return pw_object_drop(object);
  atomic_store_explicit(&object->live, 0, memory_order_relaxed);
  return true;
}

// pw_departed is the objects of a frontend whose last shard has gone, until the core frees them.
typedef struct {
  _Atomic(pw_slot*) stack;
  _Atomic int64_t num, bytes;  // approximate
  pthread_mutex_t mu;          // guards backlog
  pw_slot* backlog;            // taken from the stack, and not yet passed to the core
} pw_departed;
#define PW_DEPARTED {.mu = PTHREAD_MUTEX_INITIALIZER}

enum { PW_FREED = 64 };  // most names that one entry into Go carries

void pw_departed_add(pw_departed* gone, pw_object* object);

// pw_departed_take writes the names of objects for the core to free, and returns how many: none until there is a full
// batch, unless all is set. The caller gets the objects back as a list from *first to *last.
size_t pw_departed_take(pw_departed* gone, pw_name* names, size_t room, bool all, pw_object** first, pw_object** last);

#endif  // PATHWAYS_CAPI_BASE_OBJECT_H_
