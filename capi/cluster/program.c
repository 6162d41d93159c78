// Executables of a cluster. Go makes one from what the controller says of a program (pr_program_new to
// pr_program_done). From then on it does not change, and slots read it here; to serialize it they ask Go.
#include <stdlib.h>

#include "_cgo_export.h"
#include "cluster.h"

// ---- how Go makes an executable ----

PJRT_Executable* pr_program_new(PJRT_Client* client, uint64_t program, const char* name, const char* fingerprint,
                                size_t replicas, size_t partitions, size_t devices, size_t params, size_t outputs) {
  PJRT_Executable* x = pw_zeros(1, sizeof *x);
  if (x == NULL) return NULL;
  PR_COUNT(executables, 1);
  x->refs = 1;
  x->client = client;
  x->session = client->session;
  x->program = program;
  x->port = pw_port_of(name);
  x->replicas = replicas;
  x->partitions = partitions;
  if (!((x->name = pw_copy_text(name)) && (x->fingerprint = pw_copy_text(fingerprint)) &&
        (x->devices = pw_zeros(devices, sizeof *x->devices)) && (x->rows = pw_zeros(devices, sizeof *x->rows)) &&
        (x->outputs = pw_zeros(outputs, sizeof *x->outputs)) && (x->params = pw_zeros(params, sizeof *x->params)) &&
        (x->donates = pw_zeros(params, sizeof *x->donates)))) {
    pr_program_drop(x);
    return NULL;
  }
  x->num_devices = devices;
  x->num_params = params;
  x->num_outputs = outputs;
  return x;
}

bool pr_program_array(PJRT_Executable* x, bool output, size_t i, uint32_t type, const int64_t* dims, size_t n,
                      const int64_t* minor_to_major, const char* memory, bool donated) {
  pr_array* a = output ? &x->outputs[i] : &x->params[i];
  if (!((a->shape = pw_shape_new((PJRT_Buffer_Type)type, dims, n)) && (a->memory = pw_copy_text(memory)) &&
        (a->minor_to_major = pw_zeros(n, sizeof *a->minor_to_major))))
    return false;
  a->bytes = pw_shape_bytes(a->shape);
  a->memory_size = strlen(memory);
  a->descending = true;
  for (size_t d = 0; d < n; d++) {
    a->minor_to_major[d] = minor_to_major ? minor_to_major[d] : (int64_t)(n - 1 - d);
    a->descending = a->descending && a->minor_to_major[d] == (int64_t)(n - 1 - d);
  }
  if (!output) x->donates[i] = donated;
  return true;
}

void pr_program_device(PJRT_Executable* x, size_t row, uint32_t device) {
  x->devices[row] = x->client->devices[device];
  x->rows[row] = device;
}

bool pr_program_bytes(PJRT_Executable* x, int what, const void* data, size_t size) {
  pr_bytes* all[] = {&x->format, &x->options, &x->optimized, &x->assignment};
  all[what]->data = pw_copy(data, size);
  all[what]->size = size;
  return all[what]->data != NULL;
}

// alloc_lists allocates the lists of a program in the form that PJRT returns.
static bool alloc_lists(PJRT_Executable* x, size_t dims) {
  size_t outs = x->num_outputs, params = x->num_params, devices = x->num_devices;
  return (x->types = pw_zeros(outs, sizeof *x->types)) && (x->ranks = pw_zeros(outs, sizeof *x->ranks)) &&
         (x->dims = pw_zeros(dims, sizeof *x->dims)) && (x->kinds = pw_zeros(outs, sizeof *x->kinds)) &&
         (x->kind_sizes = pw_zeros(outs, sizeof *x->kind_sizes)) &&
         (x->param_kinds = pw_zeros(params, sizeof *x->param_kinds)) &&
         (x->param_kind_sizes = pw_zeros(params, sizeof *x->param_kind_sizes)) &&
         (x->memories = pw_zeros(devices * outs, sizeof *x->memories)) &&
         (x->logical = pw_zeros(devices, sizeof *x->logical));
}

// kind_of returns the name of the memory of a program's array: the default memory's if there is none.
static const char* kind_of(const PJRT_Executable* x, const pr_array* a) {
  const pr_memory* m = x->num_devices ? pr_memory_kind(x->devices[0], a->memory, a->memory_size) : NULL;
  return m ? m->kind : a->memory;
}

