// Runs that wait for their turn. Their results are handed out at once, as buffers
// that the plugin fulfils when the run was launched; where that cannot be, the call
// waits.
#include <stdlib.h>

#include "_cgo_export.h"
#include "run.h"

struct pw_run {
  PJRT_LoadedExecutable* executable;
  PJRT_Device* only;
  size_t num_devices, num_args, num_outputs;
  PJRT_ExecuteOptions options;
  int64_t* fixed;  // copy of the arguments that may not be donated
  char location[PW_LOCATION];  // of the call
  pw_buffer** inputs;
  PJRT_Buffer** flat;      // the plugin's buffers, device by device
  PJRT_Buffer*** promises;  // what was handed out, [device][output], the plugin's
  void*** fulfil;
  pw_array** arrays;  // by output
  pw_moved* moves;
};

// home returns the memory of one of a run's results.
static PJRT_Memory* home(const PJRT_LoadedExecutable* e, PJRT_Device* only, size_t device, size_t output) {
  const pw_output* o = &e->outputs[output];
  return only ? pw_memory_kind(only, o->kind, o->kind_size) : e->memories[device * e->num_outputs + output];
}

// fail_promise fails what was handed out for one result.
static void fail_promise(pw_run* r, size_t device, size_t output, PJRT_Error_Code code, const char* message,
                         size_t size) {
  const PJRT_LoadedExecutable* e = r->executable;
  pw_fulfil_error(e->client, r->fulfil[device][output], home(e, r->only, device, output), e->outputs[output].shape,
                  e->outputs[output].minor_to_major, code, message, size);
}

static void run_free(pw_run* r) {
  for (size_t i = 0; i < r->num_devices * r->num_args; i++) pw_buffer_unpin(r->inputs[i]);
  pw_moves_free(r->moves);
  pw_context_drop(r->options.context);
  pw_loaded_drop(r->executable);
  free(r->fixed);
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
  return o->extension_start == NULL && o->num_send_ops == 0 && o->num_recv_ops == 0 && o->num_tasks == 0 &&
         o->multi_slice_config == NULL && o->num_hlo_output_callbacks == 0;
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
    if (a.is_deleted) return pw_gone(i / r->num_args, i % r->num_args, r->executable->name, r->inputs[i]);
  }
  return NULL;
}

static void* copy(const void* from, size_t size) {
  void* to = malloc(size ? size : 1);
  if (size) memcpy(to, from, size);
  return to;
}

// take_over has the arrays dead that a run will take over in its turn.
static void take_over(pw_run* r) {
  const PJRT_LoadedExecutable* e = r->executable;
  for (size_t k = 0; e->donates && k < e->num_donated; k++) {
    size_t i = (size_t)e->donated[k];
    bool stays = i >= r->num_args;
    for (size_t f = 0; f < r->options.num_non_donatable_input_indices; f++) stays = stays || r->fixed[f] == e->donated[k];
    for (size_t d = 0; !stays && d < r->num_devices; d++) {
      pw_buffer* b = r->inputs[d * r->num_args + i];
      if (r->flat[d * r->num_args + i] == b->under)  // not where it is a copy, on the run's device
        if (!(atomic_fetch_or_explicit(&b->pins, PW_DELETED, memory_order_acq_rel) & PW_DELETED)) pw_buffer_uncount(b);
    }
  }
}

// adopt makes a run the origin of its results and of the events that are handed out.
static void adopt(pw_run* r, PJRT_Buffer** const* results, PJRT_Event** done) {
  pw_origin* origin =
      pw_origin_new(r->executable, r->location, NULL, r->inputs, r->num_devices * r->num_args, results, r->num_devices);
  for (size_t o = 0; origin && o < r->num_outputs; o++) pw_origin_set(r->arrays[o], origin);
  for (size_t d = 0; done && d < r->num_devices; d++) pw_origin_track(done[d], origin);
  pw_origin_drop(origin);
}

