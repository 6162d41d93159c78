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
  if (refusal == NULL) *program = pw_numbers_put(&table, &p->base);
  return refusal;
}

SHOWN int32_t pathways_capture_made(uint64_t array) {
  pw_held* held = pw_forked ? NULL : pw_held_find(array);
  bool made = held && pp_symbolic(held);
  if (held) pw_held_drop(held);
  return made;
}

SHOWN char* pathways_capture_read(void) { return pw_forked ? NULL : pp_read_at(); }

SHOWN void pathways_capture_drop(void) {
  if (!pw_forked) pp_leave();
}

SHOWN char* pathways_program_run(uint64_t program, const uint64_t* arrays, size_t n, uint64_t* results, size_t m) {
  if (pw_forked) return pw_forked_refusal();
  pp_program* p = pw_numbers_find(&table, program, false);
  pw_held *some[64], **held = n + m <= 64 ? some : malloc((n + m) * sizeof *held);
  size_t found = 0;
  for (size_t i = 0; i < n; i++)
    if ((held[found] = pw_held_take(arrays[i]))) found++;
  char* refusal = NULL;
  if (p == NULL)
    refusal = strdup("NOT_FOUND: the program was freed, or its client has ended");
  else if (found != n)
    refusal = strdup("NOT_FOUND: an array that the program is to run with is held no more");
  else if (n != p->num_inputs || m != p->num_outputs)
    refusal = strdup("INVALID_ARGUMENT: the program has another number of inputs or results");
  else if (pp_capturing)
    refusal = strdup("FAILED_PRECONDITION: this thread captures a program, and no other is run in it");
  if (refusal)
    for (size_t i = 0; i < found; i++) pw_held_drop(held[i]);
  else
    refusal = pp_refusal(pp_play(p, held, held + n));
  for (size_t i = 0; i < m && refusal == NULL; i++) results[i] = pw_held_put(held[n + i]);
  if (held != some) free(held);
  pp_program_drop(p);
  return refusal;
}

SHOWN char* pathways_program_describe(uint64_t program) {
  if (pw_forked) return strdup("{}");
  pp_program* p = pw_numbers_find(&table, program, false);
  char* text = p ? pp_text(p) : strdup("{}");
  pp_program_drop(p);
  return text;
}

SHOWN void pathways_program_free(uint64_t program) {
  if (!pw_forked) pp_program_drop(pw_numbers_find(&table, program, true));
}
