// What programs (capi/capture) need of this door: symbols, which are shards of
// objects that the cluster does not know of, and further handles of a shard.
#include <stdlib.h>

#include "_cgo_export.h"
#include "play.h"

PJRT_Error* pr_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pr_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args);
PJRT_Error* pr_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args);

// handle makes one for a shard of an object whose reference it takes, and whose memory
// is counted by charge; by the handle itself where that is NULL.
static pr_buffer* handle(pr_object* object, PJRT_Device* device, pr_memory* memory, pw_shape* shape,
                         const int64_t* minor_to_major, pr_charge* charge) {
  pr_buffer* b;
  pr_buffers_new(&b, 1);
  b->device = device;
  b->memory = memory;
  b->shape = shape;
  b->object = object;
  atomic_fetch_add_explicit(&shape->refs, 1, memory_order_relaxed);
  if (charge)
    atomic_store_explicit(&b->charge, charge, memory_order_relaxed);
  else
    pr_buffer_count(b, pw_shape_bytes(shape));
  b->minor_to_major = pr_order_copy(minor_to_major, shape->num_dims);
  return b;
}

static PJRT_Error* unmade(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                          PJRT_Buffer** out) {
  pr_future* made = pr_future_new(1);
  pr_future_set(made, code, strdup(message));
  pr_buffer* b = handle(pr_object_new(0, 0, made, 1, 0), look->device, (pr_memory*)look->memory, look->shape, look->minor_to_major,
                        &pr_uncounted);
  if (symbol) {
    b->symbol = malloc(sizeof *b->symbol);
    *b->symbol = *symbol;
  }
  *out = pr_buffer_handle(b);
  return NULL;
}

static bool seen(PJRT_Buffer* buffer, pp_look* look, const pp_symbol** symbol) {
  pr_buffer* b = pr_buffer_of(buffer);
  if (b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire)) return false;
  *look = (pp_look){b->device, &b->memory->base.base, b->shape, b->minor_to_major};
  *symbol = b->symbol;
  return true;
}

static PJRT_Error* share(PJRT_Buffer* buffer, bool donate, PJRT_Buffer** out) {
  pr_buffer* b = pr_buffer_of(buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_LoadedExecutable_Execute");
  if (atomic_load_explicit(&b->gone, memory_order_acquire) || !pr_object_hold(b->object))
    return pw_deleted("PJRT_LoadedExecutable_Execute");
  pr_buffer* more = handle(b->object, b->device, b->memory, b->shape, b->minor_to_major, pr_charge_share(b));
  more->kept = !donate;
  *out = pr_buffer_handle(more);
  return NULL;
}

static PJRT_Error* open(pw_held* held, bool donate, PJRT_Buffer** out) {
  pr_held* h = (pr_held*)held;
  for (size_t i = 0; i < h->n; i++) {
    if (!pr_object_hold(h->shards[i].object)) return pw_deleted("PJRT_LoadedExecutable_Execute");
    pr_charge* charge = h->fresh ? pr_charge_share(h->shards[i].buffer) : pr_charge_hold(h->shards[i].charge);
    pr_buffer* b = handle(h->shards[i].object, h->shards[i].device, h->shards[i].memory, h->shape, h->minor_to_major, charge);
    b->kept = !donate;
    out[i] = pr_buffer_handle(b);
  }
  return NULL;
}

static void describe(PJRT_LoadedExecutable* e, pp_executable* out) {
  const PJRT_Executable* x = e->x;
  *out = (pp_executable){.client = x->client,
                         .name = x->name,
                         .num_devices = x->num_devices,
                         .num_outputs = x->num_outputs,
                         .num_params = x->any_params ? -1 : (int64_t)x->num_params};
}

static const pw_shape* param(PJRT_LoadedExecutable* e, size_t i) { return e->x->any_params ? NULL : e->x->params[i].shape; }

static void output(PJRT_LoadedExecutable* e, PJRT_Device* only, size_t row, size_t o, pp_look* out) {
  const PJRT_Executable* x = e->x;
  const pr_array* a = &x->outputs[o];
  out->device = only ? only : x->devices[row];
  out->memory = only ? &pr_memory_kind(only, a->memory, a->memory_size)->base.base : &x->memories[row * x->num_outputs + o]->base.base;
  out->shape = a->shape;
  out->minor_to_major = pr_array_order(a);
}

static void hold(PJRT_LoadedExecutable* e) { atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed); }

