// Arrays leave the client and come to it by programs that are not run (held.h). One
// that was exported keeps its shards; the elements of another sharding are copied
// out of them, by the host, when they are ready, into buffers that were handed out
// before. Go makes the plan and copies (reshard.go); here the plugin is asked.
#include "reshard.h"

#include <stdlib.h>

#include "_cgo_export.h"
#include "run.h"

static void held_free(pw_held* base) {
  pw_held_array* h = (pw_held_array*)base;
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

static char* held_reshard(pw_held* held, uint64_t plan, pw_held** out) {
  PW_COUNT(go_entries, 1);
  char* refusal = pwGoReshard((pw_held_array*)held, plan, (pw_held_array**)out);
  if (refusal == NULL) PW_COUNT(reshards, 1);
  return refusal;
}

static const pw_held_door door = {held_free, held_reshard};

pw_held_array* pw_held_new(PJRT_Client* client, size_t n, bool fresh) {
  pw_held_array* h = calloc(1, sizeof *h + n * sizeof *h->shards);
  h->base = (pw_held){.base = {client, 1}, .door = &door};
  h->client = client;
  h->n = n;
  h->fresh = fresh;
  return h;
}

// ready_events gives the devices' events of a call that made or took these.
static PJRT_Error* ready_events(PJRT_LoadedExecutable_Execute_Args* args, pw_buffer* const* shards, size_t n) {
  for (size_t d = 0; args->device_complete_events && d < n; d++) {
    PJRT_Error* err = pw_ready(shards[d], &args->device_complete_events[d]);
    if (err) {
      for (size_t i = 0; i < d; i++) pw_destroy_event(args->device_complete_events[i]);
      return err;
    }
  }
  return NULL;
}

static PJRT_Error* export_arrays(PJRT_LoadedExecutable_Execute_Args* args) {
  PJRT_LoadedExecutable* e = args->executable;
  size_t n = args->num_devices, m = args->num_args;
  if (pp_capturing && pp_any_symbol(&pw_door, args)) return pp_export(&pw_door, args);
  if (m == 0 || e->num_outputs) return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes arrays and gives none", e->name);
  pw_held** all = calloc(m, sizeof *all);
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < m && err == NULL; i++) {
    pw_held_array* h = pw_held_new(e->client, 0, false);
    h = realloc(h, sizeof *h + n * sizeof *h->shards);
    all[i] = &h->base;
    for (size_t d = 0; d < n && err == NULL; d++) {
      pw_buffer* b = pw_buffer_of(args->argument_lists[d][i]);
      if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire)) {
        err = pw_gone(d, i, e->name, b);
        break;
      }
      atomic_fetch_add_explicit(&b->pins, 1, memory_order_relaxed);
      atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
      atomic_fetch_add_explicit(&b->exports, 1, memory_order_relaxed);
      h->shards[h->n++] = b;
    }
  }
  if (err == NULL) err = ready_events(args, ((pw_held_array*)all[0])->shards, n);
  if (err == NULL)
    pw_exported(all, m);
  else
    for (size_t i = 0; i < m; i++) pw_held_drop(all[i]);
  free(all);
  return err;
}

// fits says why an array cannot be a result of an import program.
static PJRT_Error* fits(const PJRT_LoadedExecutable* e, size_t o, const pw_held_array* h) {
  if (h->client != e->client || !h->fresh || h->n != e->num_devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "result %zu of %s is to be an array of %zu shards of this client that no client has; the one that is "
                    "named has %zu",
                    o, e->name, e->num_devices, h->n);
  for (size_t d = 0; d < h->n; d++) {
    const pw_buffer* b = h->shards[d];
    if (pw_shape_same(b->shape, e->outputs[o].shape) && b->device == e->devices[d]) continue;
    char want[256], got[256];
    pw_shape_text(e->outputs[o].shape, want, sizeof want);
    pw_shape_text(b->shape, got, sizeof got);
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "shard %zu of result %zu of %s is %s on device %d, and the array that is named has %s on device %d", d,
                    o, e->name, want, e->devices[d]->id, got, b->device->id);
  }
  return NULL;
}

