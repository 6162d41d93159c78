// Arrays leave the client and come to it by programs that are not run (held.h).
// One that moves to another sharding is one operation of the cluster, which
// reshard.go writes: its bytes go between the workers.
#include "reshard.h"

#include <stdlib.h>

#include "_cgo_export.h"

static void held_free(pw_held* base) {
  pr_held* h = (pr_held*)base;
  for (size_t i = 0; i < h->n; i++) {
    if (h->fresh) {
      PW_ARGS(PJRT_Buffer_Destroy_Args, a);
      a.buffer = pr_buffer_handle(h->shards[i].buffer);
      PJRT_Error* err = pr_PJRT_Buffer_Destroy(&a);
      if (err) pw_error_free(err);
    } else {
      pr_object_release(h->shards[i].object);
      pr_charge_drop(h->shards[i].charge);
    }
  }
  pw_shape_drop(h->shape);
  free(h->minor_to_major);
  free(h);
}

static char* held_reshard(pw_held* held, uint64_t plan, pw_held** out) {
  for (size_t i = 0; i < ((pr_held*)held)->n; i++) {
    const pr_object* o = ((pr_held*)held)->shards[i].object;
    if (o->number == 0) return pp_refusal(pr_future_error(o->made));
  }
  PR_COUNT(go_entries, 1);
  char* refusal = prGoReshard((pr_held*)held, plan, (pr_held**)out);
  if (refusal == NULL) PR_COUNT(reshards, 1);
  return refusal;
}

static const pw_held_door door = {held_free, held_reshard};

pr_held* pr_held_new(PJRT_Client* client, size_t n, bool fresh, pw_shape* shape,
                     const int64_t* minor_to_major) {
  pr_held* h = calloc(1, sizeof *h + n * sizeof *h->shards);
  h->base = (pw_held){.base = {client, 1}, .door = &door};
  h->client = client;
  h->fresh = fresh;
  h->shape = shape;
  h->minor_to_major = pr_order_copy(minor_to_major, shape->num_dims);
  atomic_fetch_add_explicit(&shape->refs, 1, memory_order_relaxed);
  return h;
}

static PJRT_Error* export_arrays(PJRT_LoadedExecutable_Execute_Args* args) {
  PJRT_Executable* x = args->executable->x;
  size_t n = args->num_devices, m = args->num_args;
  if (pp_capturing && pp_any_symbol(&pr_door, args)) return pp_export(&pr_door, args);
  if (m == 0 || n == 0 || x->num_outputs)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes arrays and gives none", x->name);
  pw_held** all = calloc(m, sizeof *all);
  PJRT_Error* err = NULL;
  pr_future* made = NULL;  // of the first argument
  size_t i = 0;
  for (; i < m && err == NULL; i++) {
    pr_held* h = NULL;
    for (size_t d = 0; d < n; d++) {
      pr_buffer* b = pr_buffer_of(args->argument_lists[d][i]);
      if (b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire) || !pr_object_hold(b->object)) {
        err = pw_gone(d, i, x->name, b);
        break;
      }
      if ((err = pr_unmade(b))) {
        pr_object_release(b->object);
        break;
      }
      if (h == NULL) all[i] = &(h = pr_held_new(b->device->client, n, false, b->shape, b->minor_to_major))->base;
      h->shards[d].device = b->device;
      h->shards[d].memory = b->memory;
      h->shards[d].object = b->object;
      h->shards[d].charge = pr_charge_share(b);
      h->n = d + 1;
      if (made == NULL) made = b->object->made;
    }
  }
  if (err == NULL) {
    for (size_t d = 0; args->device_complete_events && d < n; d++)
      args->device_complete_events[d] = (PJRT_Event*)pr_future_hold(made);
    pw_exported(all, m);
  } else {
    for (size_t k = 0; k < i; k++) pw_held_drop(all[k]);
  }
  free(all);
  return err;
}

