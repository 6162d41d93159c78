// One run. The core is asked once for its turn; when the turn is free, the
// plugin is called on this thread with no Go frame around it. When it is not,
// the results are handed out at once as buffers that the plugin fulfills later,
// and the core's launcher starts the run in its turn.
//
// The steps, and what must be undone if a later one fails:
//
//   check, read_inputs  compare the call with its program          copies of inputs (moves)
//   find_reads          finds what orders it behind other runs     nothing
//   run                 takes slots for the results' handles       the slots
//   pass, or order      has the core give it a place               arrays that the core counts
//   launch, or pw_queue runs it now, or in its turn                nothing: they undo what they were given
//
// Most runs have one device, read nothing that has yet to be launched, and belong to a session without a memory limit.
// Such a run needs no place: no gang waits for it, it waits for none, and nothing of it is counted. The core says in
// pw_pass whether it would answer just that, and then is not asked.
//
// An Execute that returns an error has made nothing: output_lists hold no handles, and the core counts no arrays. One
// that has its turn and is not launched is reported as ended (progress), since gangs behind it wait for that.
//
// The order holds although no lock is held between order and launch. In the core a gang that has its turn occupies its
// devices until its cell says PW_LAUNCHED, so no gang that shares one of them has its turn before that, on any thread.
// If the gang that makes an input has not been launched (array->gang), it is listed in `after`, and the core delays
// this run until it has. A gang of one device that finds the device free has no cell, because nothing waits for it.
//
// The plugin may decline to donate an input. So pw_donated asks it after the call which inputs are gone, and releases
// those. It does so before pw_wrap counts the results, which may be in the same memory.
#include <stdio.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "ffi.h"
#include "room.h"

enum { kOnStack = 512 };  // pointers: 4 KiB; larger runs take their lists from the heap

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

// move brings an input to the device where it is needed: some clients pass arguments that are on other devices, and the
// system moves them.
static PJRT_Error* move(pw_buffer* b, PJRT_Device* to, pw_moved** list, PJRT_Buffer** out) {
  pw_moved* m = pw_alloc(sizeof *m);
  if (m == NULL) return pw_short("a copy of an argument", sizeof *m);
  PW_ARGS(PJRT_Buffer_CopyToDevice_Args, a);
  a.buffer = b->under;
  a.dst_device = to->under;
  PJRT_Error* err = pw_under->PJRT_Buffer_CopyToDevice(&a);
  if (err) {
    free(m);
    return err;
  }
  m->buffer = *out = a.dst_buffer;
  m->next = *list;
  *list = m;
  PW_COUNT(moved, 1);
  return NULL;
}

// Gangs that come before a run, each once.
typedef struct {
  uint64_t few[16];
  uint64_t* list;
  size_t num, room;
} gangs;

static void gangs_init(gangs* g) {
  g->list = g->few;
  g->num = 0;
  g->room = sizeof g->few / sizeof *g->few;
}

static void gangs_free(gangs* g) {
  if (g->list != g->few) free(g->list);
}

