// Symbols of a capture that leave JAX, and come back as inputs, moved arrays and results.
#include <stdio.h>
#include <stdlib.h>

#include "graph.h"

typedef struct {
  pw_export base;  // first
  const pp_frontend* frontend;
  uint64_t capture;
  size_t n;
  pp_ref refs[];
} export_symbol;

static void export_free(pw_export* exported) { free(exported); }

static char* export_reshard(pw_export* exported, uint64_t plan, pw_export** out);
static const pw_export_methods export_methods = {export_free, export_reshard};

bool pp_symbolic(const pw_export* exported) { return exported->methods == &export_methods; }

static export_symbol* export_new(const pp_frontend* frontend, PJRT_Client* client, size_t n) {
  export_symbol* h = pw_zeros(1, sizeof *h + n * sizeof *h->refs);
  if (h == NULL) return NULL;
  h->base = (pw_export){.base = {client, 1}, .methods = &export_methods};
  h->frontend = frontend;
  h->capture = pp_capturing->number;
  h->n = n;
  return h;
}

bool pp_any_symbol(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  for (size_t d = 0; d < args->num_devices; d++)
    for (size_t i = 0; i < args->num_args; i++)
      if (pp_is_symbol(frontend, args->argument_lists[d][i])) return true;
  return false;
}

// An exported array without a symbol is kept as constants.
PJRT_Error* pp_export(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  size_t n = args->num_devices, m = args->num_args;
  pp_executable x;
  frontend->describe(args->executable, &x);
  if (m == 0 || n == 0 || x.num_outputs)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes arrays and returns none", x.name);
  pw_export** all = pw_zeros(m, sizeof *all);
  if (all == NULL) return pp_no_memory(m * sizeof *all);
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < m && err == NULL; i++) {
    export_symbol* h = export_new(frontend, x.client, n);
    if (h == NULL) {
      err = pp_no_memory(sizeof *h + n * sizeof *h->refs);
      break;
    }
    all[i] = &h->base;
    for (size_t d = 0; d < n && err == NULL; d++) {
      pp_look look;
      // Which node reads it is not known yet.
      err = pp_refer(frontend, args->argument_lists[d][i], -1, &look, &h->refs[d]);
    }
  }
  if (err == NULL) err = pp_events(frontend, args);
  if (err == NULL && !pw_exported(all, m)) err = pp_no_memory(m * sizeof(uint64_t));
  for (size_t i = 0; i < m && err; i++) pw_export_drop(all[i]);
  free(all);
  return err;
}

// lead is the destination of a plan: devices, size of the shards, and the kind of their memory.
typedef struct {
  int64_t *devices, *size;
  size_t shards, dims;
  char* memory;
} lead;

// look_at fills in the looks of the shards that a plan makes from an array whose first shard has this shape.
static PJRT_Error* look_at(const pp_frontend* frontend, const lead* to, pw_shape* shape, pp_look* looks) {
  for (size_t i = 0; i < to->shards; i++) {
    PJRT_Device* d = frontend->device(pp_capturing->program->base.client, (int)to->devices[i]);
    if (d == NULL)
      return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "a plan is for a device that this client does not have");
    looks[i] = (pp_look){d, frontend->memory(d, to->memory), shape, NULL};
  }
  return NULL;
}

