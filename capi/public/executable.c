// Programs of a session: compiling and running them.
//
// A run either gives its caller all results or an error and none. Whatever can be refused or needs memory comes before
// the frontend is called: gather finds the arguments' shards, prepare allocates the results. After that only a handle
// may be missing (make_handles), and then what the run has made is freed. The arguments are referenced until the call
// returns, so another thread may free their handles meanwhile.
#include <stdio.h>
#include <stdlib.h>

#include "public.h"

// ---- compile options: an xla.CompileOptionsProto ----

// Field numbers of XLA's compile_options.proto and xla_data.proto.
enum {
  kBuild = 3,         // CompileOptionsProto.executable_build_options
  kReplicas = 4,      // ExecutableBuildOptionsProto.num_replicas
  kPartitions = 5,    // ….num_partitions
  kSpmd = 6,          // ….use_spmd_partitioning
  kAssignment = 9,    // ….device_assignment
  kShardy = 19,       // ….use_shardy_partitioner
  kReplicaCount = 1,  // DeviceAssignmentProto.replica_count
  kComputationCount = 2,
  kComputation = 3,  // ….computation_devices, one a partition
  kReplicaIds = 1,
};

typedef struct {
  uint8_t* data;
  size_t size, room;
  bool lacks;  // memory was short for something
} bytes;

static void append(bytes* b, const void* data, size_t size) {
  if (b->lacks) return;
  if (b->size + size > b->room) {
    size_t room = 2 * (b->size + size);
    uint8_t* more = pw_resize(b->data, room);
    if (more == NULL) {
      b->lacks = true;
      return;
    }
    b->data = more;
    b->room = room;
  }
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
}