static PJRT_Error* gangs_add(gangs* g, uint64_t gang) {
  for (size_t i = 0; i < g->num; i++)
    if (g->list[i] == gang) return NULL;
  if (g->num == g->room) {
    size_t bytes = 2 * g->room * sizeof *g->list;
    uint64_t* more = pw_alloc(bytes);
    if (more == NULL) return pw_short("the list of what a run reads", bytes);
    memcpy(more, g->list, g->num * sizeof *more);
    gangs_free(g);
    g->list = more;
    g->room *= 2;
  }
  g->list[g->num++] = gang;
  return NULL;
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

void pw_wrap(pw_call* c, bool promises) {
  const PJRT_LoadedExecutable* e = c->e;
  PJRT_Buffer** const* lists = c->args->output_lists;
  for (size_t o = 0; o < c->outs; o++) pw_shape_hold(e->outputs[o].shape, (int32_t)c->n);
  for (size_t d = 0; d < c->n; d++)
    for (size_t o = 0; o < c->outs; o++) {
      const pw_output* x = &e->outputs[o];
      pw_buffer* b = c->results[d * c->outs + o];
      b->under = lists[d][o];
      b->device = pw_row_device(e, c->only, d);
      b->memory = c->only ? pw_memory_kind(c->only, x->kind, x->kind_size) : e->memories[d * c->outs + o];
      b->shape = x->shape;
      b->array = c->arrays[o];
      b->promise = promises;
      pw_buffer_count(b, x->bytes);
      lists[d][o] = pw_buffer_handle(b);
    }
}

void pw_place_text(char* text, size_t size, const PJRT_LoadedExecutable* e, const char* location) {
  if (*location) snprintf(text, size, " [%.200s, called at %.300s]", e->name, location);
}

PJRT_Error* pw_located(PJRT_Error* err, const PJRT_LoadedExecutable* e, const char* location, pw_buffer* const* inputs,
                       size_t num_inputs) {
  if (pw_provenance_explains(&err, inputs, num_inputs) || *location == 0) return err;
  char text[600];
  pw_place_text(text, sizeof text, e, location);
  return pw_error_context(err, text);
}

// located_now is pw_located for a call that is still on this thread.
static PJRT_Error* located_now(PJRT_Error* err, const PJRT_LoadedExecutable* e, const PJRT_ExecuteOptions* options,
                               pw_buffer* const* inputs, size_t num_inputs) {
  char text[PW_LOCATION] = "";
  pw_location(options, text, sizeof text);
  return pw_located(err, e, text, inputs, num_inputs);
}

// ---- the steps of a run ----

// check compares the numbers of a call with those of its program.
static PJRT_Error* check(const pw_call* c) {
  const PJRT_LoadedExecutable* e = c->e;
  size_t devices = c->only ? 1 : e->num_devices;
  if (c->n != devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and the call has arguments for %zu",
                    e->name, devices, c->n);
  if (e->num_params >= 0 && c->m != (size_t)e->num_params)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes %lld arguments, and the call has %zu", e->name,
                    (long long)e->num_params, c->m);
  return NULL;
}

// lists_words is how many pointers the lists of a call have, and one for the objects of each result.
static size_t lists_words(const pw_call* c) { return 2 * c->n * c->m + 2 * c->n + 2 * c->outs + c->n * c->outs; }

// lay_out divides a block among a call's lists, and returns where the core writes the results' objects.
static uint64_t* lay_out(pw_call* c, void** block) {
  c->inputs = (pw_buffer**)block;
  c->flat = (PJRT_Buffer**)(block += c->n * c->m);
  c->rows = (PJRT_Buffer* const**)(block += c->n * c->m);
  c->done = (PJRT_Event**)(block += c->n);
  c->arrays = (pw_array**)(block += c->n);
  c->results = (pw_buffer**)(block += c->outs);
  return (uint64_t*)(block + c->n * c->outs);
}

// read_input checks one argument, and copies it to its device if it is on another one. The gang is read after the
// checks: it is cleared when that gang has been launched, and one gang too many in `after` does no harm.
static PJRT_Error* read_input(pw_call* c, PJRT_Device* device, size_t row, size_t i, gangs* after) {
  const PJRT_LoadedExecutable* e = c->e;
  pw_buffer* b = pw_buffer_of(c->args->argument_lists[row][i]);
  if (b && b->device->client != e->client) return pw_foreign(i, e->name);
  if (b == NULL || pw_is_deleted(b) || atomic_load_explicit(&b->released, memory_order_acquire))
    return pw_gone(row, i, e->name, b);
  if (e->num_params >= 0 && !pw_fits(b->shape, e->params[i])) return pw_misfit(row, i, e->name, b->shape, e->params[i]);
  PJRT_Error* err = pw_unmade(b);
  if (err) return err;
  size_t at = row * c->m + i;
  c->inputs[at] = b;
  c->flat[at] = b->under;
  uint64_t gang = atomic_load_explicit(&b->array->gang, memory_order_acquire);
  if (gang && (err = gangs_add(after, gang))) return err;
  c->inherits |= atomic_load_explicit(&b->array->provenance, memory_order_relaxed) != NULL;
  return b->device == device ? NULL : move(b, device, &c->moves, &c->flat[at]);
}

// read_inputs reads all arguments, and lists the gangs that make some of them and are not launched yet.
static PJRT_Error* read_inputs(pw_call* c, gangs* after) {
  for (size_t d = 0; d < c->n; d++) {
    PJRT_Device* device = pw_row_device(c->e, c->only, d);
    c->rows[d] = c->flat + d * c->m;
    for (size_t i = 0; i < c->m; i++) {
      PJRT_Error* err = read_input(c, device, d, i, after);
      if (err) return err;
    }
  }
  // Devices that have no failed input would wait in a collective for those that have.
  return c->inherits && c->e->collective ? pw_provenance_fault(c->inputs, c->n * c->m) : NULL;
}

