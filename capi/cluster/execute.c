// One run: rows of shards are folded into whole objects, Go is entered once, and
// the results are handed out before the run has begun.
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

enum { kOnStack = 512 };  // shards; larger runs take their lists from the heap

// here: a shard lies on the device of its row. One that does not is moved, and the
// run donates its copy, made before.
static bool here(const PJRT_Executable* x, const PJRT_Device* only, size_t row, const pr_buffer* b) {
  return b->device == (only ? only : x->devices[row]);
}

// twice finds a shard that is donated and given as another argument too.
static PJRT_Error* twice(const PJRT_Executable* x, const PJRT_Device* only, pr_buffer** shards, size_t n, size_t m,
                         const bool* donated) {
  static _Atomic uint64_t calls;
  uint64_t call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;
  size_t at = 0;
  bool bad = false;
  for (size_t i = 0; !bad && i < n * m; i++)
    if (donated[i / n] && here(x, only, i % n, shards[i]) &&
        atomic_exchange_explicit(&shards[i]->donor, call, memory_order_relaxed) == call)
      bad = true, at = i;
  for (size_t i = 0; !bad && i < n * m; i++)
    if (!donated[i / n] && here(x, only, i % n, shards[i]) &&
        atomic_load_explicit(&shards[i]->donor, memory_order_relaxed) == call)
      bad = true, at = i;
  if (!bad) return NULL;
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "argument %zu of %s on device row %zu is an array that the same call donates as another argument; give "
                  "a copy of it, or do not donate it",
                  at / n, x->name, at % n);
}

// results makes handles of the objects that a run makes. Each object holds a
// reference to made.
static void results(PJRT_Executable* x, PJRT_Device* only, PJRT_Buffer** const* lists, size_t n, uint64_t first,
                    pr_future* made) {
  size_t m = x->num_outputs;
  pr_buffer* some[64];
  pr_buffer** slots = n * m <= 64 ? some : malloc(n * m * sizeof *slots);
  pr_buffers_new(slots, n * m);
  for (size_t o = 0; o < m; o++) {
    pr_array* a = &x->outputs[o];
    pr_object* object = pr_object_new(x->session, first + o, made, (int32_t)n, (int64_t)n * a->bytes);
    atomic_fetch_add_explicit(&a->shape->refs, (int32_t)n, memory_order_relaxed);
    for (size_t d = 0; d < n; d++) {
      pr_buffer* b = slots[d * m + o];
      b->device = only ? only : x->devices[d];
      b->memory = only ? pr_memory_kind(only, a->memory, a->memory_size) : x->memories[d * m + o];
      b->shape = a->shape;
      b->object = object;
      b->minor_to_major = pr_order_copy(pr_array_order(a), a->shape->num_dims);
      pr_buffer_count(b, a->bytes);
      lists[d][o] = pr_buffer_handle(b);
    }
  }
  if (slots != some) free(slots);
}

// lies reports whether a shard's elements lie as a program takes them.
static bool lies(const pr_buffer* b, const pr_array* param) {
  const int64_t* want = pr_array_order(param);
  if (want == NULL || b->minor_to_major == NULL) return want == b->minor_to_major;
  return memcmp(want, b->minor_to_major, b->shape->num_dims * sizeof *want) == 0;
}