static void forget(PJRT_ExecuteContext* context) {
  PW_ARGS(PJRT_ExecuteContext_Destroy_Args, a);
  a.context = context;
  pr_PJRT_ExecuteContext_Destroy(&a);
}

static bool closed(PJRT_LoadedExecutable* e) { return atomic_load(&e->closed); }

static PJRT_Error* ready(PJRT_Event** out) {
  *out = (PJRT_Event*)pr_future_ready();
  return NULL;
}

static PJRT_Client* client(PJRT_Device* device) { return device->client; }
static PJRT_Device* where(PJRT_Memory* memory) { return ((pr_memory*)memory)->device; }
static int id(PJRT_Device* device) { return device->description.id; }
static PJRT_Device* row(PJRT_LoadedExecutable* e, size_t row) { return e->x->devices[row]; }
static PJRT_Device* device(PJRT_Client* c, int id) { return id >= 0 && (size_t)id < c->num_devices ? c->devices[id] : NULL; }
static PJRT_Memory* memory(PJRT_Device* device, const char* kind) { return &pr_memory_kind(device, kind, strlen(kind))->base.base; }

void pr_played(const pp_program* p, size_t value, uint64_t object, pr_future* made, PJRT_Buffer** shards) {
  const pp_value* v = &p->values[value];
  int64_t bytes = 0;
  for (int32_t i = 0; i < v->n; i++) bytes += pw_shape_bytes(v->looks[i].shape);
  pr_object* o = pr_object_new(((PJRT_Client*)p->base.client)->session, object, made, v->n, bytes);
  for (int32_t i = 0; i < v->n; i++) {
    const pp_look* l = &v->looks[i];
    shards[v->first + (size_t)i] = pr_buffer_handle(handle(o, l->device, (pr_memory*)l->memory, l->shape, l->minor_to_major, NULL));
  }
}

static bool play(pp_program* p, PJRT_Buffer** shards, PJRT_Error** error) {
  pr_source few[256];
  size_t n = p->num_constants, most;
  for (size_t i = 0; i < p->num_inputs; i++) n += (size_t)p->values[p->inputs[i]].n;
  most = n;
  pr_source* sources = n <= 256 ? few : malloc(n * sizeof *sources);
  bool all = true;
  n = 0;
  for (size_t i = 0; i < p->num_inputs; i++) {
    const pp_value* v = &p->values[p->inputs[i]];
    for (int32_t s = 0; s < v->n; s++) {
      const pr_buffer* b = pr_buffer_of(shards[v->first + (size_t)s]);
      sources[n++] = (pr_source){b->object->number, (uint32_t)b->device->description.id};
    }
  }
  for (size_t i = 0; i < p->num_constants; i++) {
    const pr_buffer* b = pr_buffer_of(p->constants[i]);
    sources[n++] = (pr_source){b->object->number, (uint32_t)b->device->description.id};
  }
  for (size_t i = 0; i < most; i++) all = all && sources[i].object != 0;
  bool played = false;
  if (all) {
    pr_name freed[PR_FREED];
    size_t num_freed = pr_freed(freed, PR_FREED, false);
    char* message = NULL;
    PR_COUNT(go_entries, 1);
    int code = prGoPlay(p, sources, most, freed, num_freed, shards, &played, &message);
    if (code) *error = pw_error_take((PJRT_Error_Code)code, message);
    for (size_t i = 0; played && code == 0 && i < p->num_nodes; i++)
      if (p->nodes[i].kind == PP_EXECUTE) PR_COUNT(executes, 1);
  }
  if (sources != few) free(sources);
  return played;
}

static void unplay(pp_program* p) { prGoUnplay(p->lowered); }

const pp_door pr_door = {
    .execute = pr_PJRT_LoadedExecutable_Execute,
    .copy = pr_PJRT_Buffer_CopyToMemory,
    .destroy = pr_PJRT_Buffer_Destroy,
    .unmade = unmade,
    .seen = seen,
    .share = share,
    .shards = pr_held_shards,
    .open = open,
    .close = pr_held_close,
    .take = pr_held_take,
    .fresh = pr_held_fresh,
    .look = pr_held_look,
    .export_argument = pr_export_argument,
    .made = pr_held_made,
    .describe = describe,
    .param = param,
    .output = output,
    .hold = hold,
    .drop = pr_loaded_drop,
    .closed = closed,
    .keep = pr_context_keep,
    .forget = forget,
    .ready = ready,
    .client = client,
    .where = where,
    .device = device,
    .id = id,
    .row = row,
    .memory = memory,
    .play = play,
    .unplay = unplay,
};
