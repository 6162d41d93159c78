// One run. The core is asked once for its turn; when the turn is free, the
// plugin is called on this thread with no Go frame around it. When it is not,
// the results are handed out at once as buffers that the plugin fulfils later,
// and the core's launcher starts the run in its turn.
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "ffi.h"
#include "run.h"

enum { kOnStack = 512 };  // pointers; larger runs take their lists from the heap

void pw_destroy_buffer(PJRT_Buffer* b) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = b;
  PJRT_Error* err = pw_under->PJRT_Buffer_Destroy(&a);
  if (err) pw_error_free(err);
}

void pw_destroy_event(PJRT_Event* e) {
  PW_ARGS(PJRT_Event_Destroy_Args, a);
  a.event = e;
  PJRT_Error* err = pw_under->PJRT_Event_Destroy(&a);
  if (err) pw_error_free(err);
}

void pw_moves_free(pw_moved* m) {
  while (m) {
    pw_moved* next = m->next;
    pw_destroy_buffer(m->buffer);
    free(m);
    m = next;
  }
}

// move brings an input to the device it is needed on: some clients hand over
// arguments as they lie, and the system moves them.
static PJRT_Error* move(pw_buffer* b, PJRT_Device* to, pw_moved** list, PJRT_Buffer** out) {
  PW_ARGS(PJRT_Buffer_CopyToDevice_Args, a);
  a.buffer = b->under;
  a.dst_device = to->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_CopyToDevice(&a);
  if (err) return err;
  pw_moved* m = malloc(sizeof *m);
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

void pw_donated(pw_buffer** inputs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    PW_ARGS(PJRT_Buffer_IsDeleted_Args, a);
    a.buffer = inputs[i]->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_IsDeleted(&a);
    if (err) pw_error_free(err);
    else if (a.is_deleted) pw_buffer_release(inputs[i]);
  }
}

void pw_wrap(PJRT_LoadedExecutable* e, PJRT_Device* only, PJRT_Buffer** const* lists, size_t n, pw_array** arrays,
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
      pw_buffer_count(b, e->outputs[o].bytes);
      lists[d][o] = pw_buffer_handle(b);
    }
  if (slots != some) free(slots);
}

void pw_place_text(char* text, size_t size, const PJRT_LoadedExecutable* e, const char* location) {
  if (*location) snprintf(text, size, " [%.200s, called at %.300s]", e->name, location);
}

PJRT_Error* pw_located(PJRT_Error* err, const PJRT_LoadedExecutable* e, const char* location, pw_buffer* const* inputs,
                       size_t num_inputs) {
  if (pw_origin_explains(&err, inputs, num_inputs) || *location == 0) return err;
  char text[600];
  pw_place_text(text, sizeof text, e, location);
  return pw_error_context(err, text);
}