bool pr_program_done(PJRT_Executable* x) {
  enum { kHeavy = 1 << 20 };  // bytes: 50 µs to write
  size_t outs = x->num_outputs, rank = 0;
  int64_t made = x->use.temporary;
  for (size_t o = 0; o < outs; o++) {
    rank += x->outputs[o].shape->num_dims;
    made += x->outputs[o].bytes;
  }
  x->heavy = made >= kHeavy;
  if (!alloc_lists(x, rank)) return false;
  int64_t* at = x->dims;
  for (size_t o = 0; o < outs; o++) {
    pr_array* a = &x->outputs[o];
    x->types[o] = a->shape->type;
    x->ranks[o] = a->shape->num_dims;
    if (x->ranks[o]) memcpy(at, a->shape->dims, x->ranks[o] * sizeof *at);
    at += x->ranks[o];
    x->kinds[o] = kind_of(x, a);
    x->kind_sizes[o] = strlen(x->kinds[o]);
  }
  for (size_t i = 0; i < x->num_params; i++) {
    x->param_kinds[i] = kind_of(x, &x->params[i]);
    x->param_kind_sizes[i] = strlen(x->param_kinds[i]);
  }
  for (size_t d = 0; d < x->num_devices; d++) {
    x->logical[d] = (PJRT_LogicalDeviceIds){(int)(d / x->partitions), (int)(d % x->partitions)};
    for (size_t o = 0; o < outs; o++)
      x->memories[d * outs + o] = pr_memory_kind(x->devices[d], x->outputs[o].memory, x->outputs[o].memory_size);
  }
  return true;
}

static void free_arrays(pr_array* a, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pw_shape_drop(a[i].shape);
    free(a[i].memory);
    free(a[i].minor_to_major);
  }
  free(a);
}

static void free_layouts(void** list, size_t n) {
  for (size_t i = 0; list && i < n; i++) free(list[i]);
  free(list);
}

void pr_program_drop(PJRT_Executable* x) {
  if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
  free_layouts(atomic_load(&x->output_layouts), x->num_outputs);
  free_layouts(atomic_load(&x->param_layouts), x->num_params);
  free_arrays(x->outputs, x->num_outputs);
  free_arrays(x->params, x->num_params);
  void* all[] = {x->name,   x->fingerprint, x->devices,        x->rows,    x->donates,          x->memories,
                 x->types,  x->dims,        x->ranks,          x->kinds,   x->kind_sizes,       x->param_kinds,
                 x->logical, x->param_kind_sizes, x->format.data, x->options.data, x->optimized.data,
                 x->assignment.data, atomic_load(&x->properties)};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  if (x->code) {
    PR_COUNT(go_entries, 1);
    prGoDropCode(x->code);
  }
  free(x);
  PR_COUNT(executables, -1);
}

// load makes the handle of a program that the cluster has loaded. It takes the program.
static PJRT_Error* load(PJRT_Executable* x, PJRT_LoadedExecutable** out) {
  PJRT_LoadedExecutable* l = pw_zeros(1, sizeof *l);
  if (l == NULL) {
    PR_COUNT(go_entries, 1);
    prGoForget(x->session, x->program);
    pr_program_drop(x);
    return pw_short("a program", sizeof *l);
  }
  l->x = x;
  l->refs = 1;
  *out = l;
  return NULL;
}

// ---- compile and load ----

PJRT_Error* pr_PJRT_Client_Compile(PJRT_Client_Compile_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Executable* x = NULL;
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  int64_t begin = pw_clock();
  int code =
      prGoCompile(args->client, (char*)args->program->format, args->program->format_size, args->program->code,
                  args->program->code_size, (char*)args->compile_options, args->compile_options_size, &x, &message);
  pp_compiled(begin);
  if (code) return pw_error_take((PJRT_Error_Code)code, message);
  return load(x, &args->executable);
}

PJRT_Error* pr_PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  if (pw_forked) return pw_forked_error();
  const char* options = NULL;
  size_t size = 0;
  if (PW_COVERS(args, overridden_serialized_compile_options_size)) {
    options = args->overridden_serialized_compile_options;
    size = args->overridden_serialized_compile_options_size;
  }
  PJRT_Executable* x = NULL;
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  int code = prGoLoad(args->client, (char*)args->serialized_executable, args->serialized_executable_size,
                      (char*)options, size, &x, &message);
  if (code) return pw_error_take((PJRT_Error_Code)code, message);
  return load(x, &args->loaded_executable);
}

