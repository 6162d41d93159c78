// Runs that wait for their turn. Their results are handed out at once, as buffers that the plugin fulfills after the
// run is launched; if that is not possible, the call waits.
//
// run_new takes all that the run needs after its call has returned, or nothing: pins on its inputs, copies of them on
// the run's devices, and what launching allocates, so that launching cannot fail for want of memory. From pwGoArm on
// the run is the core's, which calls pw_run_launch or pw_run_fail, once. Each of them fulfills every promise, with
// contents or with an error, and then frees the run (settle): so no read waits for a run that has ended.
//
// An input that the run donates is dead for new calls from its call on (take_over), and pinned until it is launched.
// Its bytes may still go in between, since a run that was put off before may donate another handle of them: then
// check_inputs has the run fail instead of beginning.
#include <stdlib.h>

#include "_cgo_export.h"
#include "room.h"

struct pw_run {
  PJRT_LoadedExecutable* executable;
  PJRT_Device* only;
  size_t num_devices, num_args, num_outputs;
  PJRT_ExecuteOptions options;
  int64_t* fixed;  // copy of the list of arguments that may not be donated
  char location[PW_LOCATION];  // of the call
  pw_buffer** inputs;
  PJRT_Buffer** flat;      // the plugin's buffers, device by device
  PJRT_Buffer** promises;  // the plugin's buffers that were handed out, device by device
  void** fulfill;
  pw_array** arrays;  // by output
  pw_moved* moves;
  // What launching needs, allocated ahead so that it cannot fail for want of memory.
  void** launch;
  pw_watch* watch;
  pw_kept* kept;
};

// result_memory returns the memory of one of a run's results.
static PJRT_Memory* result_memory(const PJRT_LoadedExecutable* e, PJRT_Device* only, size_t device, size_t output) {
  const pw_output* o = &e->outputs[output];
  return only ? pw_memory_kind(only, o->kind, o->kind_size) : e->memories[device * e->num_outputs + output];
}

// fail_promise fails the promise of one result.
static void fail_promise(pw_run* r, size_t device, size_t output, PJRT_Error_Code code, const char* message,
                         size_t size) {
  const PJRT_LoadedExecutable* e = r->executable;
  pw_fulfill_error(e->client, r->fulfill[device * r->num_outputs + output], result_memory(e, r->only, device, output),
                  e->outputs[output].shape, e->outputs[output].minor_to_major, code, message, size);
}

static void run_free(pw_run* r) {
  for (size_t i = 0; i < r->num_devices * r->num_args; i++) pw_buffer_unpin(r->inputs[i]);
  pw_moves_free(r->moves);
  pw_kept_drop(r->kept);
  pw_context_drop(r->options.context);
  pw_loaded_drop(r->executable);
  free(r->fixed);
  free(r->inputs);
  free(r->flat);
  free(r->promises);
  free(r->fulfill);
  free(r->launch);
  pw_watch_free(r->watch);
  free(r->arrays);
  free(r);
  PW_COUNT(runs, -1);
}

// settle ends a run: its results no longer depend on it.
static void settle(pw_run* r) {
  for (size_t o = 0; o < r->num_outputs; o++) {
    atomic_store_explicit(&r->arrays[o]->gang, 0, memory_order_release);
    pw_array_drop(r->arrays[o]);
  }
  run_free(r);
}

// can_promise reports whether a run can be put off: its results can be promised, and its options outlive the call.
static bool can_promise(const PJRT_LoadedExecutable* e, const PJRT_ExecuteOptions* o) {
  if (!e->promises || !PW_HAS(PJRT_Client_CreateAliasBuffer) || !PW_HAS(PJRT_Client_FulfillAliasBuffer)) return false;
  return o->extension_start == NULL && o->num_send_ops == 0 && o->num_recv_ops == 0 && o->num_tasks == 0 &&
         o->multi_slice_config == NULL && o->num_hlo_output_callbacks == 0;
}

