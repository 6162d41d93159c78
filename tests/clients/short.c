// A PJRT client that is older than the library: its structs end early, and what lies behind them is nobody's.
// short, with the address of a cluster or "".
#include <dlfcn.h>
#include <stddef.h>

#include "check.h"
#include "pjrt_abi.h"

#define ARGS(type, name) type name = {.struct_size = type##_STRUCT_SIZE}
// Has a struct end with a field.
#define END(name, last)                                                                   \
  do {                                                                                    \
    (name).struct_size = offsetof(__typeof__(name), last) + sizeof (name).last;           \
    memset((char*)&(name) + (name).struct_size, 0xA5, sizeof(name) - (name).struct_size); \
  } while (0)
#define PLUGIN(call)                                                                        \
  do {                                                                                      \
    PJRT_Error* error_ = api->call;                                                         \
    if (error_) {                                                                           \
      ARGS(PJRT_Error_Message_Args, text);                                                  \
      text.error = error_;                                                                  \
      api->PJRT_Error_Message(&text);                                                       \
      fprintf(stderr, "%s: %.*s\n", #call, (int)text.message_size, text.message);           \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

static const PJRT_Api* api;
static PJRT_LoadedExecutable* loaded;
static PJRT_Buffer* argument;

static void wait_for(PJRT_Event* event) {
  ARGS(PJRT_Event_Await_Args, await);
  await.event = event;
  PLUGIN(PJRT_Event_Await(&await));
  ARGS(PJRT_Event_Destroy_Args, destroy);
  destroy.event = event;
  PLUGIN(PJRT_Event_Destroy(&destroy));
}

// Adds the argument to itself, by a call of these, and sees that it was.
static void add(PJRT_LoadedExecutable_Execute_Args* run, PJRT_ExecuteOptions* options) {
  PJRT_Buffer *in[] = {argument, argument}, *out[1];
  PJRT_Buffer* const* rows[] = {in};
  PJRT_Buffer** results[] = {out};
  run->executable = loaded, run->options = options, run->argument_lists = rows;
  run->num_devices = 1, run->num_args = 2, run->output_lists = results;
  PLUGIN(PJRT_LoadedExecutable_Execute(run));
  float got[4] = {0};
  ARGS(PJRT_Buffer_ToHostBuffer_Args, get);
  get.src = out[0], get.dst = got, get.dst_size = sizeof got;
  PLUGIN(PJRT_Buffer_ToHostBuffer(&get));
  wait_for(get.event);
  for (int i = 0; i < 4; i++) CHECK(got[i] == 2 * (i + 1));
  ARGS(PJRT_Buffer_Destroy_Args, drop);
  drop.buffer = out[0];
  PLUGIN(PJRT_Buffer_Destroy(&drop));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  if (*argv[1]) {
    char* (*cluster)(const char*, const char*) = (char* (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "pathways_set_cluster");
    CHECK(cluster && cluster(argv[1], "{}") == NULL);
  }
  api = ((const PJRT_Api* (*)(void))dlsym(RTLD_DEFAULT, "GetPjrtApi"))();
  ARGS(PJRT_Client_Create_Args, create);
  PLUGIN(PJRT_Client_Create(&create));
  ARGS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = create.client;
  PLUGIN(PJRT_Client_AddressableDevices(&devices));
  static char code[] = ADD;
  ARGS(PJRT_Program, program);
  program.code = code, program.code_size = sizeof code - 1, program.format = "mlir", program.format_size = 4;
  // One replica of one partition: executable_build_options {num_replicas: 1 num_partitions: 1}.
  static char options[] = {0x1a, 4, 0x20, 1, 0x28, 1};
  ARGS(PJRT_Client_Compile_Args, compile);
  compile.client = create.client, compile.program = &program;
  compile.compile_options = options, compile.compile_options_size = sizeof options;
  PLUGIN(PJRT_Client_Compile(&compile));
  loaded = compile.executable;
  static const float x[4] = {1, 2, 3, 4};
  static const int64_t dims[] = {4};
  ARGS(PJRT_Client_BufferFromHostBuffer_Args, put);
  put.client = create.client, put.data = x, put.type = PJRT_Buffer_Type_F32, put.dims = dims, put.num_dims = 1;
  put.device = devices.addressable_devices[0];
  PLUGIN(PJRT_Client_BufferFromHostBuffer(&put));
  wait_for(put.done_with_host_buffer);
  argument = put.buffer;

  for (int i = 0; i < 6; i++) {
    ARGS(PJRT_LoadedExecutable_Execute_Args, run);
    ARGS(PJRT_ExecuteOptions, how);
    if (i == 1) END(run, device_complete_events);
    if (i == 2) END(run, output_lists);
    if (i == 3) END(how, call_location);
    if (i == 4) END(how, num_non_donatable_input_indices);
    if (i == 5) END(how, launch_id);
    add(&run, &how);
  }

  ARGS(PJRT_Buffer_Destroy_Args, drop);
  drop.buffer = argument;
  PLUGIN(PJRT_Buffer_Destroy(&drop));
  ARGS(PJRT_LoadedExecutable_Destroy_Args, unload);
  unload.executable = loaded;
  PLUGIN(PJRT_LoadedExecutable_Destroy(&unload));
  ARGS(PJRT_Client_Destroy_Args, close);
  close.client = create.client;
  PLUGIN(PJRT_Client_Destroy(&close));
  puts("ok");
}
