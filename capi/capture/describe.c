// A program as text.
#include <stdio.h>
#include <stdlib.h>

#include "graph.h"

static void quoted(FILE* f, const char* s) {
  fputc('"', f);
  for (; *s; s++) {
    unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\')
      fprintf(f, "\\%c", c);
    else if (c < 0x20)
      fprintf(f, "\\u%04x", c);
    else
      fputc(c, f);
  }
  fputc('"', f);
}

static int64_t bytes(const pp_value* v) {
  int64_t n = 0;
  for (int32_t s = 0; s < v->n; s++) n += pw_shape_bytes(v->looks[s].shape);
  return n;
}

static void devices(FILE* f, const pp_program* p, const pp_value* v) {
  fputs("\"devices\":[", f);
  for (int32_t s = 0; s < v->n; s++) fprintf(f, s ? ",%d" : "%d", p->frontend->id(v->looks[s].device));
  fputc(']', f);
}

static void shape(FILE* f, const pp_value* v) {
  char text[256] = "";
  if (v->n) pw_shape_text(v->looks[0].shape, text, sizeof text);
  fputs("\"shard\":", f);
  quoted(f, text);
}

// edges writes which values a list of shards belongs to, each value once. It returns false if memory is short.
static bool edges(FILE* f, const pp_program* p, const pp_ref* refs, size_t n) {
  int64_t constants = 0;
  bool any = false;
  int64_t* of = pw_zeros(p->num_values, sizeof *of);
  const pp_symbol* symbol;
  for (size_t i = 0; i < n && of; i++) {
    if (refs[i].value >= 0) {
      of[refs[i].value] += pw_shape_bytes(p->values[refs[i].value].looks[refs[i].shard].shape);
      of[refs[i].value] += of[refs[i].value] == 0;  // listed, even if it has no elements
      continue;
    }
    pp_look look;
    if (p->frontend->seen(p->constants[refs[i].shard], &look, &symbol)) constants += pw_shape_bytes(look.shape);
  }
  fputs("\"reads\":[", f);
  for (size_t v = 0; v < p->num_values && of; v++)
    if (of[v]) {
      fprintf(f, "%s{\"value\":%zu,\"bytes\":%lld}", any ? "," : "", v, (long long)of[v]);
      any = true;
    }
  fprintf(f, "],\"constant_bytes\":%lld", (long long)constants);
  free(of);
  return of != NULL;
}

static void value(FILE* f, const pp_program* p, const pp_value* v) {
  fprintf(f, "{\"node\":%d,\"output\":%d,\"bytes\":%lld,", v->node, v->output, (long long)bytes(v));
  shape(f, v);
  fputc(',', f);
  devices(f, p, v);
  fprintf(f, ",\"donated\":%s}", v->donated ? "true" : "false");
}

// node_devices writes where a node runs.
static void node_devices(FILE* f, const pp_program* p, const pp_node* n) {
  if (n->only) {
    fprintf(f, "\"devices\":[%d]", p->frontend->id(n->only));
  } else if (n->outs) {
    devices(f, p, &p->values[n->value]);
  } else {
    fputs("\"devices\":[", f);
    for (size_t d = 0; d < n->rows; d++)
      fprintf(f, d ? ",%d" : "%d", p->frontend->id(p->frontend->row(n->executable, d)));
    fputc(']', f);
  }
}

static bool node(FILE* f, const pp_program* p, const pp_node* n) {
  static const char* const kinds[] = {"execute", "copy", "reshard"};
  fprintf(f, "{\"kind\":\"%s\",\"name\":", kinds[n->kind]);
  quoted(f, n->name);
  fputs(",\"location\":", f);
  quoted(f, n->location);
  fputc(',', f);
  node_devices(f, p, n);
  fputs(",\"makes\":[", f);
  for (size_t o = 0; o < n->outs; o++) fprintf(f, o ? ",%zu" : "%zu", (size_t)n->value + o);
  fputs("],", f);
  bool all = edges(f, p, n->refs, n->rows * n->args);
  fputc('}', f);
  return all;
}

char* pp_text(const pp_program* p) {
  char* text = NULL;
  size_t size = 0;
  FILE* f = open_memstream(&text, &size);
  if (f == NULL) return NULL;
  bool all = true;
  fputs("{\"values\":[", f);
  for (size_t i = 0; i < p->num_values; i++) {
    if (i) fputc(',', f);
    value(f, p, &p->values[i]);
  }
  fputs("],\"nodes\":[", f);
  for (size_t i = 0; i < p->num_nodes; i++) {
    if (i) fputc(',', f);
    all = node(f, p, &p->nodes[i]) && all;
  }
  fputs("],\"inputs\":[", f);
  for (size_t i = 0; i < p->num_inputs; i++) fprintf(f, i ? ",%d" : "%d", p->inputs[i]);
  fputs("],\"outputs\":[", f);
  for (size_t i = 0; i < p->num_outputs; i++) {
    fputs(i ? ",{" : "{", f);
    all = edges(f, p, p->outputs[i].refs, p->outputs[i].n) && all;
    fputc('}', f);
  }
  fprintf(f, "],\"capture_ns\":%lld,\"compile_ns\":%lld}", (long long)p->capture_ns, (long long)p->compile_ns);
  all = ferror(f) == 0 && all;
  if (fclose(f) == 0 && all) return text;
  free(text);
  return NULL;
}
