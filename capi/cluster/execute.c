// One run: rows of shards are folded into whole objects, Go is entered once, and
// the results are handed out before the run has begun.
//
// check, read_arguments and choose_donated refuse a call before anything is made. take_results and the future come
// before submit, so that nothing can fail for lack of memory after it: once the cluster has a run, its results have
// handles.
//
// Order needs no lock here. submit numbers the run before this function returns, and a session's operations are carried
// out in the order of their numbers. So the run comes before anything that a thread asks for once it has the handles.
// Two threads may donate one array at the same time; the controller then fails the later run.
//
// Each object that the run makes holds a reference to `made`, the future of the run's end. Go holds one until it has
// told the end, and this call holds one, so that made outlives the call even if the run ends at once.
//
// Donated arguments are released when the cluster has accepted the run: from then on this client cannot use them. The
// workers keep their bytes until the run has them.
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"
#include "ffi.h"
#include "interpreter.h"

enum { kOnStack = 16 << 10 };  // bytes; larger runs take their lists from the heap

// call is one Execute: its arguments, and the findings and results of its steps.
typedef struct {
  PJRT_LoadedExecutable_Execute_Args* args;  // of this version
  PJRT_Executable* x;
  PJRT_Device* only;  // that it runs on, alone; or NULL
  size_t n, m, outs;  // devices; and arguments and results of each
  pr_buffer** shards;   // n * m, argument by argument
  pr_buffer** results;  // n * outs, device by device
  pr_object** objects;  // outs
  uint64_t* inputs;     // m; 0: see mixed
  pr_shard* mixed_shards;
  uint32_t* mixed;  // arguments that are not one object on the rows' devices
  size_t num_mixed;
  uint32_t* not_donated;
  size_t num_not_donated;
  bool* donated;  // by argument
  bool donates;   // one at least
} call;

// is_on_row reports whether a shard lies on the device of its row. One that does not is copied there before, and the
// run donates the copy.
static bool is_on_row(const call* c, size_t row, const pr_buffer* b) {
  return b->device == (c->only ? c->only : c->x->devices[row]);
}

// ---- the steps of a run ----

// check compares a call with its program.
static PJRT_Error* check(const call* c) {
  const PJRT_Executable* x = c->x;
  const PJRT_ExecuteOptions* options = c->args->options;
  size_t devices = c->only ? 1 : x->num_devices;
  if (c->n != devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and the call has arguments for %zu",
                    x->name, devices, c->n);
  if (c->m != x->num_params && !x->any_params)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes %zu arguments, and the call has %zu", x->name,
                    x->num_params, c->m);
  if (options && PW_COVERS(options, num_recv_ops) && (options->num_send_ops || options->num_recv_ops))
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED, "%s sends to or receives from its host, which a cluster does not do",
                    x->name);
  return NULL;
}

// lay_out divides a block among a call's lists, and returns how many bytes they take.
static size_t lay_out(call* c, char* block) {
  size_t shards = c->n * c->m, results = c->n * c->outs, at = 0;
#define LIST(name, count) c->name = (void*)(block + at), at += (count) * sizeof *c->name
  // Those of wide elements come first.
  LIST(shards, shards);
  LIST(results, results);
  LIST(objects, c->outs);
  LIST(inputs, c->m);
  LIST(mixed_shards, shards);
  LIST(mixed, c->m);
  LIST(not_donated, c->m);
  LIST(donated, c->m);
#undef LIST
  return at;
}

// has_layout reports whether a shard has the layout that a program expects.
static bool has_layout(const pr_buffer* b, const pr_array* param) {
  const int64_t* want = pr_array_order(param);
  if (want == NULL || b->minor_to_major == NULL) return want == b->minor_to_major;
  return memcmp(want, b->minor_to_major, b->shape->num_dims * sizeof *want) == 0;
}

