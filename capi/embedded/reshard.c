// Exported arrays (export.h). An array that was exported keeps its shards. When they are ready, the host copies their
// elements into the shards of another sharding, whose buffers were handed out before. Go makes the plan and copies
// (reshard.go); this file calls the plugin.
#include "reshard.h"

#include <stdlib.h>

#include "_cgo_export.h"
#include "room.h"

static void export_free(pw_export* base) {
  pw_export_array* h = (pw_export_array*)base;
  for (size_t i = 0; i < h->n; i++) {
    if (h->fresh) {
      pw_buffer_drop(h->shards[i]);
    } else {
      atomic_fetch_sub_explicit(&h->shards[i]->exports, 1, memory_order_relaxed);
      pw_buffer_unpin(h->shards[i]);
    }
  }
  free(h);
}

static char* export_reshard(pw_export* exported, uint64_t plan, pw_export** out) {
  pw_export_array* from = (pw_export_array*)exported;
  pw_room room = {0};
  char* refusal = NULL;
  for (bool again = true; again;) {
    bool can_wait = false;
    pw_room_ask(&room);
    PW_COUNT(go_entries, 1);
    refusal = pwGoReshard(from, plan, (pw_export_array**)out, &can_wait);
    again = can_wait && pw_room_wait(&room, from->client->pass);
    if (again) pw_refusal_free(refusal);
  }
  PJRT_Error* interrupted = pw_room_end(&room, NULL);
  if (interrupted) pw_error_free(interrupted);
  if (refusal == NULL) PW_COUNT(reshards, 1);
  return refusal;
}

static const pw_export_methods methods = {export_free, export_reshard};

pw_export_array* pw_export_new(PJRT_Client* client, size_t n, bool fresh) {
  pw_export_array* h = pw_zeros(1, sizeof *h + n * sizeof *h->shards);
  if (h == NULL) return NULL;
  h->base = (pw_export){.base = {client, 1}, .methods = &methods};
  h->client = client;
  h->n = n;
  h->fresh = fresh;
  return h;
}

// ---- pp_frontend ----

size_t pw_export_shards(pw_export* exported) { return ((pw_export_array*)exported)->n; }

bool pw_export_fresh(pw_export* exported) { return ((pw_export_array*)exported)->fresh; }

void pw_export_look(pw_export* exported, size_t i, pp_look* out) {
  const pw_buffer* b = ((pw_export_array*)exported)->shards[i];
  *out = (pp_look){b->device, b->memory, b->shape, NULL};
}

pw_export* pw_export_close(PJRT_Buffer* const* buffers, size_t n) {
  pw_export_array* h = pw_export_new(pw_buffer_of(buffers[0])->device->client, n, true);
  if (h == NULL) return NULL;
  for (size_t i = 0; i < n; i++) h->shards[i] = pw_buffer_of(buffers[i]);
  return &h->base;
}

void pw_export_take_handles(pw_export* exported, PJRT_Buffer** out) {
  pw_export_array* h = (pw_export_array*)exported;
  for (size_t i = 0; i < h->n; i++) out[i] = pw_buffer_handle(h->shards[i]);
  h->n = 0;
  pw_export_drop(exported);
}

PJRT_Error* pw_export_argument(PJRT_LoadedExecutable_Execute_Args* args, size_t i, pw_export** out) {
  PJRT_LoadedExecutable* e = args->executable;
  pw_export_array* h = pw_export_new(e->client, args->num_devices, false);
  if (h == NULL) return pw_short("an array outside of its client", sizeof *h + args->num_devices * sizeof *h->shards);
  h->n = 0;
  *out = &h->base;
  for (size_t d = 0; d < args->num_devices; d++) {
    pw_buffer* b = pw_buffer_of(args->argument_lists[d][i]);
    if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire))
      return pw_gone(d, i, e->name, b);
    atomic_fetch_add_explicit(&b->pins, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->exports, 1, memory_order_relaxed);
    h->shards[h->n++] = b;
  }
  return NULL;
}