// find_reads lists the gangs whose outputs are read on every device: each device reads its own shard of one array.
static PJRT_Error* find_reads(const pw_call* c, gangs* reads) {
  PJRT_Error* err = NULL;
  for (size_t i = 0; c->n > 1 && i < c->m && err == NULL; i++) {
    const pw_array* array = c->inputs[i]->array;
    bool all = array->maker != 0;
    for (size_t d = 1; all && d < c->n; d++) all = c->inputs[d * c->m + i]->array == array;
    if (all) err = gangs_add(reads, array->maker);
  }
  return err;
}

// owner returns the buffer whose bytes an argument is; NULL for one that was copied to its device.
static pw_buffer* owner(const pw_call* c, size_t row, size_t i) {
  pw_buffer* b = c->inputs[row * c->m + i];
  if (c->flat[row * c->m + i] != b->under) return NULL;
  return b->of ? b->of : b;
}

// check_donated_once finds an array that is donated and given as another argument, too: XLA's CPU client crashes in
// such a run of several devices. Each donated argument writes a number of its own into what it donates; no other finds
// it there.
static PJRT_Error* check_donated_once(const pw_call* c) {
  static _Atomic uint64_t donors = 1;
  uint64_t first = atomic_fetch_add_explicit(&donors, c->m, memory_order_relaxed);
  for (size_t k = 0; k < c->e->num_donated; k++) {
    size_t i = (size_t)c->e->donated[k];
    if (i >= c->m || pw_is_fixed(&c->options, c->e->donated[k])) continue;
    for (size_t d = 0; d < c->n; d++) {
      pw_buffer* b = owner(c, d, i);
      if (b) atomic_store_explicit(&b->donor, first + i, memory_order_relaxed);
    }
  }
  for (size_t d = 0; d < c->n; d++)
    for (size_t i = 0; i < c->m; i++) {
      pw_buffer* b = owner(c, d, i);
      uint64_t by = b ? atomic_load_explicit(&b->donor, memory_order_relaxed) - first : i;
      if (by < c->m && by != i) return pw_twice(d, i, c->e->name);
    }
  return NULL;
}

// order has the core give a run its place among all, and makes the slots of c->arrays the results' arrays.
static PJRT_Error* order(pw_call* c, const gangs* after, const gangs* reads, uint64_t* objects, pw_turn* turn) {
  const PJRT_LoadedExecutable* e = c->e;
  pw_name freed[PW_FREED];
  *turn = (pw_turn){.program = e->program,
                    .session = e->session,
                    .freed = freed,
                    .num_freed = pw_freed(freed, PW_FREED, false),
                    .after = after->list,
                    .num_after = after->num,
                    .reads = reads->list,
                    .num_reads = reads->num,
                    .only = c->only ? c->only->index : -1,
                    .nested = pw_ffi_in_callback() > 0,
                    .objects = objects,
                    .num_objects = c->outs};
  PW_COUNT(executes, 1);
  pw_room room = {0};
  PJRT_Error* failed = NULL;
  for (bool again = true; again;) {
    turn->taken = pw_taken(c);
    pw_room_ask(&room);
    PW_COUNT(go_entries, 1);
    pwGoEnter(turn);
    if (turn->num_freed) pw_tell_end(true);
    turn->freed = NULL;  // it was of this function
    turn->num_freed = 0;
    again = turn->verdict > 0 && turn->can_wait;
    // A run that reads a failed array needs no room: it fails with that array's error.
    if (again && c->inherits) failed = pw_provenance_fault(c->inputs, c->n * c->m);
    again = again && failed == NULL && pw_room_wait(&room, e->pass);
    if (again || failed) free(turn->message);
  }
  if (failed) return pw_room_end(&room, failed);
  PJRT_Error* err = turn->verdict > 0 ? pw_error_take((PJRT_Error_Code)turn->verdict, turn->message) : NULL;
  err = pw_room_end(&room, err);
  if (err) return located_now(err, e, c->args->options, NULL, 0);
  // A computation whose shards do not wait for each other comes after its inputs, and so do its results.
  uint64_t maker = e->collective ? turn->gang : 0;
  for (size_t i = 0; !e->collective && i < reads->num; i++) maker = reads->list[i] > maker ? reads->list[i] : maker;
  for (size_t o = 0; o < c->outs; o++) {
    pw_array_is(c->arrays[o], e->session, objects[o], (int32_t)c->n);
    c->arrays[o]->maker = c->n > 1 ? maker : 0;
  }
  pw_keep(c, turn);
  return NULL;
}