// wait_turn is for runs that cannot be put off: the call waits for its turn and then launches the run itself.
static PJRT_Error* wait_turn(const pw_turn* turn) {
  char* message = NULL;
  PW_COUNT(go_entries, 1);
  int code = pwGoAwait(turn->session, turn->gang, &message);
  return code == 0 ? NULL : pw_error_take((PJRT_Error_Code)code, message);
}

// check_inputs finds an input whose bytes another run has taken since this one was put off. The plugin must not run
// with such an input: it fails on one device while the others continue with memory of a call that has returned.
static PJRT_Error* check_inputs(const pw_run* r) {
  for (size_t i = 0; i < r->num_devices * r->num_args; i++) {
    PW_ARGS(PJRT_Buffer_IsDeleted_Args, a);
    a.buffer = r->inputs[i]->under;
    PJRT_Error* err = pw_under->PJRT_Buffer_IsDeleted(&a);
    if (err) return err;
    if (a.is_deleted) return pw_gone(i / r->num_args, i % r->num_args, r->executable->name, r->inputs[i]);
  }
  return NULL;
}

// take_over marks the arrays dead that a run will take over in its turn.
static void take_over(pw_run* r) {
  const PJRT_LoadedExecutable* e = r->executable;
  for (size_t k = 0; e->donates && k < e->num_donated; k++) {
    size_t i = (size_t)e->donated[k];
    if (i >= r->num_args || pw_is_fixed(&r->options, e->donated[k])) continue;
    for (size_t d = 0; d < r->num_devices; d++) {
      pw_buffer* b = r->inputs[d * r->num_args + i];
      if (r->flat[d * r->num_args + i] == b->under)  // not if it is a copy on the run's device
        if (!(atomic_fetch_or_explicit(&b->pins, PW_DELETED, memory_order_acq_rel) & PW_DELETED)) pw_buffer_uncount(b);
    }
  }
}

// adopt makes a run the provenance of its results and of the events that are handed out.
static void adopt(pw_run* r, PJRT_Buffer** const* results, PJRT_Event** done) {
  pw_provenance* provenance =
      pw_provenance_new(r->executable, r->location, NULL, r->inputs, r->num_devices * r->num_args, results,
                        r->num_devices, r->only);
  for (size_t o = 0; provenance && o < r->num_outputs; o++) pw_provenance_set(r->arrays[o], provenance);
  for (size_t d = 0; done && d < r->num_devices; d++)
    pw_provenance_track(done[d], provenance, pw_row_device(r->executable, r->only, d));
  pw_provenance_drop(provenance);
}

// copy_call copies what a run needs of its call after the call has returned. It returns false if memory is short.
static bool copy_call(pw_run* r, const pw_call* c) {
  size_t inputs = c->n * c->m, results = c->n * c->outs;
  size_t launch = 3 * c->n + results;  // rows, results by device, events; results
  return (r->fixed = pw_copy(r->options.non_donatable_input_indices,
                             r->options.num_non_donatable_input_indices * sizeof *r->fixed)) &&
         (r->inputs = pw_copy(c->inputs, inputs * sizeof *r->inputs)) &&
         (r->flat = pw_copy(c->flat, inputs * sizeof *r->flat)) &&
         (r->arrays = pw_copy(c->arrays, c->outs * sizeof *r->arrays)) &&
         (r->promises = pw_zeros(results, sizeof *r->promises)) &&
         (r->fulfill = pw_zeros(results, sizeof *r->fulfill)) &&
         (r->launch = pw_zeros(launch, sizeof *r->launch)) && (r->watch = pw_watch_new(c->e, c->only));
}