// forget takes back what a call has given that gives an error instead.
static void forget(PJRT_LoadedExecutable_Execute_Args* args, size_t n, size_t outs) {
  for (size_t d = 0; d < n; d++) {
    for (size_t o = 0; o < outs; o++) {
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

PJRT_Error* pr_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* callers) {
  if (pw_forked) return pw_forked_error();
  PW_COPY(PJRT_LoadedExecutable_Execute_Args, whole, callers);  // which gives its results by pointers
  PJRT_LoadedExecutable_Execute_Args* args = &whole;
  PJRT_Executable* x = args->executable->x;
  PJRT_Device* only = args->execute_device;
  const PJRT_ExecuteOptions* options = args->options;
  size_t n = args->num_devices, m = args->num_args, outs = x->num_outputs;
  if (atomic_load_explicit(&args->executable->deleted, memory_order_acquire))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s was deleted before", x->name);
  if (x->port != PW_RUNS) return pp_through(&pr_door, x->port, args);
  if (pp_capturing) return pp_execute(&pr_door, args);
  if (n != (only ? 1 : x->num_devices))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and the call has arguments for %zu",
                    x->name, only ? 1 : x->num_devices, n);
  if (m != x->num_params && !x->any_params)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes %zu arguments, and the call has %zu", x->name,
                    x->num_params, m);
  if (options && PW_COVERS(options, num_recv_ops) && (options->num_send_ops || options->num_recv_ops))
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED, "%s sends to or receives from its host, which a cluster does not do",
                    x->name);

  bool heap = n * m > kOnStack;
  size_t size = n * m * (sizeof(pr_buffer*) + sizeof(pr_shard)) + m * (sizeof(uint64_t) + sizeof(uint32_t));
  char* room = heap ? malloc(size + 1) : alloca(size + 1);
  pr_buffer** shards = (pr_buffer**)room;  // argument by argument
  pr_shard* mixed_shards = (pr_shard*)(shards + n * m);
  uint64_t* inputs = (uint64_t*)(mixed_shards + n * m);
  uint32_t* mixed = (uint32_t*)(inputs + m);
  size_t num_mixed = 0;
  uint32_t only_row = only ? (uint32_t)only->description.id : 0;
  PJRT_Error* err = NULL;

  for (size_t i = 0; i < m; i++) {
    bool together = true;
    for (size_t d = 0; d < n; d++) {
      pr_buffer* b = pr_buffer_of(args->argument_lists[d][i]);
      if (b == NULL || atomic_load_explicit(&b->gone, memory_order_acquire)) {
        err = pw_gone(d, i, x->name, b);
        goto out;
      }
      if (!x->any_params && !pw_fits(b->shape, x->params[i].shape)) {
        err = pw_misfit(d, i, x->name, b->shape, x->params[i].shape);
        goto out;
      }
      if (!x->any_params && !(lies(b, &x->params[i]) && (b->minor_to_major == NULL || here(x, only, d, b)))) {
        err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                       "argument %zu of %s on device row %zu lies otherwise in memory than the program was compiled for; "
                       "bring it to the program's layout with jax.device_put(x, format)",
                       i, x->name, d);
        goto out;
      }
      if (b->device->client != x->client) {
        err = pw_foreign(i, x->name);
        goto out;
      }
      if ((err = pr_unmade(b))) goto out;
      shards[i * n + d] = b;
      together = together && b->object == shards[i * n]->object && here(x, only, d, b);
    }
    inputs[i] = together && n ? shards[i * n]->object->number : 0;
    if (!together) {
      for (size_t d = 0; d < n; d++)
        mixed_shards[num_mixed * n + d] = (pr_shard){shards[i * n + d]->object->number, (uint32_t)shards[i * n + d]->device->description.id,
                                                  shards[i * n + d]};
      mixed[num_mixed++] = (uint32_t)i;
    }
  }

  const int64_t* kept = NULL;
  size_t num_kept = 0, num_not_donated = 0;
  if (options && PW_COVERS(options, num_non_donatable_input_indices)) {
    kept = options->non_donatable_input_indices;
    num_kept = options->num_non_donatable_input_indices;
  }
  uint32_t some_kept[32];
  uint32_t* not_donated = m <= 32 ? some_kept : malloc(m * sizeof *not_donated);
  bool some_donated[64];
  bool* donated = m <= 64 ? some_donated : malloc(m * sizeof *donated);
  bool donates = false;
  for (size_t i = 0; i < m; i++) donated[i] = x->any_params || x->donates[i];
  // Some clients name arguments that there are not, or one twice; plugins pass over that.
  for (size_t i = 0; i < num_kept; i++)
    if (kept[i] >= 0 && (size_t)kept[i] < m && donated[kept[i]]) {
      not_donated[num_not_donated++] = (uint32_t)kept[i];
      donated[kept[i]] = false;
    }
  for (size_t i = 0; i < m; i++) {
    donated[i] = donated[i] && !x->any_params;
    bool keep = false;
    for (size_t d = 0; d < n && donated[i]; d++) keep = keep || shards[i * n + d]->kept;
    if (keep) {
      not_donated[num_not_donated++] = (uint32_t)i;
      donated[i] = false;
    }
    donates = donates || donated[i];
  }
  if (donates && (err = twice(x, only, shards, n, m, donated))) goto lists;

  const void* functions = options && PW_COVERS(options, context) ? pr_context_functions(options->context) : NULL;
  // One reference an output, one for Go, one here, and one an event.
  size_t refs = outs + 2 + (args->device_complete_events ? n : 0);
  pr_future* made = pr_future_new((int32_t)refs);
  pr_name freed[PR_FREED];
  char at[PW_LOCATION] = "";
  if (functions || x->heavy) pw_location(options, at, sizeof at);  // too dear for every run
  const char* trace = *at || !options || !PW_COVERS(options, call_location) || !options->call_location ? at : options->call_location;
  pr_run run = {.session = x->session,
                .program = x->program,
                .token = (uintptr_t)made,
                .inputs = inputs,
                .num_inputs = m,
                .num_rows = n,
                .mixed = mixed,
                .num_mixed = num_mixed,
                .shards = mixed_shards,
                .rows = only ? &only_row : x->rows,
                .not_donated = not_donated,
                .num_not_donated = num_not_donated,
                .only = only ? (int32_t)only_row : -1,
                .trace = trace,
                .trace_size = strlen(trace),
                .functions = functions,
                .freed = freed,
                .num_freed = pr_freed(freed, PR_FREED, false),
                .num_outputs = outs};
  PR_COUNT(go_entries, 1);
  PR_COUNT(executes, 1);
  int code = prGoRun(&run);
  if (code) {
    while (refs-- > 1) pr_future_drop(made);
    err = pw_error_take((PJRT_Error_Code)code, run.message);
    if (*at || pw_location(options, at, sizeof at)) {
      char context[PW_LOCATION + 32];
      snprintf(context, sizeof context, " [called at %s]", at);
      err = pw_error_context(err, context);
    }
  } else {
    for (size_t i = 0; donates && i < m * n; i++)  // before their memory counts as that of results
      if (donated[i / n] && here(x, only, i % n, shards[i])) pr_buffer_release(shards[i]);
    results(x, only, args->output_lists, n, run.first_output, made);
    if (args->device_complete_events)
      for (size_t d = 0; d < n; d++) args->device_complete_events[d] = (PJRT_Event*)made;
    // As on JAX's own CPU client, a run that calls Python has ended when the call
    // returns, and its error is the call's: what is submitted next never stands in
    // the way of what its functions submit. Functions run on this thread, in whose
    // context JAX has them.
    if (functions) {
      prGoServe(run.caller);
      pr_future_wait(made);
      if ((err = pr_future_error(made))) forget(args, n, outs);
    }
  }
  pr_future_drop(made);
lists:
  if (donated != some_donated) free(donated);
  if (not_donated != some_kept) free(not_donated);
out:
  if (heap) free(room);
  return err;
}
