// Graphs: making and freeing nodes and values.
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static bool look_copy(pp_look* to, const pp_look* from) {
  *to = *from;
  size_t n = from->shape->num_dims;
  to->minor_to_major = from->minor_to_major ? pw_copy(from->minor_to_major, n * sizeof *from->minor_to_major) : NULL;
  if (from->minor_to_major && to->minor_to_major == NULL) return false;
  pw_shape_hold(to->shape, 1);
  return true;
}

static void looks_free(pp_look* looks, size_t n) {
  for (size_t i = 0; i < n; i++) {
    pw_shape_drop(looks[i].shape);
    free((void*)looks[i].minor_to_major);
  }
  free(looks);
}

int32_t pp_value_new(pp_program* p, int32_t node, int32_t output, const pp_look* looks, size_t n) {
  if (!pw_grow(&p->values, p->num_values, &p->room_values, sizeof *p->values)) return -1;
  pp_look* copies = pw_zeros(n, sizeof *copies);
  if (copies == NULL) return -1;
  for (size_t i = 0; i < n; i++)
    if (!look_copy(&copies[i], &looks[i])) {
      looks_free(copies, i);
      return -1;
    }
  p->values[p->num_values] = (pp_value){
      .node = node, .output = output, .last = -1, .n = (int32_t)n, .first = p->num_shards, .looks = copies};
  p->num_shards += n;
  return (int32_t)p->num_values++;
}

bool pp_value_more(pp_program* p, pp_value* v, const pp_look* look) {
  pp_look* more = pw_resize(v->looks, ((size_t)v->n + 1) * sizeof *more);
  if (more == NULL) return false;
  v->looks = more;
  if (!look_copy(&v->looks[v->n], look)) return false;
  v->n++;
  p->num_shards++;
  return true;
}

PJRT_Error* pp_no_memory(size_t bytes) { return pw_short("what a program records", bytes); }

pp_node* pp_node_new(pp_program* p, pp_kind kind, const char* name, const PJRT_ExecuteOptions* options) {
  if (!pw_grow(&p->nodes, p->num_nodes, &p->room_nodes, sizeof *p->nodes)) return NULL;
  pp_node* n = &p->nodes[p->num_nodes];
  char at[PW_LOCATION] = "";
  pw_location(options, at, sizeof at);
  *n = (pp_node){.kind = kind, .name = pw_copy_text(name), .location = pw_copy_text(at)};
  if (n->name == NULL || n->location == NULL) {
    free(n->name);
    free(n->location);
    return NULL;
  }
  n->options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  n->value = (int32_t)p->num_values;
  return n;
}

void pp_node_free(const pp_program* p, pp_node* n) {
  if (n->executable) p->frontend->drop(n->executable);
  if (n->executable && n->options.context) p->frontend->forget(n->options.context);
  free(n->functions);
  if (n->plan) pwGoPlanFree(n->plan);
  free(n->name);
  free(n->location);
  free(n->refs);
  free(n->dead);
  free(n->kept);
  free(n->memories);
}

void pp_buffer_free(const pp_frontend* frontend, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = buffer;
  PJRT_Error* err = frontend->destroy(&a);
  if (err) pw_error_free(err);
}

static void program_free(pp_program* p) {
  if (p->lowered) p->frontend->unplay(p);
  for (size_t i = 0; i < p->num_nodes; i++) pp_node_free(p, &p->nodes[i]);
  for (size_t i = 0; i < p->num_values; i++) looks_free(p->values[i].looks, (size_t)p->values[i].n);
  for (size_t i = 0; i < p->num_constants; i++) pp_buffer_free(p->frontend, p->constants[i]);
  for (size_t i = 0; i < p->num_returned; i++)
    if (p->returned[i]) pp_buffer_free(p->frontend, p->returned[i]);
  for (size_t i = 0; i < p->num_outputs; i++) free(p->outputs[i].refs);
  free(p->nodes);
  free(p->values);
  free(p->constants);
  free(p->returned);
  free(p->inputs);
  free(p->outputs);
  free(p);
}

void pp_program_drop(pp_program* p) {
  if (p && atomic_fetch_sub_explicit(&p->base.refs, 1, memory_order_acq_rel) == 1) program_free(p);
}
