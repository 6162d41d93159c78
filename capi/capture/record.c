// Captures: calls of one thread become nodes.
//
// A call is recorded whole, with all its results, or it changes nothing that a later call sees: a node counts only when
// it is complete (num_nodes), and values of one that failed stay without a reader. A node reads only values of nodes
// before it, since their symbols are all that a call can name; so the order of recording is one in which the graph can
// be played. last is the last node that reads a value, and live_until lists by node what it reads last, for play.c to
// free there. A capture belongs to its thread and has no lock.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "graph.h"

__thread pp_capture* pp_capturing __attribute__((tls_model("initial-exec")));

const char pp_nothing[] =
    "this array stands for a result inside of a program, and has no contents to read, print or branch on, neither "
    "while the program is captured nor after; return it from the program and read the result of a call, or compute "
    "what depends on it in a jitted function";

// Clients may compile on threads of their own, so a capture reads the total of all threads.
static _Atomic int64_t compile_ns;

void pp_compiled(int64_t begin) { atomic_fetch_add_explicit(&compile_ns, pw_clock() - begin, memory_order_relaxed); }

// ---- captures ----

static char* refuse(const char* text) { return pw_refusal(pw_copy_text(text)); }

static char* begin(void) {
  static _Atomic uint64_t numbers;
  if (pp_capturing)
    return refuse("FAILED_PRECONDITION: this thread captures a program already; end or drop that one first");
  pp_capture* c = pw_zeros(1, sizeof *c);
  pp_program* p = c ? pw_zeros(1, sizeof *p) : NULL;
  if (p == NULL) {
    free(c);
    return pp_refusal(pp_no_memory(sizeof *c + sizeof *p));
  }
  c->number = atomic_fetch_add(&numbers, 1) + 1;
  c->program = p;
  c->program->base.refs = 1;
  c->begin = pw_clock();
  c->program->compile_ns = -atomic_load_explicit(&compile_ns, memory_order_relaxed);
  pp_capturing = c;
  return NULL;
}

// leave ends the thread's capture and returns what it recorded.
static pp_program* leave(void) {
  pp_capture* c = pp_capturing;
  pp_program* p = c->program;
  pp_capturing = NULL;
  p->capture_ns = pw_clock() - c->begin;
  p->compile_ns += atomic_load_explicit(&compile_ns, memory_order_relaxed);
  if (p->compile_ns > p->capture_ns) p->compile_ns = p->capture_ns;  // other threads compiled at the same time
  free(c->donated);
  free(c);
  return p;
}

void pp_read(void) {
  pp_capture* c = pp_capturing;
  if (!c->read) pw_location(NULL, c->line, sizeof c->line);
  c->read = true;
}

// pp_join checks that a call belongs to the client and frontend of the capture, which the first call sets.
PJRT_Error* pp_join(const pp_frontend* frontend, PJRT_Client* client) {
  pp_program* p = pp_capturing->program;
  if (p->base.client == NULL) {
    p->frontend = frontend;
    p->base.client = client;
  }
  if (p->base.client == client) return NULL;
  return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                  "a program has arrays of two clients; copy those of one through the host");
}

// check_capture returns an error if a symbol is not of the thread's capture.
static PJRT_Error* check_capture(const pp_symbol* symbol) {
  if (symbol->capture == pp_capturing->number) return NULL;
  return pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "%s", pp_nothing);
}

// pp_refer writes which value and shard, or which constant, a buffer is, and records that a node reads it.
PJRT_Error* pp_refer(const pp_frontend* frontend, PJRT_Buffer* buffer, int32_t node, pp_look* look, pp_ref* out) {
  pp_program* p = pp_capturing->program;
  const pp_symbol* symbol = NULL;
  if (!frontend->seen(buffer, look, &symbol))
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                    "the array has been deleted or donated; keep a copy of an array that is needed after a call that "
                    "donates it");
  PJRT_Error* err = pp_join(frontend, frontend->client(look->device));
  if (err == NULL && symbol) err = check_capture(symbol);
  if (err) return err;
  if (symbol) {
    *out = (pp_ref){symbol->value, symbol->shard};
    if (node > p->values[symbol->value].last) p->values[symbol->value].last = node;
    return NULL;
  }
  if (!pw_grow(&p->constants, p->num_constants, &p->room_constants, sizeof *p->constants))
    return pp_no_memory(2 * p->room_constants * sizeof *p->constants);
  PJRT_Buffer* own;
  if ((err = frontend->share(buffer, false, &own))) return err;
  *out = (pp_ref){PP_CONSTANT, (int32_t)p->num_constants};
  p->constants[p->num_constants++] = own;
  return NULL;
}