// read_shard checks one argument of one row.
static PJRT_Error* read_shard(call* c, size_t i, size_t row) {
  const PJRT_Executable* x = c->x;
  pr_buffer* b = pr_buffer_of(c->args->argument_lists[row][i]);
  if (b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire)) return pw_gone(row, i, x->name, b);
  if (!x->any_params && !pw_fits(b->shape, x->params[i].shape))
    return pw_misfit(row, i, x->name, b->shape, x->params[i].shape);
  if (!x->any_params && !(has_layout(b, &x->params[i]) && (b->minor_to_major == NULL || is_on_row(c, row, b))))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "argument %zu of %s on device row %zu has another layout than the program was compiled for; "
                    "bring it to the program's layout with jax.device_put(x, format)",
                    i, x->name, row);
  if (b->device->client != x->client) return pw_foreign(i, x->name);
  c->shards[i * c->n + row] = b;
  return pr_unmade(b);
}

// read_arguments reads all arguments, and folds the shards of each into one object where they are that: row by row the
// shards of one array, each on its row's device. Others are named shard by shard, which costs the message their number.
static PJRT_Error* read_arguments(call* c) {
  for (size_t i = 0; i < c->m; i++) {
    pr_buffer** shards = c->shards + i * c->n;
    bool whole = true;
    for (size_t d = 0; d < c->n; d++) {
      PJRT_Error* err = read_shard(c, i, d);
      if (err) return err;
      whole = whole && shards[d]->object == shards[0]->object && is_on_row(c, d, shards[d]);
    }
    c->inputs[i] = whole && c->n ? shards[0]->object->base.name.number : 0;
    if (whole) continue;
    for (size_t d = 0; d < c->n; d++)
      c->mixed_shards[c->num_mixed * c->n + d] =
          (pr_shard){shards[d]->object->base.name.number, (uint32_t)shards[d]->device->description.id, shards[d]};
    c->mixed[c->num_mixed++] = (uint32_t)i;
  }
  return NULL;
}

// check_donated_once finds a shard that is donated and given as another argument too.
static PJRT_Error* check_donated_once(const call* c) {
  static _Atomic uint64_t calls;
  uint64_t number = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
  size_t at = 0;
  bool bad = false;
  for (size_t i = 0; !bad && i < c->n * c->m; i++)
    if (c->donated[i / c->n] && is_on_row(c, i % c->n, c->shards[i]) &&
        atomic_exchange_explicit(&c->shards[i]->donor, number, memory_order_relaxed) == number)
      bad = true, at = i;
  for (size_t i = 0; !bad && i < c->n * c->m; i++)
    if (!c->donated[i / c->n] && is_on_row(c, i % c->n, c->shards[i]) &&
        atomic_load_explicit(&c->shards[i]->donor, memory_order_relaxed) == number)
      bad = true, at = i;
  return bad ? pw_twice(at % c->n, at / c->n, c->x->name) : NULL;
}

static void do_not_donate(call* c, size_t i) {
  c->not_donated[c->num_not_donated++] = (uint32_t)i;
  c->donated[i] = false;
}

// choose_donated finds the arguments that the run takes over: not those that the caller keeps, or that have another
// handle.
static PJRT_Error* choose_donated(call* c) {
  const PJRT_ExecuteOptions* options = c->args->options;
  const int64_t* kept = NULL;
  size_t num_kept = 0;
  if (options && PW_COVERS(options, num_non_donatable_input_indices)) {
    kept = options->non_donatable_input_indices;
    num_kept = options->num_non_donatable_input_indices;
  }
  for (size_t i = 0; i < c->m; i++) c->donated[i] = c->x->any_params || c->x->donates[i];
  // Some clients name arguments that there are not, or one twice; plugins pass over that.
  for (size_t k = 0; k < num_kept; k++)
    if (kept[k] >= 0 && (size_t)kept[k] < c->m && c->donated[kept[k]]) do_not_donate(c, (size_t)kept[k]);
  for (size_t i = 0; i < c->m; i++) {
    c->donated[i] = c->donated[i] && !c->x->any_params;
    bool shared = false;
    for (size_t d = 0; d < c->n && c->donated[i]; d++) shared = shared || c->shards[i * c->n + d]->kept;
    if (shared) do_not_donate(c, i);
    c->donates = c->donates || c->donated[i];
  }
  return c->donates ? check_donated_once(c) : NULL;
}

