// Slabs of buffers and objects. A slot is never returned to the allocator, so a
// stale handle can always be looked at; its generation tells that it is stale.
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

enum {
  kSlots = 512,           // a slab
  kManyFreed = 256,       // objects to be freed that are worth an entry of their own,
  kMuchFreed = 32 << 20,  // or bytes of them
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the free lists
static pr_buffer* free_buffers;
static pr_object* free_objects;
static pr_object* backlog;                 // taken from the stack, not yet given to Go
static _Atomic(pr_object*) freed;          // stack of objects for the cluster to free
static _Atomic int64_t num_freed, bytes_freed;  // about as many

static void grow_buffers(void) {
  pr_buffer* slab = aligned_alloc(64, kSlots * sizeof(pr_buffer));
  memset(slab, 0, kSlots * sizeof(pr_buffer));
  for (int i = kSlots - 1; i >= 0; i--) {
    slab[i].generation = 1;
    slab[i].next = free_buffers;
    free_buffers = &slab[i];
  }
}

void pr_buffers_new(pr_buffer** out, size_t n) {
  pthread_mutex_lock(&mu);
  for (size_t i = 0; i < n; i++) {
    if (free_buffers == NULL) grow_buffers();
    out[i] = free_buffers;
    free_buffers = out[i]->next;
    atomic_store_explicit(&out[i]->gone, false, memory_order_relaxed);
    out[i]->kept = false;
    out[i]->symbol = NULL;
    atomic_store_explicit(&out[i]->charge, NULL, memory_order_relaxed);
  }
  pthread_mutex_unlock(&mu);
  PR_COUNT(buffers, (int64_t)n);
}

PJRT_Buffer* pr_buffer_handle(pr_buffer* b) { return (PJRT_Buffer*)((uintptr_t)b | (uintptr_t)b->generation << 48); }

pr_buffer* pr_buffer_of(PJRT_Buffer* handle) {
  pr_buffer* b = (pr_buffer*)((uintptr_t)handle & 0xffffffffffffu);
  uint16_t g = (uintptr_t)handle >> 48;
  return g == 0 || b == NULL || b->generation != g ? NULL : b;
}

PJRT_Error* pr_buffer_gone(const char* slot) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "%s: this buffer was destroyed before; keep a reference to an array for as long as it is used", slot);
}

PJRT_Error* pr_buffer_deleted(const char* slot) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s: the buffer has been deleted or donated", slot);
}

pr_object* pr_object_new(uint64_t session, uint64_t number, pr_future* made, int32_t shards, int64_t bytes) {
  pthread_mutex_lock(&mu);
  pr_object* o = free_objects;
  if (o == NULL) {
    pr_object* slab = calloc(kSlots, sizeof *slab);
    for (int i = 1; i < kSlots; i++) {
      slab[i].next = free_objects;
      free_objects = &slab[i];
    }
    o = slab;
  } else {
    free_objects = o->next;
  }
  pthread_mutex_unlock(&mu);
  o->next = NULL;
  o->session = session;
  o->number = number;
  o->made = made;
  o->bytes = bytes;
  atomic_store_explicit(&o->live, shards, memory_order_relaxed);
  atomic_store_explicit(&o->refs, shards + 1, memory_order_relaxed);
  PR_COUNT(objects, 1);
  return o;
}

