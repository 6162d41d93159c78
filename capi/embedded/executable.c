// Executables: all that is learned about one when it is compiled or loaded, so that a run only looks it up. Whether its
// shards wait for each other decides whether it takes places on all its devices at once; whether it may fail, whether
// its line is looked up before it runs; and its memory, what the core makes room for.
#define _GNU_SOURCE
#include <stdlib.h>

#include "_cgo_export.h"
#include "embedded.h"
#include "ffi.h"
#include "partition.h"

// mentions reports whether a program's text or bytecode has this attribute; both contain attributes' names verbatim.
static bool mentions(const char* code, size_t size, const char* word) {
  return code != NULL && memmem(code, size, word, strlen(word)) != NULL;
}

// waits reports whether the shards of a compiled program wait for each other: whether it has a collective instruction.
static bool waits(const PJRT_Program* program) {
  static const char* const kinds[] = {"all-reduce", "all-gather", "all-to-all", "reduce-scatter",
                                      "collective-", "partition-id", "send", "recv"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (mentions(program->code, program->code_size, kinds[i])) return true;
  return false;
}

// read_memory reads how much memory a program takes on each device: while it runs, besides arguments and results, and
// for its code. Both stay 0 if the plugin does not say.
static void read_memory(PJRT_LoadedExecutable* e, PJRT_Executable* x) {
  if (!PW_HAS(PJRT_Executable_GetCompiledMemoryStats)) return;
  PW_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, stats);
  stats.executable = x;
  PJRT_Error* err = pw_under->PJRT_Executable_GetCompiledMemoryStats(&stats);
  if (err) {
    pw_error_free(err);
    return;
  }
  if (stats.temp_size_in_bytes > 0) e->temp = stats.temp_size_in_bytes;
  if (stats.generated_code_size_in_bytes > 0) e->code = stats.generated_code_size_in_bytes;
}

// may_fail reports whether a program can fail after it has begun: if it calls back, if foreign code runs on several
// devices, or if it needs so much memory that an allocation may fail. Foreign code on one device runs within the call,
// or is LAPACK.
static bool may_fail(const PJRT_LoadedExecutable* e, const PJRT_Program* program) {
  enum { kMuch = 16 << 20 };  // bytes; writing as many takes longer than finding the user's line
  if (e->calls_back || (e->num_devices > 1 && mentions(program->code, program->code_size, "custom-call"))) return true;
  int64_t bytes = e->temp;
  for (size_t o = 0; o < e->num_outputs; o++) bytes += e->outputs[o].bytes;
  return bytes >= kMuch;
}

PJRT_Error* pw_optimized(PJRT_Executable* x, PJRT_Program* program) {
  memset(program, 0, sizeof *program);
  program->struct_size = PJRT_Program_STRUCT_SIZE;
  if (!PW_HAS(PJRT_Executable_OptimizedProgram)) return NULL;
  PW_ARGS(PJRT_Executable_OptimizedProgram_Args, a);
  a.executable = x;
  a.program = program;
  PJRT_Error* err = pw_under->PJRT_Executable_OptimizedProgram(&a);
  if (err == NULL && program->code_size > 0) {
    program->code = pw_alloc(program->code_size);
    if (program->code == NULL) return pw_short("the compiled program", program->code_size);
    err = pw_under->PJRT_Executable_OptimizedProgram(&a);
    if (err) {
      free(program->code);
      program->code = NULL;
    }
  }
  if (err) pw_error_free(err);  // the plugin does not provide it
  return NULL;
}

// read_places reads Go's description of the results: their number; for each the kind of its memory, a length and the
// letters. It has a kind where the program places a result; older plugins for CPUs, whose memories are all the host's,
// say it in the program only.
static PJRT_Error* read_places(PJRT_LoadedExecutable* e, const int64_t* at) {
  size_t n = (size_t)*at++;
  for (size_t o = 0; o < n; o++) {
    size_t size = (size_t)*at++;
    if (size > 0 && n == e->num_outputs) {
      char* kind = pw_zeros(size, 1);
      if (kind == NULL) return pw_short("the name of a memory", size);
      for (size_t i = 0; i < size; i++) kind[i] = (char)at[i];
      free(e->outputs[o].kind);
      e->outputs[o].kind = kind;
      e->outputs[o].kind_size = size;
      e->places = true;
    }
    at += size;
  }
  return NULL;
}