// pass reports whether a run needs no place, and makes the slots of c->arrays its results' arrays if so.
static bool pass(pw_call* c, const gangs* after, pw_turn* turn) {
  const PJRT_LoadedExecutable* e = c->e;
  if (c->n != 1 || after->num != 0 || e->collective || !pw_passes(e->pass)) return false;
  PW_COUNT(executes, 1);
  turn->gang = 0;
  turn->cell = NULL;
  turn->verdict = PW_NOW;
  for (size_t o = 0; o < c->outs; o++) pw_array_is(c->arrays[o], e->session, 0, 1);
  return true;
}

void pw_give_up(pw_call* c) {
  for (size_t o = 0; o < c->outs; o++)
    for (size_t d = 0; d < c->n; d++) pw_array_drop(c->arrays[o]);
  pw_buffers_unused(c->results, c->n * c->outs);
}

PJRT_LoadedExecutable_Execute_Args pw_call_lower(pw_call* c) {
  PJRT_LoadedExecutable_Execute_Args a = *c->args;
  a.executable = c->e->under;
  a.options = &c->options;
  a.argument_lists = c->rows;
  a.execute_device = pw_lower_device(c->only);
  return a;
}

// launch has the plugin run what has its turn, and wraps the results. The end of a run is watched if another gang may
// wait for it, which is so for gangs of several devices; if a profile or trace is taken; or if its device time is to be
// measured.
static PJRT_Error* launch(pw_call* c, const pw_turn* turn, int64_t begin) {
  PJRT_LoadedExecutable* e = c->e;
  PJRT_Event** callers = c->args->device_complete_events;
  PJRT_Event** done = callers ? callers : c->done;
  PJRT_LoadedExecutable_Execute_Args a = pw_call_lower(c);
  pw_time_note(e->time);
  bool has_end = turn->cell || c->kept || begin ||
                 (c->n == 1 && pw_time_due(e->time, pw_row_device(e, c->only, 0)->time));
  if (has_end) a.device_complete_events = done;
  pw_watch* watch = has_end ? pw_watch_new(e, c->only) : NULL;
  pw_watch_launch(watch, c->inputs, c->flat, c->m, begin != 0);
  PJRT_Error* err = has_end && watch == NULL ? pw_short("the end of a run", c->n * sizeof *done)
                                             : pw_under->PJRT_LoadedExecutable_Execute(&a);
  pw_progress(e->session, turn->cell, turn->gang, err ? PW_LAUNCHED | PW_DONE : PW_LAUNCHED);
  if (err) {
    pw_watch_free(watch);
    pw_kept_drop(c->kept);
    err = located_now(err, e, c->args->options, c->inputs, c->n * c->m);
    pw_give_up(c);
    if (e->donates) pw_donated(c->inputs, c->n * c->m);
    return err;
  }
  if (has_end) {
    uint64_t traced = pw_trace_run(e, turn->gang, c->only, begin);
    pw_watch_begin(watch, turn->cell ? turn->gang : 0, turn->cell, c->kept, traced, done);
  }
  if (e->fails || c->inherits) {
    pw_provenance* provenance = pw_provenance_new(e, NULL, c->args->options, c->inputs, c->n * c->m,
                                                  c->args->output_lists, c->n, c->only);
    for (size_t o = 0; provenance && o < c->outs; o++) pw_provenance_set(c->arrays[o], provenance);
    for (size_t d = 0; callers && d < c->n; d++)
      pw_provenance_track(callers[d], provenance, pw_row_device(e, c->only, d));
    pw_provenance_drop(provenance);
  }
  if (e->donates) pw_donated(c->inputs, c->n * c->m);  // before their memory counts as that of results
  pw_wrap(c, false);
  for (size_t d = 0; a.device_complete_events && !callers && d < c->n; d++) pw_destroy_event(done[d]);
  return NULL;
}