static PJRT_Error* import_arrays(PJRT_LoadedExecutable_Execute_Args* args) {
  PJRT_LoadedExecutable* e = args->executable;
  size_t outs = e->num_outputs;
  if (pp_capturing && pp_input()) return pp_inputs(&pw_door, args);
  pw_held** all = calloc(outs + 1, sizeof *all);
  if (outs == 0 || !pw_imported(all, outs)) {
    free(all);
    return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "%s: its thread has to name %zu arrays with pathways_import before", e->name, outs);
  }
  if (pp_symbolic(all[0])) {
    PJRT_Error* err = pp_import(&pw_door, args, all);
    free(all);
    return err;
  }
  PJRT_Error* err = args->num_devices == e->num_devices
                        ? NULL
                        : pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and is called for %zu", e->name,
                                   e->num_devices, args->num_devices);
  for (size_t o = 0; o < outs && err == NULL; o++) err = fits(e, o, (pw_held_array*)all[o]);
  if (err == NULL) err = ready_events(args, ((pw_held_array*)all[0])->shards, e->num_devices);
  for (size_t o = 0; o < outs; o++) {
    pw_held_array* h = (pw_held_array*)all[o];
    for (size_t d = 0; d < h->n && err == NULL; d++) args->output_lists[d][o] = pw_buffer_handle(h->shards[d]);
    if (err == NULL) h->n = 0;  // the shards are the client's now
    pw_held_drop(&h->base);
  }
  free(all);
  return err;
}

PJRT_Error* pw_through(PJRT_LoadedExecutable_Execute_Args* args) {
  return args->executable->port == PW_EXPORTS ? export_arrays(args) : import_arrays(args);
}

int64_t* pw_keep_exported(pw_buffer** inputs, size_t n, size_t m, PJRT_ExecuteOptions* options) {
  bool any = false;
  for (size_t i = 0; i < n * m && !any; i++) any = atomic_load_explicit(&inputs[i]->exports, memory_order_relaxed) != 0;
  if (!any) return NULL;
  size_t k = options->num_non_donatable_input_indices;
  int64_t* list = malloc((k + m) * sizeof *list);
  if (k) memcpy(list, options->non_donatable_input_indices, k * sizeof *list);
  for (size_t i = 0; i < m; i++) {
    bool exported = false;
    for (size_t d = 0; d < n; d++) exported |= atomic_load_explicit(&inputs[d * m + i]->exports, memory_order_relaxed) != 0;
    if (exported) list[k++] = (int64_t)i;
  }
  options->non_donatable_input_indices = list;
  options->num_non_donatable_input_indices = k;
  return list;
}

// ---- moving ----

PJRT_Device* pw_device_numbered(PJRT_Client* c, int id) {
  if (id >= 0 && (size_t)id < c->num_addressable && c->addressable[id]->id == id) return c->addressable[id];
  for (size_t i = 0; i < c->num_addressable; i++)
    if (c->addressable[i]->id == id) return c->addressable[i];
  return NULL;
}

pw_moving* pw_moving_new(pw_held_array* from, uintptr_t go) {
  pw_moving* m = calloc(1, sizeof *m + from->n * sizeof *m->sources);
  PW_COUNT(runs, 1);
  m->from = from;
  atomic_fetch_add_explicit(&from->base.base.refs, 1, memory_order_relaxed);
  m->go = go;
  atomic_store_explicit(&m->left, 1, memory_order_relaxed);
  for (size_t i = 0; i < from->n; i++) m->sources[i].moving = m;
  return m;
}

void pw_moving_free(pw_moving* m) {
  for (size_t i = 0; i < m->from->n; i++) {
    free(m->sources[i].staged);
    free(m->sources[i].message);
  }
  pw_held_drop(&m->from->base);
  free(m);
  PW_COUNT(runs, -1);
}

// failed keeps the error that a source has instead of bytes.
static void failed(pw_source* s, PJRT_Error* err) {
  const char* message;
  size_t size;
  PJRT_Error_Code code;
  pw_error_read(err, &code, &message, &size);
  if (s->message == NULL) {
    s->code = (int)code;
    s->message = strndup(message, size);
  }
  pw_error_free(err);
}

static void source_ready(PJRT_Error* error, void* arg) {
  pw_source* s = arg;
  pw_moving* m = s->moving;
  if (error) failed(s, pw_origin_error(error, m->from->shards[s - m->sources]));
  if (atomic_fetch_sub_explicit(&m->left, 1, memory_order_acq_rel) == 1) pwGoMove(m->go);
}

// in_place reports whether the host can read a shard where it is, as dense
// row-major elements.
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
  a.dst = s->staged = malloc(size + 1);
  a.dst_size = size;
  PJRT_Error* err = pw_under->PJRT_Buffer_ToHostBuffer(&a);
  *event = a.event;
  return err;
}

