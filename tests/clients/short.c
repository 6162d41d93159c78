// A PJRT client that is older than the library: its structs end early, and the memory after them is not theirs.
// short, with the address of a cluster or "".
#include <dlfcn.h>
#include <stddef.h>

#include "plugin.h"

// Has a struct end with a field.
#define END(name, last)                                                                   \
  do {                                                                                    \
    (name).struct_size = offsetof(__typeof__(name), last) + sizeof (name).last;           \
    memset((char*)&(name) + (name).struct_size, 0xA5, sizeof(name) - (name).struct_size); \
  } while (0)

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
    char* (*cluster)(const char*, const char*) =
        (char* (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "pathways_set_cluster");
    CHECK(cluster && cluster(argv[1], "{}") == NULL);
  }
  api = ((const PJRT_Api* (*)(void))dlsym(RTLD_DEFAULT, "GetPjrtApi"))();
  set_up();

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
  close.client = client;
  PLUGIN(PJRT_Client_Destroy(&close));
  puts("ok");
}
