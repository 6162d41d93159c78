// One run. The core is asked once for its turn; when the turn is free, the
// plugin is called on this thread with no Go frame around it. When it is not,
// the results are handed out at once as buffers that the plugin fulfils later,
// and the core's launcher starts the run in its turn.
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "door.h"
#include "ffi.h"

enum { kOnStack = 512 };  // pointers; larger runs take their lists from the heap

// A buffer that was brought to the device that needs it.
typedef struct moved {
  struct moved* next;
  PJRT_Buffer* buffer;
} moved;

struct pw_run {
  PJRT_LoadedExecutable* executable;
  PJRT_Device* only;
  size_t num_devices, num_args, num_outputs;
  PJRT_ExecuteOptions options;
  int64_t* fixed;  // copy of the arguments that may not be donated
  char* location;  // copy of where the call was made
  pw_buffer** inputs;
  PJRT_Buffer** flat;      // the plugin's buffers, device by device
  PJRT_Buffer*** promises;  // what was handed out, [device][output], the plugin's
  void*** fulfil;
  pw_array** arrays;  // by output
  moved* moves;
};

static void destroy_buffer(PJRT_Buffer* b) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = b;
  PJRT_Error* err = pw_under->PJRT_Buffer_Destroy(&a);
  if (err) pw_error_free(err);
}

static void destroy_event(PJRT_Event* e) {
  PW_ARGS(PJRT_Event_Destroy_Args, a);
  a.event = e;
  PJRT_Error* err = pw_under->PJRT_Event_Destroy(&a);
  if (err) pw_error_free(err);
}

static void moves_free(moved* m) {
  while (m) {
    moved* next = m->next;
    destroy_buffer(m->buffer);
    free(m);
    m = next;
  }
}

// move brings an input to the device it is needed on: some clients hand over
// arguments as they lie, and the system moves them.
static PJRT_Error* move(pw_buffer* b, PJRT_Device* to, moved** list, PJRT_Buffer** out) {
  PW_ARGS(PJRT_Buffer_CopyToDevice_Args, a);
  a.buffer = b->under;
  a.dst_device = to->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_CopyToDevice(&a);
  if (err) return err;
  moved* m = malloc(sizeof *m);
  m->buffer = *out = a.dst_buffer;
  m->next = *list;
  *list = m;
  PW_COUNT(moved, 1);
  return NULL;
}

// Gangs that have yet to be launched to make inputs of a run.
typedef struct {
  uint64_t few[16];
  uint64_t* list;
  size_t num, room;
} gangs;

static void note(gangs* g, uint64_t gang) {
  for (size_t i = 0; i < g->num; i++)
    if (g->list[i] == gang) return;
  if (g->num == g->room) {
    uint64_t* more = malloc(2 * g->room * sizeof *more);
    memcpy(more, g->list, g->num * sizeof *more);
    if (g->list != g->few) free(g->list);
    g->list = more;
    g->room *= 2;
  }
  g->list[g->num++] = gang;
}

static PJRT_Error* gone(size_t device, size_t arg, const char* name, pw_buffer* b) {
  if (b == NULL)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "argument %zu of %s on device row %zu is a buffer that was destroyed before", arg, name, device);
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s on device row %zu has been deleted or donated; keep a copy of an array that is "
                  "needed after a call that donates it",
                  arg, name, device);
}

// same compares a shard with what the program takes. Tokens have no shape of
// their own; clients pass what they like.
static bool same(const pw_shape* a, const pw_shape* b) {
  if (b->type == PJRT_Buffer_Type_TOKEN) return true;
  return a->type == b->type && a->num_dims == b->num_dims &&
         memcmp(a->dims, b->dims, a->num_dims * sizeof *a->dims) == 0;
}

static PJRT_Error* mismatch(const PJRT_LoadedExecutable* e, size_t device, size_t arg, const pw_shape* shape) {
  char want[256], got[256];
  pw_shape_text(e->params[arg], want, sizeof want);
  pw_shape_text(shape, got, sizeof got);
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "argument %zu of %s on device row %zu is %s, and the program takes %s",
                  arg, e->name, device, got, want);
}

