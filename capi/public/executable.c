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
} bytes;

static void put(bytes* b, const void* data, size_t size) {
  if (b->size + size > b->room) b->data = realloc(b->data, b->room = 2 * (b->size + size));
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
}

static void varint(bytes* b, uint64_t v) {
  uint8_t text[10];
  size_t n = 0;
  do text[n++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
  while (v >>= 7);
  put(b, text, n);
}

static void number(bytes* b, int field, uint64_t v) {
  varint(b, (uint64_t)field << 3);
  varint(b, v);
}

static void message(bytes* b, int field, bytes* inner) {
  varint(b, (uint64_t)field << 3 | 2);
  varint(b, inner->size);
  put(b, inner->data, inner->size);
  free(inner->data);
  *inner = (bytes){0};
}

// encode writes what we say behind what the caller says: of a field that is there
// twice the later one counts, and a message that is there twice is merged.
static bytes encode(const pathways_compile_options* o, int32_t replicas, int32_t partitions, pc_device** devices) {
  bytes all = {0}, build = {0}, assignment = {0};
  put(&all, o->xla_options, o->xla_options_size);
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

// describe reads what an executable gives and where it runs.
static PJRT_Error* describe(pc_session* s, pc_executable* e) {
  const PJRT_Api* api = s->api;
  PW_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, get);
  PW_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args, devices);
  get.loaded_executable = devices.executable = e->loaded;
  PJRT_Error* err = api->PJRT_LoadedExecutable_AddressableDevices(&devices);
  if (err) return err;
  e->num_devices = devices.num_addressable_devices;
  e->devices = calloc(e->num_devices + 1, sizeof *e->devices);
  for (size_t i = 0; i < e->num_devices; i++) {
    e->devices[i] = pc_device_of(s, devices.addressable_devices[i]);
    if (e->devices[i] == NULL) return pw_error(PJRT_Error_Code_INTERNAL, "the program runs on a device that the session does not have");
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
    e->outputs = calloc(e->num_outputs + 1, sizeof *e->outputs);
    const int64_t* at = dims.dims;
    for (size_t i = 0; i < e->num_outputs; i++) {
      pc_output* o = &e->outputs[i];
      o->shape = pw_shape_new(types.output_types[i], at, dims.dim_sizes[i]);
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

// tile takes what the caller says of how results lie.
static pathways_error tile(pc_executable* e, const pathways_tiles* tiles, size_t n) {
  if (tiles == NULL) return 0;
  if (n != e->num_outputs)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %zu outputs are described, and the program has %zu", n, e->num_outputs);
  for (size_t i = 0; i < n; i++) {
    pc_output* o = &e->outputs[i];
    if (tiles[i].tiles && tiles[i].num_dims != o->shape->num_dims)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: output %zu has %zu dimensions, and its tiles %zu", i, o->shape->num_dims,
                     tiles[i].num_dims);
    int64_t parts = 1;
    for (size_t d = 0; tiles[i].tiles && d < tiles[i].num_dims; d++) {
      o->tiles[d] = tiles[i].tiles[d];
      if (o->tiles[d] < 1 || o->tiles[d] > (int64_t)e->num_devices) parts = 0;
      else parts *= o->tiles[d];
      if (parts < 1 || parts > (int64_t)e->num_devices) break;
    }
    if (parts < 1 || e->num_devices % (size_t)parts)
      return pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: the tiles of output %zu do not divide its %zu shards evenly", i, e->num_devices);
    o->tiled = true;
  }
  return 0;
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
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %zu devices are named for %d replicas of %d partitions", o.num_devices,
                  (int)replicas, (int)partitions);
  if (err == 0 && n > s->num_devices)
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "compile: %d replicas of %d partitions do not fit on the %zu devices of this session",
                  (int)replicas, (int)partitions, s->num_devices);
  if (err == 0) {
    devices = calloc(n, sizeof *devices);
    err = pc_devices(s, o.devices, n, devices);
  }
  if (err == 0) {
    bytes coded = encode(&o, replicas, partitions, devices);
    pc_executable* e = calloc(1, sizeof *e);
    PW_ARGS(PJRT_Program, program);
    program.code = (char*)o.code;
    program.code_size = o.code_size;
    program.format = "mlir";
    program.format_size = 4;
    PW_ARGS(PJRT_Client_Compile_Args, compile);
    compile.client = s->client;
    compile.program = &program;
    compile.compile_options = (char*)coded.data;
    compile.compile_options_size = coded.size;
    PJRT_Error* failed = s->api->PJRT_Client_Compile(&compile);
    free(coded.data);
    if (failed == NULL) {
      e->loaded = compile.executable;
      failed = describe(s, e);
    }
    err = failed ? pc_take(failed) : tile(e, o.outputs, o.num_outputs);
    if (err) {
      free_executable(s->api, e);
    } else {
      atomic_fetch_add_explicit(&s->executables, 1, memory_order_relaxed);
      err = pc_new(&e->base, PC_EXECUTABLE, s, executable);
    }
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

// row gives the place of an array's shard for a device; -1 where it has none.
static int64_t row(const pc_array* a, const pc_executable* e, size_t d) {
  if (d < a->num_shards && a->shards[d].device == e->devices[d]) return (int64_t)d;
  if (e->num_devices == 1 && a->num_shards == 1) return 0;  // the door brings it there
  for (size_t i = 0; i < a->num_shards; i++)
    if (a->shards[i].device == e->devices[d]) return (int64_t)i;
  return -1;
}

pathways_error pathways_run(pathways_executable executable, const pathways_run_options* options,
                            const pathways_array* inputs, size_t num_inputs, pathways_array* outputs,
                            size_t num_outputs, pathways_future* done) {
  static const pathways_run_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_run_options, o, options, "pathways_run_options");
  if ((inputs == NULL && num_inputs) || (outputs == NULL && num_outputs) || (o.keep == NULL && o.num_keep))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: a list of inputs, outputs or arguments to keep is NULL");
  if (num_inputs > 1 << 20 || o.num_keep > 1 << 20) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: %zu inputs", num_inputs);
  pc_executable* e;
  PC_TRY(pc_get(executable, PC_EXECUTABLE, &e));
  pc_session* s = e->base.session;
  const PJRT_Api* api = s->api;
  size_t n = e->num_devices, m = num_inputs, outs = e->num_outputs;
  pathways_error err = 0;
  if (num_outputs != outs) {
    err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: %s gives %zu results, and there is room for %zu", e->name, outs, num_outputs);
    pc_let(e);
    return err;
  }

  // One block, on the stack where it is small.
  size_t words = m + n * m + n + n * outs + n + n + 2 * outs + o.num_keep;
  void *some[128], **block = words <= 128 ? some : malloc(words * sizeof *block);
  pc_array** arrays = (pc_array**)block;
  PJRT_Buffer** in = (PJRT_Buffer**)block + m;
  PJRT_Buffer* const** rows = (PJRT_Buffer* const**)(in + n * m);
  PJRT_Buffer** out = (PJRT_Buffer**)(rows + n);
  PJRT_Buffer*** results = (PJRT_Buffer***)(out + n * outs);
  PJRT_Event** events = (PJRT_Event**)(results + n);
  pc_array** made = (pc_array**)(events + n);
  uint64_t* handles = (uint64_t*)(made + outs);
  int64_t* keep = (int64_t*)(handles + outs);

  size_t got = 0;
  for (; got < m && err == 0; got++) {
    if ((err = pc_get(inputs[got], PC_ARRAY, &arrays[got]))) break;
    pc_array* a = arrays[got];
    if (a->base.session != s)
      err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: argument %zu of %s is of another session; read it and make it anew", got, e->name);
    for (size_t d = 0; d < n && err == 0; d++) {
      int64_t i = row(a, e, d);
      if (i < 0)
        err = pc_fail(PATHWAYS_INVALID_ARGUMENT,
                      "run: argument %zu of %s has %zu shards and none on device %d; pathways_array_copy brings it there", got,
                      e->name, a->num_shards, (int)e->devices[d]->id);
      else
        in[d * m + got] = a->shards[i].buffer;
    }
  }
  for (size_t i = 0; i < o.num_keep && err == 0; i++) {
    keep[i] = o.keep[i];
    if (keep[i] < 0 || (size_t)keep[i] >= m)
      err = pc_fail(PATHWAYS_INVALID_ARGUMENT, "run: argument %d is to be kept, and there are %zu", (int)o.keep[i], m);
  }
  if (err == 0) {
    for (size_t d = 0; d < n; d++) {
      rows[d] = in + d * m;
      results[d] = out + d * outs;
      events[d] = NULL;
    }
    PW_ARGS(PJRT_ExecuteOptions, how);
    how.non_donatable_input_indices = keep;
    how.num_non_donatable_input_indices = o.num_keep;
    PW_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
    a.executable = e->loaded;
    a.options = &how;
    a.argument_lists = rows;
    a.num_devices = n;
    a.num_args = m;
    a.output_lists = results;
    a.device_complete_events = done ? events : NULL;
    err = pc_take(api->PJRT_LoadedExecutable_Execute(&a));
  }
  if (err == 0) {
    atomic_fetch_add_explicit(&s->runs, 1, memory_order_relaxed);
    for (size_t i = 0; i < outs; i++) {
      pc_output* x = &e->outputs[i];
      atomic_fetch_add_explicit(&x->shape->refs, 1, memory_order_relaxed);
      made[i] = pc_array_make(s, x->shape, x->tiled ? x->tiles : NULL, n);
      for (size_t d = 0; d < n; d++) {
        made[i]->shards[d].buffer = out[d * outs + i];
        made[i]->shards[d].device = e->devices[d];
      }
    }
    pathways_future future = 0;
    if (done) {
      pc_future* f = pc_future_make(s, n);
      for (size_t d = 0; d < n; d++) pc_future_on(f, events[d], NULL, NULL);
      pc_future_give(f, &future);
      pc_future_one(f, NULL);
    }
    size_t given = 0;
    for (; given < outs && err == 0; given++) err = pc_new(&made[given]->base, PC_ARRAY, s, &handles[given]);
    for (size_t i = given; i < outs; i++) pc_array_free(made[i]);
    for (size_t i = 0; err && i + 1 < given; i++) pc_discard(handles[i]);
    if (err == 0 && outs) memcpy(outputs, handles, outs * sizeof *outputs);
    if (err && done) pc_discard(future);
    else if (done) *done = future;
  }
  for (size_t i = 0; i < got; i++) pc_let(arrays[i]);
  if (block != some) free(block);
  pc_let(e);
  return err;
}