bool pp_is_symbol(const pp_frontend* frontend, PJRT_Buffer* buffer) {
  pp_look look;
  const pp_symbol* symbol = NULL;
  return frontend->seen(buffer, &look, &symbol) && symbol != NULL;
}

PJRT_Error* pp_symbol_new(const pp_frontend* frontend, const pp_look* look, int32_t value, int32_t shard,
                          PJRT_Buffer** out) {
  pp_symbol s = {pp_capturing->number, value, shard};
  return frontend->unmade(look, PJRT_Error_Code_FAILED_PRECONDITION, pp_nothing, &s, out);
}

// pp_symbols makes the results of a recorded call: all of them, or none with an error.
PJRT_Error* pp_symbols(const pp_frontend* frontend, const pp_value* values, size_t outs,
                       PJRT_Buffer** const* lists) {
  size_t made = 0;
  PJRT_Error* err = NULL;
  for (size_t o = 0; o < outs && err == NULL; o++)
    for (int32_t d = 0; d < values[o].n && err == NULL; d++) {
      err =
          pp_symbol_new(frontend, &values[o].looks[d], (int32_t)(&values[o] - pp_capturing->program->values), d,
                     &lists[d][o]);
      if (err == NULL) made++;
    }
  for (size_t o = 0; o < outs && err; o++)
    for (int32_t d = 0; d < values[o].n && made; d++, made--) pp_buffer_free(frontend, lists[d][o]);
  return err;
}

PJRT_Error* pp_events(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  for (size_t d = 0; args->device_complete_events && d < args->num_devices; d++) {
    PJRT_Error* err = frontend->ready(&args->device_complete_events[d]);
    if (err) return err;
  }
  return NULL;
}

// passes_token reports whether a computation takes and returns the token by which JAX orders effects: an array that
// outlives the program.
static bool passes_token(const pw_shape* in, const pw_shape* out) {
  if (out->type == PJRT_Buffer_Type_TOKEN || (in && in->type == PJRT_Buffer_Type_TOKEN)) return true;
  return in && in->type == PJRT_Buffer_Type_PRED && in->num_dims == 1 && in->dims[0] == 0 && pw_fits(in, out);
}

// recordable refuses calls that a program cannot record.
static PJRT_Error* recordable(const PJRT_LoadedExecutable_Execute_Args* args, const pp_executable* x) {
  size_t devices = args->execute_device ? 1 : x->num_devices;
  if (args->num_devices != devices)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s runs on %zu devices, and the call has arguments for %zu",
                    x->name, devices, args->num_devices);
  if (x->num_params >= 0 && args->num_args != (size_t)x->num_params)
    return pw_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s takes %lld arguments, and the call has %zu", x->name,
                    (long long)x->num_params, args->num_args);
  const PJRT_ExecuteOptions* o = args->options;
  if (o && PW_COVERS(o, num_recv_ops) && (o->extension_start || o->num_send_ops || o->num_recv_ops))
    return pw_error(PJRT_Error_Code_UNIMPLEMENTED,
                    "%s sends to or receives from its host, which a program does not record; call it outside", x->name);
  return NULL;
}

// refer_arguments records what a node reads.
static PJRT_Error* refer_arguments(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args,
                                   const pp_executable* x, pp_node* node) {
  int32_t number = (int32_t)pp_capturing->program->num_nodes;
  node->refs = pw_zeros(node->rows * node->args, sizeof *node->refs);
  if (node->refs == NULL) return pp_no_memory(node->rows * node->args * sizeof *node->refs);
  for (size_t d = 0; d < node->rows; d++)
    for (size_t i = 0; i < node->args; i++) {
      pp_look look;
      PJRT_Error* err = pp_refer(frontend, args->argument_lists[d][i], number, &look, &node->refs[d * node->args + i]);
      if (err) return err;
      const pw_shape* want = x->num_params >= 0 ? frontend->param(args->executable, i) : NULL;
      if (want && !pw_fits(look.shape, want))
        return pw_error(PJRT_Error_Code_INVALID_ARGUMENT,
                        "argument %zu of %s on device row %zu is not what the program takes", i, x->name, d);
    }
  return NULL;
}