static void varint(bytes* b, uint64_t v) {
  uint8_t text[10];
  size_t n = 0;
  do text[n++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
  while (v >>= 7);
  append(b, text, n);
}

static void number(bytes* b, int field, uint64_t v) {
  varint(b, (uint64_t)field << 3);
  varint(b, v);
}

static void message(bytes* b, int field, bytes* inner) {
  varint(b, (uint64_t)field << 3 | 2);
  varint(b, inner->size);
  append(b, inner->data, inner->size);
  b->lacks = b->lacks || inner->lacks;
  free(inner->data);
  *inner = (bytes){0};
}

// encode appends our fields to the caller's: if a field occurs twice the later one counts, and two submessages are
// merged.
static bytes encode(const pathways_compile_options* o, int32_t replicas, int32_t partitions, pc_device** devices) {
  bytes all = {0}, build = {0}, assignment = {0};
  append(&all, o->xla_options, o->xla_options_size);
  number(&build, kReplicas, (uint64_t)replicas);
  number(&build, kPartitions, (uint64_t)partitions);
  if (partitions > 1) number(&build, kSpmd, 1);
  if (o->shardy) number(&build, kShardy, 1);
  number(&assignment, kReplicaCount, (uint64_t)replicas);
  number(&assignment, kComputationCount, (uint64_t)partitions);
  for (int32_t p = 0; p < partitions; p++) {
    bytes ids = {0}, row = {0};
    for (int32_t r = 0; r < replicas; r++) varint(&ids, (uint64_t)devices[r * partitions + p]->id);
    message(&row, kReplicaIds, &ids);
    message(&assignment, kComputation, &row);
  }
  message(&build, kAssignment, &assignment);
  message(&all, kBuild, &build);
  return all;
}

// ---- compiling ----

static void destroy_loaded(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) {
  PW_ARGS(PJRT_LoadedExecutable_Destroy_Args, a);
  a.executable = loaded;
  PJRT_Error* err = api->PJRT_LoadedExecutable_Destroy(&a);
  if (err) pw_error_free(err);
}

static void free_executable(const PJRT_Api* api, pc_executable* e) {
  if (e->loaded) destroy_loaded(api, e->loaded);
  for (size_t i = 0; e->outputs && i < e->num_outputs; i++)
    if (e->outputs[i].shape) pw_shape_drop(e->outputs[i].shape);
  free(e->outputs);
  free(e->devices);
  free(e);
}

void pc_executable_destroy(pc_object* o) {
  atomic_fetch_sub_explicit(&o->session->executables, 1, memory_order_relaxed);
  free_executable(o->session->api, (pc_executable*)o);
}

// describe reads an executable's results and devices.
static PJRT_Error* describe(pc_session* s, pc_executable* e) {
  const PJRT_Api* api = s->api;
  PW_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, get);
  PW_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args, devices);
  get.loaded_executable = devices.executable = e->loaded;
  PJRT_Error* err = api->PJRT_LoadedExecutable_AddressableDevices(&devices);
  if (err) return err;
  e->num_devices = devices.num_addressable_devices;
  e->devices = pw_zeros(e->num_devices, sizeof *e->devices);
  if (e->devices == NULL) return pw_short("a program's devices", e->num_devices * sizeof *e->devices);
  for (size_t i = 0; i < e->num_devices; i++) {
    e->devices[i] = pc_device_of(s, devices.addressable_devices[i]);
    if (e->devices[i] == NULL)
      return pw_error(PJRT_Error_Code_INTERNAL, "the program runs on a device that the session does not have");
  }
  if ((err = api->PJRT_LoadedExecutable_GetExecutable(&get))) return err;
  PW_ARGS(PJRT_Executable_Name_Args, name);
  PW_ARGS(PJRT_Executable_NumOutputs_Args, num);
  PW_ARGS(PJRT_Executable_OutputElementTypes_Args, types);
  PW_ARGS(PJRT_Executable_OutputDimensions_Args, dims);
  name.executable = num.executable = types.executable = dims.executable = get.executable;
  err = api->PJRT_Executable_Name(&name);
  if (err == NULL) err = api->PJRT_Executable_NumOutputs(&num);
  if (err == NULL) err = api->PJRT_Executable_OutputElementTypes(&types);
  if (err == NULL) err = api->PJRT_Executable_OutputDimensions(&dims);
  if (err == NULL) {
    snprintf(e->name, sizeof e->name, "%.*s", (int)name.executable_name_size, name.executable_name);
    e->num_outputs = num.num_outputs;
    e->outputs = pw_zeros(e->num_outputs, sizeof *e->outputs);
    if (e->outputs == NULL) err = pw_short("a program's results", e->num_outputs * sizeof *e->outputs);
    const int64_t* at = dims.dims;
    for (size_t i = 0; i < e->num_outputs && err == NULL; i++) {
      pc_output* o = &e->outputs[i];
      o->shape = pw_shape_new(types.output_types[i], at, dims.dim_sizes[i]);
      if (o->shape == NULL) {
        err = pw_short("the shape of a result", dims.dim_sizes[i] * sizeof *at);
        break;
      }
      at += dims.dim_sizes[i];
      o->tiled = e->num_devices == 1;
      for (size_t d = 0; d < PATHWAYS_MAX_DIMS; d++) o->tiles[d] = 1;
      if (o->shape->num_dims > PATHWAYS_MAX_DIMS)
        err = pw_error(PJRT_Error_Code_UNIMPLEMENTED, "result %zu has %zu dimensions: at most %d are possible here", i,
                       o->shape->num_dims, PATHWAYS_MAX_DIMS);
    }
  }
  PW_ARGS(PJRT_Executable_Destroy_Args, done);
  done.executable = get.executable;
  PJRT_Error* late = api->PJRT_Executable_Destroy(&done);
  if (late) pw_error_free(late);
  return err;
}

// tile reads the caller's layouts of the results.
static pathways_error tile(pc_executable* e, const pathways_tiles* tiles, size_t n) {
  if (tiles == NULL) return 0;
  if (n != e->num_outputs)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %zu outputs are described, and the program has %zu", n,
                   e->num_outputs);
  for (size_t i = 0; i < n; i++) {
    pc_output* o = &e->outputs[i];
    if (tiles[i].tiles && tiles[i].num_dims != o->shape->num_dims)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: output %zu has %zu dimensions, and its tiles %zu", i,
                     o->shape->num_dims, tiles[i].num_dims);
    int64_t parts = 1;
    for (size_t d = 0; tiles[i].tiles && d < tiles[i].num_dims; d++) {
      o->tiles[d] = tiles[i].tiles[d];
      if (o->tiles[d] < 1 || o->tiles[d] > (int64_t)e->num_devices) parts = 0;
      else parts *= o->tiles[d];
      if (parts < 1 || parts > (int64_t)e->num_devices) break;
    }
    if (parts < 1 || e->num_devices % (size_t)parts)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: the tiles of output %zu do not divide its %zu shards evenly",
                     i, e->num_devices);
    o->tiled = true;
  }
  return 0;
}

