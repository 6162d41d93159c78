#include <pthread.h>
#include <stdlib.h>

#include "base.h"

// Data that a client attaches to a memory, by key.
struct pw_user_data {
  struct pw_user_data* next;
  const void* key;
  void* data;
  void (*destroy)(void*);
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards every memory's data

static void* get(PJRT_Memory* memory, const void* key) {
  void* data = NULL;
  pthread_mutex_lock(&mu);
  for (struct pw_user_data* d = ((pw_memory_base*)memory)->data; d; d = d->next)
    if (d->key == key) data = d->data;
  pthread_mutex_unlock(&mu);
  return data;
}

static void set(PJRT_Memory* memory, const void* key, void* data, void (*destroy)(void*)) {
  pw_memory_base* m = (pw_memory_base*)memory;
  struct pw_user_data old = {0};
  pthread_mutex_lock(&mu);
  struct pw_user_data* d = m->data;
  while (d && d->key != key) d = d->next;
  if (d) {
    old = *d;
  } else {
    d = pw_zeros(1, sizeof *d);
    if (d) {
      d->key = key;
      d->next = m->data;
      m->data = d;
    }
  }
  if (d) {
    d->data = data;
    d->destroy = destroy;
  } else {
    old =
        (struct pw_user_data){.data = data, .destroy = destroy};  // nothing is returned: the data is dropped
  }
  pthread_mutex_unlock(&mu);
  if (old.data && old.destroy) old.destroy(old.data);
}

static PJRT_Memory_FunctionTable table = {
    .struct_size = sizeof(PJRT_Memory_FunctionTable),
    .instance_struct_size = sizeof(PJRT_Memory),
    .get_user_data = (void*)get,
    .set_user_data = (void*)set,
};

void pw_memory_init(pw_memory_base* memory) { memory->base.vtable = (void*)&table; }

#define KNOWN(field, n)                                          \
  do {                                                           \
    if (PW_COVERS(args, field##_is_set) && !args->field##_is_set) { \
      args->field = (n);                                         \
      args->field##_is_set = true;                               \
    }                                                            \
  } while (0)

void pw_memory_more(PJRT_Device_MemoryStats_Args* args, const pw_account* a) {
  int64_t peak = atomic_load_explicit(&a->peak, memory_order_relaxed);
  KNOWN(peak_bytes_in_use, peak > args->bytes_in_use ? peak : args->bytes_in_use);
  KNOWN(num_allocs, atomic_load_explicit(&a->arrays, memory_order_relaxed));
  KNOWN(largest_alloc_size, atomic_load_explicit(&a->largest, memory_order_relaxed));
  if (a->limit > 0) KNOWN(bytes_limit, a->limit);
  if (a->share > 0) KNOWN(bytes_reservable_limit, a->share);
}

void pw_memory_stats(PJRT_Device_MemoryStats_Args* args, const pw_account* a) {
  // Callers do not always pass zeros.
  const size_t from = offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use);
  size_t to = args->struct_size < sizeof *args ? args->struct_size : sizeof *args;
  if (to > from) memset((char*)args + from, 0, to - from);
  if (!PW_COVERS(args, bytes_in_use)) return;
  int64_t in_use = args->bytes_in_use = atomic_load_explicit(&a->in_use, memory_order_relaxed);
  pw_memory_more(args, a);
  // Only arrays take memory of their own, and each takes exactly what it needs.
  KNOWN(bytes_reserved, 0);
  KNOWN(peak_bytes_reserved, 0);
  if (a->share > 0) KNOWN(largest_free_block_bytes, in_use < a->share ? a->share - in_use : 0);
}

void pw_memory_close(pw_memory_base* memory) {
  while (memory->data) {
    struct pw_user_data* d = memory->data;
    memory->data = d->next;
    if (d->data && d->destroy) d->destroy(d->data);
    free(d);
  }
}
