// What the plugin may not say of an executable. What it costs is counted from the optimized program when it is first
// asked for. The memories of its results are those that were read when it was loaded. Executables are the plugin's own
// handles, whose properties live as long as they do, so these are kept beside them.
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "embedded.h"

typedef struct properties {
  struct properties* next;
  const PJRT_Executable* of;
  PJRT_NamedValue* cost;  // with their names, one block
  const char** kinds;     // of the results' memories, and their sizes, one block; NULL if this is the cost
  size_t* sizes;
  size_t num;
} properties;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the list
static properties* known;

// find returns the memories of an executable's results, or its cost; NULL if they are not known. They stay until the
// executable is destroyed.
static const properties* find(const PJRT_Executable* of, bool memories) {
  pthread_mutex_lock(&mu);
  const properties* p = known;
  while (p && (p->of != of || (p->kinds != NULL) != memories)) p = p->next;
  pthread_mutex_unlock(&mu);
  return p;
}

static void keep(properties* p) {
  pthread_mutex_lock(&mu);
  p->next = known;
  known = p;
  pthread_mutex_unlock(&mu);
}

static void properties_free(properties* p) {
  free(p->cost);
  free(p->kinds);
  free(p);
}

static bool unimplemented(PJRT_Error* err) {
  PJRT_Error_Code code;
  const char* message;
  size_t size;
  pw_error_read(err, &code, &message, &size);
  return code == PJRT_Error_Code_UNIMPLEMENTED;
}

PJRT_Error* pw_PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args* args) {
  if (pw_forked) return pw_forked_error();
  if (PW_HAS(PJRT_Executable_GetCostAnalysis)) {
    PJRT_Error* err = pw_under->PJRT_Executable_GetCostAnalysis(args);
    if (err == NULL || !unimplemented(err)) return err;
    pw_error_free(err);
  }
  const properties* p = find(args->executable, false);
  if (p == NULL) {
    PJRT_Program program;
    PJRT_Error* err = pw_optimized(args->executable, &program);
    if (err) return err;
    if (program.code == NULL) return pw_unimplemented("PJRT_Executable_GetCostAnalysis");
    properties* c = pw_zeros(1, sizeof *c);
    if (c == NULL) {
      free(program.code);
      return pw_short("what a program costs", sizeof *c);
    }
    c->of = args->executable;
    char* message = NULL;
    PW_COUNT(go_entries, 1);
    int refused = pwGoCost((char*)program.format, program.format_size, program.code, program.code_size, &c->cost,
                           &c->num, &message);
    free(program.code);
    if (refused) {
      free(c);
      return pw_error_take((PJRT_Error_Code)refused, message);
    }
    keep(c);  // another thread may have counted meanwhile: the two answers are equal, and both are kept
    p = c;
  }
  args->properties = p->cost;
  args->num_properties = p->num;
  return NULL;
}

// results_memories returns the memories of a program's results; NULL if memory is short.
static properties* results_memories(const PJRT_LoadedExecutable* e) {
  properties* p = pw_zeros(1, sizeof *p);
  if (p) p->kinds = pw_zeros(e->num_outputs, sizeof *p->kinds + sizeof *p->sizes);
  if (p == NULL || p->kinds == NULL) {
    free(p);
    return NULL;
  }
  p->num = e->num_outputs;
  p->sizes = (size_t*)(p->kinds + p->num);
  for (size_t o = 0; o < p->num; o++) {
    const pw_memory* m =
        (const pw_memory*)pw_memory_kind(e->client->devices[0], e->outputs[o].kind, e->outputs[o].kind_size);
    p->kinds[o] = m->kind;
    p->sizes[o] = m->kind_size;
  }
  return p;
}

PJRT_Error* pw_PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  if (pw_forked) return pw_forked_error();
  PJRT_LoadedExecutable* e = args->loaded_executable;
  properties* p = NULL;
  if (e->places && (p = results_memories(e)) == NULL) return pw_short("the memories of a program's results", sizeof *p);
  args->loaded_executable = e->under;
  PJRT_Error* err = pw_under->PJRT_LoadedExecutable_GetExecutable(args);
  args->loaded_executable = e;
  if (p && err) properties_free(p);
  if (p == NULL || err) return err;
  p->of = args->executable;
  keep(p);
  return NULL;
}

PJRT_Error* pw_PJRT_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args* args) {
  if (pw_forked) return pw_forked_error();
  const properties* p = find(args->executable, true);
  if (p == NULL)
    return PW_HAS(PJRT_Executable_OutputMemoryKinds) ? pw_under->PJRT_Executable_OutputMemoryKinds(args)
                                                     : pw_unimplemented("PJRT_Executable_OutputMemoryKinds");
  args->num_outputs = p->num;
  args->memory_kinds = p->kinds;
  args->memory_kind_sizes = p->sizes;
  return NULL;
}

PJRT_Error* pw_PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args* args) {
  if (pw_forked) return NULL;
  pthread_mutex_lock(&mu);
  for (properties** at = &known; *at;) {
    properties* p = *at;
    if (p->of != args->executable) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    properties_free(p);
  }
  pthread_mutex_unlock(&mu);
  return PW_HAS(PJRT_Executable_Destroy) ? pw_under->PJRT_Executable_Destroy(args)
                                         : pw_unimplemented("PJRT_Executable_Destroy");
}