// donated tells the store of inputs whose bytes the run has taken over.
static void donated(pw_buffer** inputs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    PW_ARGS(PJRT_Buffer_IsDeleted_Args, a);
    a.buffer = inputs[i]->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_IsDeleted(&a);
    if (err) pw_error_free(err);
    else if (a.is_deleted) pw_buffer_release(inputs[i]);
  }
}

// wrap puts handles of ours in the place of the plugin's results.
static void wrap(PJRT_LoadedExecutable* e, PJRT_Device* only, PJRT_Buffer** const* lists, size_t n, pw_array** arrays,
                 bool promises) {
  size_t m = e->num_outputs;
  pw_buffer* some[32];
  pw_buffer** slots = n * m <= 32 ? some : malloc(n * m * sizeof *slots);
  pw_buffers_new(slots, n * m);
  for (size_t o = 0; o < m; o++) atomic_fetch_add_explicit(&e->outputs[o].shape->refs, (int32_t)n, memory_order_relaxed);
  for (size_t d = 0; d < n; d++)
    for (size_t o = 0; o < m; o++) {
      pw_buffer* b = slots[d * m + o];
      b->under = lists[d][o];
      b->device = only ? only : e->devices[d];
      b->memory = only ? pw_memory_kind(only, e->outputs[o].kind, e->outputs[o].kind_size) : e->memories[d * m + o];
      b->shape = e->outputs[o].shape;
      b->array = arrays[o];
      b->promise = promises;
      lists[d][o] = pw_buffer_handle(b);
    }
  if (slots != some) free(slots);
}

// located adds to an error where the user's program made the call, where the
// client of the door says so. The text before stays as it is.
static PJRT_Error* located(PJRT_Error* err, const PJRT_LoadedExecutable* e, const PJRT_ExecuteOptions* options) {
  const char* at = options && PW_COVERS(options, call_location) ? options->call_location : NULL;
  if (at == NULL || *at == 0) return err;
  char text[512];
  snprintf(text, sizeof text, " [%s, called at %.300s]", e->name, at);
  return pw_error_context(err, text);
}

// progress writes how far a gang is, and tells the core where it wants to know.
// After PW_DONE the cell is the core's.
static void progress(uint64_t session, pw_cell* cell, uint64_t gang, uint32_t bits) {
  if (cell == NULL) return;
  if (atomic_fetch_or_explicit(&cell->state, bits, memory_order_acq_rel) & PW_WANTED) {
    PW_COUNT(reports, 1);
    pwGoReport(session, gang);
  }
}

// watch is a gang whose devices have yet to get through with it.
typedef struct {
  uint64_t session, gang;
  pw_cell* cell;  // NULL for a gang that had to wait
  _Atomic int32_t devices;
} watch;

static void one_done(PJRT_Error* error, void* user_arg) {
  watch* w = user_arg;
  if (error) pw_error_free(error);
  if (atomic_fetch_sub_explicit(&w->devices, 1, memory_order_acq_rel) != 1) return;
  if (w->cell) {
    progress(w->session, w->cell, w->gang, PW_DONE);
  } else {
    PW_COUNT(reports, 1);
    pwGoCompleted(w->session, w->gang);
  }
  free(w);
}

// watch_gang has the core learn when all devices are through with a gang.
static void watch_gang(uint64_t session, uint64_t gang, pw_cell* cell, PJRT_Event** done, size_t n) {
  watch* w = malloc(sizeof *w);
  *w = (watch){.session = session, .gang = gang, .cell = cell, .devices = (int32_t)n};
  for (size_t d = 0; d < n; d++) {
    PW_ARGS(PJRT_Event_OnReady_Args, on);
    on.event = done[d];
    on.callback = one_done;
    on.user_arg = w;
    PJRT_Error* err = pw_under->PJRT_Event_OnReady(&on);
    if (err) one_done(err, w);
  }
}