// compile compiles and describes a program.
static pathways_error compile(pc_session* s, const pathways_compile_options* o, const bytes* coded,
                              pathways_executable* executable) {
  pc_executable* e = pw_zeros(1, sizeof *e);
  if (e == NULL) return pc_short("a program", sizeof *e);
  PW_ARGS(PJRT_Program, program);
  program.code = (char*)o->code;
  program.code_size = o->code_size;
  program.format = "mlir";
  program.format_size = 4;
  PW_ARGS(PJRT_Client_Compile_Args, args);
  args.client = s->client;
  args.program = &program;
  args.compile_options = (char*)coded->data;
  args.compile_options_size = coded->size;
  PJRT_Error* failed = s->api->PJRT_Client_Compile(&args);
  if (failed == NULL) {
    e->loaded = args.executable;
    failed = describe(s, e);
  }
  pathways_error err = failed ? pc_take(failed) : tile(e, o->outputs, o->num_outputs);
  if (err) {
    free_executable(s->api, e);
    return err;
  }
  atomic_fetch_add_explicit(&s->executables, 1, memory_order_relaxed);
  return pc_new(&e->base, PC_EXECUTABLE, s, executable);
}

pathways_error pathways_compile(pathways_session session, const pathways_compile_options* options,
                                pathways_executable* executable) {
  PC_READ(pathways_compile_options, o, options, "pathways_compile_options");
  if (executable == NULL || o.code == NULL || (o.xla_options == NULL && o.xla_options_size))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: the code, or where to write the handle, is NULL");
  if (o.num_replicas < 0 || o.num_partitions < 0)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %d replicas of %d partitions: expected no negative number",
                   (int)o.num_replicas, (int)o.num_partitions);
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));
  int32_t replicas = o.num_replicas ? o.num_replicas : 1, partitions = o.num_partitions ? o.num_partitions : 1;
  size_t n = (size_t)replicas * (size_t)partitions;
  pc_device** devices = NULL;
  pathways_error err = 0;
  if ((o.devices || o.num_devices) && (o.num_devices != n || o.devices == NULL))
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %zu devices are named for %d replicas of %d partitions",
                  o.num_devices, (int)replicas, (int)partitions);
  if (err == 0 && n > s->num_devices)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT,
                  "compile: %d replicas of %d partitions do not fit on the %zu devices of this session", (int)replicas,
                  (int)partitions, s->num_devices);
  if (err == 0) {
    devices = pw_zeros(n, sizeof *devices);
    err = devices ? pc_devices(s, o.devices, n, devices) : pc_short("a list of devices", n * sizeof *devices);
  }
  if (err == 0) {
    bytes coded = encode(&o, replicas, partitions, devices);
    err = coded.lacks ? pc_short("a program", coded.room) : compile(s, &o, &coded, executable);
    free(coded.data);
  }
  free(devices);
  pc_let(s);
  return err;
}

pathways_error pathways_executable_info(pathways_executable executable, pathways_executable_info_t* info) {
  PC_STRUCT(info, "pathways_executable_info_t");
  pc_executable* e;
  PC_TRY(pc_get(executable, PC_EXECUTABLE, &e));
  pathways_executable_info_t i = {.num_devices = (int32_t)e->num_devices, .num_outputs = (int32_t)e->num_outputs};
  memcpy(i.name, e->name, sizeof i.name);
  PC_WRITE(info, i);
  pc_let(e);
  return 0;
}

// ---- runs ----

