// Exported arrays (export.h). A move to another sharding is one operation of the cluster, which reshard.go builds; its
// bytes travel between the workers.
#include "reshard.h"

#include <stdlib.h>

#include "_cgo_export.h"

static void export_free(pw_export* base) {
  pr_export* h = (pr_export*)base;
  for (size_t i = 0; i < h->n; i++) {
    if (h->fresh) {
      PW_ARGS(PJRT_Buffer_Destroy_Args, a);
      a.buffer = pr_buffer_handle(h->shards[i].buffer);
      PJRT_Error* err = pr_PJRT_Buffer_Destroy(&a);
      if (err) pw_error_free(err);
    } else {
      pr_charge_drop(h->shards[i].charge);
      pr_object_release(h->shards[i].object);
    }
  }
  pw_shape_drop(h->shape);
  free(h->minor_to_major);
  free(h);
}

static char* export_reshard(pw_export* exported, uint64_t plan, pw_export** out) {
  for (size_t i = 0; i < ((pr_export*)exported)->n; i++) {
    const pr_object* o = ((pr_export*)exported)->shards[i].object;
    if (o->base.name.number == 0) return pp_refusal(pr_future_error(o->made));
  }
  PR_COUNT(go_entries, 1);
  char* refusal = prGoReshard((pr_export*)exported, plan, (pr_export**)out);
  if (refusal == NULL) PR_COUNT(reshards, 1);
  return refusal;
}

static const pw_export_methods methods = {export_free, export_reshard};

pr_export* pr_export_new(PJRT_Client* client, size_t n, bool fresh, pw_shape* shape,
                         const int64_t* minor_to_major) {
  pr_export* h = pw_zeros(1, sizeof *h + n * sizeof *h->shards);
  if (h == NULL) return NULL;
  if (!pr_order_copy(&h->minor_to_major, minor_to_major, shape->num_dims)) {
    free(h);
    return NULL;
  }
  h->base = (pw_export){.base = {client->family, 1}, .methods = &methods};
  h->client = client->family;
  h->fresh = fresh;
  h->shape = pw_shape_hold(shape, 1);
  return h;
}

// ---- pp_frontend ----

size_t pr_export_shards(pw_export* exported) { return ((pr_export*)exported)->n; }

bool pr_export_fresh(pw_export* exported) { return ((pr_export*)exported)->fresh; }

void pr_export_look(pw_export* exported, size_t i, pp_look* out) {
  pr_export* h = (pr_export*)exported;
  *out = (pp_look){h->shards[i].device, &h->shards[i].memory->base.base, h->shape, h->minor_to_major};
}

pw_export* pr_export_close(PJRT_Buffer* const* buffers, size_t n) {
  pr_buffer* first = pr_buffer_of(buffers[0]);
  pr_export* h = pr_export_new(first->device->client, n, true, first->shape, first->minor_to_major);
  if (h == NULL) return NULL;
  for (size_t i = 0; i < n; i++) {
    pr_buffer* b = pr_buffer_of(buffers[i]);
    h->shards[i].device = b->device;
    h->shards[i].memory = b->memory;
    h->shards[i].object = b->object;
    h->shards[i].buffer = b;
  }
  h->n = n;
  return &h->base;
}

void pr_export_take(pw_export* exported, PJRT_Buffer** out) {
  pr_export* h = (pr_export*)exported;
  for (size_t i = 0; i < h->n; i++) out[i] = pr_buffer_handle(h->shards[i].buffer);
  h->n = 0;
  pw_export_drop(exported);
}

PJRT_Error* pr_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t i, pw_export** out) {
  const char* program = args->executable->x->name;
  pr_export* h = NULL;
  for (size_t d = 0; d < args->num_devices; d++) {
    pr_buffer* b = pr_buffer_of(args->argument_lists[d][i]);
    if (b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire) || !pr_object_hold(b->object))
      return pw_gone(d, i, program, b);
    PJRT_Error* err = pr_unmade(b);
    if (err) {
      pr_object_release(b->object);
      return err;
    }
    if (h == NULL) {
      h = pr_export_new(b->device->client, args->num_devices, false, b->shape, b->minor_to_major);
      if (h) *out = &h->base;
    }
    pr_charge* charge = h ? pr_charge_share(b) : NULL;
    if (charge == NULL) {
      pr_object_release(b->object);
      return h ? pr_no_charge() : pr_no_shards(args->num_devices);
    }
    h->shards[d].device = b->device;
    h->shards[d].memory = b->memory;
    h->shards[d].object = b->object;
    h->shards[d].charge = charge;
    h->n = d + 1;
  }
  return NULL;
}

PJRT_Error* pr_export_made(PJRT_LoadedExecutable_Execute_Args* args, pw_export* exported) {
  pr_future* made = ((pr_export*)exported)->shards[0].object->made;
  for (size_t d = 0; args->device_complete_events && d < args->num_devices; d++)
    args->device_complete_events[d] = (PJRT_Event*)pr_future_hold(made);
  return NULL;
}

pr_export* pr_moved_new(PJRT_Client* c, const uint32_t* devices, size_t n, pw_shape* shape, const char* kind) {
  pr_export* h = pr_export_new(c, n, true, shape, NULL);
  pr_buffer** slots = pw_zeros(n, sizeof *slots);
  bool all = h && slots && pr_shards_new(slots, n);
  for (size_t d = 0; all && d < n; d++) {
    pr_buffer* b = slots[d];
    b->device = c->devices[devices[d]];
    b->memory = pr_memory_kind(b->device, kind, strlen(kind));
    b->shape = pw_shape_hold(shape, 1);
    h->shards[d].device = b->device;
    h->shards[d].memory = b->memory;
    h->shards[d].object = b->object;
    h->shards[d].buffer = b;
    h->n = d + 1;
  }
  free(slots);
  if (!all && h) pw_export_drop(&h->base);
  return all ? h : NULL;
}

void pr_moved_is(pr_export* h, uint64_t object, pr_future* made) {
  int64_t bytes = pw_shape_bytes(h->shape);
  pr_object_becomes(h->shards[0].object, h->client->session, object, made, (int64_t)h->n * bytes);
  for (size_t d = 0; d < h->n; d++) pr_buffer_count(h->shards[d].buffer, bytes);
}