static PJRT_Error* queue(PJRT_LoadedExecutable_Execute_Args* args, PJRT_Device* only, pw_buffer** inputs,
                         PJRT_Buffer** flat, moved** moves, pw_turn* turn, pw_array** arrays);

PJRT_Error* pw_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_LoadedExecutable* e = args->executable;
  PJRT_Device* only = PW_COVERS(args, execute_device) ? args->execute_device : NULL;
  size_t n = args->num_devices, m = args->num_args, outs = e->num_outputs;
  if (n != (only ? 1 : e->num_devices))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and the call has arguments for %zu",
                    e->name, only ? 1 : e->num_devices, n);
  if (e->num_params >= 0 && m != (size_t)e->num_params)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes %lld arguments, and the call has %zu", e->name,
                    (long long)e->num_params, m);
  int64_t begin = atomic_load_explicit(&pw_tracing, memory_order_relaxed) ? pw_now() : 0;

  bool heap = 2 * n * m + n > kOnStack;
  void** list = heap ? malloc((2 * n * m + n + 1) * sizeof(void*)) : alloca((2 * n * m + n + 1) * sizeof(void*));
  pw_buffer** inputs = (pw_buffer**)list;
  PJRT_Buffer** flat = (PJRT_Buffer**)list + n * m;
  PJRT_Buffer* const** rows = (PJRT_Buffer* const**)list + 2 * n * m;
  gangs after = {.list = after.few, .room = sizeof after.few / sizeof *after.few};
  gangs reads = {.list = reads.few, .room = sizeof reads.few / sizeof *reads.few};
  moved* moves = NULL;
  PJRT_Error* err = NULL;
  pw_array* few[16];
  pw_array** arrays = outs <= 16 ? few : malloc(outs * sizeof *arrays);
  uint64_t some[16];
  uint64_t* objects = outs <= 16 ? some : malloc(outs * sizeof *objects);

  for (size_t d = 0; d < n; d++) {
    PJRT_Device* device = only ? only : e->devices[d];
    rows[d] = flat + d * m;
    for (size_t i = 0; i < m; i++) {
      pw_buffer* b = pw_buffer_of(args->argument_lists[d][i]);
      if (b && b->device->client != e->client) {
        err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                       "argument %zu of %s is a buffer of another client; copy it through the host", i, e->name);
        goto out;
      }
      if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire)) {
        err = gone(d, i, e->name, b);
        goto out;
      }
      if (e->num_params >= 0 && !same(b->shape, e->params[i])) {
        err = mismatch(e, d, i, b->shape);
        goto out;
      }
      inputs[d * m + i] = b;
      flat[d * m + i] = b->under;
      uint64_t gang = atomic_load_explicit(&b->array->gang, memory_order_acquire);
      if (gang) note(&after, gang);
      if (b->device != device && (err = move(b, device, &moves, &flat[d * m + i]))) goto out;
    }
  }

  // What every device reads of one array, each its own shard.
  for (size_t i = 0; n > 1 && i < m; i++) {
    pw_array* array = inputs[i]->array;
    bool all = array->maker != 0;
    for (size_t d = 1; all && d < n; d++) all = inputs[d * m + i]->array == array;
    if (all) note(&reads, array->maker);
  }

  pw_object freed[PW_FREED];
  pw_turn turn = {.program = e->program,
                  .session = e->session,
                  .freed = freed,
                  .num_freed = pw_freed(freed, PW_FREED, false),
                  .after = after.list,
                  .num_after = after.num,
                  .reads = reads.list,
                  .num_reads = reads.num,
                  .only = only ? only->index : -1,
                  .nested = pw_ffi_in_callback() > 0,
                  .objects = objects,
                  .num_objects = outs};
  PW_COUNT(go_entries, 1);
  PW_COUNT(executes, 1);
  pwGoEnter(&turn);
  if (turn.verdict > 0) {
    err = located(pw_error_take((PJRT_Error_Code)turn.verdict, turn.message), e, args->options);
    goto out;
  }
  // A computation whose shards do not wait comes after what it reads, and so do
  // its results.
  uint64_t maker = e->collective ? turn.gang : 0;
  for (size_t i = 0; !e->collective && i < reads.num; i++) maker = reads.list[i] > maker ? reads.list[i] : maker;
  for (size_t o = 0; o < outs; o++) {
    arrays[o] = pw_array_new(e->session, objects[o], (int32_t)n);
    arrays[o]->maker = n > 1 ? maker : 0;
  }

  // A host callback without a context would end the process inside the plugin;
  // with an empty one it is an error.
  PW_COPY(PJRT_LoadedExecutable_Execute_Args, a, args);
  PJRT_ExecuteOptions with_context;
  if (e->calls_back && (a.options == NULL || (PW_COVERS(a.options, context) && a.options->context == NULL))) {
    memset(&with_context, 0, sizeof with_context);
    with_context.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
    if (a.options) {
      PW_COPY(PJRT_ExecuteOptions, o, a.options);
      with_context = o;
    }
    with_context.context = pw_context_empty();
    a.options = &with_context;
  }

  if (turn.verdict == PW_QUEUED) {
    PW_COUNT(queued, 1);
    err = queue(&a, only, inputs, flat, &moves, &turn, arrays);
    goto out;
  }

  a.executable = e->under;
  a.argument_lists = rows;
  if (only) a.execute_device = only->under;
  // Somebody may wait for a gang of several devices, so its end is watched.
  PJRT_Event** done = args->device_complete_events;
  if (turn.cell && done == NULL) a.device_complete_events = done = calloc(n, sizeof *done);
  err = pw_under->PJRT_LoadedExecutable_Execute(&a);
  progress(e->session, turn.cell, turn.gang, err ? PW_LAUNCHED | PW_DONE : PW_LAUNCHED);
  if (turn.cell && err == NULL) watch_gang(e->session, turn.gang, turn.cell, done, n);
  if (err) {
    err = located(err, e, args->options);
    for (size_t o = 0; o < outs; o++)
      for (size_t d = 0; d < n; d++) pw_array_drop(arrays[o]);
  } else {
    wrap(e, only, args->output_lists, n, arrays, false);
    if (begin)
      pw_trace_run(e, turn.gang, only ? &only : e->devices, n, begin, pw_now(), done);
  }
  if (done != args->device_complete_events) {
    for (size_t d = 0; err == NULL && d < n; d++) destroy_event(done[d]);
    free(done);
  }
  if (e->donates) donated(inputs, n * m);
