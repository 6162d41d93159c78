// Plays a program: node after node through the frontend's own Execute, copy and reshard, so that order, promises,
// donation and errors are those of ordinary calls.
//
// A play owns a handle of each shard that is alive. It destroys those of a value behind the last node that reads it,
// passes those of results to its caller, and destroys the rest when it ends, whatever has failed. An error of a node
// becomes the contents of that node's results, so nodes that read them fail with it and all others go on; a play itself
// fails only if memory is short, its inputs do not fit, or the user interrupts it, and then makes no results.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "graph.h"
#include "interpreter.h"

// play is one run of a program.
typedef struct {
  pp_program* p;
  PJRT_Buffer** shards;  // of all values, while they are alive
} play;

static void destroy(const play* r, PJRT_Buffer** buffer) {
  if (*buffer == NULL) return;
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = *buffer;
  *buffer = NULL;
  PJRT_Error* err = r->p->frontend->destroy(&a);
  if (err) pw_error_free(err);
}

static PJRT_Buffer** shard(const play* r, pp_ref ref) {
  return ref.value == PP_CONSTANT ? &r->p->constants[ref.shard]
                                  : &r->shards[r->p->values[ref.value].first + (size_t)ref.shard];
}

// failed makes shards of a value whose contents are the error of the node that should have made them. It takes the
// error.
static PJRT_Error* failed(const play* r, const pp_node* n, const pp_value* v, size_t from, size_t count,
                          PJRT_Error* err) {
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(err, &code, &text, &size);
  static const char kNamed[] = ", called at ";  // an error names this node, or an earlier one
  if (*n->location && memmem(text, size, kNamed, sizeof kNamed - 1) == NULL) {
    char at[PW_LOCATION + 64];
    snprintf(at, sizeof at, " [%s, called at %.400s]", n->name, n->location);
    err = pw_error_context(err, at);
    pw_error_read(err, &code, &text, &size);
  }
  char* message = pw_copy(text, size);
  if (message == NULL) return err;
  pw_error_free(err);
  err = NULL;
  for (size_t s = from; s < from + count && err == NULL; s++)
    err = r->p->frontend->unmade(&v->looks[s], code, message, NULL, &r->shards[v->first + s]);
  free(message);
  return err;
}

static PJRT_Error* execute(const play* r, pp_node* n) {
  size_t total = n->rows * (n->args + n->outs) + 1;
  PJRT_Buffer* few[256];
  PJRT_Buffer** flat = total <= 256 ? few : pw_alloc(total * sizeof *flat);
  PJRT_Buffer** some[64];
  PJRT_Buffer*** rows = 2 * n->rows <= 64 ? some : pw_alloc(2 * n->rows * sizeof *rows);
  if (flat == NULL || rows == NULL) {
    if (flat != few) free(flat);
    if (rows != some) free(rows);
    return pw_short("the lists of a run", (total + 2 * n->rows) * sizeof *flat);
  }
  PJRT_Buffer** results = flat + n->rows * n->args;
  for (size_t i = 0; i < n->rows * n->args; i++) flat[i] = *shard(r, n->refs[i]);
  for (size_t d = 0; d < n->rows; d++) {
    rows[d] = flat + d * n->args;
    rows[n->rows + d] = results + d * n->outs;
  }
  PW_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
  a.executable = n->executable;
  a.options = &n->options;
  a.argument_lists = (PJRT_Buffer* const* const*)rows;
  a.num_devices = n->rows;
  a.num_args = n->args;
  a.output_lists = rows + n->rows;
  a.execute_device = n->only;
  PJRT_Error* err = r->p->frontend->execute(&a);
  for (size_t o = 0; o < n->outs && err == NULL; o++)
    for (size_t d = 0; d < n->rows; d++)
      r->shards[r->p->values[(size_t)n->value + o].first + d] = results[d * n->outs + o];
  if (rows != some) free(rows);
  if (flat != few) free(flat);
  return err;
}