PJRT_Error* pw_export_made(PJRT_LoadedExecutable_Execute_Args* args, pw_export* exported) {
  pw_export_array* h = (pw_export_array*)exported;
  for (size_t d = 0; args->device_complete_events && d < h->n; d++) {
    PJRT_Error* err = pw_ready(h->shards[d], &args->device_complete_events[d]);
    if (err) {
      for (size_t i = 0; i < d; i++) pw_destroy_event(args->device_complete_events[i]);
      return err;
    }
  }
  return NULL;
}

PJRT_Error* pw_keep_exported(pw_buffer** inputs, size_t n, size_t m, PJRT_ExecuteOptions* options, int64_t** out) {
  bool any = false;
  for (size_t i = 0; i < n * m && !any; i++) any = atomic_load_explicit(&inputs[i]->exports, memory_order_relaxed) != 0;
  if (!any) return NULL;
  size_t k = options->num_non_donatable_input_indices;
  int64_t* list = *out = pw_alloc((k + m) * sizeof *list);
  if (list == NULL) return pw_short("the list of arguments that are not donated", (k + m) * sizeof *list);
  if (k) memcpy(list, options->non_donatable_input_indices, k * sizeof *list);
  for (size_t i = 0; i < m; i++) {
    bool exported = false;
    for (size_t d = 0; d < n; d++)
      exported |= atomic_load_explicit(&inputs[d * m + i]->exports, memory_order_relaxed) != 0;
    if (exported) list[k++] = (int64_t)i;
  }
  options->non_donatable_input_indices = list;
  options->num_non_donatable_input_indices = k;
  return NULL;
}

// ---- moving ----

PJRT_Device* pw_device_numbered(PJRT_Client* c, int id) {
  if (id >= 0 && (size_t)id < c->num_addressable && c->addressable[id]->id == id) return c->addressable[id];
  for (size_t i = 0; i < c->num_addressable; i++)
    if (c->addressable[i]->id == id) return c->addressable[i];
  return NULL;
}

pw_moving* pw_moving_new(pw_export_array* from, uintptr_t go) {
  pw_moving* m = pw_zeros(1, sizeof *m + from->n * sizeof *m->sources);
  if (m == NULL) return NULL;
  PW_COUNT(runs, 1);
  m->from = from;
  atomic_fetch_add_explicit(&from->base.base.refs, 1, memory_order_relaxed);
  m->go = go;
  for (size_t i = 0; i < from->n; i++) m->sources[i].moving = m;
  return m;
}

void pw_moving_free(pw_moving* m) {
  for (size_t i = 0; i < m->from->n; i++) {
    free(m->sources[i].staged);
    free(m->sources[i].message);
  }
  pw_export_drop(&m->from->base);
  free(m);
  PW_COUNT(runs, -1);
}

// failed keeps the error of a source that has no bytes.
static void failed(pw_source* s, PJRT_Error* err) {
  const char* message;
  size_t size;
  PJRT_Error_Code code;
  pw_error_read(err, &code, &message, &size);
  if (s->code == 0) {
    s->code = code ? (int)code : (int)PJRT_Error_Code_UNKNOWN;
    s->message = pw_copy(message, size);  // NULL: the code must do
  }
  pw_error_free(err);
}

static void source_ready(PJRT_Error* error, void* arg) {
  pw_source* s = arg;
  pw_moving* m = s->moving;
  if (error) failed(s, pw_provenance_error(error, m->from->shards[s - m->sources]));
  pwGoMove(m->go, (size_t)(s - m->sources));
}

