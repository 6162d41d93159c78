// What clients have that go by PJRT calls: a table, and on its first device a computation that adds two arrays, and an
// array.
#include "check.h"
#include "pjrt_abi.h"

#define ARGS(type, name) type name = {.struct_size = type##_STRUCT_SIZE}
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
static PJRT_Client* client;
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

// Makes all that, by the api.
static void set_up(void) {
  ARGS(PJRT_Client_Create_Args, create);
  PLUGIN(PJRT_Client_Create(&create));
  client = create.client;
  ARGS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = client;
  PLUGIN(PJRT_Client_AddressableDevices(&devices));
  static char code[] = ADD;
  ARGS(PJRT_Program, program);
  program.code = code, program.code_size = sizeof code - 1, program.format = "mlir", program.format_size = 4;
  // One replica of one partition: executable_build_options {num_replicas: 1 num_partitions: 1}.
  static char options[] = {0x1a, 4, 0x20, 1, 0x28, 1};
  ARGS(PJRT_Client_Compile_Args, compile);
  compile.client = client, compile.program = &program;
  compile.compile_options = options, compile.compile_options_size = sizeof options;
  PLUGIN(PJRT_Client_Compile(&compile));
  loaded = compile.executable;
  static const float x[4] = {1, 2, 3, 4};
  static const int64_t dims[] = {4};
  ARGS(PJRT_Client_BufferFromHostBuffer_Args, put);
  put.client = client, put.data = x, put.type = PJRT_Buffer_Type_F32, put.dims = dims, put.num_dims = 1;
  put.device = devices.addressable_devices[0];
  PLUGIN(PJRT_Client_BufferFromHostBuffer(&put));
  wait_for(put.done_with_host_buffer);
  argument = put.buffer;
}