// copy copies shards one by one. Only those that fail get their error.
static PJRT_Error* copy(const play* r, pp_node* n) {
  const pp_value* v = &r->p->values[n->value];
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < n->rows && err == NULL; i++) {
    PW_ARGS(PJRT_Buffer_CopyToMemory_Args, a);
    a.buffer = *shard(r, n->refs[i]);
    a.dst_memory = n->memories[i];
    if ((err = r->p->frontend->copy(&a)))
      err = failed(r, n, v, i, 1, err);
    else
      r->shards[v->first + i] = a.dst_buffer;
  }
  return err;
}

static const char* const names[] = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
                                    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
                                    "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
                                    "UNAUTHENTICATED"};

PJRT_Error* pp_error(char* refusal) {
  if (refusal == NULL) return NULL;
  const char* colon = strstr(refusal, ": ");
  int code = PJRT_Error_Code_UNKNOWN;
  for (int i = 1; colon && i < (int)(sizeof names / sizeof *names); i++)
    if (strlen(names[i]) == (size_t)(colon - refusal) && memcmp(names[i], refusal, strlen(names[i])) == 0) code = i;
  PJRT_Error* err = pw_error((PJRT_Error_Code)code, "%s", colon ? colon + 2 : refusal);
  pw_refusal_free(refusal);
  return err;
}

char* pp_refusal(PJRT_Error* err) {
  if (err == NULL) return NULL;
  PJRT_Error_Code code;
  const char* text;
  size_t size;
  pw_error_read(err, &code, &text, &size);
  char* out = pw_text("%s: %.*s", names[code > 0 && code < 17 ? code : 2], (int)size, text);
  pw_error_free(err);
  return pw_refusal(out);
}

// make_own makes handles of shards that outlive the play. It takes the play's own handles, except where shared says
// that they are still needed; NULL: all are.
static PJRT_Error* make_own(const play* r, const pp_ref* refs, size_t n, bool* shared, PJRT_Buffer** out) {
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < n; i++) out[i] = NULL;
  for (size_t i = 0; i < n && err == NULL; i++) {
    PJRT_Buffer** from = shard(r, refs[i]);
    if (shared && refs[i].value != PP_CONSTANT && !shared[i]) {
      out[i] = *from;
      *from = NULL;
    } else {
      err = r->p->frontend->share(*from, false, &out[i]);
    }
  }
  for (size_t i = 0; i < n && err; i++) destroy(r, &out[i]);
  return err;
}

static PJRT_Error* reshard(const play* r, pp_node* n) {
  PJRT_Buffer** shards = pw_zeros(n->rows, sizeof *shards);
  if (shards == NULL) return pw_short("the shards of an array", n->rows * sizeof *shards);
  PJRT_Error* err = make_own(r, n->refs, n->rows, NULL, shards);
  pw_export *from = err ? NULL : r->p->frontend->close(shards, n->rows), *to = NULL;
  if (err == NULL && from == NULL) {
    for (size_t i = 0; i < n->rows; i++) destroy(r, &shards[i]);
    err = pw_short("the shards of an array", n->rows * sizeof *shards);
  }
  free(shards);
  if (err) return err;
  char* refusal = from->methods->reshard(from, n->plan, &to);
  pw_export_drop(from);
  if (refusal) return pp_error(refusal);
  r->p->frontend->take(to, &r->shards[r->p->values[n->value].first]);
  return NULL;
}

// fail makes all results of a node that could not begin, with its error as their contents.
static PJRT_Error* fail(const play* r, pp_node* n, PJRT_Error* err) {
  for (size_t o = 0; o < n->outs && err; o++) {
    const pp_value* v = &r->p->values[(size_t)n->value + o];
    bool last = o + 1 == n->outs;
    PJRT_Error* own = err;
    if (!last) {
      PJRT_Error_Code code;
      const char* text;
      size_t size;
      pw_error_read(err, &code, &text, &size);
      own = pw_error(code, "%.*s", (int)size, text);
    }
    PJRT_Error* worse = failed(r, n, v, 0, (size_t)v->n, own);
    if (last) return worse;
    if (worse) {
      pw_error_free(err);
      return worse;
    }
  }
  if (err) pw_error_free(err);  // the node has no results
  return NULL;
}