// in_place reports whether the host can read a shard where it is, as dense row-major elements.
static bool in_place(pw_buffer* b) {
  if (!PW_HAS(PJRT_Buffer_IsOnCpu) || !PW_HAS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer) ||
      !PW_HAS(PJRT_Buffer_GetMemoryLayout))
    return false;
  PW_ARGS(PJRT_Buffer_IsOnCpu_Args, on);
  on.buffer = b->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_IsOnCpu(&on);
  PW_ARGS(PJRT_Buffer_GetMemoryLayout_Args, at);
  at.buffer = b->under;
  if (err == NULL) err = pw_under->PJRT_Buffer_GetMemoryLayout(&at);
  if (err) {
    pw_error_free(err);
    return false;
  }
  return on.is_on_cpu && pw_row_by_row(&at.layout, b->shape->num_dims);
}

// stage begins to copy a shard to the host.
static PJRT_Error* stage(pw_source* s, pw_buffer* b, PJRT_Event** event) {
  size_t n = b->shape->num_dims, size = (size_t)pw_shape_bytes(b->shape);
  int64_t order[n + 1];
  PJRT_Buffer_MemoryLayout layout = pw_tiled(pw_descending(order, n), n);
  PW_ARGS(PJRT_Buffer_ToHostBuffer_Args, a);
  a.src = b->under;
  a.host_layout = &layout;
  a.dst = s->staged = pw_alloc(size);
  if (a.dst == NULL) return pw_short("an array's bytes on their way", size);
  a.dst_size = size;
  PJRT_Error* err = pw_under->PJRT_Buffer_ToHostBuffer(&a);
  *event = a.event;
  return err;
}

bool pw_moving_watch(pw_moving* m, size_t i) {
  pw_source* s = &m->sources[i];
  pw_buffer* b = m->from->shards[i];
  PJRT_Event* event = NULL;
  PJRT_Error* err = pw_unmade(b);
  if (err == NULL) err = in_place(b) ? pw_ready(b, &event) : stage(s, b, &event);
  if (err) {
    failed(s, pw_provenance_error(err, b));
    return true;
  }
  PW_ARGS(PJRT_Event_IsReady_Args, is);
  is.event = event;
  err = pw_under->PJRT_Event_IsReady(&is);
  bool ready = err == NULL && is.is_ready;
  if (ready) {
    PW_ARGS(PJRT_Event_Error_Args, why);
    why.event = event;
    if ((err = pw_under->PJRT_Event_Error(&why))) failed(s, pw_provenance_error(err, b));
  } else {
    if (err) pw_error_free(err);
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = event;
    on.callback = source_ready;
    on.user_arg = s;
    if ((err = pw_under->PJRT_Event_OnReady(&on))) source_ready(err, s);
  }
  pw_destroy_event(event);
  return ready;
}

const char* pw_moving_bytes(pw_moving* m, size_t i) {
  pw_source* s = &m->sources[i];
  if (s->code) return NULL;
  if (s->staged) return s->staged;
  PW_ARGS(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args, at);
  at.buffer = m->from->shards[i]->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&at);
  if (err) {
    failed(s, err);
    return NULL;
  }
  static const char nothing;
  return at.device_memory_ptr ? at.device_memory_ptr : &nothing;
}

uint64_t pw_export_gang(const pw_export_array* h, bool* several) {
  uint64_t gang = 0;
  *several = false;
  for (size_t i = 0; i < h->n; i++) {
    uint64_t g = atomic_load_explicit(&h->shards[i]->array->gang, memory_order_acquire);
    *several |= gang != 0 && g != 0 && g != gang;
    gang = g > gang ? g : gang;
  }
  return gang;
}

bool pw_can_promise(void) { return PW_HAS(PJRT_Client_CreateAliasBuffer) && PW_HAS(PJRT_Client_FulfillAliasBuffer); }

static int take(PJRT_Error* err, char** message) {
  if (err == NULL) return 0;
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(err, &code, &text, &size);
  *message = pw_copy(text, size);
  pw_error_free(err);
  return code ? (int)code : (int)PJRT_Error_Code_UNKNOWN;
}

