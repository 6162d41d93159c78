// Buffers and arrays: their slots, their reference counts, and how they end.
#include <stdlib.h>

#include "run.h"

static pw_slab buffers = PW_SLAB(pw_buffer), arrays = PW_SLAB(pw_array);
static pw_departed departed = PW_DEPARTED;  // arrays for the core to free

static void release_alone(pw_buffer* b);

bool pw_buffers_new(pw_buffer** out, size_t n) {
  if (!pw_slab_take(&buffers, out, n)) return false;
  for (size_t i = 0; i < n; i++) {
    pw_buffer* b = out[i];
    atomic_init(&b->refs, 1);  // no other thread knows the slot yet
    atomic_init(&b->pins, 0);
    atomic_init(&b->exports, 0);
    atomic_init(&b->donor, 0);
    atomic_init(&b->released, false);
    atomic_init(&b->counted, 0);
    atomic_init(&b->comes, false);
    b->promise = false;
    b->of = NULL;
    b->symbol = NULL;
  }
  return true;
}

void pw_buffers_unused(pw_buffer** slots, size_t n) {
  for (size_t i = 0; i < n; i++) pw_slab_put(&buffers, &slots[i]->slot);
}

// A reference is added by a thread that has one: of the last, no other thread can make a second.
void pw_buffer_drop(pw_buffer* b) {
  if (atomic_load_explicit(&b->refs, memory_order_acquire) != 1 &&
      atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (b->of) {
    if (b->exports) atomic_fetch_sub_explicit(&b->of->exports, 1, memory_order_relaxed);
    pw_buffer_unpin(b->of);
  } else if (b->under) {
    PW_ARGS(PJRT_Buffer_Destroy_Args, a);
    a.buffer = b->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_Destroy(&a);
    if (err) pw_error_free(err);
  }
  release_alone(b);
  pw_shape_drop(b->shape);
  free(b->symbol);
  b->under = NULL;
  pw_slab_put(&buffers, &b->slot);
}

bool pw_arrays_new(pw_array** out, size_t n) {
  return pw_slab_take(&arrays, out, n);
}

void pw_arrays_unused(pw_array** slots, size_t n) {
  for (size_t i = 0; i < n; i++) pw_slab_put(&arrays, &slots[i]->base.slot);
}

void pw_array_is(pw_array* a, uint64_t session, uint64_t object, int32_t shards) {
  pw_object_is(&a->base, (pw_name){session, object}, shards, 0);
  a->maker = 0;
  atomic_store_explicit(&a->moving, false, memory_order_relaxed);
  atomic_store_explicit(&a->gang, 0, memory_order_relaxed);
}

// depart ends an array whose last shard has gone.
static void depart(pw_array* a) {
  if (atomic_load_explicit(&a->provenance, memory_order_relaxed)) pw_provenance_set(a, NULL);
  if (a->base.name.number == 0) pw_slab_put(&arrays, &a->base.slot);  // the core does not count it
  else pw_departed_add(&departed, &a->base), pw_room_made();
}

void pw_array_drop(pw_array* a) {
  if (pw_object_drop(&a->base)) depart(a);
}

size_t pw_freed(pw_name* names, size_t room, bool all) {
  pw_object *first, *last;
  if (!all && atomic_load_explicit(&departed.num, memory_order_relaxed) < PW_FREED / 2) return 0;
  pw_tell_begin();
  size_t n = pw_departed_take(&departed, names, room, all, &first, &last);
  if (n) pw_slab_put_all(&arrays, &first->slot, &last->slot);
  else pw_tell_end(false);
  return n;
}

void pw_count_slots(void) {
  atomic_store_explicit(&pw_count.buffers, (int64_t)pw_slab_taken(&buffers), memory_order_relaxed);
  atomic_store_explicit(&pw_count.arrays, (int64_t)pw_slab_taken(&arrays), memory_order_relaxed);
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

// release_alone is pw_buffer_release for the last reference to a buffer, which no other thread uses any more.
static void release_alone(pw_buffer* b) {
  if (atomic_load_explicit(&b->released, memory_order_relaxed)) return;
  int64_t bytes = atomic_load_explicit(&b->counted, memory_order_relaxed);
  if (bytes) pw_account_sub(&b->device->account, bytes);
  if (pw_object_drop_alone(&b->array->base)) depart(b->array);
}

PJRT_Error* pw_delete_under(pw_buffer* b) {
  if (b->of || b->under == NULL) {  // the contents are another buffer's, or there are none
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

PJRT_Error* pw_buffer_delete(pw_buffer* b) {
  // A run that waits with the buffer, or an earlier Delete, will delete the bytes.
  if (atomic_fetch_or_explicit(&b->pins, PW_DELETED, memory_order_acq_rel) != 0) return NULL;
  return pw_delete_under(b);
}

PJRT_Error* pw_PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args) {
  if (pw_forked) return NULL;
  pw_buffer* b = pw_buffer_of(args->buffer);
  return b ? pw_buffer_delete(b) : pw_buffer_gone("PJRT_Buffer_Delete");
}

PJRT_Error* pw_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer == NULL || pw_forked) return NULL;
  pw_buffer* b = pw_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Destroy");
  if (!pw_slot_end(&b->slot)) return pw_buffer_gone("PJRT_Buffer_Destroy");
  pw_buffer_drop(b);
  return NULL;
}
