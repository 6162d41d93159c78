// What programs (capi/capture) need of this frontend: symbols, which are buffers that the plugin does not know and
// whose contents are an error, and further handles of a shard.
#include <stdlib.h>

#include "reshard.h"
#include "run.h"

PJRT_Error* pw_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pw_PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args* args);
PJRT_Error* pw_PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args* args);
PJRT_Error* pw_PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args* args);

static PJRT_Error* unmade(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                          PJRT_Buffer** out) {
  pp_symbol* own = symbol ? pw_copy(symbol, sizeof *symbol) : NULL;
  pw_buffer* b = NULL;
  pw_array* a = NULL;
  bool all = (symbol == NULL || own) && pw_buffers_new(&b, 1) && pw_arrays_new(&a, 1);
  if (a) pw_array_is(a, 0, 0, 1);  // not in any store
  if (!all || !pw_provenance_fails(a, code, message)) {
    if (a) pw_array_drop(a);
    if (b) pw_buffers_unused(&b, 1);
    free(own);
    return pw_short("an array without contents", sizeof *b + sizeof *a);
  }
  b->under = NULL;
  b->device = look->device;
  b->memory = look->memory;
  b->shape = pw_shape_hold(look->shape, 1);
  b->array = a;
  b->symbol = own;
  *out = pw_buffer_handle(b);
  return NULL;
}

static bool seen(PJRT_Buffer* buffer, pp_look* look, const pp_symbol** symbol) {
  pw_buffer* b = pw_buffer_of(buffer);
  if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire)) return false;
  *look = (pp_look){b->device, b->memory, b->shape, NULL};
  *symbol = b->symbol;
  return true;
}

// view makes another handle of a shard's contents. It keeps the shard, like a run that waits with it.
static PJRT_Error* view(pw_buffer* b, bool donate, PJRT_Buffer** out) {
  pw_buffer* root = b->of ? b->of : b;
  pw_buffer* v;
  if (!pw_buffers_new(&v, 1)) return pw_short("another handle of an array", sizeof *v);
  if (atomic_load_explicit(&b->released, memory_order_acquire) || !pw_object_hold(&b->array->base)) {
    pw_buffers_unused(&v, 1);
    return pw_deleted("PJRT_LoadedExecutable_Execute");
  }
  atomic_fetch_add_explicit(&root->pins, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&root->refs, 1, memory_order_relaxed);
  if (!donate) atomic_fetch_add_explicit(&root->exports, 1, memory_order_relaxed);
  v->of = root;
  v->exports = donate ? 0 : 1;
  v->under = b->under;
  v->device = b->device;
  v->memory = b->memory;
  v->shape = b->shape;
  atomic_fetch_add_explicit(&v->shape->refs, 1, memory_order_relaxed);
  v->array = b->array;
  v->promise = b->promise;
  *out = pw_buffer_handle(v);
  return NULL;
}

static PJRT_Error* share(PJRT_Buffer* buffer, bool donate, PJRT_Buffer** out) {
  pw_buffer* b = pw_buffer_of(buffer);
  if (b == NULL) return pw_buffer_gone("PJRT_LoadedExecutable_Execute");
  return view(b, donate, out);
}

static PJRT_Error* open(pw_export* exported, bool donate, PJRT_Buffer** out) {
  pw_export_array* h = (pw_export_array*)exported;
  for (size_t i = 0; i < h->n; i++) {
    PJRT_Error* err = view(h->shards[i], donate, &out[i]);
    if (err) return err;
  }
  return NULL;
}

static void describe(PJRT_LoadedExecutable* e, pp_executable* out) {
  *out = (pp_executable){.client = e->client,
                         .name = e->name,
                         .num_devices = e->num_devices,
                         .num_outputs = e->num_outputs,
                         .num_params = e->num_params};
}

static const pw_shape* param(PJRT_LoadedExecutable* e, size_t i) { return e->num_params >= 0 ? e->params[i] : NULL; }

static void output(PJRT_LoadedExecutable* e, PJRT_Device* only, size_t row, size_t o, pp_look* out) {
  pw_output* x = &e->outputs[o];
  out->device = pw_row_device(e, only, row);
  out->memory = only ? pw_memory_kind(only, x->kind, x->kind_size) : e->memories[row * e->num_outputs + o];
  out->shape = x->shape;
  out->minor_to_major = x->minor_to_major;
}

static void hold(PJRT_LoadedExecutable* e) { atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed); }

static void forget(PJRT_ExecuteContext* context) {
  PW_ARGS(PJRT_ExecuteContext_Destroy_Args, a);
  a.context = context;
  PJRT_Error* err = pw_PJRT_ExecuteContext_Destroy(&a);
  if (err) pw_error_free(err);
}

static bool closed(PJRT_LoadedExecutable* e) { return atomic_load(&e->closed); }

static PJRT_Error* ready(PJRT_Event** out) {
  if (!PW_HAS(PJRT_Event_Create) || !PW_HAS(PJRT_Event_Set)) return pw_unimplemented("PJRT_Event_Create");
  PW_ARGS(PJRT_Event_Create_Args, a);
  PJRT_Error* err = pw_under->PJRT_Event_Create(&a);
  if (err) return err;
  PW_ARGS(PJRT_Event_Set_Args, set);
  set.event = a.event;
  *out = a.event;
  return pw_under->PJRT_Event_Set(&set);
}

static PJRT_Client* client(PJRT_Device* device) { return device->client; }
static PJRT_Device* where(PJRT_Memory* memory) {
  const pw_memory* m = (const pw_memory*)memory;
  return m->num_devices ? m->devices[0] : NULL;
}
static int id(PJRT_Device* device) { return device->id; }
static PJRT_Device* row(PJRT_LoadedExecutable* e, size_t row) { return e->devices[row]; }
static PJRT_Memory* memory(PJRT_Device* device, const char* kind) {
  return *kind ? pw_memory_kind(device, kind, strlen(kind)) : device->default_memory;
}

const pp_frontend pw_frontend = {
    .execute = pw_PJRT_LoadedExecutable_Execute,
    .copy = pw_PJRT_Buffer_CopyToMemory,
    .destroy = pw_PJRT_Buffer_Destroy,
    .unmade = unmade,
    .seen = seen,
    .share = share,
    .shards = pw_export_shards,
    .open = open,
    .close = pw_export_close,
    .take = pw_export_take_handles,
    .fresh = pw_export_fresh,
    .look = pw_export_look,
    .export_argument = pw_export_argument,
    .made = pw_export_made,
    .describe = describe,
    .param = param,
    .output = output,
    .hold = hold,
    .drop = pw_loaded_drop,
    .closed = closed,
    .keep = pw_context_keep,
    .forget = forget,
    .ready = ready,
    .client = client,
    .where = where,
    .device = pw_device_numbered,
    .id = id,
    .row = row,
    .memory = memory,
};
