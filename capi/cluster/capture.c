// What programs (capi/capture) need of this frontend: symbols, which are shards of objects that the cluster does not
// know, and further handles of a shard.
#include <stdlib.h>

#include "_cgo_export.h"
#include "play.h"

PJRT_Error* pr_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pr_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args);
PJRT_Error* pr_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args);

// handle fills in a buffer for a shard. It takes a reference to the object; charge counts the memory.
static PJRT_Buffer* handle(pr_buffer* b, pr_object* object, PJRT_Device* device, pr_memory* memory, pw_shape* shape,
                           pr_charge* charge) {
  b->device = device;
  b->memory = memory;
  b->shape = pw_shape_hold(shape, 1);
  b->object = object;
  atomic_store_explicit(&b->charge, charge, memory_order_relaxed);
  return pr_buffer_handle(b);
}

// ordered takes a buffer for a shard whose elements have an order; NULL if memory is short.
static pr_buffer* ordered(const pw_shape* shape, const int64_t* minor_to_major) {
  pr_buffer* b;
  if (!pr_buffers_new(&b, 1)) return NULL;
  if (pr_order_copy(&b->minor_to_major, minor_to_major, shape->num_dims)) return b;
  pr_buffers_unused(&b, 1);
  return NULL;
}

static PJRT_Error* unmade(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                          PJRT_Buffer** out) {
  pr_future* made = pr_future_new(1);
  char* text = made ? pw_copy_text(message) : NULL;
  pr_buffer* b = text ? ordered(look->shape, look->minor_to_major) : NULL;
  if (b && symbol) b->symbol = pw_copy(symbol, sizeof *symbol);
  pr_object* o;
  if (b == NULL || (symbol && b->symbol == NULL) || !pr_objects_new(&o, 1)) {
    if (made) pr_future_drop(made);
    free(text);
    if (b) pr_buffers_unused(&b, 1);
    return pr_no_shards(1);
  }
  pr_future_set(made, code, text);
  pr_object_is(o, 0, 0, made, 1, 0);
  *out = handle(b, o, look->device, (pr_memory*)look->memory, look->shape, &pr_uncounted);
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
  pr_buffer* more = ordered(b->shape, b->minor_to_major);
  if (more == NULL) return pr_no_shards(1);
  if (atomic_load_explicit(&b->gone, memory_order_acquire) || !pr_object_hold(b->object)) {
    pr_buffers_unused(&more, 1);
    return pw_deleted("PJRT_LoadedExecutable_Execute");
  }
  pr_charge* charge = pr_charge_share(b);
  if (charge == NULL) {
    pr_object_release(b->object);
    pr_buffers_unused(&more, 1);
    return pr_no_charge();
  }
  more->kept = !donate;
  *out = handle(more, b->object, b->device, b->memory, b->shape, charge);
  return NULL;
}

static PJRT_Error* open(pw_export* exported, bool donate, PJRT_Buffer** out) {
  pr_export* h = (pr_export*)exported;
  for (size_t i = 0; i < h->n; i++) {
    pr_buffer* b = ordered(h->shape, h->minor_to_major);
    if (b == NULL) return pr_no_shards(1);
    if (!pr_object_hold(h->shards[i].object)) {
      pr_buffers_unused(&b, 1);
      return pw_deleted("PJRT_LoadedExecutable_Execute");
    }
    pr_charge* charge = h->fresh ? pr_charge_share(h->shards[i].buffer) : pr_charge_hold(h->shards[i].charge);
    if (charge == NULL) {
      pr_object_release(h->shards[i].object);
      pr_buffers_unused(&b, 1);
      return pr_no_charge();
    }
    b->kept = !donate;
    out[i] = handle(b, h->shards[i].object, h->shards[i].device, h->shards[i].memory, h->shape, charge);
  }
  return NULL;
}