// fits reports whether the opened shards of an input look like those of the capture.
static bool fits(const play* r, const pp_value* v) {
  for (int32_t s = 0; s < v->n; s++) {
    pp_look look;
    const pp_symbol* symbol;
    if (!r->p->frontend->seen(r->shards[v->first + (size_t)s], &look, &symbol) || symbol ||
        look.device != v->looks[s].device || !pw_shape_same(look.shape, v->looks[s].shape))
      return false;
  }
  return true;
}

static PJRT_Error* misfit(size_t input) {
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "the shards of input %zu differ from those of the capture; capture the program again with these",
                  input);
}

static PJRT_Error* open_inputs(const play* r, pw_export* const* inputs) {
  pp_program* p = r->p;
  for (size_t i = 0; i < p->num_inputs; i++) {
    pp_value* v = &p->values[p->inputs[i]];
    if (inputs[i]->base.client != p->base.client || pp_symbolic(inputs[i]) ||
        p->frontend->shards(inputs[i]) != (size_t)v->n)
      return misfit(i);
    PJRT_Error* err = p->frontend->open(inputs[i], v->donated, &r->shards[v->first]);
    if (err) return err;
    if (!fits(r, v)) return misfit(i);
  }
  return NULL;
}

static PJRT_Error* share_inputs(const play* r, PJRT_Buffer* const* shards) {
  pp_program* p = r->p;
  for (size_t i = 0; i < p->num_inputs; i++) {
    pp_value* v = &p->values[p->inputs[i]];
    for (int32_t s = 0; s < v->n; s++) {
      if (pp_is_symbol(p->frontend, *shards))
        return pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                        "input %zu is an array of a capture, which has no contents; pass a result of a play", i);
      PJRT_Error* err = p->frontend->share(*shards++, false, &r->shards[v->first + (size_t)s]);
      if (err) return err;
    }
    if (!fits(r, v)) return misfit(i);
  }
  return NULL;
}

static size_t num_results(const pp_program* p) {
  size_t n = 0;
  for (size_t i = 0; i < p->num_outputs; i++) n += p->outputs[i].n;
  return n;
}

// results makes the handles of the program's results, one result's shards after the other's. Results may have shards in
// common.
static PJRT_Error* results(const play* r, PJRT_Buffer** out) {
  pp_program* p = r->p;
  PJRT_Error* err = NULL;
  // How many results still need a handle of each shard: the last one takes the play's own.
  int32_t* wanted = pw_zeros(p->num_shards, sizeof *wanted);
  if (wanted == NULL) return pw_short("the results of a program", p->num_shards * sizeof *wanted);
  for (size_t i = 0; i < p->num_outputs; i++)
    for (size_t s = 0; s < p->outputs[i].n; s++)
      if (p->outputs[i].refs[s].value >= 0) wanted[shard(r, p->outputs[i].refs[s]) - r->shards]++;
  size_t made = 0;
  for (size_t i = 0; i < p->num_outputs && err == NULL; i++) {
    pp_output* o = &p->outputs[i];
    bool* shared = pw_zeros(o->n, sizeof *shared);
    if (shared == NULL) {
      err = pw_short("the results of a program", o->n * sizeof *shared);
      break;
    }
    for (size_t s = 0; s < o->n; s++)
      if (o->refs[s].value >= 0) shared[s] = --wanted[shard(r, o->refs[s]) - r->shards] > 0;
    err = make_own(r, o->refs, o->n, shared, out + made);
    free(shared);
    if (err == NULL) made += o->n;
  }
  for (size_t k = 0; k < made && err; k++) destroy(r, &out[k]);
  free(wanted);
  return err;
}

// usable returns an error if a program can no longer be played.
static PJRT_Error* usable(pp_program* p) {
  for (size_t i = 0; i < p->num_nodes; i++)
    if (p->nodes[i].functions && p->frontend->closed(p->nodes[i].executable))
      return pw_error(PJRT_Error_Code_ABORTED,
                      "%s calls Python functions that no longer exist; capture the program again", p->nodes[i].name);
  // A program that was captured with a lost array fails as any call with it does, once: then there may be another.
  if (p->frontend && p->frontend->lost && p->frontend->lost(p) && !atomic_exchange(&p->lacking, false))
    return pw_error(PJRT_Error_Code_DATA_LOSS,
                    "an array that the program captured was lost with its worker; capture the program again");
  return NULL;
}