out:
  moves_free(moves);
  if (after.list != after.few) free(after.list);
  if (reads.list != reads.few) free(reads.list);
  if (arrays != few) free(arrays);
  if (objects != some) free(objects);
  if (heap) free(list);
  return err;
}

// ---- runs that wait for their turn ----

static PJRT_Error* promise_new(PJRT_Client* c, PJRT_Memory* memory, const pw_output* o, PJRT_Buffer** buffer,
                               void** fulfil) {
  PW_ARGS(PJRT_Buffer_MemoryLayout, layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = o->minor_to_major;
  layout.tiled.minor_to_major_size = o->shape->num_dims;
  PW_ARGS(PJRT_Client_CreateAliasBuffer_Args, a);
  a.client = c->under;
  a.memory = pw_lower_memory(memory);
  a.shape_dims = o->shape->dims;
  a.shape_num_dims = o->shape->num_dims;
  a.shape_element_type = o->shape->type;
  a.shape_layout = &layout;
  PJRT_Error* err = pw_under->PJRT_Client_CreateAliasBuffer(&a);
  *buffer = a.alias_buffer;
  *fulfil = a.fulfill_alias_buffer_cb;
  return err;
}

static PJRT_Error* fulfil(PJRT_Client* c, void* callback, PJRT_Buffer* buffer,
                          PJRT_Error_Code code, const char* message, size_t size) {
  PW_ARGS(PJRT_Client_FulfillAliasBuffer_Args, a);
  a.client = c->under;
  a.buffer = buffer;
  a.status_code = code;
  a.error_message = message;
  a.error_message_size = size;
  a.fulfill_alias_buffer_cb = callback;
  return pw_under->PJRT_Client_FulfillAliasBuffer(&a);
}

static void run_free(pw_run* r) {
  for (size_t i = 0; i < r->num_devices * r->num_args; i++) pw_buffer_unpin(r->inputs[i]);
  moves_free(r->moves);
  pw_context_drop(r->options.context);
  pw_loaded_drop(r->executable);
  free(r->fixed);
  free(r->location);
  free(r->inputs);
  free(r->flat);
  if (r->promises) {
    free(r->promises[0]);
    free(r->promises);
    free(r->fulfil[0]);
    free(r->fulfil);
  }
  free(r->arrays);
  free(r);
  PW_COUNT(runs, -1);
}

// settle ends a run: its results no longer wait for it.
static void settle(pw_run* r) {
  for (size_t o = 0; o < r->num_outputs; o++) {
    atomic_store_explicit(&r->arrays[o]->gang, 0, memory_order_release);
    pw_array_drop(r->arrays[o]);
  }
  run_free(r);
}

// can_promise says whether a run can be put off: its results can stand for it, and
// its options outlive the call.
static bool can_promise(const PJRT_LoadedExecutable* e, const PJRT_ExecuteOptions* o) {
  if (!e->promises || !PW_HAS(PJRT_Client_CreateAliasBuffer) || !PW_HAS(PJRT_Client_FulfillAliasBuffer)) return false;
  if (o == NULL) return true;
  return o->extension_start == NULL && o->num_send_ops == 0 && o->num_recv_ops == 0 &&
         !(PW_COVERS(o, num_tasks) && o->num_tasks) && !(PW_COVERS(o, multi_slice_config) && o->multi_slice_config) &&
         !(PW_COVERS(o, num_hlo_output_callbacks) && o->num_hlo_output_callbacks);
}

// wait_turn is for runs that cannot be put off: the call waits for its turn and
// launches itself.
static PJRT_Error* wait_turn(pw_turn* turn) {
  char* message = NULL;
  PW_COUNT(go_entries, 1);
  int code = pwGoAwait(turn->session, turn->gang, &message);
  return code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message);
}