// end_kept deletes the donated arguments that the run could not take over, because they were being sent elsewhere. So a
// donated array is gone for its owner, whenever its bytes go. A handle that a captured program has of an array that was
// not donated to it stays.
static void end_kept(const pw_call* c) {
  const PJRT_LoadedExecutable* e = c->e;
  const PJRT_ExecuteOptions* asked = c->args->options;
  bool some = asked && PW_COVERS(asked, num_non_donatable_input_indices);
  size_t callers = some ? asked->num_non_donatable_input_indices : 0;
  for (size_t k = 0; k < e->num_donated; k++) {
    size_t at = pw_fixed_at(&c->options, e->donated[k]);
    if (at < callers || at == c->options.num_non_donatable_input_indices) continue;  // the caller keeps it, or the run
    for (size_t d = 0; d < c->n; d++) {
      pw_buffer* b = c->inputs[d * c->m + (size_t)e->donated[k]];
      if (b->of == NULL) pw_error_free(pw_buffer_delete(b));
    }
  }
}

// run takes a call whose arguments are right through the core and to the plugin. After an error nothing is left of it.
// The slots are taken before the core is asked: after that nothing can fail for lack of memory, except in the plugin.
static PJRT_Error* run(pw_call* c, const gangs* after, uint64_t* objects, int64_t begin) {
  gangs reads;
  gangs_init(&reads);
  int64_t* kept = NULL;
  bool arrays = false, results = false;  // whether c has slots, which an error returns
  pw_turn turn;
  PJRT_Error* err = find_reads(c, &reads);
  if (err == NULL && c->e->donates) err = pw_keep_exported(c->inputs, c->n, c->m, &c->options, &kept);
  if (err == NULL && c->e->donates) err = check_donated_once(c);
  if (err == NULL &&
      !((arrays = pw_arrays_new(c->arrays, c->outs)) && (results = pw_buffers_new(c->results, c->n * c->outs))))
    err = pw_short("the results of a run", c->outs * (sizeof(pw_array) + c->n * sizeof(pw_buffer)));
  if (err == NULL && !pw_kept_new(c))
    err = pw_short("what a run keeps", (c->n * c->m + c->outs) * sizeof(pw_array*));
  // A run that is recorded has a place, by whose number the recording names it.
  if (err == NULL && (begin || !pass(c, after, &turn))) err = order(c, after, &reads, objects, &turn);
  if (err) {
    pw_kept_unused(c->kept);
    if (arrays) pw_arrays_unused(c->arrays, c->outs);
    if (results) pw_buffers_unused(c->results, c->n * c->outs);
  } else if (turn.verdict == PW_QUEUED) {
    PW_COUNT(queued, 1);
    err = pw_queue(c, &turn);
  } else {
    err = launch(c, &turn, begin);
  }
  if (err == NULL && kept) end_kept(c);
  free(kept);
  gangs_free(&reads);
  return err;
}

PJRT_Error* pw_PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args* callers) {
  if (pw_forked) return pw_forked_error();
  PW_COPY(PJRT_LoadedExecutable_Execute_Args, args, callers);  // which has pointers to where its results go
  PJRT_LoadedExecutable* e = args.executable;
  if (e->port != PW_RUNS) return pp_through(&pw_frontend, e->port, &args);
  if (pp_capturing) return pp_execute(&pw_frontend, &args);
  static const PJRT_ExecuteOptions none = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PW_COPY(PJRT_ExecuteOptions, options, args.options ? args.options : &none);
  // A host callback without a context would end the process inside the plugin; with an empty one it is an error.
  if (e->calls_back && options.context == NULL) options.context = pw_context_empty();
  pw_call c = {.args = &args,
               .options = options,
               .e = e,
               .only = args.execute_device,
               .n = args.num_devices,
               .m = args.num_args,
               .outs = e->num_outputs};
  PJRT_Error* err = check(&c);
  if (err) return err;
  int64_t begin = pw_trace_begin();
  void* some[kOnStack];
  size_t words = lists_words(&c);
  void** block = words <= kOnStack ? some : pw_alloc(words * sizeof *block);
  if (block == NULL) return pw_short("the lists of a run", words * sizeof *block);
  uint64_t* objects = lay_out(&c, block);
  gangs after;
  gangs_init(&after);
  err = read_inputs(&c, &after);
  if (err == NULL) err = run(&c, &after, objects, begin);
  pw_moves_free(c.moves);
  gangs_free(&after);
  if (block != some) free(block);
  return err;
}