PJRT_Error* pw_queue(PJRT_LoadedExecutable_Execute_Args* args, PJRT_Device* only, pw_buffer** inputs,
                     PJRT_Buffer** flat, pw_moved** moves, pw_turn* turn, pw_array** arrays) {
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
  r->options = *args->options;
  r->fixed = copy(r->options.non_donatable_input_indices, r->options.num_non_donatable_input_indices * sizeof(int64_t));
  r->options.non_donatable_input_indices = r->fixed;
  r->options.call_location = NULL;  // the caller's text ends with the call
  pw_context_hold(r->options.context);
  pw_location(args->options, r->location, sizeof r->location);
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
        if ((err = pw_promise_new(c, home(e, only, d, o), e->outputs[o].shape, e->outputs[o].minor_to_major, &r->promises[d][o],
                                  &r->fulfil[d][o])))
          promises = false;
      }
    }
  }
  if (!promises) {
    // What was made so far cannot be taken back but by failing it.
    for (size_t i = 0; r->fulfil && i < n * outs; i++)
      if (r->fulfil[0][i]) {
        fail_promise(r, i / outs, i % outs, PJRT_Error_Code_CANCELLED, "not used", 8);
        pw_destroy_buffer(r->promises[0][i]);
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
        pw_watch(turn->session, turn->gang, NULL, done, n);
      }
      if (done != args->device_complete_events) {
        for (size_t d = 0; err == NULL && d < n; d++) pw_destroy_event(done[d]);
        free(done);
      }
      if (err == NULL) {
        adopt(r, args->output_lists, args->device_complete_events);
        if (e->donates) pw_donated(inputs, n * m);
        pw_wrap(e, only, args->output_lists, n, arrays, false);
      }
    }
    if (err) {
      err = pw_located(err, e, r->location, inputs, n * m);
      if (e->donates) pw_donated(inputs, n * m);
    }
    for (size_t o = 0; o < outs; o++)
      for (size_t d = 0; err && d < n; d++) pw_array_drop(arrays[o]);
    settle(r);
    return err;
  }

  // A promise is ready when its device has completed, so its event is that too.
  for (size_t d = 0; args->device_complete_events && d < n; d++) {
    PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
    ready.buffer = r->promises[d][0];
    if ((err = pw_under->PJRT_Buffer_ReadyEvent(&ready))) pw_error_free(err);
    args->device_complete_events[d] = ready.event;
  }
  take_over(r);
  for (size_t d = 0; d < n; d++)
    memcpy(args->output_lists[d], r->promises[d], outs * sizeof(PJRT_Buffer*));
  adopt(r, args->output_lists, args->device_complete_events);
  pw_wrap(e, only, args->output_lists, n, arrays, true);
  PW_COUNT(go_entries, 1);
  pwGoArm(turn->session, turn->gang, r);
  return NULL;
}

// fail ends a run without results: whoever waits for them gets the error.
static void fail(pw_run* r, PJRT_Error_Code code, const char* message, size_t size) {
  for (size_t d = 0; d < r->num_devices; d++)
    for (size_t o = 0; o < r->num_outputs; o++) fail_promise(r, d, o, code, message, size);
  settle(r);
}

void pw_run_fail(pw_run* r, PJRT_Error_Code code, const char* message) {
  PJRT_Error* err = pw_located(pw_error(code, "%s", message), r->executable, r->location, NULL, 0);
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
    err = pw_located(err, e, r->location, r->inputs, n * m);
    pw_error_read(err, &code, &message, &size);
    fail(r, code, message, size);
    pw_error_free(err);
  } else {
    pw_watch(e->session, gang, NULL, done, n);
    if (begin) pw_trace_run(e, gang, r->only ? &r->only : e->devices, n, begin, pw_now(), done);
    for (size_t i = 0; i < n * outs; i++) {
      PJRT_Error* late = pw_fulfil(e->client, r->fulfil[0][i], result[i]);
      if (late) pw_error_free(late);
      pw_destroy_buffer(result[i]);
    }
    for (size_t d = 0; d < n; d++) pw_destroy_event(done[d]);
    settle(r);
  }
  free(done);
  free(result);
  free(results);
  free(rows);
  return under_way;
}