// How often a play checks for Ctrl-C, in nanoseconds: a plugin may run each node before it returns.
enum { kListenNs = 100000000 };

int64_t pp_listen(void) { return pw_clock() + kListenNs; }

bool pp_interrupted(int64_t* next) {
  if (pw_clock() < *next) return false;
  *next = pp_listen();
  void* exception = pw_python_interrupted();
  if (exception) pw_python_raise(exception);
  return exception != NULL;
}

// run plays all nodes, once the inputs are open.
static PJRT_Error* run(const play* r) {
  pp_program* p = r->p;
  PJRT_Error* err = NULL;
  bool whole = p->num_nodes > 1 && !p->functions && p->frontend->play && p->frontend->play(p, r->shards, &err);
  int64_t listen = pp_listen();
  for (size_t i = 0; i < p->num_nodes && err == NULL && !whole; i++) {
    if (pp_interrupted(&listen)) {
      err = pw_error(PJRT_Error_Code_CANCELLED, "the program was interrupted");
      break;
    }
    pp_node* n = &p->nodes[i];
    err = n->kind == PP_EXECUTE ? execute(r, n) : n->kind == PP_COPY ? copy(r, n) : reshard(r, n);
    if (err && n->kind != PP_COPY) err = fail(r, n, err);
    for (size_t k = 0; k < n->num_dead; k++) {
      const pp_value* v = &p->values[n->dead[k]];
      for (int32_t s = 0; s < v->n; s++) destroy(r, &r->shards[v->first + (size_t)s]);
    }
  }
  return err;
}

static PJRT_Error* begin(play* r, pp_program* p) {
  *r = (play){p, pw_zeros(p->num_shards, sizeof *r->shards)};
  return r->shards ? usable(p) : pw_short("the shards of a program", p->num_shards * sizeof *r->shards);
}

static void end(play* r) {
  for (size_t i = 0; r->shards && i < r->p->num_shards; i++) destroy(r, &r->shards[i]);
  free(r->shards);
}

// close_all makes exported arrays of a program's results. With an error there are none.
static PJRT_Error* close_all(const play* r, pw_export** outputs) {
  const pp_program* p = r->p;
  PJRT_Buffer* some[64];
  size_t n = num_results(p), at = 0, closed = 0;
  PJRT_Buffer** made = n <= 64 ? some : pw_alloc(n * sizeof *made);
  if (made == NULL) return pw_short("the results of a program", n * sizeof *made);
  PJRT_Error* err = results(r, made);
  for (; closed < p->num_outputs && err == NULL; at += p->outputs[closed++].n)
    if ((outputs[closed] = p->frontend->close(made + at, p->outputs[closed].n)) == NULL) {
      err = pw_short("the results of a program", p->outputs[closed].n * sizeof *made);
      for (; at < n; at++) destroy(r, &made[at]);
      while (closed-- > 0) pw_export_drop(outputs[closed]);
      break;
    }
  if (made != some) free(made);
  return err;
}

PJRT_Error* pp_play(pp_program* p, pw_export* const* inputs, pw_export** outputs) {
  play r;
  PJRT_Error* err = begin(&r, p);
  if (err == NULL) err = open_inputs(&r, inputs);
  for (size_t i = 0; i < p->num_inputs; i++) pw_export_drop(inputs[i]);
  if (err == NULL) err = run(&r);
  if (err == NULL) err = close_all(&r, outputs);
  end(&r);
  return err;
}

PJRT_Error* pp_play_shards(pp_program* p, PJRT_Buffer* const* inputs, PJRT_Buffer** outputs) {
  play r;
  PJRT_Error* err = begin(&r, p);
  if (err == NULL) err = share_inputs(&r, inputs);
  if (err == NULL) err = run(&r);
  if (err == NULL) err = results(&r, outputs);
  end(&r);
  return err;
}

size_t pp_num_nodes(const pp_program* p) { return p->num_nodes; }
