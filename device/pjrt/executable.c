#include "call.h"

pwdrv_status pwdrv_compile(const PJRT_Api* api, PJRT_Client* client, const char* format, size_t format_size,
                           const char* code, size_t code_size, const char* options, size_t options_size,
                           PJRT_LoadedExecutable** out) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE};
  // MLIR's lexer reads until a zero byte, even past the given size.
  char* terminated = pwdrv_copy(code, code_size);
  if (terminated == NULL) return PWDRV_LACKS(code_size);
  program.code = terminated;
  program.code_size = code_size;
  program.format = format;
  program.format_size = format_size;
  PWDRV_ARGS(PJRT_Client_Compile);
  args.client = client;
  args.program = &program;
  args.compile_options = options;
  args.compile_options_size = options_size;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Client_Compile);
  free(terminated);
  PWDRV_MADE(loaded_executables, *out = args.executable);
  return status;
}

pwdrv_status pwdrv_load(const PJRT_Api* api, PJRT_Client* client, const char* bytes, size_t size,
                        PJRT_LoadedExecutable** out) {
  PWDRV_ARGS(PJRT_Executable_DeserializeAndLoad);
  args.client = client;
  args.serialized_executable = bytes;
  args.serialized_executable_size = size;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Executable_DeserializeAndLoad);
  PWDRV_MADE(loaded_executables, *out = args.loaded_executable);
  return status;
}

pwdrv_status pwdrv_loaded_destroy(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) {
  PWDRV_COUNT(loaded_executables, -1);
  PWDRV_DO(PJRT_LoadedExecutable_Destroy, args.executable = loaded);
}

pwdrv_status pwdrv_loaded_devices(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, PJRT_Device* const** out,
                                  size_t* count) {
  PWDRV_DO(PJRT_LoadedExecutable_AddressableDevices, args.executable = loaded,
           *out = args.addressable_devices; *count = args.num_addressable_devices);
}

pwdrv_status pwdrv_loaded_executable(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, PJRT_Executable** out) {
  PWDRV_DO(PJRT_LoadedExecutable_GetExecutable, args.loaded_executable = loaded,
           PWDRV_MADE(executables, *out = args.executable));
}

pwdrv_status pwdrv_executable_destroy(const PJRT_Api* api, PJRT_Executable* executable) {
  PWDRV_COUNT(executables, -1);
  PWDRV_DO(PJRT_Executable_Destroy, args.executable = executable);
}

pwdrv_status pwdrv_executable_name(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_bytes* name) {
  PWDRV_DO(PJRT_Executable_Name, args.executable = executable,
           *name = (pwdrv_bytes){args.executable_name, args.executable_name_size});
}

pwdrv_status pwdrv_executable_fingerprint(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_bytes* print) {
  PWDRV_DO(PJRT_Executable_Fingerprint, args.executable = executable,
           *print = (pwdrv_bytes){args.executable_fingerprint, args.executable_fingerprint_size});
}

pwdrv_status pwdrv_executable_num_outputs(const PJRT_Api* api, PJRT_Executable* executable, size_t* count) {
  PWDRV_DO(PJRT_Executable_NumOutputs, args.executable = executable, *count = args.num_outputs);
}

pwdrv_status pwdrv_executable_outputs(const PJRT_Api* api, PJRT_Executable* executable, const PJRT_Buffer_Type** types,
                                      const int64_t** dims, const size_t** ranks) {
  PWDRV_STEP(PJRT_Executable_OutputElementTypes, args.executable = executable, *types = args.output_types);
  PWDRV_DO(PJRT_Executable_OutputDimensions, args.executable = executable, *dims = args.dims; *ranks = args.dim_sizes);
}

pwdrv_status pwdrv_executable_memory_kinds(const PJRT_Api* api, PJRT_Executable* executable, const char* const** kinds,
                                           const size_t** sizes) {
  PWDRV_DO(PJRT_Executable_OutputMemoryKinds, args.executable = executable,
           *kinds = args.memory_kinds; *sizes = args.memory_kind_sizes);
}

pwdrv_status pwdrv_executable_stats(const PJRT_Api* api, PJRT_Executable* executable, int64_t stats[5]) {
  PWDRV_DO(PJRT_Executable_GetCompiledMemoryStats, args.executable = executable,
           stats[0] = args.argument_size_in_bytes;
           stats[1] = args.output_size_in_bytes;
           stats[2] = args.alias_size_in_bytes;
           stats[3] = args.temp_size_in_bytes;
           stats[4] = args.generated_code_size_in_bytes);
}

pwdrv_status pwdrv_executable_program(const PJRT_Api* api, PJRT_Executable* executable, char* room, size_t* size,
                                      pwdrv_bytes* format) {
  *format = (pwdrv_bytes){NULL, 0};
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE, .code = room, .code_size = *size};
  PWDRV_ARGS(PJRT_Executable_OptimizedProgram);
  args.executable = executable;
  args.program = &program;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Executable_OptimizedProgram);
  if (PWDRV_FAILED(status)) return status;
  *size = program.code_size;
  *format = (pwdrv_bytes){program.format, program.format_size};
  return status;
}