// read_signature reads Go's description of the arguments: their number; for each the type, the rank and the dimensions;
// then the number of donated arguments, and which; then that of the results.
static PJRT_Error* read_signature(PJRT_LoadedExecutable* e, const int64_t* at) {
  size_t n = (size_t)*at++;
  e->params = pw_zeros(n, sizeof *e->params);
  if (e->params == NULL) return pw_short("a program's arguments", n * sizeof *e->params);
  e->num_params = 0;
  for (size_t i = 0; i < n; i++) {
    pw_shape* shape = pw_shape_new((PJRT_Buffer_Type)at[0], at + 2, (size_t)at[1]);
    if (shape == NULL) return pw_short("the shape of an argument", sizeof *shape + (size_t)at[1] * sizeof *at);
    e->params[e->num_params++] = shape;
    at += 2 + at[1];
  }
  e->num_donated = (size_t)*at++;
  e->donated = pw_copy(at, e->num_donated * sizeof *e->donated);
  if (e->donated == NULL) return pw_short("the list of donated arguments", e->num_donated * sizeof *e->donated);
  return read_places(e, at + e->num_donated);
}

// read_output fills in one output except for its memory's kind.
static PJRT_Error* read_output(pw_output* o, PJRT_Buffer_Type type, const int64_t* dims, size_t rank) {
  o->shape = pw_shape_new(type, dims, rank);
  o->minor_to_major = pw_zeros(rank, sizeof *o->minor_to_major);
  if (o->shape == NULL || o->minor_to_major == NULL)
    return pw_short("the shape of a result", sizeof *o->shape + 2 * rank * sizeof *dims);
  o->bytes = pw_shape_bytes(o->shape);
  pw_descending(o->minor_to_major, rank);
  return NULL;
}

static PJRT_Error* read_outputs(PJRT_LoadedExecutable* e, PJRT_Executable* x) {
  PJRT_Error* err;
  PW_ARGS(PJRT_Executable_NumOutputs_Args, n);
  n.executable = x;
  if ((err = pw_under->PJRT_Executable_NumOutputs(&n))) return err;
  PW_ARGS(PJRT_Executable_OutputElementTypes_Args, types);
  types.executable = x;
  if ((err = pw_under->PJRT_Executable_OutputElementTypes(&types))) return err;
  PW_ARGS(PJRT_Executable_OutputDimensions_Args, dims);
  dims.executable = x;
  if ((err = pw_under->PJRT_Executable_OutputDimensions(&dims))) return err;
  PW_ARGS(PJRT_Executable_OutputMemoryKinds_Args, kinds);
  kinds.executable = x;
  bool has_kinds = true;
  if ((err = pw_under->PJRT_Executable_OutputMemoryKinds(&kinds))) {
    pw_error_free(err);  // not every plugin has this slot; results are then in the default memory
    has_kinds = false;
  }
  e->outputs = pw_zeros(n.num_outputs, sizeof *e->outputs);
  if (e->outputs == NULL) return pw_short("a program's results", n.num_outputs * sizeof *e->outputs);
  const int64_t* at = dims.dims;
  for (size_t i = 0; i < n.num_outputs; i++) {
    pw_output* o = &e->outputs[e->num_outputs++];
    if ((err = read_output(o, types.output_types[i], at, dims.dim_sizes[i]))) return err;
    if (has_kinds && i < kinds.num_outputs) {
      o->kind = pw_copy(kinds.memory_kinds[i], kinds.memory_kind_sizes[i]);
      if (o->kind == NULL) return pw_short("the name of a memory", kinds.memory_kind_sizes[i]);
      o->kind_size = kinds.memory_kind_sizes[i];
    }
    at += dims.dim_sizes[i];
  }
  return NULL;
}