// take_results takes the slots of the results, and the orders of their elements.
static bool take_results(call* c) {
  size_t n = c->n * c->outs;
  if (!pr_buffers_new(c->results, n)) return false;
  bool all = pr_objects_new(c->objects, c->outs);
  bool objects = all;
  for (size_t i = 0; i < n && all; i++) {
    const pr_array* a = &c->x->outputs[i % c->outs];
    all = pr_order_copy(&c->results[i]->minor_to_major, pr_array_order(a), a->shape->num_dims);
  }
  if (!all) {
    if (objects) pr_objects_unused(c->objects, c->outs);
    pr_buffers_unused(c->results, n);
  }
  return all;
}

static void drop_results(call* c) {
  pr_objects_unused(c->objects, c->outs);
  pr_buffers_unused(c->results, c->n * c->outs);
}

// wrap makes handles of the objects that a run makes. Each object holds a reference to made.
static void wrap(call* c, uint64_t first, pr_future* made) {
  PJRT_Executable* x = c->x;
  for (size_t o = 0; o < c->outs; o++) {
    pr_array* a = &x->outputs[o];
    pr_object_is(c->objects[o], x->session, first + o, made, (int32_t)c->n, (int64_t)c->n * a->bytes);
    pw_shape_hold(a->shape, (int32_t)c->n);
    for (size_t d = 0; d < c->n; d++) {
      pr_buffer* b = c->results[d * c->outs + o];
      b->device = c->only ? c->only : x->devices[d];
      b->memory = c->only ? pr_memory_kind(c->only, a->memory, a->memory_size) : x->memories[d * c->outs + o];
      b->shape = a->shape;
      b->object = c->objects[o];
      pr_buffer_count(b, a->bytes);
      c->args->output_lists[d][o] = pr_buffer_handle(b);
    }
  }
  if (c->args->device_complete_events)
    for (size_t d = 0; d < c->n; d++) c->args->device_complete_events[d] = (PJRT_Event*)made;
}

// forget destroys the results of a call that returns an error after all.
static void forget(call* c) {
  PJRT_LoadedExecutable_Execute_Args* args = c->args;
  for (size_t d = 0; d < c->n; d++) {
    for (size_t o = 0; o < c->outs; o++) {
      PW_ARGS(PJRT_Buffer_Destroy_Args, a);
      a.buffer = args->output_lists[d][o];
      pr_PJRT_Buffer_Destroy(&a);
      args->output_lists[d][o] = NULL;
    }
    if (args->device_complete_events) {
      pr_future_drop((pr_future*)args->device_complete_events[d]);
      args->device_complete_events[d] = NULL;
    }
  }
}

// submit hands the run to the cluster. Functions are those that it may call, or NULL. At is the line of the call, if it
// has been looked up. On success one reference to made is Go's. The lists are read before prGoRun returns.
static PJRT_Error* submit(call* c, pr_future* made, const void* functions, char* at, pr_run* run) {
  const PJRT_ExecuteOptions* options = c->args->options;
  uint32_t only_row = c->only ? (uint32_t)c->only->description.id : 0;
  pw_name freed[PW_FREED];
  const char* trace =
      *at || !options || !PW_COVERS(options, call_location) || !options->call_location ? at : options->call_location;
  *run = (pr_run){.session = c->x->session,
                  .program = c->x->program,
                  .token = (uintptr_t)made,
                  .inputs = c->inputs,
                  .num_inputs = c->m,
                  .num_rows = c->n,
                  .mixed = c->mixed,
                  .num_mixed = c->num_mixed,
                  .shards = c->mixed_shards,
                  .rows = c->only ? &only_row : c->x->rows,
                  .not_donated = c->not_donated,
                  .num_not_donated = c->num_not_donated,
                  .only = c->only ? (int32_t)only_row : -1,
                  .trace = trace,
                  .trace_size = strlen(trace),
                  .functions = functions,
                  .freed = freed,
                  .num_freed = pr_freed(freed, PW_FREED, false),
                  .num_outputs = c->outs};
  pr_tell_rows_gone();
  PR_COUNT(go_entries, 1);
  PR_COUNT(executes, 1);
  int code = prGoRun(run);
  run->rows = NULL;  // these were of this function
  run->freed = NULL;
  if (code == 0) return NULL;
  PJRT_Error* err = pw_error_take((PJRT_Error_Code)code, run->message);
  if (*at == 0 && !pw_location(options, at, PW_LOCATION)) return err;
  char context[PW_LOCATION + 32];
  snprintf(context, sizeof context, " [called at %s]", at);
  return pw_error_context(err, context);
}