// drop gives up one reference, under mu.
static void drop_locked(pr_object* o) {
  if (atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  pr_future_drop(o->made);
  o->made = NULL;
  o->next = free_objects;
  free_objects = o;
  PR_COUNT(objects, -1);
}

static void flush(void) {
  if (pw_forked) return;
  PR_COUNT(go_entries, 1);
  prGoFlush();
}

// shard_gone gives up a shard of an object.
static void shard_gone(pr_object* o) {
  if (atomic_fetch_sub_explicit(&o->live, 1, memory_order_acq_rel) != 1) return;
  int64_t bytes = o->bytes;  // read before another thread takes o from the stack
  pr_object* head = atomic_load_explicit(&freed, memory_order_relaxed);
  do o->next = head;
  while (!atomic_compare_exchange_weak_explicit(&freed, &head, o, memory_order_release, memory_order_relaxed));
  int64_t n = atomic_fetch_add_explicit(&num_freed, 1, memory_order_relaxed) + 1;
  bytes += atomic_fetch_add_explicit(&bytes_freed, bytes, memory_order_relaxed);
  if (n >= kManyFreed || bytes >= kMuchFreed) flush();
}

pr_charge pr_uncounted;

void pr_buffer_count(pr_buffer* b, int64_t bytes) {
  pw_account* a = &b->device->account;
  if (a->host || b->memory == b->device->description.memories[b->device->description.default_memory])
    pw_account_add(a, bytes);
  else
    atomic_store_explicit(&b->charge, &pr_uncounted, memory_order_relaxed);
}

pr_charge* pr_charge_share(pr_buffer* b) {
  pr_charge* fresh = malloc(sizeof *fresh);
  *fresh = (pr_charge){1, b->device, pw_shape_bytes(b->shape)};
  pthread_mutex_lock(&mu);
  // Release takes the pointer out without the lock, but gives up its reference under it.
  pr_charge* c = NULL;
  if (atomic_compare_exchange_strong_explicit(&b->charge, &c, fresh, memory_order_acq_rel, memory_order_acquire)) {
    c = fresh;
    fresh = NULL;
  }
  if (c != &pr_uncounted) c->refs++;
  pthread_mutex_unlock(&mu);
  free(fresh);
  return c;
}

pr_charge* pr_charge_hold(pr_charge* c) {
  if (c == &pr_uncounted) return c;
  pthread_mutex_lock(&mu);
  c->refs++;
  pthread_mutex_unlock(&mu);
  return c;
}

void pr_charge_drop(pr_charge* c) {
  if (c == NULL || c == &pr_uncounted) return;
  pthread_mutex_lock(&mu);
  bool last = --c->refs == 0;
  pthread_mutex_unlock(&mu);
  if (!last) return;
  pw_account_sub(&c->device->account, c->bytes);
  free(c);
}

void pr_buffer_release(pr_buffer* b) {
  if (atomic_exchange_explicit(&b->gone, true, memory_order_acq_rel)) return;
  pr_charge* c = atomic_exchange_explicit(&b->charge, &pr_uncounted, memory_order_acq_rel);
  if (c == NULL)
    pw_account_sub(&b->device->account, pw_shape_bytes(b->shape));
  else
    pr_charge_drop(c);
  pr_view_leave(b);
  shard_gone(b->object);
}

bool pr_object_hold(pr_object* o) {
  int32_t live = atomic_load_explicit(&o->live, memory_order_acquire);
  do
    if (live <= 0) return false;
  while (!atomic_compare_exchange_weak_explicit(&o->live, &live, live + 1, memory_order_acq_rel, memory_order_acquire));
  atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  return true;
}

void pr_object_release(pr_object* o) {
  shard_gone(o);
  pthread_mutex_lock(&mu);
  drop_locked(o);
  pthread_mutex_unlock(&mu);
}

size_t pr_freed(pr_name* names, size_t room, bool all) {
  int64_t waiting = atomic_load_explicit(&num_freed, memory_order_relaxed);
  if (!all && waiting < PR_FREED / 2) return 0;
  size_t n = 0;
  int64_t bytes = 0;
  pthread_mutex_lock(&mu);
  if (backlog == NULL) backlog = atomic_exchange_explicit(&freed, NULL, memory_order_acquire);
  while (backlog && n < room) {
    pr_object* o = backlog;
    backlog = o->next;
    names[n++] = (pr_name){o->session, o->number};
    bytes += o->bytes;
    drop_locked(o);
  }
  pthread_mutex_unlock(&mu);
  atomic_fetch_sub_explicit(&num_freed, (int64_t)n, memory_order_relaxed);
  atomic_fetch_sub_explicit(&bytes_freed, bytes, memory_order_relaxed);
  return n;
}

PJRT_Error* pr_PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args) {
  if (pw_forked) return NULL;
  pr_buffer* b = pr_buffer_of(args->buffer);
  if (b == NULL) return pr_buffer_gone("PJRT_Buffer_Delete");
  pr_buffer_release(b);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer == NULL || pw_forked) return NULL;
  pr_buffer* b = pr_buffer_of(args->buffer);
  if (b == NULL) return pr_buffer_gone("PJRT_Buffer_Destroy");
  uint16_t g = b->generation, next = g + 1;
  if (next == 0) next = 1;  // 0 would make a handle that looks like a plain pointer
  if (!atomic_compare_exchange_strong(&b->generation, &g, next)) return pr_buffer_gone("PJRT_Buffer_Destroy");
  pr_object* o = b->object;
  pr_buffer_release(b);
  pr_view_end(b);
  pw_shape_drop(b->shape);
  free(b->minor_to_major);
  b->minor_to_major = NULL;
  free(b->symbol);
  b->symbol = NULL;
  pthread_mutex_lock(&mu);
  drop_locked(o);
  b->next = free_buffers;
  free_buffers = b;
  pthread_mutex_unlock(&mu);
  PR_COUNT(buffers, -1);
  return NULL;
}