// spent finds an input whose bytes another run has taken since this one was put
// off. The plugin is not asked to run with it: it gives up on one device while the
// others go on with what the call has left behind.
static PJRT_Error* spent(const pw_run* r) {
  for (size_t i = 0; i < r->num_devices * r->num_args; i++) {
    PW_ARGS(PJRT_Buffer_IsDeleted_Args, a);
    a.buffer = r->inputs[i]->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_IsDeleted(&a);
    if (err) return err;
    if (a.is_deleted) return gone(i / r->num_args, i % r->num_args, r->executable->name, r->inputs[i]);
  }
  return NULL;
}

static void* copy(const void* from, size_t size) {
  void* to = malloc(size ? size : 1);
  if (size) memcpy(to, from, size);
  return to;
}

static PJRT_Error* queue(PJRT_LoadedExecutable_Execute_Args* args, PJRT_Device* only, pw_buffer** inputs,
                         PJRT_Buffer** flat, moved** moves, pw_turn* turn, pw_array** arrays) {
  PJRT_LoadedExecutable* e = args->executable;
  PJRT_Client* c = e->client;
  size_t n = args->num_devices, m = args->num_args, outs = e->num_outputs;
  PJRT_Error* err = NULL;

  pw_run* r = calloc(1, sizeof *r);
  PW_COUNT(runs, 1);
  r->executable = e;
  atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
  r->only = only;
  r->num_devices = n;
  r->num_args = m;
  r->num_outputs = outs;
  r->options.struct_size = sizeof r->options;
  if (args->options) {
    size_t size = args->options->struct_size < sizeof r->options ? args->options->struct_size : sizeof r->options;
    memcpy(&r->options, args->options, size);
    r->options.struct_size = size;
    size_t k = r->options.num_non_donatable_input_indices;
    r->fixed = copy(r->options.non_donatable_input_indices, k * sizeof(int64_t));
    r->options.non_donatable_input_indices = r->fixed;
    if (PW_COVERS(args->options, call_location) && args->options->call_location)
      r->options.call_location = r->location = strdup(args->options->call_location);
    pw_context_hold(r->options.context);
  }
  r->inputs = copy(inputs, n * m * sizeof *inputs);
  r->flat = copy(flat, n * m * sizeof *flat);
  r->arrays = copy(arrays, outs * sizeof *arrays);
  r->moves = *moves;
  *moves = NULL;
  for (size_t i = 0; i < n * m; i++) {
    atomic_fetch_add_explicit(&inputs[i]->pins, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&inputs[i]->refs, 1, memory_order_relaxed);
  }
  for (size_t o = 0; o < outs; o++) {
    atomic_fetch_add_explicit(&arrays[o]->live, 1, memory_order_relaxed);  // the run's own share, given up in settle
    atomic_store_explicit(&arrays[o]->gang, turn->gang, memory_order_release);
  }

  bool promises = can_promise(e, args->options);
  if (promises) {
    r->promises = calloc(n, sizeof *r->promises);
    r->fulfil = calloc(n, sizeof *r->fulfil);
    r->promises[0] = calloc(n * outs, sizeof **r->promises);
    r->fulfil[0] = calloc(n * outs, sizeof **r->fulfil);
    for (size_t d = 0; d < n; d++) {
      r->promises[d] = r->promises[0] + d * outs;
      r->fulfil[d] = r->fulfil[0] + d * outs;
      for (size_t o = 0; o < outs && promises; o++) {
        PJRT_Memory* memory = only ? pw_memory_kind(only, e->outputs[o].kind, e->outputs[o].kind_size)
                                   : e->memories[d * outs + o];
        if ((err = promise_new(c, memory, &e->outputs[o], &r->promises[d][o], &r->fulfil[d][o]))) promises = false;
      }
    }
  }
  if (!promises) {
    // What was made so far cannot be taken back but by failing it.
    for (size_t i = 0; r->fulfil && i < n * outs; i++)
      if (r->fulfil[0][i]) {
        PJRT_Error* ignored = fulfil(c, r->fulfil[0][i], NULL, PJRT_Error_Code_CANCELLED, "not used", 8);
        if (ignored) pw_error_free(ignored);
        destroy_buffer(r->promises[0][i]);
        r->fulfil[0][i] = NULL;
      }
    if (err) pw_error_free(err);
    err = wait_turn(turn);
    if (err == NULL) {
      PJRT_Buffer* const** rows = malloc((n + 1) * sizeof *rows);
      for (size_t d = 0; d < n; d++) rows[d] = r->flat + d * m;
      PW_COPY(PJRT_LoadedExecutable_Execute_Args, a, args);
      a.executable = e->under;
      a.argument_lists = rows;
      if (only) a.execute_device = only->under;
      PJRT_Event** done = args->device_complete_events;
      if (done == NULL) a.device_complete_events = done = calloc(n, sizeof *done);
      err = spent(r);
      if (err == NULL) err = pw_under->PJRT_LoadedExecutable_Execute(&a);
      free(rows);
      PW_COUNT(go_entries, 1);
      if (err) {
        pwGoCompleted(turn->session, turn->gang);
      } else {
        pwGoLaunched(turn->session, turn->gang);
        watch_gang(turn->session, turn->gang, NULL, done, n);
      }
      if (done != args->device_complete_events) {
        for (size_t d = 0; err == NULL && d < n; d++) destroy_event(done[d]);
        free(done);
      }
      if (err == NULL) wrap(e, only, args->output_lists, n, arrays, false);
    }
    if (e->donates) donated(inputs, n * m);
    for (size_t o = 0; o < outs; o++)
      for (size_t d = 0; err && d < n; d++) pw_array_drop(arrays[o]);
    settle(r);
    return err ? located(err, e, args->options) : NULL;
  }

  // A promise is ready when its device has completed, so its event is that too.
  for (size_t d = 0; args->device_complete_events && d < n; d++) {
    PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
    ready.buffer = r->promises[d][0];
    if ((err = pw_under->PJRT_Buffer_ReadyEvent(&ready))) pw_error_free(err);
    args->device_complete_events[d] = ready.event;
  }
  for (size_t d = 0; d < n; d++)
    memcpy(args->output_lists[d], r->promises[d], outs * sizeof(PJRT_Buffer*));
  wrap(e, only, args->output_lists, n, arrays, true);
  PW_COUNT(go_entries, 1);
  pwGoArm(turn->session, turn->gang, r);
  return NULL;
}

