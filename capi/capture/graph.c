// Graphs: their nodes and values, made and let go of.
#include <stdlib.h>
#include <string.h>

#include "graph.h"

void pp_grow(void* list, size_t n, size_t* room, size_t size) {
  if (n < *room) return;
  *room = *room ? 2 * *room : 16;
  *(void**)list = realloc(*(void**)list, *room * size);
}

void pp_look_copy(pp_look* to, const pp_look* from) {
  *to = *from;
  atomic_fetch_add_explicit(&to->shape->refs, 1, memory_order_relaxed);
  if (from->minor_to_major == NULL) return;
  size_t n = from->shape->num_dims;
  int64_t* order = malloc((n + 1) * sizeof *order);
  memcpy(order, from->minor_to_major, n * sizeof *order);
  to->minor_to_major = order;
}

int32_t pp_value_new(pp_program* p, int32_t node, int32_t output, const pp_look* looks, size_t n) {
  pp_grow(&p->values, p->num_values, &p->room_values, sizeof *p->values);
  pp_value* v = &p->values[p->num_values];
  *v = (pp_value){.node = node, .output = output, .last = -1, .n = (int32_t)n, .first = p->num_shards};
  v->looks = calloc(n + 1, sizeof *v->looks);
  for (size_t i = 0; i < n; i++) pp_look_copy(&v->looks[i], &looks[i]);
  p->num_shards += n;
  return (int32_t)p->num_values++;
}

pp_node* pp_node_new(pp_program* p, pp_kind kind, const char* name, const PJRT_ExecuteOptions* options) {
  pp_grow(&p->nodes, p->num_nodes, &p->room_nodes, sizeof *p->nodes);
  pp_node* n = &p->nodes[p->num_nodes];
  char at[PW_LOCATION] = "";
  pw_location(options, at, sizeof at);
  *n = (pp_node){.kind = kind, .name = strdup(name), .location = strdup(at)};
  n->options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  n->value = (int32_t)p->num_values;
  return n;
}

void pp_node_free(const pp_program* p, pp_node* n) {
  if (n->executable) p->door->drop(n->executable);
  if (n->executable && n->options.context) p->door->forget(n->options.context);
  free(n->functions);
  if (n->plan) pwGoPlanFree(n->plan);
  free(n->name);
  free(n->location);
  free(n->refs);
  free(n->dead);
  free(n->kept);
  free(n->memories);
}

void pp_buffer_free(const pp_door* door, PJRT_Buffer* buffer) {
  PW_ARGS(PJRT_Buffer_Destroy_Args, a);
  a.buffer = buffer;
  PJRT_Error* err = door->destroy(&a);
  if (err) pw_error_free(err);
}

static void program_free(pp_program* p) {
  if (p->lowered) p->door->unplay(p);
  for (size_t i = 0; i < p->num_nodes; i++) pp_node_free(p, &p->nodes[i]);
  for (size_t i = 0; i < p->num_values; i++) {
    for (int32_t s = 0; s < p->values[i].n; s++) {
      pw_shape_drop(p->values[i].looks[s].shape);
      free((void*)p->values[i].looks[s].minor_to_major);
    }
    free(p->values[i].looks);
  }
  for (size_t i = 0; i < p->num_constants; i++) pp_buffer_free(p->door, p->constants[i]);
  for (size_t i = 0; i < p->num_outputs; i++) free(p->outputs[i].refs);
  free(p->nodes);
  free(p->values);
  free(p->constants);
  free(p->inputs);
  free(p->outputs);
  free(p);
}

void pp_program_drop(pp_program* p) {
  if (p && atomic_fetch_sub_explicit(&p->base.refs, 1, memory_order_acq_rel) == 1) program_free(p);
}