// run takes a call whose arguments are right to the cluster, and wraps the results.
static PJRT_Error* run(call* c) {
  const PJRT_ExecuteOptions* options = c->args->options;
  const void* functions = options && PW_COVERS(options, context) ? pr_context_functions(options->context) : NULL;
  char at[PW_LOCATION] = "";
  bool first = !atomic_load_explicit(&c->x->called, memory_order_relaxed);
  if (first) atomic_store_explicit(&c->x->called, true, memory_order_relaxed);
  if (functions || c->x->heavy || first) pw_location(options, at, sizeof at);  // too dear for every run
  if (!take_results(c)) return pr_no_shards(c->n * c->outs);
  // One reference an output, one for Go, one here, and one an event.
  size_t refs = c->outs + 2 + (c->args->device_complete_events ? c->n : 0);
  pr_future* made = pr_future_new((int32_t)refs);
  pr_run of;
  PJRT_Error* err = made ? submit(c, made, functions, at, &of) : pr_no_future();
  if (err) {
    while (made && refs-- > 0) pr_future_drop(made);
    drop_results(c);
    return err;
  }
  for (size_t i = 0; c->donates && i < c->m * c->n; i++)  // before their memory counts as that of results
    if (c->donated[i / c->n] && is_on_row(c, i % c->n, c->shards[i])) pr_buffer_release(c->shards[i]);
  wrap(c, of.first_output, made);
  // As on JAX's own CPU client, a run that calls Python has ended when the call returns, and its error is the call's:
  // operations that are submitted next never hold up those that its functions submit. Functions run on this thread, in
  // whose context JAX has them.
  if (functions) {
    prGoServe(of.caller);
    pr_future_wait(made);
    // An error would reach the caller instead of Ctrl-C. So the call returns what has failed, and Python raises then.
    void* exception = pw_ffi_interrupted() ? pw_python_keyboard_interrupt() : NULL;
    if (exception) pw_python_raise(exception);
    else if ((err = pr_future_error(made))) forget(c);
  }
  pr_future_drop(made);
  return err;
}

PJRT_Error* pr_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* callers) {
  if (pw_forked) return pw_forked_error();
  PW_COPY(PJRT_LoadedExecutable_Execute_Args, args, callers);  // which has pointers to where its results go
  PJRT_Executable* x = args.executable->x;
  if (atomic_load_explicit(&args.executable->deleted, memory_order_acquire))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s was deleted before", x->name);
  if (x->port != PW_RUNS) return pp_through(&pr_frontend, x->port, &args);
  if (pp_capturing) return pp_execute(&pr_frontend, &args);
  call c = {.args = &args,
            .x = x,
            .only = args.execute_device,
            .n = args.num_devices,
            .m = args.num_args,
            .outs = x->num_outputs};
  PJRT_Error* err = check(&c);
  if (err) return err;
  _Alignas(8) char some[kOnStack];
  size_t bytes = lay_out(&c, some);
  char* block = bytes <= kOnStack ? some : pw_alloc(bytes);
  if (block == NULL) return pw_short("the lists of a run", bytes);
  if (block != some) lay_out(&c, block);
  err = read_arguments(&c);
  if (err == NULL) err = choose_donated(&c);
  if (err == NULL) err = run(&c);
  if (block != some) free(block);
  return err;
}