static void forget(PJRT_LoadedExecutable* l) {
  if (pw_forked || atomic_exchange(&l->deleted, true)) return;
  PR_COUNT(go_entries, 1);
  prGoForget(l->x->session, l->x->program);
}

void pr_loaded_drop(PJRT_LoadedExecutable* l) {
  if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1) return;
  forget(l);
  pr_program_drop(l->x);
  free(l);
}

PJRT_Error* pr_PJRT_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args* args) {
  forget(args->executable);
  return NULL;
}

PW_READS(pr, PJRT_LoadedExecutable_IsDeleted, args->is_deleted = atomic_load(&args->executable->deleted))

PJRT_Error* pr_PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  if (args->executable == NULL || pw_forked) return NULL;
  atomic_store(&args->executable->closed, true);
  pr_loaded_drop(args->executable);
  return NULL;
}

PJRT_Error* pr_PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = args->loaded_executable->x;
  atomic_fetch_add_explicit(&args->executable->refs, 1, memory_order_relaxed);
  return NULL;
}

PJRT_Error* pr_PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args* args) {
  if (args->executable && !pw_forked) pr_program_drop(args->executable);
  return NULL;
}

// ---- what only reads ----

PW_READS(pr, PJRT_LoadedExecutable_AddressableDevices,
         args->addressable_devices = args->executable->x->devices,
         args->num_addressable_devices = args->executable->x->num_devices)

PJRT_Error* pr_PJRT_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args* args) {
  PJRT_Executable* x = ((PJRT_LoadedExecutable*)args->executable)->x;
  args->addressable_device_logical_ids = x->logical;
  args->num_addressable_device_logical_ids = x->num_devices;
  return NULL;
}

PW_READS(pr, PJRT_LoadedExecutable_Fingerprint, GIVE(executable_fingerprint, args->executable->x->fingerprint))
PW_READS(pr, PJRT_Executable_Fingerprint, GIVE(executable_fingerprint, args->executable->fingerprint))
PW_READS(pr, PJRT_Executable_Name, GIVE(executable_name, args->executable->name))
PW_READS(pr, PJRT_Executable_NumReplicas, args->num_replicas = args->executable->replicas)
PW_READS(pr, PJRT_Executable_NumPartitions, args->num_partitions = args->executable->partitions)
PW_READS(pr, PJRT_Executable_NumOutputs, args->num_outputs = args->executable->num_outputs)
PW_READS(pr, PJRT_Executable_SizeOfGeneratedCodeInBytes, args->size_in_bytes = args->executable->use.code)

PW_READS(pr, PJRT_Executable_OutputElementTypes,
         args->output_types = args->executable->types,
         args->num_output_types = args->executable->num_outputs)

PW_READS(pr, PJRT_Executable_OutputDimensions,
         args->num_outputs = args->executable->num_outputs,
         args->dims = args->executable->dims,
         args->dim_sizes = args->executable->ranks)

PW_READS(pr, PJRT_Executable_OutputMemoryKinds,
         args->num_outputs = args->executable->num_outputs,
         args->memory_kinds = args->executable->kinds,
         args->memory_kind_sizes = args->executable->kind_sizes)

PJRT_Error* pr_PJRT_Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args* args) {
  PJRT_Executable* x = args->executable;
  args->num_parameters = x->num_params;
  args->memory_kinds = x->param_kinds;
  args->memory_kind_sizes = x->param_kind_sizes;
  return NULL;
}

PJRT_Error* pr_PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args* args) {
  const pr_memory_use* use = &args->executable->use;
  args->argument_size_in_bytes = use->arguments;
  args->output_size_in_bytes = use->outputs;
  args->alias_size_in_bytes = use->aliased;
  args->temp_size_in_bytes = use->temporary;
  args->generated_code_size_in_bytes = use->code;
  // Workers do not describe programs that have arrays in host memory.
  if (PW_COVERS(args, host_generated_code_size_in_bytes)) args->host_generated_code_size_in_bytes = 0;
  if (PW_COVERS(args, host_argument_size_in_bytes)) args->host_argument_size_in_bytes = 0;
  if (PW_COVERS(args, host_output_size_in_bytes)) args->host_output_size_in_bytes = 0;
  if (PW_COVERS(args, host_alias_size_in_bytes)) args->host_alias_size_in_bytes = 0;
  if (PW_COVERS(args, host_temp_size_in_bytes)) args->host_temp_size_in_bytes = 0;
  if (PW_COVERS(args, peak_memory_in_bytes))
    args->peak_memory_in_bytes = use->arguments + use->outputs - use->aliased + use->temporary;
  return NULL;
}