static void describe(PJRT_LoadedExecutable* e, pp_executable* out) {
  const PJRT_Executable* x = e->x;
  *out = (pp_executable){.client = x->client->family,
                         .name = x->name,
                         .num_devices = x->num_devices,
                         .num_outputs = x->num_outputs,
                         .num_params = x->any_params ? -1 : (int64_t)x->num_params};
}

static const pw_shape* param(PJRT_LoadedExecutable* e, size_t i) {
  return e->x->any_params ? NULL : e->x->params[i].shape;
}

static void output(PJRT_LoadedExecutable* e, PJRT_Device* only, size_t row, size_t o, pp_look* out) {
  const PJRT_Executable* x = e->x;
  const pr_array* a = &x->outputs[o];
  out->device = only ? only : x->devices[row];
  out->memory = only ? &pr_memory_kind(only, a->memory, a->memory_size)->base.base
                     : &x->memories[row * x->num_outputs + o]->base.base;
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

static PJRT_Client* client(PJRT_Device* device) { return device->client->family; }
static PJRT_Device* where(PJRT_Memory* memory) { return ((pr_memory*)memory)->device; }
static int id(PJRT_Device* device) { return device->description.id; }
static PJRT_Device* row(PJRT_LoadedExecutable* e, size_t row) { return e->x->devices[row]; }
static PJRT_Device* device(PJRT_Client* c, int id) {
  return id >= 0 && (size_t)id < c->num_devices ? c->devices[id] : NULL;
}
static PJRT_Memory* memory(PJRT_Device* device, const char* kind) {
  return &pr_memory_kind(device, kind, strlen(kind))->base.base;
}

bool pr_played_new(const pp_program* p, size_t value, PJRT_Buffer** shards) {
  const pp_value* v = &p->values[value];
  size_t n = (size_t)v->n;
  pr_buffer** slots = pw_zeros(n, sizeof *slots);
  bool all = slots && pr_shards_new(slots, n);
  for (size_t i = 0; i < n && all; i++) {
    const pp_look* l = &v->looks[i];
    slots[i]->device = l->device;
    slots[i]->memory = (pr_memory*)l->memory;
    slots[i]->shape = pw_shape_hold(l->shape, 1);
    shards[v->first + i] = pr_buffer_handle(slots[i]);
  }
  // A shard without an order is destroyed with all others.
  for (size_t i = 0; i < n && all; i++)
    all = pr_order_copy(&slots[i]->minor_to_major, v->looks[i].minor_to_major, v->looks[i].shape->num_dims);
  free(slots);
  return all;
}

void pr_played(const pp_program* p, size_t value, uint64_t object, pr_future* made, PJRT_Buffer** shards) {
  const pp_value* v = &p->values[value];
  int64_t bytes = 0;
  for (int32_t i = 0; i < v->n; i++) bytes += pw_shape_bytes(v->looks[i].shape);
  for (int32_t i = 0; i < v->n; i++) {
    pr_buffer* b = pr_buffer_of(shards[v->first + (size_t)i]);
    if (i == 0) pr_object_becomes(b->object, ((PJRT_Client*)p->base.client)->session, object, made, bytes);
    pr_buffer_count(b, pw_shape_bytes(b->shape));
  }
}

// read_sources lists the shards that a play reads: those of its inputs, and constants. It returns false if the cluster
// does not know all of them.
static bool read_sources(const pp_program* p, PJRT_Buffer* const* shards, pr_source* out) {
  bool all = true;
  size_t n = 0;
  for (size_t i = 0; i < p->num_inputs; i++) {
    const pp_value* v = &p->values[p->inputs[i]];
    for (int32_t s = 0; s < v->n; s++) {
      const pr_buffer* b = pr_buffer_of(shards[v->first + (size_t)s]);
      out[n++] = (pr_source){b->object->base.name.number, (uint32_t)b->device->description.id};
    }
  }
  for (size_t i = 0; i < p->num_constants; i++) {
    const pr_buffer* b = pr_buffer_of(p->constants[i]);
    out[n++] = (pr_source){b->object->base.name.number, (uint32_t)b->device->description.id};
  }
  for (size_t i = 0; i < n; i++) all = all && out[i].object != 0;
  return all;
}

static bool play(pp_program* p, PJRT_Buffer** shards, PJRT_Error** error) {
  enum { kOnStack = 256 };  // sources: 4 KiB
  pr_source few[kOnStack];
  size_t n = p->num_constants;
  for (size_t i = 0; i < p->num_inputs; i++) n += (size_t)p->values[p->inputs[i]].n;
  pr_source* sources = n <= kOnStack ? few : pw_alloc(n * sizeof *sources);
  if (sources == NULL) {
    *error = pw_short("the shards that a program is given", n * sizeof *sources);
    return false;
  }
  bool played = false;
  if (read_sources(p, shards, sources)) {
    pw_name freed[PW_FREED];
    size_t num_freed = pr_freed(freed, PW_FREED, false);
    char* message = NULL;
    PR_COUNT(go_entries, 1);
    int code = prGoPlay(p, sources, n, freed, num_freed, shards, &played, &message);
    if (code) *error = pw_error_take((PJRT_Error_Code)code, message);
    for (size_t i = 0; played && code == 0 && i < p->num_nodes; i++)
      if (p->nodes[i].kind == PP_EXECUTE) PR_COUNT(executes, 1);
  }
  if (sources != few) free(sources);
  return played;
}

static void unplay(pp_program* p) { prGoUnplay(p->lowered); }

_Atomic uint64_t pr_losses;

// losses says what a client's devices have lost: of each device, the objects up to a number; last is the highest of
// these.
typedef struct {
  const uint64_t* up_to;
  uint64_t last;
} losses;

// any_lost reports whether a shard was lost. What was asked for before the last loss and is not there, or not yet, may
// have been made of something that was lost elsewhere, and counts as well.
static bool any_lost(const losses* l, PJRT_Buffer* const* shards, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const pr_buffer* b = shards[i] ? pr_buffer_of(shards[i]) : NULL;
    if (b == NULL) continue;
    uint64_t number = b->object->base.name.number;
    if (number <= l->up_to[b->device->description.id]) return true;
    if (number <= l->last && pr_future_state(b->object->made) != PR_READY) return true;
  }
  return false;
}