// run_new makes a run of a call; NULL if memory is short, and then nothing has changed.
static pw_run* run_new(pw_call* c, const pw_turn* turn) {
  pw_run* r = pw_zeros(1, sizeof *r);
  if (r == NULL) return NULL;
  PW_COUNT(runs, 1);
  r->executable = c->e;
  atomic_fetch_add_explicit(&c->e->refs, 1, memory_order_relaxed);
  r->only = c->only;
  r->num_outputs = c->outs;
  r->options = c->options;
  bool all = pw_context_hold(r->options.context);
  if (!all) r->options.context = NULL;
  if (!all || !copy_call(r, c)) {  // num_devices is 0, so nothing is pinned
    run_free(r);
    return NULL;
  }
  r->num_devices = c->n;
  r->num_args = c->m;
  r->options.non_donatable_input_indices = r->fixed;
  r->options.call_location = NULL;  // the caller's text ends with the call
  pw_location(&c->options, r->location, sizeof r->location);
  r->moves = c->moves;
  c->moves = NULL;
  r->kept = c->kept;
  c->kept = NULL;
  for (size_t i = 0; i < c->n * c->m; i++) {
    atomic_fetch_add_explicit(&c->inputs[i]->pins, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->inputs[i]->refs, 1, memory_order_relaxed);
  }
  for (size_t o = 0; o < c->outs; o++) {
    pw_object_hold(&c->arrays[o]->base);  // the run's own share, which settle drops
    atomic_store_explicit(&c->arrays[o]->gang, turn->gang, memory_order_release);
  }
  return r;
}

// promise_all makes a promise of each result. If one cannot be made, those before it are taken back, which is possible
// only by failing them.
static bool promise_all(pw_run* r) {
  const PJRT_LoadedExecutable* e = r->executable;
  size_t outs = r->num_outputs, made = 0, all = r->num_devices * outs;
  PJRT_Error* err = NULL;
  for (; made < all; made++) {
    const pw_output* x = &e->outputs[made % outs];
    err = pw_promise_new(e->client, result_memory(e, r->only, made / outs, made % outs), x->shape, x->minor_to_major,
                         &r->promises[made], &r->fulfill[made]);
    if (err) break;
  }
  if (err == NULL) return true;
  pw_error_free(err);
  while (made-- > 0) {
    fail_promise(r, made / outs, made % outs, PJRT_Error_Code_CANCELLED, "not used", 8);
    pw_destroy_buffer(r->promises[made]);
  }
  return false;
}

// launch_here launches a run that has its turn on the calling thread, and wraps its results.
static PJRT_Error* launch_here(pw_run* r, pw_call* c, const pw_turn* turn) {
  PJRT_LoadedExecutable* e = c->e;
  PJRT_Event** callers = c->args->device_complete_events;
  PJRT_Event** done = callers ? callers : c->done;
  PJRT_LoadedExecutable_Execute_Args a = pw_call_lower(c);
  a.device_complete_events = done;
  int64_t begin = pw_trace_begin();
  PJRT_Error* err = check_inputs(r);
  pw_time_note(r->executable->time);
  pw_watch_launch(r->watch, r->inputs, r->flat, r->num_args, begin != 0);
  if (err == NULL) err = pw_under->PJRT_LoadedExecutable_Execute(&a);
  PW_COUNT(go_entries, 1);
  if (err) {
    pwGoCompleted(turn->session, turn->gang);
    return err;
  }
  pwGoLaunched(turn->session, turn->gang);
  pw_watch_begin(r->watch, turn->gang, NULL, r->kept, pw_trace_run(e, turn->gang, r->only, begin), done);
  r->watch = NULL;
  r->kept = NULL;
  for (size_t d = 0; callers == NULL && d < c->n; d++) pw_destroy_event(done[d]);
  adopt(r, c->args->output_lists, callers);
  if (e->donates) pw_donated(c->inputs, c->n * c->m);
  pw_wrap(c, false);
  return NULL;
}

// run_here waits for the turn of a run that cannot be put off, and launches it.
static PJRT_Error* run_here(pw_run* r, pw_call* c, const pw_turn* turn) {
  PJRT_Error* err = wait_turn(turn);
  if (err == NULL) err = launch_here(r, c, turn);
  if (err) {
    err = pw_located(err, c->e, r->location, c->inputs, c->n * c->m);
    if (c->e->donates) pw_donated(c->inputs, c->n * c->m);
    pw_give_up(c);
  }
  settle(r);
  return err;
}