static char format[] = "hlo_with_config";

PJRT_Error* pr_PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args* args) {
  PJRT_Executable* x = args->executable;
  if (x->optimized.size == 0)
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED,
                    "PJRT_Executable_OptimizedProgram: the workers of this cluster do not provide it");
  args->program->format = format;
  args->program->format_size = sizeof format - 1;
  if (args->program->code == NULL) {
    args->program->code_size = x->optimized.size;
    return NULL;
  }
  if (args->program->code_size < x->optimized.size)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "PJRT_Executable_OptimizedProgram: the program takes %zu bytes, and there is room for %zu",
                    x->optimized.size, args->program->code_size);
  memcpy(args->program->code, x->optimized.data, x->optimized.size);
  return NULL;
}

PJRT_Error* pr_PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_Executable* x = args->executable;
  PJRT_NamedValue* have = atomic_load_explicit(&x->properties, memory_order_acquire);
  if (have == NULL) {
    if (x->optimized.size == 0) return pr_unimplemented("PJRT_Executable_GetCostAnalysis");
    size_t n = 0;
    char* message = NULL;
    PJRT_NamedValue* counted = NULL;
    PR_COUNT(go_entries, 1);
    int code = pwGoCost(format, sizeof format - 1, x->optimized.data, x->optimized.size, &counted, &n, &message);
    if (code) return pw_error_take((PJRT_Error_Code)code, message);
    atomic_store_explicit(&x->num_properties, n, memory_order_relaxed);  // every thread writes the same
    if (atomic_compare_exchange_strong_explicit(&x->properties, &have, counted, memory_order_acq_rel,
                                                memory_order_acquire))
      have = counted;
    else
      free(counted);
  }
  args->properties = have;
  args->num_properties = atomic_load_explicit(&x->num_properties, memory_order_relaxed);
  return NULL;
}

static void free_serialized(PJRT_SerializedExecutable* bytes) { free(bytes); }

PJRT_Error* pr_PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args* args) {
  if (pw_forked) return pw_forked_error();
  const PJRT_Executable* x = args->executable;
  char* bytes = NULL;
  size_t size = 0;
  PR_COUNT(go_entries, 1);
  prGoSerialize((PJRT_Executable*)x, &bytes, &size);
  args->serialized_bytes = bytes;
  args->serialized_bytes_size = size;
  args->serialized_executable = (PJRT_SerializedExecutable*)bytes;
  args->serialized_executable_deleter = free_serialized;
  return NULL;
}

// Copies, which the caller frees.
static void free_options(PJRT_SerializedCompileOptions* options) { free(options); }
static void free_assignment(PJRT_DeviceAssignmentSerialized* assignment) { free(assignment); }

PJRT_Error* pr_PJRT_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args* args) {
  char* bytes = pw_copy(args->executable->options.data, args->executable->options.size);
  if (bytes == NULL) return pw_short("compile options", args->executable->options.size);
  args->serialized_bytes = bytes;
  args->serialized_bytes_size = args->executable->options.size;
  args->serialized_compile_options = (PJRT_SerializedCompileOptions*)bytes;
  args->serialized_compile_options_deleter = free_options;
  return NULL;
}

PJRT_Error* pr_PJRT_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args* args) {
  PJRT_Executable* x = args->executable->x;
  char* bytes = pw_copy(x->assignment.data, x->assignment.size);
  if (bytes == NULL) return pw_short("a device assignment", x->assignment.size);
  args->serialized_bytes = bytes;
  args->serialized_bytes_size = x->assignment.size;
  args->serialized_device_assignment = (PJRT_DeviceAssignmentSerialized*)bytes;
  args->serialized_device_assignment_deleter = free_assignment;
  return NULL;
}