static void loaded_free(PJRT_LoadedExecutable* e) {
  if (e->program && !pw_forked) {
    PW_COUNT(go_entries, 1);
    pwGoForget(e->session, e->program);
  }
  for (size_t i = 0; i < e->num_outputs; i++) {
    pw_shape_drop(e->outputs[i].shape);
    free(e->outputs[i].minor_to_major);
    free(e->outputs[i].kind);
  }
  for (int64_t i = 0; i < e->num_params; i++) pw_shape_drop(e->params[i]);
  free(e->params);
  free(e->donated);
  free(e->outputs);
  free(e->devices);
  free(e->memories);
  free(e->name);
  pw_program_time_drop(e->time);
  free(e);
  PW_COUNT(executables, -1);
}

static void destroy_under(PJRT_LoadedExecutable* under) {
  PW_ARGS(PJRT_LoadedExecutable_Destroy_Args, a);
  a.executable = under;
  PJRT_Error* err = pw_under->PJRT_LoadedExecutable_Destroy(&a);
  if (err) pw_error_free(err);
}

static void destroy_executable(PJRT_Executable* x) {
  PW_ARGS(PJRT_Executable_Destroy_Args, a);
  a.executable = x;
  PJRT_Error* err = pw_under->PJRT_Executable_Destroy(&a);
  if (err) pw_error_free(err);
}

static PJRT_Error* read_name(PJRT_LoadedExecutable* e, PJRT_Executable* x) {
  PW_ARGS(PJRT_Executable_Name_Args, name);
  name.executable = x;
  PJRT_Error* err = pw_under->PJRT_Executable_Name(&name);
  if (err) return err;
  e->name = pw_copy(name.executable_name, name.executable_name_size);
  if (e->name == NULL) return pw_short("the name of a program", name.executable_name_size);
  e->port = pw_port_of(e->name);
  return NULL;
}

static PJRT_Error* read_devices(PJRT_LoadedExecutable* e) {
  PW_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args, devices);
  devices.executable = e->under;
  PJRT_Error* err = pw_under->PJRT_LoadedExecutable_AddressableDevices(&devices);
  if (err) return err;
  e->devices = pw_zeros(devices.num_addressable_devices, sizeof *e->devices);
  if (e->devices == NULL)
    return pw_short("the devices of a program", devices.num_addressable_devices * sizeof *e->devices);
  e->num_devices = devices.num_addressable_devices;
  for (size_t i = 0; i < e->num_devices; i++) e->devices[i] = pw_device_of(e->client, devices.addressable_devices[i]);
  return NULL;
}

// can_promise returns whether the results can be handed out before they are made: a buffer that is made before its
// contents cannot have a layout or packing of its own.
static bool can_promise(const PJRT_LoadedExecutable* e, PJRT_Executable* x) {
  bool can = e->num_outputs > 0 && pw_default_layouts(x);
  for (size_t o = 0; o < e->num_outputs; o++) can = can && pw_type_bits(e->outputs[o].shape->type) >= 8;
  return can;
}

// find_memories finds the memory of each result on each device.
static PJRT_Error* find_memories(PJRT_LoadedExecutable* e) {
  e->memories = pw_zeros(e->num_devices * e->num_outputs, sizeof *e->memories);
  if (e->memories == NULL)
    return pw_short("the memories of a program's results", e->num_devices * e->num_outputs * sizeof *e->memories);
  for (size_t d = 0; d < e->num_devices; d++)
    for (size_t o = 0; o < e->num_outputs; o++)
      e->memories[d * e->num_outputs + o] = pw_memory_kind(e->devices[d], e->outputs[o].kind, e->outputs[o].kind_size);
  return NULL;
}

