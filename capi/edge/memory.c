#include <pthread.h>
#include <stdlib.h>

#include "edge.h"

// Data that a client hangs on a memory, by key.
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
    d = calloc(1, sizeof *d);
    d->key = key;
    d->next = m->data;
    m->data = d;
  }
  d->data = data;
  d->destroy = destroy;
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

void pw_memory_close(pw_memory_base* memory) {
  while (memory->data) {
    struct pw_user_data* d = memory->data;
    memory->data = d->next;
    if (d->data && d->destroy) d->destroy(d->data);
    free(d);
  }
}
