// Prints what a tiny run costs through this API, over the same plugin driven by
// PJRT calls alone: overhead, with PATHWAYS_PLUGIN=/path/of/plugin.so.
#include <dlfcn.h>
#include <time.h>

#include "plugin.h"

enum { kRuns = 200, kRounds = 500 };  // the least of many short rounds: what others do on the machine is not in it

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void open_plugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(library);
  api = ((const PJRT_Api* (*)(void))dlsym(library, "GetPjrtApi"))();
  ARGS(PJRT_Plugin_Initialize_Args, initialize);
  PLUGIN(PJRT_Plugin_Initialize(&initialize));
  set_up();
}

static double plugin_alone(void) {
  double begin = now();
  for (int i = 0; i < kRuns; i++) {
    PJRT_Buffer *in[] = {argument, argument}, *out[1];
    PJRT_Buffer* const* rows[] = {in};
    PJRT_Buffer** results[] = {out};
    ARGS(PJRT_ExecuteOptions, options);
    ARGS(PJRT_LoadedExecutable_Execute_Args, run);
    run.executable = loaded, run.options = &options, run.argument_lists = rows, run.num_devices = 1, run.num_args = 2,
    run.output_lists = results;
    PLUGIN(PJRT_LoadedExecutable_Execute(&run));
    ARGS(PJRT_Buffer_Destroy_Args, drop);
    drop.buffer = out[0];
    PLUGIN(PJRT_Buffer_Destroy(&drop));
  }
  return (now() - begin) / kRuns;
}

static double this_api(pathways_executable e, pathways_array a) {
  double begin = now();
  for (int i = 0; i < kRuns; i++) {
    pathways_array in[] = {a, a}, out;
    OK(pathways_run(e, NULL, in, 2, &out, 1, NULL));
    OK(pathways_drop(out));
  }
  return (now() - begin) / kRuns;
}

int main(void) {
  CHECK(getenv("PATHWAYS_PLUGIN"));
  open_plugin(getenv("PATHWAYS_PLUGIN"));
  pathways_session s = open_session("", 0);
  pathways_executable e = compile(s, ADD, 0, NULL, 0);
  float x[] = {1, 2, 3, 4};
  pathways_array a = vector(s, x, 4);
  double least[2] = {1e9, 1e9};
  for (int round = 0; round < kRounds; round++) {
    double both[] = {plugin_alone(), this_api(e, a)};
    for (int i = 0; i < 2; i++) least[i] = both[i] < least[i] ? both[i] : least[i];
  }
  printf("a tiny run and the drop of its result: plugin alone %.2f us, this API %.2f us, over it %.2f us\n", least[0],
         least[1], least[1] - least[0]);
  OK(pathways_drop(s));
  return 0;
}
