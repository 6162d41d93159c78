// Slabs of buffers and arrays. A slot is never returned to the allocator, so a
// stale handle can always be looked at; its generation tells that it is stale.
#include <pthread.h>
#include <stdlib.h>

#include "run.h"

enum { kSlots = 512 };  // slots a slab

enum { kBatch = 32 };     // slots that move between a thread and the free lists at once

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the free lists
static pw_buffer* free_buffers;
static pw_array* free_arrays;
static pw_array* backlog;                // taken from freed_arrays, not yet given to the core
static _Atomic(pw_array*) freed_arrays;  // stack of arrays for the core to free
static _Atomic int64_t num_freed;        // about as many

// own is the free slots of one thread, which takes no lock for them. They go back
// to the free lists when the thread ends.
typedef struct {
  pw_buffer* buffers;
  pw_array* arrays;
  int num_buffers;  // at most 2 * kBatch
  bool known;       // its end is seen to
} own;
static __thread own mine;

static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;

static void give_back(void* thread) {
  own* o = thread;
  pthread_mutex_lock(&mu);
  while (o->buffers) {
    pw_buffer* b = o->buffers;
    o->buffers = b->next;
    b->next = free_buffers;
    free_buffers = b;
  }
  while (o->arrays) {
    pw_array* a = o->arrays;
    o->arrays = a->next;
    a->next = free_arrays;
    free_arrays = a;
  }
  pthread_mutex_unlock(&mu);
  o->num_buffers = 0;
  o->known = false;  // other ends of the thread may still come here
}

static void make_ending(void) { pthread_key_create(&ending, give_back); }

// self gives the thread's own slots.
static own* self(void) {
  own* o = &mine;
  if (!o->known) {
    pthread_once(&ending_once, make_ending);
    o->known = pthread_setspecific(ending, o) == 0;
  }
  return o;
}

static void grow_buffers(void) {
  pw_buffer* slab = aligned_alloc(64, kSlots * sizeof(pw_buffer));
  memset(slab, 0, kSlots * sizeof(pw_buffer));
  for (int i = kSlots - 1; i >= 0; i--) {
    slab[i].generation = 1;
    slab[i].next = free_buffers;
    free_buffers = &slab[i];
  }
}

// take_buffers brings a batch from the free lists to the thread.
static void take_buffers(own* o) {
  pthread_mutex_lock(&mu);
  for (int i = 0; i < kBatch; i++) {
    if (free_buffers == NULL) grow_buffers();
    pw_buffer* b = free_buffers;
    free_buffers = b->next;
    b->next = o->buffers;
    o->buffers = b;
  }
  pthread_mutex_unlock(&mu);
  o->num_buffers += kBatch;
}

void pw_buffers_new(pw_buffer** out, size_t n) {
  own* o = self();
  for (size_t i = 0; i < n; i++) {
    if (o->buffers == NULL) take_buffers(o);
    pw_buffer* b = out[i] = o->buffers;
    o->buffers = b->next;
    o->num_buffers--;
    b->refs = 1;
    b->released = false;
    b->exports = 0;
    b->pins = 0;
    b->promise = false;
    b->of = NULL;
    b->symbol = NULL;
    atomic_store_explicit(&b->counted, 0, memory_order_relaxed);
  }
  PW_COUNT(buffers, (int64_t)n);
}

// put_buffer gives a slot to the thread, and where it has too many, a batch of them
// to the others.
static void put_buffer(pw_buffer* b) {
  own* o = self();
  b->next = o->buffers;
  o->buffers = b;
  if (++o->num_buffers < 2 * kBatch) return;
  pw_buffer *first = o->buffers, *last = first;
  for (int i = 1; i < kBatch; i++) last = last->next;
  o->buffers = last->next;
  o->num_buffers -= kBatch;
  pthread_mutex_lock(&mu);
  last->next = free_buffers;
  free_buffers = first;
  pthread_mutex_unlock(&mu);
}

void pw_buffer_drop(pw_buffer* b) {
  if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
  if (b->of) {
    if (b->exports) atomic_fetch_sub_explicit(&b->of->exports, 1, memory_order_relaxed);
    pw_buffer_unpin(b->of);
  } else if (b->under) {
    PW_ARGS(PJRT_Buffer_Destroy_Args, a);
    a.buffer = b->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_Destroy(&a);
    if (err) pw_error_free(err);
  }
  pw_buffer_release(b);
  pw_shape_drop(b->shape);
  free(b->symbol);
  b->under = NULL;
  put_buffer(b);
  PW_COUNT(buffers, -1);
}

PJRT_Buffer* pw_buffer_handle(pw_buffer* b) {
  return (PJRT_Buffer*)((uintptr_t)b | (uintptr_t)b->generation << 48);
}

pw_buffer* pw_buffer_of(PJRT_Buffer* handle) {
  pw_buffer* b = (pw_buffer*)((uintptr_t)handle & 0xffffffffffffu);
  uint16_t g = (uintptr_t)handle >> 48;
  if (g == 0 || b == NULL || b->generation != g) return NULL;
  return b;
}

PJRT_Error* pw_buffer_gone(const char* what) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "%s: this buffer was destroyed before; keep a reference to an array for as long as it is used", what);
}