// record_reshard adds the node that moves an array by a plan. It takes the plan unless it fails.
static PJRT_Error* record_reshard(export_symbol* h, uint64_t plan, const pp_look* looks, size_t shards,
                                  pw_export** out) {
  pp_program* p = pp_capturing->program;
  export_symbol* made = export_new(h->frontend, p->base.client, shards);
  pp_node* node = made ? pp_node_new(p, PP_RESHARD, "reshard", NULL) : NULL;
  if (node) node->refs = pw_copy(h->refs, h->n * sizeof *node->refs);
  int32_t value = node && node->refs ? pp_value_new(p, (int32_t)p->num_nodes, 0, looks, shards) : -1;
  if (value < 0) {
    if (node) pp_node_free(p, node);
    free(made);
    return pp_no_memory(sizeof *made + (h->n + shards) * sizeof *made->refs);
  }
  node->rows = h->n;
  node->args = node->outs = 1;
  node->plan = plan;
  for (size_t i = 0; i < h->n; i++)
    if (h->refs[i].value >= 0) p->values[h->refs[i].value].last = (int32_t)p->num_nodes;
  p->num_nodes++;
  for (size_t i = 0; i < shards; i++) made->refs[i] = (pp_ref){value, (int32_t)i};
  *out = &made->base;
  return NULL;
}

static char* export_reshard(pw_export* exported, uint64_t plan, pw_export** out) {
  export_symbol* h = (export_symbol*)exported;
  pp_capture* c = pp_capturing;
  if (c == NULL || c->number != h->capture) return pw_refusal(pw_text("FAILED_PRECONDITION: %s", pp_nothing));
  pp_program* p = c->program;
  lead to = {0};
  char* refusal = pwGoPlanHold(plan, &to.shards, &to.dims);
  if (refusal) return refusal;
  pp_look first = {0};
  const pp_symbol* symbol;
  if (h->refs[0].value == PP_CONSTANT)
    h->frontend->seen(p->constants[h->refs[0].shard], &first, &symbol);
  else
    first = p->values[h->refs[0].value].looks[h->refs[0].shard];
  pp_look* looks = pw_zeros(to.shards, sizeof *looks);
  to.devices = pw_zeros(to.shards, sizeof *to.devices);
  to.size = pw_zeros(to.dims, sizeof *to.size);
  pw_shape* shape = NULL;
  if (looks && to.devices && to.size) {
    pwGoPlanTo(plan, to.devices, to.size, &to.memory);
    shape = pw_shape_new(first.shape->type, to.size, to.dims);
  }
  PJRT_Error* err = shape ? look_at(h->frontend, &to, shape, looks) : pp_no_memory(to.shards * sizeof *looks);
  if (err == NULL) err = record_reshard(h, plan, looks, to.shards, out);
  if (err) pwGoPlanFree(plan);
  pw_shape_drop(shape);
  free(looks);
  free(to.memory);
  free(to.devices);
  free(to.size);
  return pp_refusal(err);
}

bool pp_input(void) { return pp_capturing->announced > 0; }

PJRT_Error* pp_inputs(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  pp_capture* c = pp_capturing;
  pp_program* p = c->program;
  size_t n = args->num_devices, outs = c->announced;
  c->announced = 0;
  pp_executable x;
  frontend->describe(args->executable, &x);
  if (x.num_outputs != outs || n != x.num_devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "%s returns %zu arrays on %zu devices, but %zu on %zu were announced as inputs of the program",
                    x.name, x.num_outputs, x.num_devices, outs, n);
  PJRT_Error* err = pp_join(frontend, x.client);
  if (err) return err;
  size_t values = p->num_values;
  pp_look* looks = pw_zeros(n, sizeof *looks);
  int32_t* inputs = looks ? pw_resize(p->inputs, (p->num_inputs + outs) * sizeof *inputs) : NULL;
  if (inputs) p->inputs = inputs;
  bool room = inputs != NULL;
  for (size_t o = 0; o < outs && room; o++) {
    for (size_t d = 0; d < n; d++) frontend->output(args->executable, NULL, d, o, &looks[d]);
    int32_t value = pp_value_new(p, PP_INPUT, (int32_t)(p->num_inputs + o), looks, n);
    room = value >= 0;
    if (!room) break;
    p->values[value].donated = c->donated[o];
    p->inputs[p->num_inputs + o] = value;
  }
  free(looks);
  if (!room) return pp_no_memory(outs * n * sizeof *looks);  // the values stay: nothing refers to them
  p->num_inputs += outs;
  err = pp_symbols(frontend, p->values + values, outs, args->output_lists);
  return err ? err : pp_events(frontend, args);
}

