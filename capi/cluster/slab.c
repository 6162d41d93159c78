// Buffers and objects: their slots, their reference counts, and how they end.
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

enum {
  kManyFreed = 256,       // objects to free that are worth an entry into Go of their own,
  kMuchFreed = 32 << 20,  // or this many bytes of them
};

static pw_slab buffers = PW_SLAB(pr_buffer), objects = PW_SLAB(pr_object);

pr_charge pr_uncounted;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards all charges
static pw_departed departed = PW_DEPARTED;              // objects for the cluster to free

bool pr_buffers_new(pr_buffer** out, size_t n) {
  if (!pw_slab_take(&buffers, out, n)) return false;
  for (size_t i = 0; i < n; i++) {
    atomic_store_explicit(&out[i]->gone, false, memory_order_relaxed);
    out[i]->kept = false;
    out[i]->symbol = NULL;
    atomic_store_explicit(&out[i]->charge, NULL, memory_order_relaxed);
  }
  PR_COUNT(buffers, (int64_t)n);
  return true;
}

void pr_buffers_unused(pr_buffer** slots, size_t n) {
  for (size_t i = 0; i < n; i++) {
    free(slots[i]->minor_to_major);
    slots[i]->minor_to_major = NULL;
    free(slots[i]->symbol);
    slots[i]->symbol = NULL;
    pw_slab_put(&buffers, &slots[i]->slot);
  }
  PR_COUNT(buffers, -(int64_t)n);
}

PJRT_Error* pr_no_shards(size_t n) {
  return pw_short("the shards of an array", sizeof(pr_object) + n * sizeof(pr_buffer));
}

bool pr_objects_new(pr_object** out, size_t n) {
  if (!pw_slab_take(&objects, out, n)) return false;
  PR_COUNT(objects, (int64_t)n);
  return true;
}

void pr_objects_unused(pr_object** slots, size_t n) {
  for (size_t i = 0; i < n; i++) pw_slab_put(&objects, &slots[i]->base.slot);
  PR_COUNT(objects, -(int64_t)n);
}

void pr_object_is(pr_object* o, uint64_t session, uint64_t number, pr_future* made, int32_t shards, int64_t bytes) {
  pw_object_is(&o->base, (pw_name){session, number}, shards, bytes);
  o->made = made;
  atomic_store_explicit(&o->open, false, memory_order_relaxed);
  atomic_store_explicit(&o->joined, false, memory_order_relaxed);
  atomic_store_explicit(&o->refs, shards + 1, memory_order_relaxed);
}

bool pr_shards_new(pr_buffer** out, size_t n) {
  if (!pr_buffers_new(out, n)) return false;
  pr_object* o;
  if (!pr_objects_new(&o, 1)) {
    pr_buffers_unused(out, n);
    return false;
  }
  pr_object_is(o, 0, 0, pr_future_ready(), (int32_t)n, 0);
  for (size_t i = 0; i < n; i++) {
    out[i]->object = o;
    atomic_store_explicit(&out[i]->charge, &pr_uncounted, memory_order_relaxed);
  }
  return true;
}

void pr_object_becomes(pr_object* o, uint64_t session, uint64_t number, pr_future* made, int64_t bytes) {
  pr_future_drop(o->made);
  o->base.name = (pw_name){session, number};
  o->base.bytes = bytes;
  o->made = made;
}