// fits says why an array cannot be a result of an import program.
static PJRT_Error* fits(const PJRT_Executable* x, size_t o, const pr_held* h) {
  if (h->client != x->client || !h->fresh || h->n != x->num_devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "result %zu of %s is to be an array of %zu shards of this client that no client has; the one that is "
                    "named has %zu",
                    o, x->name, x->num_devices, h->n);
  const pw_shape* shape = x->outputs[o].shape;
  bool same = pw_shape_same(h->shape, shape);
  size_t d = 0;
  while (same && d < h->n && h->shards[d].device == x->devices[d]) d++;
  if (same && d == h->n) return NULL;
  char want[256], got[256];
  pw_shape_text(shape, want, sizeof want);
  pw_shape_text(h->shape, got, sizeof got);
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "shard %zu of result %zu of %s is %s on device %d, and the array that is named has %s on device %d", d, o,
                  x->name, want, x->devices[d]->description.id, got, h->shards[d].device->description.id);
}

static PJRT_Error* import_arrays(PJRT_LoadedExecutable_Execute_Args* args) {
  PJRT_Executable* x = args->executable->x;
  size_t outs = x->num_outputs;
  if (pp_capturing && pp_input()) return pp_inputs(&pr_door, args);
  pw_held** all = calloc(outs + 1, sizeof *all);
  if (outs == 0 || !pw_imported(all, outs)) {
    free(all);
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "%s: its thread has to name %zu arrays with pathways_import before", x->name, outs);
  }
  if (pp_symbolic(all[0])) {
    PJRT_Error* err = pp_import(&pr_door, args, all);
    free(all);
    return err;
  }
  PJRT_Error* err = args->num_devices == x->num_devices
                        ? NULL
                        : pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and is called for %zu", x->name,
                                   x->num_devices, args->num_devices);
  for (size_t o = 0; o < outs && err == NULL; o++) err = fits(x, o, (pr_held*)all[o]);
  for (size_t d = 0; err == NULL && args->device_complete_events && d < x->num_devices; d++)
    args->device_complete_events[d] = (PJRT_Event*)pr_future_hold(((pr_held*)all[0])->shards[0].object->made);
  for (size_t o = 0; o < outs; o++) {
    pr_held* h = (pr_held*)all[o];
    for (size_t d = 0; d < h->n && err == NULL; d++) args->output_lists[d][o] = pr_buffer_handle(h->shards[d].buffer);
    if (err == NULL) h->n = 0;  // the shards are the client's now
    pw_held_drop(&h->base);
  }
  free(all);
  return err;
}

PJRT_Error* pr_through(PJRT_LoadedExecutable_Execute_Args* args) {
  return args->executable->x->port == PW_EXPORTS ? export_arrays(args) : import_arrays(args);
}

pr_held* pr_moved_new(PJRT_Client* c, uint64_t number, pr_future* made, const uint32_t* devices, size_t n, pw_shape* shape,
                      const char* kind) {
  pr_held* h = pr_held_new(c, n, true, shape, NULL);
  int64_t bytes = pw_shape_bytes(shape);
  pr_object* object = pr_object_new(c->session, number, made, (int32_t)n, (int64_t)n * bytes);
  pr_buffer** slots = malloc(n * sizeof *slots);
  pr_buffers_new(slots, n);
  atomic_fetch_add_explicit(&shape->refs, (int32_t)n, memory_order_relaxed);
  for (size_t d = 0; d < n; d++) {
    pr_buffer* b = slots[d];
    b->device = c->devices[devices[d]];
    b->memory = pr_memory_kind(b->device, kind, strlen(kind));
    b->shape = shape;
    b->object = object;
    pr_buffer_count(b, bytes);
    h->shards[d].device = b->device;
    h->shards[d].memory = b->memory;
    h->shards[d].object = object;
    h->shards[d].buffer = b;
  }
  h->n = n;
  free(slots);
  return h;
}
