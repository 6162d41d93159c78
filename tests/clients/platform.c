// A PJRT plugin that is another one under a different name: for clusters of several platforms on a machine with CPUs
// alone. PLUGIN is the path of the other one, and NAME the platform.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

static PJRT_Error* client_name(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = NAME;
  args->platform_name_size = strlen(NAME);
  return NULL;
}

static PJRT_Error* topology_name(PJRT_TopologyDescription_PlatformName_Args* args) {
  args->platform_name = NAME;
  args->platform_name_size = strlen(NAME);
  return NULL;
}

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi(void) {
  static PJRT_Api* api;
  if (api) return api;
  void* plugin = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  const PJRT_Api* theirs = ((const PJRT_Api* (*)(void))dlsym(plugin, "GetPjrtApi"))();
  size_t size = theirs->struct_size > sizeof *api ? theirs->struct_size : sizeof *api;
  api = calloc(1, size);
  memcpy(api, theirs, theirs->struct_size);
  api->PJRT_Client_PlatformName = client_name;
  api->PJRT_TopologyDescription_PlatformName = topology_name;
  return api;
}