// row returns the index of an array's shard for a device; -1 if it has none.
static int64_t row(const pc_array* a, const pc_executable* e, size_t d) {
  if (d < a->num_shards && a->shards[d].device == e->devices[d]) return (int64_t)d;
  if (e->num_devices == 1 && a->num_shards == 1) return 0;  // the frontend copies it there
  for (size_t i = 0; i < a->num_shards; i++)
    if (a->shards[i].device == e->devices[d]) return (int64_t)i;
  return -1;
}

// running is one call of pathways_run. Its lists are in one block.
typedef struct {
  pc_executable* e;
  pc_session* s;
  size_t n, m, outs;  // devices; arguments and results
  pc_array** arrays;  // m; the first `got` with a reference
  size_t got;         // see arrays
  PJRT_Buffer** in;   // n * m, device by device
  PJRT_Buffer* const** rows;
  PJRT_Buffer** out;  // n * outs
  PJRT_Buffer*** results;
  PJRT_Event** events;  // n
  pc_array** made;      // outs
  uint64_t* handles;    // outs
  int64_t* keep;
} running;

// lay_out divides a block of words into the lists of a run.
static void lay_out(running* r, void** block) {
  r->arrays = (pc_array**)block;
  r->in = (PJRT_Buffer**)block + r->m;
  r->rows = (PJRT_Buffer* const**)(r->in + r->n * r->m);
  r->out = (PJRT_Buffer**)(r->rows + r->n);
  r->results = (PJRT_Buffer***)(r->out + r->n * r->outs);
  r->events = (PJRT_Event**)(r->results + r->n);
  r->made = (pc_array**)(r->events + r->n);
  r->handles = (uint64_t*)(r->made + r->outs);
  r->keep = (int64_t*)(r->handles + r->outs);
}

// gather gets the arguments, and finds each one's shard for each device.
static pathways_error gather(running* r, const pathways_array* inputs) {
  const pc_executable* e = r->e;
  while (r->got < r->m) {
    PC_TRY(pc_get(inputs[r->got], PC_ARRAY, &r->arrays[r->got]));
    size_t i = r->got++;
    const pc_array* a = r->arrays[i];
    if (a->base.session != r->s)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                     "run: argument %zu of %s belongs to another session; read it and make a copy here", i, e->name);
    for (size_t d = 0; d < r->n; d++) {
      int64_t shard = row(a, e, d);
      if (shard < 0)
        return pc_fail(
            PATHWAYS_INVALID_ARGUMENT,
            "run: argument %zu of %s has %zu shards and none on device %d; pathways_array_copy brings it there", i,
            e->name, a->num_shards, (int)e->devices[d]->id);
      r->in[d * r->m + i] = a->shards[shard].buffer;
    }
  }
  return 0;
}

// prepare allocates the results' handles, so that nothing can fail after the run has begun.
static pathways_error prepare(running* r, const pathways_run_options* o, bool done, pc_future** future) {
  for (size_t i = 0; i < o->num_keep; i++) {
    r->keep[i] = o->keep[i];
    if (r->keep[i] < 0 || (size_t)r->keep[i] >= r->m)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: argument %d is to be kept, and there are %zu", (int)o->keep[i],
                     r->m);
  }
  *future = NULL;
  size_t i = 0;
  for (; i < r->outs; i++) {
    const pc_output* x = &r->e->outputs[i];
    r->made[i] = pc_array_make(r->s, pw_shape_hold(x->shape, 1), x->tiled ? x->tiles : NULL, r->n);
    if (r->made[i] == NULL) break;
  }
  if (i == r->outs && (!done || (*future = pc_future_make(r->s, r->n)))) return 0;
  while (i-- > 0) pc_array_free(r->made[i]);
  return pc_no_array(r->n * r->outs);
}

// undo_prepare undoes prepare if the run has not begun.
static void undo_prepare(running* r, pc_future* future) {
  for (size_t i = 0; i < r->outs; i++) pc_array_free(r->made[i]);
  for (size_t d = 0; future && d < r->n; d++) pc_future_one(future, NULL);
  if (future) pc_future_abandon(future);
  if (future) pc_future_one(future, NULL);
}

