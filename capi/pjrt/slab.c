// Slabs of buffers and arrays. A slot is never returned to the allocator, so a
// stale handle can always be looked at; its generation tells that it is stale.
#include <pthread.h>
#include <stdlib.h>

#include "door.h"

enum { kSlots = 512 };  // slots a slab

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the free lists
static pw_buffer* free_buffers;
static pw_array* free_arrays;
static _Atomic(pw_array*) freed_arrays;  // stack of arrays for the core to free
static _Atomic int64_t num_freed;        // about as many

static void grow_buffers(void) {
  pw_buffer* slab = aligned_alloc(64, kSlots * sizeof(pw_buffer));
  memset(slab, 0, kSlots * sizeof(pw_buffer));
  for (int i = kSlots - 1; i >= 0; i--) {
    slab[i].generation = 1;
    slab[i].next = free_buffers;
    free_buffers = &slab[i];
  }
}

void pw_buffers_new(pw_buffer** out, size_t n) {
  pthread_mutex_lock(&mu);
  for (size_t i = 0; i < n; i++) {
    if (free_buffers == NULL) grow_buffers();
    out[i] = free_buffers;
    free_buffers = out[i]->next;
    out[i]->refs = 1;
    out[i]->released = false;
    out[i]->deleted = false;
  }
  pthread_mutex_unlock(&mu);
  PW_COUNT(buffers, (int64_t)n);
}

void pw_buffer_drop(pw_buffer* b) {
  if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_Destroy(&a);
  if (err) pw_error_free(err);
  pw_buffer_release(b);
  pw_shape_drop(b->shape);
  b->under = NULL;
  pthread_mutex_lock(&mu);
  b->next = free_buffers;
  free_buffers = b;
  pthread_mutex_unlock(&mu);
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

pw_array* pw_array_new(uint64_t object, int32_t shards) {
  pthread_mutex_lock(&mu);
  pw_array* a = free_arrays;
  if (a == NULL) {
    pw_array* slab = calloc(kSlots, sizeof *slab);
    for (int i = 1; i < kSlots; i++) {
      slab[i].next = free_arrays;
      free_arrays = &slab[i];
    }
    a = slab;
  } else {
    free_arrays = a->next;
  }
  pthread_mutex_unlock(&mu);
  a->next = NULL;
  a->object = object;
  atomic_store_explicit(&a->gang, 0, memory_order_relaxed);
  atomic_store_explicit(&a->live, shards, memory_order_relaxed);
  PW_COUNT(arrays, 1);
  return a;
}

static void push(pw_array* first, pw_array* last) {
  pw_array* head = atomic_load_explicit(&freed_arrays, memory_order_relaxed);
  do last->next = head;
  while (!atomic_compare_exchange_weak_explicit(&freed_arrays, &head, first, memory_order_release,
                                                memory_order_relaxed));
}

void pw_array_drop(pw_array* a) {
  if (atomic_fetch_sub_explicit(&a->live, 1, memory_order_acq_rel) != 1) return;
  push(a, a);
  atomic_fetch_add_explicit(&num_freed, 1, memory_order_relaxed);
}

size_t pw_freed(uint64_t* ids, size_t room, bool all) {
  if (!all && atomic_load_explicit(&num_freed, memory_order_relaxed) < PW_FREED / 2) return 0;
  pw_array* list = atomic_exchange_explicit(&freed_arrays, NULL, memory_order_acquire);
  if (list == NULL) return 0;
  size_t n = 0;
  pw_array *last = NULL, *rest = list;
  for (; rest && n < room; rest = rest->next) {
    ids[n++] = rest->object;
    last = rest;
  }
  atomic_fetch_sub_explicit(&num_freed, (int64_t)n, memory_order_relaxed);
  if (rest) {
    pw_array* end = rest;
    while (end->next) end = end->next;
    push(rest, end);
  }
  pthread_mutex_lock(&mu);
  last->next = free_arrays;
  free_arrays = list;
  pthread_mutex_unlock(&mu);
  PW_COUNT(arrays, -(int64_t)n);
  return n;
}

void pw_buffer_release(pw_buffer* b) {
  if (!atomic_exchange_explicit(&b->released, true, memory_order_acq_rel)) pw_array_drop(b->array);
}

pw_shape* pw_shape_new(PJRT_Buffer_Type type, const int64_t* dims, size_t n) {
  pw_shape* s = malloc(sizeof *s + n * sizeof(int64_t));
  s->refs = 1;
  s->type = type;
  s->num_dims = n;
  if (n) memcpy(s->dims, dims, n * sizeof(int64_t));
  PW_COUNT(shapes, 1);
  return s;
}

void pw_shape_drop(pw_shape* s) {
  if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
    free(s);
    PW_COUNT(shapes, -1);
  }
}

PJRT_Error* pw_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer == NULL) return NULL;
  pw_buffer* b = pw_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Destroy");
  uint16_t g = b->generation + 1;  // 0 would make a handle that looks like a plain pointer
  b->generation = g ? g : 1;
  pw_buffer_drop(b);
  return NULL;
}