static void grow_arrays(void) {
  pw_array* slab = calloc(kSlots, sizeof *slab);
  for (int i = 0; i < kSlots; i++) {
    slab[i].next = free_arrays;
    free_arrays = &slab[i];
  }
}

static void take_arrays(own* o) {
  pthread_mutex_lock(&mu);
  for (int i = 0; i < kBatch; i++) {
    if (free_arrays == NULL) grow_arrays();
    pw_array* a = free_arrays;
    free_arrays = a->next;
    a->next = o->arrays;
    o->arrays = a;
  }
  pthread_mutex_unlock(&mu);
}

pw_array* pw_array_new(uint64_t session, uint64_t object, int32_t shards) {
  own* o = self();
  if (o->arrays == NULL) take_arrays(o);
  pw_array* a = o->arrays;
  o->arrays = a->next;
  a->next = NULL;
  a->session = session;
  a->maker = 0;
  a->object = object;
  atomic_store_explicit(&a->moving, false, memory_order_relaxed);
  atomic_store_explicit(&a->gang, 0, memory_order_relaxed);
  atomic_store_explicit(&a->live, shards, memory_order_relaxed);
  PW_COUNT(arrays, 1);
  return a;
}

pw_array* pw_array_more(pw_array* a) {
  int32_t live = atomic_load_explicit(&a->live, memory_order_relaxed);
  do
    if (live <= 0) return NULL;
  while (!atomic_compare_exchange_weak_explicit(&a->live, &live, live + 1, memory_order_acq_rel, memory_order_relaxed));
  return a;
}

void pw_array_drop(pw_array* a) {
  if (atomic_fetch_sub_explicit(&a->live, 1, memory_order_acq_rel) != 1) return;
  if (atomic_load_explicit(&a->origin, memory_order_relaxed)) pw_origin_set(a, NULL);
  pw_array* head = atomic_load_explicit(&freed_arrays, memory_order_relaxed);
  do a->next = head;
  while (!atomic_compare_exchange_weak_explicit(&freed_arrays, &head, a, memory_order_release, memory_order_relaxed));
  atomic_fetch_add_explicit(&num_freed, 1, memory_order_relaxed);
}

size_t pw_freed(pw_object* objects, size_t room, bool all) {
  if (!all && atomic_load_explicit(&num_freed, memory_order_relaxed) < PW_FREED / 2) return 0;
  size_t n = 0;
  pthread_mutex_lock(&mu);
  if (backlog == NULL) backlog = atomic_exchange_explicit(&freed_arrays, NULL, memory_order_acquire);
  while (backlog && n < room) {
    pw_array* a = backlog;
    backlog = a->next;
    objects[n++] = (pw_object){a->session, a->object};
    a->next = free_arrays;
    free_arrays = a;
  }
  pthread_mutex_unlock(&mu);
  atomic_fetch_sub_explicit(&num_freed, (int64_t)n, memory_order_relaxed);
  PW_COUNT(arrays, -(int64_t)n);
  return n;
}

void pw_buffer_count(pw_buffer* b, int64_t bytes) {
  pw_account* a = &b->device->account;
  if (!a->host && b->memory != b->device->default_memory) return;
  atomic_store_explicit(&b->counted, bytes, memory_order_relaxed);
  pw_account_add(a, bytes);
}

void pw_buffer_uncount(pw_buffer* b) {
  int64_t bytes = atomic_exchange_explicit(&b->counted, 0, memory_order_relaxed);
  if (bytes) pw_account_sub(&b->device->account, bytes);
}

void pw_buffer_release(pw_buffer* b) {
  if (atomic_exchange_explicit(&b->released, true, memory_order_acq_rel)) return;
  pw_buffer_uncount(b);
  pw_array_drop(b->array);
}

PJRT_Error* pw_delete_under(pw_buffer* b) {
  if (b->of || b->under == NULL) {  // the contents are not its own, or there are none
    pw_buffer_release(b);
    return NULL;
  }
  PW_ARGS(PJRT_Buffer_Delete_Args, a);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_Delete(&a);
  if (err == NULL) pw_buffer_release(b);
  return err;
}

void pw_buffer_unpin(pw_buffer* b) {
  if (atomic_fetch_sub_explicit(&b->pins, 1, memory_order_acq_rel) == (PW_DELETED | 1)) {
    PJRT_Error* err = pw_delete_under(b);
    if (err) pw_error_free(err);
  }
  pw_buffer_drop(b);
}

PJRT_Error* pw_PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args) {
  if (pw_forked) return NULL;
  pw_buffer* b = pw_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Delete");
  // Runs that wait with it, or an earlier Delete: the bytes are seen to.
  if (atomic_fetch_or_explicit(&b->pins, PW_DELETED, memory_order_acq_rel) != 0) return NULL;
  return pw_delete_under(b);
}

PJRT_Error* pw_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer == NULL || pw_forked) return NULL;
  pw_buffer* b = pw_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Destroy");
  uint16_t g = b->generation, next = g + 1;
  if (next == 0) next = 1;  // 0 would make a handle that looks like a plain pointer
  if (!atomic_compare_exchange_strong(&b->generation, &g, next)) return pw_buffer_gone("PJRT_Buffer_Destroy");
  pw_buffer_drop(b);
  return NULL;
}