// tell_core registers the program with the core, and reads the core's description of its arguments and results.
static PJRT_Error* tell_core(PJRT_LoadedExecutable* e, PJRT_Executable* x) {
  PJRT_Program program;
  PJRT_Error* err = pw_optimized(x, &program);
  if (err) return err;
  e->collective = e->num_devices > 1 && (program.code == NULL || waits(&program));
  read_memory(e, x);
  e->fails = may_fail(e, &program);
  int64_t* bytes = pw_zeros(e->num_outputs, sizeof *bytes);
  int32_t* local = pw_zeros(e->num_devices + 1, sizeof *local);
  if (bytes && local) {
    for (size_t o = 0; o < e->num_outputs; o++) bytes[o] = e->outputs[o].bytes;
    for (size_t d = 0; d < e->num_devices; d++) local[d] = e->devices[d]->index;
    // A portable program has no device of its own. The core treats it as one of the first device (local[0] is 0), and
    // each run names its device.
    size_t num_local = e->num_devices ? e->num_devices : 1;
    char* message = NULL;
    int64_t* params = NULL;
    PW_COUNT(go_entries, 1);
    int refused =
        pwGoProgram(e->session, e->name, e->collective, local, num_local, bytes, e->num_outputs, e->temp, e->code,
                    program.code, program.code_size, (char*)program.format, program.format_size, e->time, &params,
                    &e->program, &message);
    if (refused) err = pw_error_take((PJRT_Error_Code)refused, message);
    else if (params) err = read_signature(e, params);
    else if (e->donates) e->promises = false;  // it is unknown which arrays would be dead
    free(params);
  } else {
    err = pw_short("the description of a program", (e->num_outputs + e->num_devices) * sizeof *bytes);
  }
  free(bytes);
  free(local);
  free(program.code);
  return err;
}

// loaded_new is pw_loaded_new for a program that was compiled from a text, or loaded where from is NULL. On an error
// under is destroyed.
static PJRT_Error* loaded_new(PJRT_Client* client, PJRT_LoadedExecutable* under, const PJRT_Program* from,
                              PJRT_LoadedExecutable** out) {
  PJRT_LoadedExecutable* e = pw_zeros(1, sizeof *e);
  if (e == NULL) {
    destroy_under(under);
    return pw_short("a program", sizeof *e);
  }
  PW_COUNT(executables, 1);
  e->under = under;
  e->client = client;
  e->session = client->session;
  e->pass = client->pass;
  e->refs = 1;
  e->num_params = -1;
  e->donates = from == NULL || from->format_size != 4 || memcmp(from->format, "mlir", 4) != 0 ||
               mentions(from->code, from->code_size, "tf.aliasing_output") ||
               mentions(from->code, from->code_size, "jax.buffer_donor");
  e->calls_back = from == NULL || mentions(from->code, from->code_size, "python_cpu_callback");
  e->time = pw_program_time_new(client->times);
  PW_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, get);
  get.loaded_executable = under;
  PJRT_Error* err = e->time ? pw_under->PJRT_LoadedExecutable_GetExecutable(&get)
                            : pw_short("the device time of a program", sizeof *e->time);
  if (err == NULL) {
    PJRT_Executable* x = get.executable;
    err = read_name(e, x);
    if (err == NULL) err = read_devices(e);
    if (err == NULL) err = read_outputs(e, x);
    if (err == NULL) {
      e->promises = can_promise(e, x);
      err = tell_core(e, x);
    }
    if (err == NULL) err = find_memories(e);
    destroy_executable(x);
  }
  if (err) {
    destroy_under(under);
    loaded_free(e);
    return err;
  }
  *out = e;
  return NULL;
}

PJRT_Error* pw_loaded_new(PJRT_Client* client, PJRT_LoadedExecutable* under, PJRT_LoadedExecutable** out) {
  return loaded_new(client, under, NULL, out);
}

void pw_loaded_drop(PJRT_LoadedExecutable* e) {
  if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
  destroy_under(e->under);
  loaded_free(e);
}

// ---- slots ----

// explained adds to the error of a program that the plugin refuses: what the program needs that is not available here,
// or, if the plugin provides no code, whose fault it is.
static PJRT_Error* explained(PJRT_Error* err) {
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  pw_error_read(err, &code, &message, &size);
  char* refused = pwGoRefused((char*)message, size);
  if (!refused && code != PJRT_Error_Code_UNKNOWN) return err;
  PJRT_Error* with = refused ? pw_error_take(PJRT_Error_Code_UNIMPLEMENTED, refused)
                             : pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%.*s", (int)size, message);
  pw_error_free(err);
  return with;
}