pwdrv_status pwdrv_executable_serialize(const PJRT_Api* api, PJRT_Executable* executable, pwdrv_serialized* out) {
  *out = (pwdrv_serialized){0};
  PWDRV_DO(PJRT_Executable_Serialize, args.executable = executable,
           *out = ((pwdrv_serialized){.bytes = {args.serialized_bytes, args.serialized_bytes_size},
                                      .owner = args.serialized_executable,
                                      .drop = args.serialized_executable_deleter}));
}

void pwdrv_serialized_drop(pwdrv_serialized serialized) {
  if (serialized.drop != NULL) serialized.drop(serialized.owner);
}

// Hands out size bytes of a block, aligned for pointers.
static void* take(char** block, size_t size) {
  void* p = *block;
  *block += (size + 15) & ~(size_t)15;
  return p;
}

pwdrv_launch* pwdrv_launch_new(size_t devices, size_t num_args, size_t num_outputs) {
  size_t pointers = devices * (num_args + num_outputs + 4) + num_args;
  char* block = pwdrv_alloc(sizeof(pwdrv_launch) + pointers * sizeof(void*) + devices + 9 * 16);
  if (block == NULL) return NULL;
  pwdrv_launch* l = take(&block, sizeof *l);
  l->devices = devices;
  l->num_args = num_args;
  l->num_outputs = num_outputs;
  l->args = take(&block, devices * num_args * sizeof(void*));
  l->outputs = take(&block, devices * num_outputs * sizeof(void*));
  PJRT_Buffer*** arg_rows = take(&block, devices * sizeof(void*));
  PJRT_Buffer*** output_rows = take(&block, devices * sizeof(void*));
  l->events = take(&block, devices * sizeof(void*));
  l->errors = take(&block, devices * sizeof(void*));
  l->kept = take(&block, num_args * sizeof(int64_t));
  l->fired = take(&block, devices * sizeof(bool));
  for (size_t i = 0; i < devices; i++) {
    arg_rows[i] = l->args + i * num_args;
    output_rows[i] = l->outputs + i * num_outputs;
  }
  l->arg_rows = arg_rows;
  l->output_rows = output_rows;
  return l;
}

pwdrv_status pwdrv_execute(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, pwdrv_launch* l, int launch_id,
                           size_t num_kept, PJRT_Device* only, PJRT_ExecuteContext* context, int64_t* deleted) {
  *deleted = -1;
  pwdrv_status status = {NULL, NULL};
  // If a collective failed to start on one device, the others would wait for it.
  for (size_t i = 0; i < l->devices * l->num_args; i++) {
    bool gone = false;
    status = pwdrv_buffer_deleted(api, l->args[i], &gone);
    if (PWDRV_FAILED(status)) return status;
    if (gone) {
      *deleted = (int64_t)i;
      return status;
    }
  }
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  options.launch_id = launch_id;
  options.non_donatable_input_indices = l->kept;
  options.num_non_donatable_input_indices = num_kept;
  options.context = context;
  PWDRV_ARGS(PJRT_LoadedExecutable_Execute);
  args.executable = loaded;
  args.options = &options;
  args.argument_lists = (PJRT_Buffer* const* const*)l->arg_rows;
  args.num_devices = l->devices;
  args.num_args = l->num_args;
  args.output_lists = (PJRT_Buffer** const*)l->output_rows;
  args.device_complete_events = l->events;
  args.execute_device = only;
  status = PWDRV_CALL(api, PJRT_LoadedExecutable_Execute);
  if (PWDRV_FAILED(status)) return status;
  PWDRV_COUNT(buffers, l->devices * l->num_outputs);
  PWDRV_COUNT(events, l->devices);
  for (size_t i = 0; i < l->devices; i++) {
    pwdrv_status one = pwdrv_event_settle(api, l->events[i], &l->fired[i], &l->errors[i]);
    // An event that cannot be queried is watched, and reports its error there.
    pwdrv_error_destroy(api, one.error);
  }
  return status;
}

pwdrv_status pwdrv_context_create(const PJRT_Api* api, PJRT_ExecuteContext** out) {
  PWDRV_ARGS(PJRT_ExecuteContext_Create);
  pwdrv_status status = PWDRV_CALL(api, PJRT_ExecuteContext_Create);
  PWDRV_MADE(contexts, *out = args.context);
  return status;
}

pwdrv_status pwdrv_context_destroy(const PJRT_Api* api, PJRT_ExecuteContext* context) {
  PWDRV_COUNT(contexts, -1);
  PWDRV_DO(PJRT_ExecuteContext_Destroy, args.context = context);
}