// hand_out returns the promises and their events to the caller, and has the core launch the run in its turn.
static void hand_out(pw_run* r, pw_call* c, const pw_turn* turn) {
  PJRT_Event** events = c->args->device_complete_events;
  // A promise is ready when its device has completed, so its event serves as the device's.
  for (size_t d = 0; events && d < c->n; d++) {
    PW_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
    ready.buffer = r->promises[d * c->outs];
    PJRT_Error* err = pw_under->PJRT_Buffer_ReadyEvent(&ready);
    if (err) pw_error_free(err);
    events[d] = ready.event;
  }
  take_over(r);
  for (size_t d = 0; d < c->n; d++)
    memcpy(c->args->output_lists[d], r->promises + d * c->outs, c->outs * sizeof(PJRT_Buffer*));
  adopt(r, c->args->output_lists, events);
  pw_wrap(c, true);
  PW_COUNT(go_entries, 1);
  pwGoArm(turn->session, turn->gang, r);
}

// forgo drops a run for which memory is short. It waits for the run's turn, since other gangs may come after it.
static PJRT_Error* forgo(pw_call* c, const pw_turn* turn) {
  PJRT_Error* err = wait_turn(turn);
  if (err == NULL) {
    PW_COUNT(go_entries, 1);
    pwGoCompleted(turn->session, turn->gang);
    err = pw_short("a run that waits for its turn", sizeof(pw_run) + 3 * c->n * (c->m + c->outs) * sizeof(void*));
  }
  pw_kept_drop(c->kept);
  pw_give_up(c);
  return err;
}

PJRT_Error* pw_queue(pw_call* c, const pw_turn* turn) {
  pw_run* r = run_new(c, turn);
  if (r == NULL) return forgo(c, turn);
  if (!can_promise(c->e, &c->options) || !promise_all(r)) return run_here(r, c, turn);
  hand_out(r, c, turn);
  return NULL;
}

// fail ends a run without results; reads of them get the error.
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

// launched reports a run that the plugin has begun, and fulfills its promises. It takes the run.
static void launched(pw_run* r, uint64_t gang, int64_t begin, PJRT_Event** done, PJRT_Buffer** results) {
  PJRT_LoadedExecutable* e = r->executable;
  size_t n = r->num_devices;
  pw_watch_begin(r->watch, gang, NULL, r->kept, pw_trace_run(e, gang, r->only, begin), done);
  r->watch = NULL;
  r->kept = NULL;
  for (size_t i = 0; i < n * r->num_outputs; i++) {
    PJRT_Error* late = pw_fulfill(e->client, r->fulfill[i], results[i]);
    if (late) pw_error_free(late);
    pw_destroy_buffer(results[i]);
  }
  for (size_t d = 0; d < n; d++) pw_destroy_event(done[d]);
  settle(r);
}

bool pw_run_launch(pw_run* r, uint64_t gang) {
  size_t n = r->num_devices, m = r->num_args, outs = r->num_outputs;
  int64_t begin = pw_trace_begin();
  PJRT_Buffer* const** rows = (PJRT_Buffer* const**)r->launch;
  PJRT_Buffer*** by_device = (PJRT_Buffer***)r->launch + n;
  PJRT_Event** done = (PJRT_Event**)r->launch + 2 * n;
  PJRT_Buffer** results = (PJRT_Buffer**)r->launch + 3 * n;
  for (size_t d = 0; d < n; d++) {
    rows[d] = r->flat + d * m;
    by_device[d] = results + d * outs;
  }
  PW_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
  a.executable = r->executable->under;
  a.options = &r->options;
  a.argument_lists = rows;
  a.num_devices = n;
  a.num_args = m;
  a.output_lists = by_device;
  a.device_complete_events = done;
  a.execute_device = pw_lower_device(r->only);
  PJRT_Error* err = check_inputs(r);
  pw_time_note(r->executable->time);
  pw_watch_launch(r->watch, r->inputs, r->flat, r->num_args, begin != 0);
  if (err == NULL) err = pw_under->PJRT_LoadedExecutable_Execute(&a);
  if (err == NULL) {
    launched(r, gang, begin, done, results);
    return true;
  }
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  err = pw_located(err, r->executable, r->location, r->inputs, n * m);
  pw_error_read(err, &code, &message, &size);
  fail(r, code, message, size);
  pw_error_free(err);
  return false;
}
