// The memories of both frontends' devices: what JAX asks of them, and what clients attach to them.
#include <pthread.h>
#include <stdlib.h>

#include "base.h"

// Data that a client attaches to a memory, by key. An entry stays in its list as long as the memory, so that readers,
// and every run is one, need no lock.
struct pw_user_data {
  struct pw_user_data* next;
  const void* key;
  void* _Atomic data;
  void (*destroy)(void*);
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // held by writers of any memory's data

static struct pw_user_data* find(const pw_memory_base* m, const void* key) {
  struct pw_user_data* d = atomic_load_explicit(&m->data, memory_order_acquire);
  while (d && d->key != key) d = d->next;
  return d;
}

static void* get(PJRT_Memory* memory, const void* key) {
  struct pw_user_data* d = find((pw_memory_base*)memory, key);
  return d ? atomic_load_explicit(&d->data, memory_order_acquire) : NULL;
}

static void set(PJRT_Memory* memory, const void* key, void* data, void (*destroy)(void*)) {
  pw_memory_base* m = (pw_memory_base*)memory;
  void* old = data;  // without memory for an entry the data is dropped, since nothing is returned
  void (*end)(void*) = destroy;
  pthread_mutex_lock(&mu);
  struct pw_user_data* d = find(m, key);
  if (d) {
    end = d->destroy;
    d->destroy = destroy;
    old = atomic_exchange_explicit(&d->data, data, memory_order_acq_rel);
  } else if ((d = pw_zeros(1, sizeof *d))) {
    d->key = key;
    d->destroy = destroy;
    d->next = atomic_load_explicit(&m->data, memory_order_relaxed);
    atomic_init(&d->data, data);
    atomic_store_explicit(&m->data, d, memory_order_release);
    old = NULL;
  }
  pthread_mutex_unlock(&mu);
  if (old && end) end(old);
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
  struct pw_user_data* d = atomic_exchange_explicit(&memory->data, NULL, memory_order_acq_rel);
  while (d) {
    struct pw_user_data* next = d->next;
    void* data = atomic_load_explicit(&d->data, memory_order_relaxed);
    if (data && d->destroy) d->destroy(data);
    free(d);
    d = next;
  }
}