// make_values adds the values that a node makes.
static PJRT_Error* make_values(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args,
                               const pp_executable* x,
                               const pp_node* node) {
  pp_program* p = pp_capturing->program;
  size_t n = node->rows;
  pp_look* looks = pw_zeros(n, sizeof *looks);
  if (looks == NULL) return pp_no_memory(n * sizeof *looks);
  PJRT_Error* err = NULL;
  for (size_t k = 0; k < node->outs && err == NULL; k++) {
    for (size_t d = 0; d < n; d++) frontend->output(args->executable, node->only, d, k, &looks[d]);
    if (k == 0 && n && passes_token(x->num_params > 0 ? frontend->param(args->executable, 0) : NULL, looks[0].shape))
      err = pw_error(
          PJRT_Error_Code_UNIMPLEMENTED,
          "%s has ordered effects, which a program does not record; call it outside, or do without the order", x->name);
    else if (pp_value_new(p, (int32_t)p->num_nodes, (int32_t)k, looks, n) < 0)
      err = pp_no_memory(n * sizeof *looks);
  }
  free(looks);
  return err;
}

// copy_options copies the options of the call into a node. The node does not own its executable yet.
static PJRT_Error* copy_options(pp_node* node, const PJRT_ExecuteOptions* o) {
  if (o == NULL) return NULL;
  PW_COPY(PJRT_ExecuteOptions, options, o);
  size_t bytes = options.num_non_donatable_input_indices * sizeof *node->kept;
  node->kept = pw_copy(options.non_donatable_input_indices, bytes);
  if (node->kept == NULL) return pp_no_memory(bytes);
  node->options = options;
  return NULL;
}

PJRT_Error* pp_execute(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args) {
  pp_program* p = pp_capturing->program;
  pp_executable x;
  frontend->describe(args->executable, &x);
  PJRT_Error* err = recordable(args, &x);
  if (err == NULL) err = pp_join(frontend, x.client);
  if (err) return err;
  pp_node* node = pp_node_new(p, PP_EXECUTE, x.name, args->options);
  if (node == NULL) return pp_no_memory(sizeof *node);
  node->rows = args->num_devices;
  node->args = args->num_args;
  node->outs = x.num_outputs;
  node->only = args->execute_device;
  size_t values = p->num_values;
  err = refer_arguments(frontend, args, &x, node);
  if (err == NULL) err = make_values(frontend, args, &x, node);
  if (err == NULL) err = copy_options(node, args->options);
  if (err == NULL) err = pp_symbols(frontend, p->values + values, node->outs, args->output_lists);
  if (err == NULL && (err = pp_events(frontend, args)))
    for (size_t d = 0; d < node->rows; d++)
      for (size_t k = 0; k < node->outs; k++) pp_buffer_free(frontend, args->output_lists[d][k]);
  if (err) {
    pp_node_free(p, node);  // its values stay: nothing refers to them
    return err;
  }
  node->executable = args->executable;
  node->options.non_donatable_input_indices = node->kept;
  node->options.call_location = *node->location ? node->location : NULL;
  if (node->options.context) node->options.context = frontend->keep(node->options.context, &node->functions);
  p->functions |= node->functions != NULL;
  frontend->hold(node->executable);
  p->num_nodes++;
  return NULL;
}

// node_of_copy finds the node to which a copy of a shard belongs: JAX moves an array shard by shard, and all these
// copies are one node.
static pp_node* node_of_copy(pp_program* p, pp_ref ref, const pp_look* to) {
  if (p->num_nodes == 0 || ref.value < 0) return NULL;
  pp_node* n = &p->nodes[p->num_nodes - 1];
  if (n->kind != PP_COPY || (size_t)n->value + 1 != p->num_values) return NULL;
  pp_ref last = n->refs[n->rows - 1];
  if (last.value != ref.value || (ref.shard != last.shard && ref.shard != last.shard + 1)) return NULL;
  const pp_value* v = &p->values[n->value];
  for (int32_t s = 0; s < v->n; s++)
    if (v->looks[s].device == to->device) return NULL;
  return n;
}