// fail ends a run without results: whoever waits for them gets the error.
static void fail(pw_run* r, PJRT_Error_Code code, const char* message, size_t size) {
  PJRT_Client* c = r->executable->client;
  for (size_t i = 0; i < r->num_devices * r->num_outputs; i++) {
    PJRT_Error* err = fulfil(c, r->fulfil[0][i], NULL, code, message, size);
    if (err) pw_error_free(err);
  }
  settle(r);
}

void pw_run_fail(pw_run* r, PJRT_Error_Code code, const char* message) {
  PJRT_Error* err = located(pw_error(code, "%s", message), r->executable, &r->options);
  size_t size;
  pw_error_read(err, &code, &message, &size);
  fail(r, code, message, size);
  pw_error_free(err);
}

bool pw_run_launch(pw_run* r, uint64_t gang) {
  PJRT_LoadedExecutable* e = r->executable;
  size_t n = r->num_devices, m = r->num_args, outs = r->num_outputs;
  int64_t begin = atomic_load_explicit(&pw_tracing, memory_order_relaxed) ? pw_now() : 0;
  PJRT_Buffer* const** rows = malloc(n * sizeof *rows);
  PJRT_Buffer*** results = malloc(n * sizeof *results);
  PJRT_Buffer** result = calloc(n * outs, sizeof *result);
  PJRT_Event** done = calloc(n, sizeof *done);
  for (size_t d = 0; d < n; d++) {
    rows[d] = r->flat + d * m;
    results[d] = result + d * outs;
  }
  PW_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
  a.executable = e->under;
  a.options = &r->options;
  a.argument_lists = rows;
  a.num_devices = n;
  a.num_args = m;
  a.output_lists = results;
  a.device_complete_events = done;
  a.execute_device = pw_lower_device(r->only);
  PJRT_Error* err = spent(r);
  if (err == NULL) err = pw_under->PJRT_LoadedExecutable_Execute(&a);
  bool under_way = err == NULL;
  if (err) {
    PJRT_Error_Code code;
    const char* message;
    size_t size;
    err = located(err, e, &r->options);
    pw_error_read(err, &code, &message, &size);
    fail(r, code, message, size);
    pw_error_free(err);
  } else {
    watch_gang(e->session, gang, NULL, done, n);
    if (begin) pw_trace_run(e, gang, r->only ? &r->only : e->devices, n, begin, pw_now(), done);
    for (size_t i = 0; i < n * outs; i++) {
      PJRT_Error* late = fulfil(e->client, r->fulfil[0][i], result[i], PJRT_Error_Code_OK, NULL, 0);
      if (late) pw_error_free(late);
      destroy_buffer(result[i]);
    }
    for (size_t d = 0; d < n; d++) destroy_event(done[d]);
    settle(r);
  }
  free(done);
  free(result);
  free(results);
  free(rows);
  return under_way;
}