void pw_moving_watch(pw_moving* m, size_t i) {
  pw_source* s = &m->sources[i];
  pw_buffer* b = m->from->shards[i];
  PJRT_Event* event = NULL;
  PJRT_Error* err = pw_unmade(b);
  if (err == NULL) err = in_place(b) ? pw_ready(b, &event) : stage(s, b, &event);
  if (err) {
    failed(s, pw_origin_error(err, b));
    return;
  }
  PW_ARGS(PJRT_Event_IsReady_Args, is);
  is.event = event;
  err = pw_under->PJRT_Event_IsReady(&is);
  if (err == NULL && is.is_ready) {
    PW_ARGS(PJRT_Event_Error_Args, why);
    why.event = event;
    if ((err = pw_under->PJRT_Event_Error(&why))) failed(s, pw_origin_error(err, b));
  } else {
    if (err) pw_error_free(err);
    atomic_fetch_add_explicit(&m->left, 1, memory_order_relaxed);
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = event;
    on.callback = source_ready;
    on.user_arg = s;
    if ((err = pw_under->PJRT_Event_OnReady(&on))) source_ready(err, s);
  }
  pw_destroy_event(event);
}

bool pw_moving_ready(pw_moving* m) { return atomic_load_explicit(&m->left, memory_order_acquire) == 1; }

bool pw_moving_armed(pw_moving* m) { return atomic_fetch_sub_explicit(&m->left, 1, memory_order_acq_rel) == 1; }

const char* pw_moving_bytes(pw_moving* m, size_t i) {
  pw_source* s = &m->sources[i];
  if (s->message) return NULL;
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

uint64_t pw_held_gang(const pw_held_array* h, bool* several) {
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
  *message = strndup(text, size);
  pw_error_free(err);
  return code ? (int)code : (int)PJRT_Error_Code_UNKNOWN;
}

pw_held_array* pw_moved_new(PJRT_Client* c, const int32_t* devices, size_t n, pw_shape* shape, const char* kind,
                            pw_array* array) {
  pw_held_array* h = pw_held_new(c, n, true);
  pw_buffers_new(h->shards, n);
  atomic_fetch_add_explicit(&shape->refs, (int32_t)n, memory_order_relaxed);
  for (size_t i = 0; i < n; i++) {
    pw_buffer* b = h->shards[i];
    b->device = pw_device_numbered(c, devices[i]);
    b->memory = *kind ? pw_memory_kind(b->device, kind, strlen(kind)) : b->device->default_memory;
    b->under = NULL;
    b->shape = shape;
    b->array = array;
    pw_buffer_count(b, pw_shape_bytes(shape));
  }
  return h;
}

int pw_moved_promise(pw_buffer* b, void** fulfil, char** message) {
  size_t n = b->shape->num_dims;
  int64_t order[n + 1];
  PJRT_Error* err = pw_promise_new(b->device->client, b->memory, b->shape, pw_descending(order, n), &b->under, fulfil);
  b->promise = err == NULL;
  return take(err, message);
}

static void let_go(PJRT_Error* error, void* data) {
  if (error) pw_error_free(error);
  free(data);
}

void* pw_moved_memory(size_t bytes) { return aligned_alloc(64, (bytes + 64) / 64 * 64); }

int pw_moved_put(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape, void* data, void* fulfil, pw_buffer* to,
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
  if ((err = pw_under->PJRT_Event_OnReady(&on))) let_go(err, NULL);  // nobody knows when: it stays
  pw_destroy_event(a.done_with_host_buffer);
  if (fulfil == NULL) {
    to->under = a.buffer;
    return 0;
  }
  if ((err = pw_fulfil(c, fulfil, a.buffer))) pw_error_free(err);
  pw_destroy_buffer(a.buffer);
  return 0;
}

void pw_moved_fail(PJRT_Client* c, PJRT_Memory* memory, const pw_shape* shape, void* fulfil, int code,
                   const char* message) {
  int64_t order[shape->num_dims + 1];
  pw_fulfil_error(c, fulfil, memory, shape, pw_descending(order, shape->num_dims), (PJRT_Error_Code)code, message,
                  strlen(message));
}

void pw_moved_settled(pw_array* a) {
  atomic_store_explicit(&a->gang, 0, memory_order_release);
  atomic_store_explicit(&a->moving, false, memory_order_release);
  pw_array_drop(a);
}

void pw_moved_begun(pw_array* a, pw_held_array* from, uint64_t gang) {
  for (size_t i = 0; i < from->n; i++) pw_origin_pass(from->shards[i], a);
  atomic_fetch_add_explicit(&a->live, 1, memory_order_relaxed);  // the mover's own share, given up in settled
  atomic_store_explicit(&a->gang, gang, memory_order_relaxed);
  atomic_store_explicit(&a->moving, true, memory_order_release);
}