PJRT_Error* pp_copy(const pp_frontend* frontend, PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out) {
  pp_program* p = pp_capturing->program;
  pp_look look;
  pp_ref ref;
  PJRT_Error* err = pp_refer(frontend, buffer, (int32_t)p->num_nodes, &look, &ref);
  if (err) return err;
  look.memory = memory;
  look.device = frontend->where(memory);
  look.minor_to_major = NULL;
  pp_node* node = node_of_copy(p, ref, &look);
  bool more = node != NULL;
  if (!more) {
    node = pp_node_new(p, PP_COPY, "copy", NULL);
    if (node == NULL) return pp_no_memory(sizeof *node);
    node->args = node->outs = 1;
  }
  pp_ref* refs = pw_resize(node->refs, (node->rows + 1) * sizeof *refs);
  if (refs) node->refs = refs;
  PJRT_Memory** memories = pw_resize(node->memories, (node->rows + 1) * sizeof *memories);
  if (memories) node->memories = memories;
  bool room = refs && memories;
  if (room && more)
    room = pp_value_more(p, &p->values[node->value], &look);
  else if (room)
    room = pp_value_new(p, (int32_t)p->num_nodes, 0, &look, 1) >= 0;
  if (!room) {
    if (!more) pp_node_free(p, node);
    return pp_no_memory((node->rows + 1) * (sizeof *refs + sizeof *memories + sizeof look));
  }
  if (more)
    p->values[ref.value].last = (int32_t)p->num_nodes - 1;
  else
    p->num_nodes++;
  node->refs[node->rows] = ref;
  node->memories[node->rows] = memory;
  return pp_symbol_new(frontend, &look, node->value, (int32_t)node->rows++, out);
}

// ---- the end of a capture ----

// last_use returns the last node that reads a value; -1 for results of the program, which outlive every node.
static int64_t last_use(const pp_program* p, const pp_value* v) {
  int32_t at = v->last > v->node ? v->last : v->node;
  return v->kept || at < 0 || (size_t)at >= p->num_nodes ? -1 : at;
}

// live_until lists, for each node, the values that no later node reads. It returns false if memory is short.
static bool live_until(pp_program* p) {
  size_t* dead = pw_zeros(p->num_nodes, sizeof *dead);
  if (dead == NULL) return false;
  for (size_t v = 0; v < p->num_values; v++) {
    int64_t at = last_use(p, &p->values[v]);
    if (at >= 0) dead[at]++;
  }
  bool room = true;
  for (size_t i = 0; i < p->num_nodes && room; i++) {
    free(p->nodes[i].dead);  // of an earlier end that failed
    p->nodes[i].num_dead = 0;
    room = (p->nodes[i].dead = pw_zeros(dead[i], sizeof *p->nodes[i].dead)) != NULL;
  }
  free(dead);
  for (size_t v = 0; v < p->num_values && room; v++) {
    int64_t at = last_use(p, &p->values[v]);
    if (at >= 0) p->nodes[at].dead[p->nodes[at].num_dead++] = (int32_t)v;
  }
  return room;
}

// finish ends the thread's capture with results, whose values are kept. It takes the results. With an error the capture
// continues without them.
static PJRT_Error* finish(pp_output* outputs, size_t n, pp_program** out) {
  pp_program* p = pp_capturing->program;
  for (size_t i = 0; i < n; i++)
    for (size_t s = 0; s < outputs[i].n; s++)
      if (outputs[i].refs[s].value >= 0) p->values[outputs[i].refs[s].value].kept = true;
  if (!live_until(p)) {
    for (size_t v = 0; v < p->num_values; v++) p->values[v].kept = false;
    for (size_t i = 0; i < n; i++) free(outputs[i].refs);
    free(outputs);
    return pp_no_memory((p->num_nodes + p->num_values) * sizeof(size_t));
  }
  p->outputs = outputs;
  p->num_outputs = n;
  p->lacking = p->frontend && p->frontend->lost && p->frontend->lost(p);
  *out = leave();
  return NULL;
}