// execute has the frontend run the program.
static pathways_error execute(running* r, size_t num_keep, bool done) {
  for (size_t d = 0; d < r->n; d++) {
    r->rows[d] = r->in + d * r->m;
    r->results[d] = r->out + d * r->outs;
    r->events[d] = NULL;
  }
  PW_ARGS(PJRT_ExecuteOptions, how);
  how.non_donatable_input_indices = r->keep;
  how.num_non_donatable_input_indices = num_keep;
  PW_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
  a.executable = r->e->loaded;
  a.options = &how;
  a.argument_lists = r->rows;
  a.num_devices = r->n;
  a.num_args = r->m;
  a.output_lists = r->results;
  a.device_complete_events = done ? r->events : NULL;
  return pc_take(r->s->api->PJRT_LoadedExecutable_Execute(&a));
}

// make_handles makes the handles of the results, and of the future if there is one. With an error it makes none.
static pathways_error make_handles(running* r, pc_future* future, pathways_array* outputs, pathways_future* done) {
  atomic_fetch_add_explicit(&r->s->runs, 1, memory_order_relaxed);
  for (size_t i = 0; i < r->outs; i++)
    for (size_t d = 0; d < r->n; d++) {
      r->made[i]->shards[d].buffer = r->out[d * r->outs + i];
      r->made[i]->shards[d].device = r->e->devices[d];
    }
  for (size_t d = 0; future && d < r->n; d++) pc_future_on(future, r->events[d], NULL, NULL);
  pathways_error err = 0;
  size_t given = 0;
  for (; given < r->outs && err == 0; given++) err = pc_new(&r->made[given]->base, PC_ARRAY, r->s, &r->handles[given]);
  for (size_t i = given; i < r->outs; i++) pc_array_free(r->made[i]);
  for (size_t i = 0; err && i + 1 < given; i++) pc_discard(r->handles[i]);
  if (err == 0 && r->outs) memcpy(outputs, r->handles, r->outs * sizeof *outputs);
  if (future && err) pc_future_abandon(future);
  else if (future) pc_future_give(future, done);
  if (future) pc_future_one(future, NULL);
  return err;
}

pathways_error pathways_run(pathways_executable executable, const pathways_run_options* options,
                            const pathways_array* inputs, size_t num_inputs, pathways_array* outputs,
                            size_t num_outputs, pathways_future* done) {
  static const pathways_run_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_run_options, o, options, "pathways_run_options");
  if ((inputs == NULL && num_inputs) || (outputs == NULL && num_outputs) || (o.keep == NULL && o.num_keep))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: a list of inputs, outputs or arguments to keep is NULL");
  if (num_inputs > 1 << 20 || o.num_keep > 1 << 20)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: %zu inputs", num_inputs);
  pc_executable* e;
  PC_TRY(pc_get(executable, PC_EXECUTABLE, &e));
  running r = {.e = e, .s = e->base.session, .n = e->num_devices, .m = num_inputs, .outs = e->num_outputs};
  // One block, on the stack if it is small.
  size_t words = r.m + r.n * r.m + 3 * r.n + r.n * r.outs + 2 * r.outs + o.num_keep;
  void *some[128], **block = words <= 128 ? some : pw_alloc(words * sizeof *block);
  pathways_error err = 0;
  if (num_outputs != r.outs)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: %s returns %zu results, and there is room for %zu", e->name, r.outs,
                  num_outputs);
  else if (block == NULL)
    err = pc_short("the lists of a run", words * sizeof *block);
  if (err == 0) {
    lay_out(&r, block);
    err = gather(&r, inputs);
  }
  pc_future* future;
  if (err == 0 && (err = prepare(&r, &o, done != NULL, &future)) == 0) {
    err = execute(&r, o.num_keep, done != NULL);
    if (err) undo_prepare(&r, future);
    else err = make_handles(&r, future, outputs, done);
  }
  for (size_t i = 0; i < r.got; i++) pc_let(r.arrays[i]);
  if (block != some) free(block);
  pc_let(e);
  return err;
}
