// The C API of programs, see pathways.h: programs by number.
#include <stdlib.h>

#include "graph.h"

#define SHOWN __attribute__((visibility("default")))

static pw_numbers table = PW_NUMBERS;

int64_t pp_count(void) { return pw_numbers_count(&table); }

void pp_client_ended(const PJRT_Client* client) {
  pp_program* p;
  for (uint32_t i = 0; (p = pw_numbers_next(&table, client, &i));) pp_program_drop(p);
}

SHOWN char* pathways_capture_begin(void) { return pw_forked ? pw_forked_refusal() : pp_begin(); }

SHOWN char* pathways_capture_inputs(size_t n, const uint8_t* donated) {
  return pw_forked ? pw_forked_refusal() : pp_announce(n, donated);
}

SHOWN char* pathways_capture_end(const uint64_t* arrays, size_t n, int32_t* results, uint64_t* program) {
  if (pw_forked) return pw_forked_refusal();
  pp_program* p = NULL;
  char* refusal = pp_end(arrays, n, results, &p);
  if (refusal == NULL && (*program = pw_numbers_put(&table, &p->base)) == 0) {
    pp_program_drop(p);
    refusal = pp_refusal(pp_no_memory(sizeof(void*)));
  }
  return refusal;
}

SHOWN int32_t pathways_capture_made(uint64_t array) {
  pw_export* exported = pw_forked ? NULL : pw_export_find(array);
  bool made = exported && pp_symbolic(exported);
  if (exported) pw_export_drop(exported);
  return made;
}

SHOWN char* pathways_capture_read(void) { return pw_forked ? NULL : pp_read_at(); }

SHOWN void pathways_capture_drop(void) {
  if (!pw_forked) pp_leave();
}

// number numbers the results of a program. With an error it drops them all.
static PJRT_Error* number(pw_export** exported, size_t m, uint64_t* results) {
  for (size_t i = 0; i < m; i++) {
    if ((results[i] = pw_export_put(exported[i]))) continue;
    while (m-- > i) pw_export_drop(exported[m]);
    while (i-- > 0) pw_export_drop(pw_export_take(results[i]));
    return pw_short("the results of a program", sizeof(void*));
  }
  return NULL;
}

// run plays a program with arrays, and returns the results' numbers. It takes the arrays in any case.
static PJRT_Error* run(pp_program* p, const uint64_t* arrays, size_t n, pw_export** exported, uint64_t* results,
                       size_t m) {
  size_t found = 0;
  for (size_t i = 0; i < n; i++)
    if ((exported[found] = pw_export_take(arrays[i]))) found++;
  PJRT_Error* err = NULL;
  if (p == NULL)
    err = pw_error(PJRT_Error_Code_NOT_FOUND, "the program was freed, or its client has ended");
  else if (found != n)
    err = pw_error(PJRT_Error_Code_NOT_FOUND, "an array that the program is to run with was released or imported");
  else if (n != p->num_inputs || m != p->num_outputs)
    err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "the program has another number of inputs or results");
  else if (pp_capturing)
    err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "this thread captures a program, and no other is run in it");
  if (err) {
    for (size_t i = 0; i < found; i++) pw_export_drop(exported[i]);
    return err;
  }
  err = pp_play(p, exported, exported + n);
  return err ? err : number(exported + n, m, results);
}

SHOWN char* pathways_program_run(uint64_t program, const uint64_t* arrays, size_t n, uint64_t* results, size_t m) {
  if (pw_forked) return pw_forked_refusal();
  pw_export *some[64], **exported = n + m <= 64 ? some : pw_alloc((n + m) * sizeof *exported);
  if (exported == NULL) return pp_refusal(pw_short("the arrays of a program", (n + m) * sizeof *exported));
  pp_program* p = pw_numbers_find(&table, program, false);
  char* refusal = pp_refusal(run(p, arrays, n, exported, results, m));
  if (exported != some) free(exported);
  pp_program_drop(p);
  return refusal;
}

SHOWN char* pathways_program_describe(uint64_t program) {
  if (pw_forked) return pw_refusal(pw_copy_text("{}"));
  pp_program* p = pw_numbers_find(&table, program, false);
  char* text = pw_refusal(p ? pp_text(p) : pw_copy_text("{}"));
  pp_program_drop(p);
  return text;
}

SHOWN void pathways_program_free(uint64_t program) {
  if (!pw_forked) pp_program_drop(pw_numbers_find(&table, program, true));
}