// here is pw_located for a call that is still on this thread.
static PJRT_Error* here(PJRT_Error* err, const PJRT_LoadedExecutable* e, const PJRT_ExecuteOptions* options,
                        pw_buffer* const* inputs, size_t num_inputs) {
  char text[PW_LOCATION] = "";
  pw_location(options, text, sizeof text);
  return pw_located(err, e, text, inputs, num_inputs);
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

static _Atomic uint64_t watches, watched;  // that have begun, and ended

bool pw_waiting(uint64_t* ended) {
  *ended = atomic_load(&watched);
  return atomic_load(&watches) != *ended;
}

static void one_done(PJRT_Error* error, void* user_arg) {
  watch* w = user_arg;
  if (error) pw_error_free(error);
  if (atomic_fetch_sub_explicit(&w->devices, 1, memory_order_acq_rel) != 1) return;
  atomic_fetch_add_explicit(&watched, 1, memory_order_relaxed);
  if (w->cell) {
    progress(w->session, w->cell, w->gang, PW_DONE);
  } else {
    PW_COUNT(reports, 1);
    pwGoCompleted(w->session, w->gang);
  }
  free(w);
}

void pw_watch(uint64_t session, uint64_t gang, pw_cell* cell, PJRT_Event** done, size_t n) {
  atomic_fetch_add_explicit(&watches, 1, memory_order_relaxed);
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

PJRT_Error* pw_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* callers) {
  if (pw_forked) return pw_forked_error();
  PW_COPY(PJRT_LoadedExecutable_Execute_Args, whole, callers);  // which gives its results by pointers
  PJRT_LoadedExecutable_Execute_Args* args = &whole;
  PJRT_LoadedExecutable* e = args->executable;
  PJRT_Device* only = args->execute_device;
  if (e->port != PW_RUNS) return pp_through(&pw_door, e->port, args);
  if (pp_capturing) return pp_execute(&pw_door, args);
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
  pw_moved* moves = NULL;
  bool inherits = false;  // what it reads may yet fail to be made
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
        err = pw_foreign(i, e->name);
        goto out;
      }
      if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire)) {
        err = pw_gone(d, i, e->name, b);
        goto out;
      }
      if (e->num_params >= 0 && !pw_fits(b->shape, e->params[i])) {
        err = pw_misfit(d, i, e->name, b->shape, e->params[i]);
        goto out;
      }
      if ((err = pw_unmade(b))) goto out;
      inputs[d * m + i] = b;
      flat[d * m + i] = b->under;
      uint64_t gang = atomic_load_explicit(&b->array->gang, memory_order_acquire);
      if (gang) note(&after, gang);
      inherits |= atomic_load_explicit(&b->array->origin, memory_order_relaxed) != NULL;
      if (b->device != device && (err = move(b, device, &moves, &flat[d * m + i]))) goto out;
    }
  }

  // Devices that have no failed input would wait in a collective for those that have.
  if (inherits && e->collective && (err = pw_origin_fault(inputs, n * m))) goto out;

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
    err = here(pw_error_take((PJRT_Error_Code)turn.verdict, turn.message), e, args->options, NULL, 0);
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

  PJRT_LoadedExecutable_Execute_Args a = whole;
  PW_ARGS(PJRT_ExecuteOptions, none);
  PW_COPY(PJRT_ExecuteOptions, options, args->options ? args->options : &none);
  a.options = &options;
  // A host callback without a context would end the process inside the plugin;
  // with an empty one it is an error.
  if (e->calls_back && options.context == NULL) options.context = pw_context_empty();
  int64_t* kept = e->donates ? pw_keep_exported(inputs, n, m, &options) : NULL;

  if (turn.verdict == PW_QUEUED) {
    PW_COUNT(queued, 1);
    err = pw_queue(&a, only, inputs, flat, &moves, &turn, arrays);
    free(kept);
    goto out;
  }

  a.executable = e->under;
  a.argument_lists = rows;
  if (only) a.execute_device = only->under;
  // Somebody may wait for a gang of several devices, or record, so its end is watched.
  PJRT_Event** done = args->device_complete_events;
  if ((turn.cell || begin) && done == NULL) a.device_complete_events = done = calloc(n, sizeof *done);
  err = pw_under->PJRT_LoadedExecutable_Execute(&a);
  progress(e->session, turn.cell, turn.gang, err ? PW_LAUNCHED | PW_DONE : PW_LAUNCHED);
  if (turn.cell && err == NULL) pw_watch(e->session, turn.gang, turn.cell, done, n);
  if (err) {
    err = here(err, e, args->options, inputs, n * m);
    for (size_t o = 0; o < outs; o++)
      for (size_t d = 0; d < n; d++) pw_array_drop(arrays[o]);
  } else {
    if (e->fails || inherits) {
      pw_origin* origin = pw_origin_new(e, NULL, args->options, inputs, n * m, args->output_lists, n);
      for (size_t o = 0; origin && o < outs; o++) pw_origin_set(arrays[o], origin);
      for (size_t d = 0; args->device_complete_events && d < n; d++) pw_origin_track(args->device_complete_events[d], origin);
      pw_origin_drop(origin);
    }
    if (e->donates) pw_donated(inputs, n * m);  // before their memory counts as that of results
    pw_wrap(e, only, args->output_lists, n, arrays, false);
    if (begin)
      pw_trace_run(e, turn.gang, only ? &only : e->devices, n, begin, pw_now(), done);
  }
  if (done != args->device_complete_events) {
    for (size_t d = 0; err == NULL && d < n; d++) pw_destroy_event(done[d]);
    free(done);
  }
  free(kept);
  if (err && e->donates) pw_donated(inputs, n * m);
out:
  pw_moves_free(moves);
  if (after.list != after.few) free(after.list);
  if (reads.list != reads.few) free(reads.list);
  if (arrays != few) free(arrays);
  if (objects != some) free(objects);
  if (heap) free(list);
  return err;
}