pw_export_array* pw_moved_new(PJRT_Client* c, const int32_t* devices, size_t n, pw_shape* shape, const char* kind,
                              uint64_t object, pw_array** array) {
  pw_export_array* h = pw_export_new(c, n, true);
  if (h == NULL) return NULL;
  if (!pw_buffers_new(h->shards, n)) goto array;
  if (!pw_arrays_new(array, 1)) goto buffers;
  pw_array_is(*array, c->session, object, (int32_t)n);
  pw_shape_hold(shape, (int32_t)n);
  for (size_t i = 0; i < n; i++) {
    pw_buffer* b = h->shards[i];
    b->device = pw_device_numbered(c, devices[i]);
    b->memory = *kind ? pw_memory_kind(b->device, kind, strlen(kind)) : b->device->default_memory;
    b->under = NULL;
    b->shape = shape;
    b->array = *array;
    atomic_store_explicit(&b->comes, true, memory_order_relaxed);
    pw_buffer_count(b, pw_shape_bytes(shape));
  }
  return h;
buffers:
  pw_buffers_unused(h->shards, n);
array:
  free(h);
  return NULL;
}

int pw_moved_promise(pw_buffer* b, void** fulfill, char** message) {
  size_t n = b->shape->num_dims;
  int64_t order[n + 1];
  PJRT_Error* err = pw_promise_new(b->device->client, b->memory, b->shape, pw_descending(order, n), &b->under, fulfill);
  b->promise = err == NULL;
  return take(err, message);
}

static void let_go(PJRT_Error* error, void* data) {
  if (error) pw_error_free(error);
  free(data);
}

void* pw_moved_memory(size_t bytes) {
  enum { kLine = 64 };  // bytes; plugins take over memory that is aligned to this
  return pw_aligned(kLine, bytes);
}

int pw_moved_put(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape, void* data, void* fulfill, pw_buffer* to,
                 char** message) {
  PW_ARGS(PJRT_Client_BufferFromHostBuffer_Args, a);
  a.client = c->under;
  a.data = data;
  a.type = shape->type;
  a.dims = shape->dims;
  a.num_dims = shape->num_dims;
  a.host_buffer_semantics = PJRT_HostBufferSemantics_kMutableZeroCopy;
  a.memory = pw_lower_memory(memory);
  PJRT_Error* err = pw_under->PJRT_Client_BufferFromHostBuffer(&a);
  if (err) {
    free(data);
    return take(err, message);
  }
  PW_ARGS(PJRT_Event_OnReady_Args, on);
  on.event = a.done_with_host_buffer;
  on.callback = let_go;
  on.user_arg = data;
  if ((err = pw_under->PJRT_Event_OnReady(&on))) let_go(err, NULL);  // its end is unknown: the data stays
  pw_destroy_event(a.done_with_host_buffer);
  if (fulfill == NULL) {
    to->under = a.buffer;
    return 0;
  }
  if ((err = pw_fulfill(c, fulfill, a.buffer))) pw_error_free(err);
  pw_destroy_buffer(a.buffer);
  return 0;
}

void pw_moved_fail(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape, void* fulfill, int code,
                   const char* message) {
  int64_t order[shape->num_dims + 1];
  pw_fulfill_error(c, fulfill, memory, shape, pw_descending(order, shape->num_dims), (PJRT_Error_Code)code, message,
                  message ? strlen(message) : 0);
}

void pw_moved_settled(pw_array* a) {
  atomic_store_explicit(&a->gang, 0, memory_order_release);
  atomic_store_explicit(&a->moving, false, memory_order_release);
  pw_array_drop(a);
}

void pw_moved_begun(pw_array* a, pw_export_array* from, uint64_t gang) {
  for (size_t i = 0; i < from->n; i++) pw_provenance_pass(from->shards[i], a);
  pw_object_hold(&a->base);  // the mover's own share, which settled drops
  atomic_store_explicit(&a->gang, gang, memory_order_relaxed);
  atomic_store_explicit(&a->moving, true, memory_order_release);
}