// drop drops one reference.
static void drop(pr_object* o) {
  if (atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  pr_future_drop(o->made);
  o->made = NULL;
  pw_slab_put(&objects, &o->base.slot);
  PR_COUNT(objects, -1);
}

// ---- objects that are put row by row ----

static _Atomic int32_t opened;  // objects that are open

void pr_object_opens(pr_object* o, uint64_t session, uint64_t number, pr_future* made, int64_t bytes) {
  pr_object_becomes(o, session, number, made, bytes);
  atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  atomic_store_explicit(&o->open, true, memory_order_relaxed);
  atomic_fetch_add_explicit(&opened, 1, memory_order_relaxed);
}

bool pr_object_joins(pr_object* o, int64_t bytes) {
  if (!pr_object_hold(o)) return false;
  o->base.bytes += bytes;  // core/client serializes joins, and the object cannot go meanwhile
  atomic_store_explicit(&o->joined, true, memory_order_relaxed);
  return true;
}

void pr_object_sent(pr_object* o) {
  atomic_store_explicit(&o->open, false, memory_order_relaxed);
  atomic_fetch_sub_explicit(&opened, 1, memory_order_relaxed);
  drop(o);
}

void pr_object_undone(pr_object* o) {
  pr_object_sent(o);
  pr_object_becomes(o, 0, 0, pr_future_ready(), 0);
}

void pr_hasten(void) {
  if (atomic_load_explicit(&opened, memory_order_relaxed) == 0 || pw_forked) return;
  PR_COUNT(go_entries, 1);
  prGoHasten();
}

// ---- shards that go before their object ----

// gone_row is a shard whose memory has no holder any more. Nothing needs it: if memory is short, or the object goes
// before the cluster is told, the shard goes with its object.
typedef struct gone_row {
  struct gone_row* next;
  pr_object* object;  // a reference
  uint32_t device;
} gone_row;

static _Atomic(gone_row*) gone_rows;
static _Atomic int64_t gone_bytes;  // of their shards

// armed says that freed.go will soon sweep freed objects. It is read after an object was added to a list, and cleared
// before the lists are emptied, so that one of the two sees the other.
static _Atomic bool armed;

static void arm(void) {
  if (atomic_load(&armed) || pw_forked || atomic_exchange(&armed, true)) return;
  prGoArm();  // once a sweep, so no call counts it among its entries into Go
}

void pr_armed(bool yes) { atomic_store(&armed, yes); }

static void row_gone(pr_object* o, const PJRT_Device* d, int64_t bytes) {
  if (!atomic_load_explicit(&o->joined, memory_order_relaxed)) return;
  gone_row* r = pw_alloc(sizeof *r);
  if (r == NULL) return;
  atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  *r = (gone_row){atomic_load_explicit(&gone_rows, memory_order_relaxed), o, (uint32_t)d->description.id};
  while (!atomic_compare_exchange_weak_explicit(&gone_rows, &r->next, r, memory_order_seq_cst, memory_order_relaxed)) {
  }
  atomic_fetch_add_explicit(&gone_bytes, bytes, memory_order_relaxed);
  arm();
}

size_t pr_rows_gone(pr_row_name* rows, size_t room) {
  gone_row* r = atomic_exchange_explicit(&gone_rows, NULL, memory_order_acquire);
  atomic_store_explicit(&gone_bytes, 0, memory_order_relaxed);
  size_t n = 0;
  while (r) {
    gone_row* next = r->next;
    if (n == room) {  // the others stay for the next time
      r->next = atomic_load_explicit(&gone_rows, memory_order_relaxed);
      while (!atomic_compare_exchange_weak_explicit(&gone_rows, &r->next, r, memory_order_release,
                                                    memory_order_relaxed)) {
      }
    } else {
      if (atomic_load_explicit(&r->object->base.live, memory_order_relaxed) > 0)
        rows[n++] = (pr_row_name){r->object->base.name, r->device};
      drop(r->object);
      free(r);
    }
    r = next;
  }
  return n;
}

static void flush(void) {
  if (pw_forked) return;
  PR_COUNT(go_entries, 1);
  prGoFlush();
}

void pr_tell_rows_gone(void) {
  if (atomic_load_explicit(&gone_rows, memory_order_relaxed)) flush();
}

// shard_gone drops a shard of an object.
static void shard_gone(pr_object* o) {
  bool last = pw_object_drop(&o->base);
  if (last) pw_departed_add(&departed, &o->base);
  if (atomic_load_explicit(&gone_bytes, memory_order_relaxed) >= kMuchFreed ||
      (last && (atomic_load_explicit(&departed.num, memory_order_relaxed) >= kManyFreed ||
                atomic_load_explicit(&departed.bytes, memory_order_relaxed) >= kMuchFreed)))
    flush();
  else if (last)
    arm();
}

void pr_buffer_count(pr_buffer* b, int64_t bytes) {
  pw_account* a = &b->device->account;
  bool counts = a->host || b->memory == b->device->description.memories[b->device->description.default_memory];
  if (counts) pw_account_add(a, bytes);
  atomic_store_explicit(&b->charge, counts ? NULL : &pr_uncounted, memory_order_relaxed);
}

PJRT_Error* pr_no_charge(void) { return pw_short("another handle of an array", sizeof(pr_charge)); }

pr_charge* pr_charge_share(pr_buffer* b) {
  pr_charge* fresh = pw_alloc(sizeof *fresh);
  if (fresh == NULL) return NULL;
  *fresh = (pr_charge){1, b->object, b->device, pw_shape_bytes(b->shape)};
  pthread_mutex_lock(&mu);
  // pr_buffer_release takes the pointer out without the lock, but drops its reference under it.
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
  row_gone(c->object, c->device, c->bytes);
  free(c);
}

void pr_buffer_release(pr_buffer* b) {
  if (atomic_exchange_explicit(&b->gone, true, memory_order_acq_rel)) return;
  pr_charge* c = atomic_exchange_explicit(&b->charge, &pr_uncounted, memory_order_acq_rel);
  if (c == NULL) {
    int64_t bytes = pw_shape_bytes(b->shape);
    pw_account_sub(&b->device->account, bytes);
    row_gone(b->object, b->device, bytes);
  } else {
    pr_charge_drop(c);
  }
  pr_view_leave(b);
  shard_gone(b->object);
}

bool pr_object_hold(pr_object* o) {
  if (!pw_object_hold(&o->base)) return false;
  atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
  return true;
}

void pr_object_release(pr_object* o) {
  shard_gone(o);
  drop(o);
}

size_t pr_freed(pw_name* names, size_t room, bool all) {
  pw_object *o, *last;
  size_t n = pw_departed_take(&departed, names, room, all, &o, &last);
  for (size_t i = 0; i < n; i++) {
    pw_object* next = (pw_object*)o->slot.next;
    drop((pr_object*)o);
    o = next;
  }
  return n;
}

PJRT_Error* pr_PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args* args) {
  if (pw_forked) return NULL;
  pr_buffer* b = pr_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Delete");
  pr_buffer_release(b);
  return NULL;
}

PJRT_Error* pr_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args) {
  if (args->buffer == NULL || pw_forked) return NULL;
  pr_buffer* b = pr_buffer_of(args->buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_Buffer_Destroy");
  if (!pw_slot_end(&b->slot)) return pw_buffer_gone("PJRT_Buffer_Destroy");
  pr_object* o = b->object;
  pr_buffer_release(b);
  pr_view_end(b);
  pw_shape_drop(b->shape);
  free(b->minor_to_major);
  b->minor_to_major = NULL;
  free(b->symbol);
  b->symbol = NULL;
  drop(o);
  pw_slab_put(&buffers, &b->slot);
  PR_COUNT(buffers, -1);
  return NULL;
}