// prepared_here reports whether this library has a client's programs prepared by Python. It does not for platforms
// other than the CPU: they have the operations, and jaxlib's CPU client would drop what a program for another platform
// says about its memories.
static bool prepared_here(PJRT_Client* client) {
  PW_ARGS(PJRT_Client_PlatformName_Args, platform);
  platform.client = client->under;
  PJRT_Error* err = pw_under->PJRT_Client_PlatformName(&platform);
  if (err) pw_error_free(err);
  return !err && platform.platform_name_size == 3 && memcmp(platform.platform_name, "cpu", 3) == 0;
}

// plugin_asks reports whether the plugin's partitioner asks Python, by an extension that JAX then uses.
static bool plugin_asks(void) {
  for (const PJRT_Extension_Base* x = pw_under->extension_start; x; x = x->next)
    if (x->type == PJRT_Extension_Type_Custom_Partitioner) return true;
  return false;
}

static PJRT_Error* compile(PJRT_Client_Compile_Args* args, PJRT_Program* program, const char* options,
                           size_t options_size) {
  PW_COPY(PJRT_Client_Compile_Args, a, args);
  a.client = args->client->under;
  a.program = program;
  a.compile_options = options;
  a.compile_options_size = options_size;
  int64_t begin = pw_clock();
  PJRT_Error* err = pw_under->PJRT_Client_Compile(&a);
  pp_compiled(begin);
  if (err) return explained(err);
  return loaded_new(args->client, a.executable, program, &args->executable);
}

PJRT_Error* pw_PJRT_Client_Compile(PJRT_Client_Compile_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Program program = *args->program;
  if (pw_partition_asks(program.code, program.code_size) && prepared_here(args->client)) {
    pw_partitioned p = {0};
    char* message = NULL;
    PW_COUNT(go_entries, 1);
    int code = pwGoPartition((char*)program.format, program.format_size, program.code, program.code_size,
                             (char*)args->compile_options, args->compile_options_size, plugin_asks(), &p, &message);
    if (code) return pw_error_take((PJRT_Error_Code)code, message);
    if (p.code) {
      program.format = p.format;
      program.format_size = strlen(p.format);
      program.code = p.code;
      program.code_size = p.code_size;
      PJRT_Error* err = compile(args, &program, p.options, p.options_size);
      free(p.format);
      free(p.code);
      free(p.options);
      return err;
    }
  }
  // Parsers of program text look for a zero byte after it, which not every client provides.
  program.code = pw_copy(args->program->code, program.code_size);
  if (program.code == NULL) return pw_short("the text of a program", program.code_size);
  PJRT_Error* err = compile(args, &program, args->compile_options, args->compile_options_size);
  free(program.code);
  return err;
}

PJRT_Error* pw_PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  PW_COPY(PJRT_Executable_DeserializeAndLoad_Args, a, args);
  a.client = args->client->under;
  char* edited;  // see core/xla/aot
  size_t size;
  pwGoForLoad((char*)a.serialized_executable, a.serialized_executable_size, &edited, &size);
  if (edited) {
    a.serialized_executable = edited;
    a.serialized_executable_size = size;
  }
  PJRT_Error* err = pw_under->PJRT_Executable_DeserializeAndLoad(&a);
  free(edited);
  if (err) return err;
  return pw_loaded_new(args->client, a.loaded_executable, &args->loaded_executable);
}

PJRT_Error* pw_PJRT_Client_Load(PJRT_Client_Load_Args* args) {
  if (!PW_HAS(PJRT_Client_Load)) return pw_unimplemented("PJRT_Client_Load");
  PW_COPY(PJRT_Client_Load_Args, a, args);
  PJRT_Client* client = args->client;
  a.client = client->under;
  PJRT_Error* err = pw_under->PJRT_Client_Load(&a);
  if (err) return err;
  return pw_loaded_new(client, a.loaded_executable, (PJRT_LoadedExecutable**)&args->loaded_executable);
}

PJRT_Error* pw_PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  if (pw_forked) return NULL;
  atomic_store(&args->executable->closed, true);
  pw_loaded_drop(args->executable);
  return NULL;
}

PJRT_Error* pw_PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  args->addressable_devices = args->executable->devices;
  args->num_addressable_devices = args->executable->num_devices;
  return NULL;
}