static PJRT_Error* end(const uint64_t* arrays, size_t n, int32_t* results, pp_program** out) {
  if (pp_capturing->read) return pw_error(PJRT_Error_Code_FAILED_PRECONDITION, "%s", pp_nothing);
  pp_output* outputs = pw_zeros(n, sizeof *outputs);
  if (outputs == NULL) return pp_no_memory(n * sizeof *outputs);
  size_t made = 0;
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < n && err == NULL; i++) {
    bool symbolic = false;
    err = pp_result(arrays[i], &outputs[made], &symbolic);
    results[i] = symbolic ? (int32_t)made++ : -1;
  }
  if (err == NULL) return finish(outputs, made, out);
  for (size_t i = 0; i < made; i++) free(outputs[i].refs);
  free(outputs);
  return err;
}

// ---- inputs and results that are handles throughout ----

PJRT_Error* pp_input_new(const pp_frontend* frontend, PJRT_Client* client, const pp_look* looks, size_t n,
                         PJRT_Buffer** out) {
  pp_program* p = pp_capturing->program;
  PJRT_Error* err = pp_join(frontend, client);
  if (err) return err;
  int32_t* inputs = pw_resize(p->inputs, (p->num_inputs + 1) * sizeof *inputs);
  if (inputs) p->inputs = inputs;
  int32_t value = inputs ? pp_value_new(p, PP_INPUT, (int32_t)p->num_inputs, looks, n) : -1;
  if (value < 0) return pp_no_memory(n * sizeof *looks);
  size_t made = 0;
  for (; made < n && err == NULL; made++) err = pp_symbol_new(frontend, &looks[made], value, (int32_t)made, &out[made]);
  if (err) {
    for (size_t i = 0; i + 1 < made; i++) pp_buffer_free(frontend, out[i]);
    return err;  // its value stays: nothing refers to it
  }
  p->inputs[p->num_inputs++] = value;
  return NULL;
}

PJRT_Error* pp_finish(const pp_frontend* frontend, PJRT_Buffer* const* shards, const size_t* counts, size_t n,
                      pp_program** out) {
  pp_output* outputs = pw_zeros(n, sizeof *outputs);
  if (outputs == NULL) return pp_no_memory(n * sizeof *outputs);
  PJRT_Error* err = NULL;
  for (size_t i = 0; i < n && err == NULL; i++) {
    outputs[i].n = counts[i];
    outputs[i].refs = pw_zeros(counts[i], sizeof *outputs[i].refs);
    if (outputs[i].refs == NULL) err = pp_no_memory(counts[i] * sizeof *outputs[i].refs);
    for (size_t s = 0; s < counts[i] && err == NULL; s++) {
      pp_look look;
      err = pp_refer(frontend, *shards++, -1, &look, &outputs[i].refs[s]);
    }
  }
  if (err == NULL) return finish(outputs, n, out);
  for (size_t i = 0; i < n; i++) free(outputs[i].refs);
  free(outputs);
  return err;
}

// ---- for pathways.h, see program.c ----

char* pp_begin(void) { return begin(); }

char* pp_announce(size_t n, const uint8_t* donated) {
  pp_capture* c = pp_capturing;
  if (c == NULL) return refuse("FAILED_PRECONDITION: this thread captures no program");
  bool* donates = pw_resize(c->donated, n * sizeof *donates);
  if (donates == NULL) return pp_refusal(pp_no_memory(n * sizeof *donates));
  c->announced = n;
  c->donated = donates;
  for (size_t i = 0; i < n; i++) c->donated[i] = donated && donated[i];
  return NULL;
}

char* pp_end(const uint64_t* arrays, size_t n, int32_t* results, pp_program** out) {
  return pp_capturing ? pp_refusal(end(arrays, n, results, out))
                      : refuse("FAILED_PRECONDITION: this thread captures no program");
}

char* pp_read_at(void) {
  return pp_capturing && pp_capturing->read ? pw_refusal(pw_copy_text(pp_capturing->line)) : NULL;
}

void pp_leave(void) {
  if (pp_capturing) pp_program_drop(leave());
}