static bool lost(pp_program* p) {
  uint64_t now = atomic_load_explicit(&pr_losses, memory_order_acquire);
  if (atomic_load_explicit(&p->sound, memory_order_relaxed) == now) return false;
  const PJRT_Client* c = p->base.client;
  uint64_t* up_to = pw_zeros(c->num_devices, sizeof *up_to);
  if (up_to == NULL) return false;  // the next play looks again
  PR_COUNT(go_entries, 1);
  prGoLosses(c->session, up_to, c->num_devices);
  losses l = {up_to, 0};
  for (size_t d = 0; d < c->num_devices; d++)
    if (up_to[d] > l.last) l.last = up_to[d];
  bool any = any_lost(&l, p->constants, p->num_constants) || any_lost(&l, p->returned, p->num_returned);
  free(up_to);
  if (!any) atomic_store_explicit(&p->sound, now, memory_order_relaxed);
  return any;
}

const pp_frontend pr_frontend = {
    .execute = pr_PJRT_LoadedExecutable_Execute,
    .copy = pr_PJRT_Buffer_CopyToMemory,
    .destroy = pr_PJRT_Buffer_Destroy,
    .unmade = unmade,
    .seen = seen,
    .share = share,
    .shards = pr_export_shards,
    .open = open,
    .close = pr_export_close,
    .take = pr_export_take,
    .fresh = pr_export_fresh,
    .look = pr_export_look,
    .export_argument = pr_export_argument,
    .made = pr_export_made,
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
    .lost = lost,
};