PJRT_Error* pp_import(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args,
                      pw_export* const* exported) {
  size_t n = args->num_devices, outs, made = 0;
  pp_executable x;
  frontend->describe(args->executable, &x);
  outs = x.num_outputs;
  PJRT_Error* err = NULL;
  for (size_t o = 0; o < outs && err == NULL; o++) {
    export_symbol* h = (export_symbol*)exported[o];
    if (!pp_symbolic(exported[o]) || pp_capturing == NULL || h->capture != pp_capturing->number)
      err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "%s", pp_nothing);
    else if (n != x.num_devices || h->n != n)
      err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                     "result %zu of %s must be an array of %zu shards; the named one has %zu", o, x.name,
                     x.num_devices, h->n);
    for (size_t d = 0; d < n && err == NULL; d++) {
      pp_look look, *is;
      frontend->output(args->executable, NULL, d, o, &look);
      const pp_symbol* symbol;
      pp_look constant;
      pp_ref r = h->refs[d];
      if (r.value == PP_CONSTANT)
        frontend->seen(pp_capturing->program->constants[r.shard], is = &constant, &symbol);
      else
        is = &pp_capturing->program->values[r.value].looks[r.shard];
      if (is->device != look.device || !pw_fits(is->shape, look.shape))
        err = pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "shard %zu of result %zu of %s differs from the named array",
                       d, o, x.name);
      else if (r.value == PP_CONSTANT)
        err = frontend->share(pp_capturing->program->constants[r.shard], false, &args->output_lists[d][o]);
      else
        err = pp_symbol_new(frontend, is, r.value, r.shard, &args->output_lists[d][o]);
      if (err == NULL) made++;
    }
  }
  if (err == NULL && (err = pp_events(frontend, args)) == NULL) {
    for (size_t o = 0; o < outs; o++) pw_export_drop(exported[o]);
    return NULL;
  }
  for (size_t o = 0; o < outs; o++) {
    for (size_t d = 0; d < n && made; d++, made--) pp_buffer_free(frontend, args->output_lists[d][o]);
    pw_export_drop(exported[o]);
  }
  return err;
}

// keep_returned has the program know an array that it returns as it is, if it may be lost.
static PJRT_Error* keep_returned(pw_export* exported) {
  pp_program* p = pp_capturing->program;
  if (p->frontend == NULL || p->frontend->lost == NULL || exported->base.client != p->base.client) return NULL;
  size_t n = p->frontend->shards(exported);
  PJRT_Buffer** all = pw_resize(p->returned, (p->num_returned + n) * sizeof *all);
  if (all == NULL) return pp_no_memory((p->num_returned + n) * sizeof *all);
  p->returned = all;
  memset(all + p->num_returned, 0, n * sizeof *all);
  p->num_returned += n;
  return p->frontend->open(exported, false, all + p->num_returned - n);
}

// pp_result writes what a result of the program refers to, and nothing for an array that is not a symbol. *symbolic
// says which it was.
PJRT_Error* pp_result(uint64_t array, pp_output* o, bool* symbolic) {
  pw_export* exported = pw_export_find(array);
  if (exported == NULL)
    return pw_error(PJRT_Error_Code_NOT_FOUND, "an array among the results of the program was released or imported");
  PJRT_Error* err = NULL;
  *symbolic = pp_symbolic(exported);
  export_symbol* h = (export_symbol*)exported;
  if (*symbolic && h->capture != pp_capturing->number) {
    err = pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "an array that is to be a result belongs to another program");
  } else if (*symbolic) {
    o->n = h->n;
    o->refs = pw_copy(h->refs, h->n * sizeof *o->refs);
    if (o->refs == NULL) err = pp_no_memory(h->n * sizeof *o->refs);
  } else {
    err = keep_returned(exported);
  }
  pw_export_drop(exported);
  return err;
}
