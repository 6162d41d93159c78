// What an executable costs: the plugin's answer if it has one, else counted from the optimized program when it is first
// asked for. Executables are the plugin's own handles, whose properties live as long as they do, so the counts are kept
// beside them.
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "embedded.h"

typedef struct cost {
  struct cost* next;
  const PJRT_Executable* of;
  PJRT_NamedValue* values;  // with their names, one block
  size_t num;
} cost;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the list
static cost* counted;

static bool find(const PJRT_Executable* of, PJRT_Executable_GetCostAnalysis_Args* args) {
  pthread_mutex_lock(&mu);
  cost* c = counted;
  while (c && c->of != of) c = c->next;
  if (c) {
    args->properties = c->values;
    args->num_properties = c->num;
  }
  pthread_mutex_unlock(&mu);
  return c != NULL;
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
  if (find(args->executable, args)) return NULL;
  PJRT_Program program;
  PJRT_Error* err = pw_optimized(args->executable, &program);
  if (err) return err;
  if (program.code == NULL) return pw_unimplemented("PJRT_Executable_GetCostAnalysis");
  cost* c = pw_zeros(1, sizeof *c);
  if (c == NULL) {
    free(program.code);
    return pw_short("what a program costs", sizeof *c);
  }
  c->of = args->executable;
  char* message = NULL;
  PW_COUNT(go_entries, 1);
  int refused = pwGoCost((char*)program.format, program.format_size, program.code, program.code_size, &c->values,
                         &c->num, &message);
  free(program.code);
  if (refused) {
    free(c);
    return pw_error_take((PJRT_Error_Code)refused, message);
  }
  // Another thread may have counted meanwhile: the two answers are equal, and both are kept.
  pthread_mutex_lock(&mu);
  c->next = counted;
  counted = c;
  pthread_mutex_unlock(&mu);
  args->properties = c->values;
  args->num_properties = c->num;
  return NULL;
}

PJRT_Error* pw_PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args* args) {
  if (pw_forked) return NULL;
  pthread_mutex_lock(&mu);
  for (cost** at = &counted; *at;) {
    cost* c = *at;
    if (c->of != args->executable) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    free(c->values);
    free(c);
  }
  pthread_mutex_unlock(&mu);
  return PW_HAS(PJRT_Executable_Destroy) ? pw_under->PJRT_Executable_Destroy(args)
                                         : pw_unimplemented("PJRT_Executable_Destroy");
}
