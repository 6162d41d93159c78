// Arrow's memory in and out, by the Arrow C data interface. The structs are facts of
// its ABI.
#include <stdio.h>
#include <stdlib.h>

#include "client.h"

struct ArrowSchema {
  const char *format, *name, *metadata;
  int64_t flags, n_children;
  struct ArrowSchema **children, *dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void** buffers;
  struct ArrowArray **children, *dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

static const char kTensor[] = "arrow.fixed_shape_tensor", kName[] = "ARROW:extension:name", kMetadata[] = "ARROW:extension:metadata";
enum { kMost = 1 << 20 };  // fields, or bytes of metadata: beyond it, it is no schema
static const int64_t kLongest = (int64_t)1 << 60;  // sums and products of a few stay numbers

static const struct {
  char format;
  uint8_t type;
} types[] = {{'b', PATHWAYS_BOOL}, {'c', PATHWAYS_S8},  {'s', PATHWAYS_S16}, {'i', PATHWAYS_S32}, {'l', PATHWAYS_S64}, {'C', PATHWAYS_U8},
             {'S', PATHWAYS_U16},  {'I', PATHWAYS_U32}, {'L', PATHWAYS_U64}, {'e', PATHWAYS_F16}, {'f', PATHWAYS_F32}, {'g', PATHWAYS_F64}};
enum { kTypes = sizeof types / sizeof *types };

// ---- what is said of a tensor's shape ----

typedef struct {
  const char *at, *end;
} scanner;

static void space(scanner* s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

static bool sign(scanner* s, char c) {
  space(s);
  if (s->at == s->end || *s->at != c) return false;
  s->at++;
  return true;
}

// string gives what is between quotes; escapes stay as they are.
static bool string(scanner* s, const char** text, size_t* size) {
  if (!sign(s, '"')) return false;
  *text = s->at;
  while (s->at < s->end && *s->at != '"') s->at += *s->at == '\\' && s->at + 1 < s->end ? 2 : 1;
  *size = (size_t)(s->at - *text);
  return sign(s, '"');
}

static bool number(scanner* s, int64_t* n) {
  space(s);
  const char* from = s->at;
  for (*n = 0; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
    if (__builtin_mul_overflow(*n, 10, n) || __builtin_add_overflow(*n, *s->at - '0', n)) return false;
  return s->at > from;
}

// list reads numbers or strings in brackets. Count is -1 for a list of others.
static bool list(scanner* s, int64_t* numbers, int* count) {
  *count = 0;
  if (!sign(s, '[')) return false;
  if (sign(s, ']')) return true;
  do {
    const char* text;
    size_t size;
    int64_t n;
    space(s);
    if (s->at < s->end && *s->at == '"') {
      if (!string(s, &text, &size)) return false;
      *count = -1;
    } else if (!number(s, &n) || *count < 0 || *count == PATHWAYS_MAX_DIMS) {
      return false;
    } else {
      numbers[(*count)++] = n;
    }
  } while (sign(s, ','));
  return sign(s, ']');
}

// tensor reads the metadata of a tensor: {"shape": [...], "permutation": [...],
// "dim_names": [...]}, of which the last two may be missing.
static bool tensor(const char* text, size_t size, int64_t elements, int64_t* shape, int64_t* order, int* dims) {
  scanner s = {text, text + size};
  int64_t numbers[PATHWAYS_MAX_DIMS];
  int count, ordered = -1;
  *dims = -1;
  if (!sign(&s, '{')) return false;
  do {
    const char* key;
    size_t length;
    if (!string(&s, &key, &length) || !sign(&s, ':') || !list(&s, numbers, &count)) return false;
    if (length == 5 && memcmp(key, "shape", 5) == 0) {
      if (count < 0) return false;
      memcpy(shape, numbers, (size_t)count * sizeof *shape);
      *dims = count;
    } else if (length == 11 && memcmp(key, "permutation", 11) == 0) {
      if (count < 0) return false;
      memcpy(order, numbers, (size_t)count * sizeof *order);
      ordered = count;
    }
  } while (sign(&s, ','));
  int64_t product = 1;
  if (!sign(&s, '}') || *dims < 0 || (ordered >= 0 && ordered != *dims)) return false;
  uint32_t seen = 0;
  for (int i = 0; i < *dims; i++) {
    if (ordered < 0) order[i] = i;
    if (order[i] >= *dims || seen & 1u << order[i] || __builtin_mul_overflow(product, shape[i], &product)) return false;
    seen |= 1u << order[i];
  }
  return product == elements;
}

// value finds a key in a schema's metadata: 1 where it is there, 0 where not, -1
// where the metadata is damaged.
static int value(const char* metadata, const char* key, const char** text, size_t* size) {
  int32_t pairs, length;
  if (metadata == NULL) return 0;
  memcpy(&pairs, metadata, sizeof pairs);
  metadata += sizeof pairs;
  if (pairs < 0 || pairs > kMost) return -1;
  for (int32_t i = 0; i < pairs; i++) {
    const char* part[2];
    int32_t sizes[2];
    for (int k = 0; k < 2; k++) {
      memcpy(&length, metadata, sizeof length);
      if (length < 0 || length > kMost) return -1;
      part[k] = metadata + sizeof length;
      sizes[k] = length;
      metadata = part[k] + length;
    }
    if ((size_t)sizes[0] == strlen(key) && memcmp(part[0], key, (size_t)sizes[0]) == 0) {
      *text = part[1];
      *size = (size_t)sizes[1];
      return 1;
    }
  }
  return 0;
}

// ---- in ----

typedef struct {
  const char* name;
  pathways_type type;
  size_t n;
  int64_t dims[PATHWAYS_MAX_DIMS];   // as they lie
  int64_t order[PATHWAYS_MAX_DIMS];  // of the array's, which of those
  int64_t strides[PATHWAYS_MAX_DIMS];
  const char* data;
  char* bytes;  // malloc'd, where bits were unpacked
} column;

#define REFUSE(c, ...) pc_fail(PATHWAYS_INVALID_ARGUMENT, "Arrow data \"%s\" " FIRST(__VA_ARGS__), (c)->name REST(__VA_ARGS__))
#define FIRST(format, ...) format
#define REST(format, ...) , ##__VA_ARGS__

static bool bit(const void* bits, int64_t i) { return ((const uint8_t*)bits)[i / 8] >> (i % 8) & 1; }

static pathways_error sane(const struct ArrowArray* a, const column* c) {
  if (a->length < 0 || a->length >= kLongest || a->offset < 0 || a->offset >= kLongest || a->n_buffers < 0 || a->n_children < 0 || a->n_children > kMost)
    return REFUSE(c, "says that it has %lld elements from %lld on, %lld buffers and %lld children", (long long)a->length,
                  (long long)a->offset, (long long)a->n_buffers, (long long)a->n_children);
  return 0;
}

static pathways_error no_nulls(const struct ArrowArray* a, int64_t start, int64_t count, const column* c) {
  if (a->null_count == 0 || a->n_buffers == 0 || a->buffers == NULL || a->buffers[0] == NULL) return 0;
  int64_t nulls = 0;
  for (int64_t i = start; i < start + count; i++) nulls += !bit(a->buffers[0], i);
  return nulls ? REFUSE(c, "has %lld nulls, which arrays cannot hold; fill them or drop them first", (long long)nulls) : 0;
}

// read adds what an Arrow array is to a column: count elements from start, counted
// from the beginning of its buffers.
static pathways_error read(const struct ArrowSchema* s, const struct ArrowArray* a, int64_t start, int64_t count, column* c) {
  const char* format = s->format ? s->format : "";
  if (s->dictionary || a->dictionary) return REFUSE(c, "is dictionary-encoded; decode it first");
  bool nested = strncmp(format, "+w:", 3) == 0;
  size_t t = 0;
  while (t < kTypes && (types[t].format != format[0] || format[1])) t++;
  if (!nested && t == kTypes)
    return REFUSE(c, "has the type \"%s\", which is no array of numbers; expected numbers, booleans or fixed-size lists of them", format);
  if (a->n_buffers != (nested ? 1 : 2) || a->n_children != nested || s->n_children != nested || a->buffers == NULL ||
      (nested && (a->children == NULL || s->children == NULL || a->children[0] == NULL || s->children[0] == NULL)))
    return REFUSE(c, "of type \"%s\" has %lld buffers and %lld children: expected %d and %d", format, (long long)a->n_buffers,
                  (long long)a->n_children, nested ? 1 : 2, nested);
  PC_TRY(no_nulls(a, start, count, c));
  if (!nested) {
    size_t element = pc_element((PJRT_Buffer_Type)types[t].type);
    c->type = (pathways_type)types[t].type;
    if (count && a->buffers[1] == NULL) return REFUSE(c, "has %lld elements and no buffer", (long long)count);
    if (c->type == PATHWAYS_BOOL) {
      if ((c->bytes = malloc((size_t)count + 1)) == NULL) return REFUSE(c, "has %lld booleans, which do not fit into memory", (long long)count);
      for (int64_t i = 0; i < count; i++) c->bytes[i] = bit(a->buffers[1], start + i);
      c->data = c->bytes;
    } else if (count) {
      c->data = (const char*)a->buffers[1] + (size_t)start * element;
    }
    return 0;
  }
  scanner digits = {format + 3, format + strlen(format)};
  int64_t size, need, shape[PATHWAYS_MAX_DIMS], order[PATHWAYS_MAX_DIMS] = {0};
  if (!number(&digits, &size) || digits.at != digits.end) return REFUSE(c, "has the type \"%s\" of lists", format);
  const struct ArrowArray* child = a->children[0];
  PC_TRY(sane(child, c));
  if (__builtin_mul_overflow(start + count, size, &need) || need > child->length)
    return REFUSE(c, "has more lists of %lld elements than their %lld are enough for", (long long)size, (long long)child->length);
  const char *text, *told = "";
  size_t length, told_size = 0;
  int dims = 1, named = value(s->metadata, kName, &text, &length);
  shape[0] = size;
  if (named < 0) return REFUSE(c, "has metadata that is damaged");
  if (named && length == sizeof kTensor - 1 && memcmp(text, kTensor, length) == 0) {
    if (value(s->metadata, kMetadata, &told, &told_size) < 0 || !tensor(told, told_size, size, shape, order, &dims))
      return REFUSE(c, "is a tensor whose metadata does not describe its %lld elements: %.*s", (long long)size,
                    (int)(told_size < 200 ? told_size : 200), told);
  }
  if (c->n + (size_t)dims > PATHWAYS_MAX_DIMS) return REFUSE(c, "has more than %d dimensions", PATHWAYS_MAX_DIMS);
  for (int i = 0; i < dims; i++) {
    c->dims[c->n + (size_t)i] = shape[i];
    c->order[c->n + (size_t)i] = (int64_t)c->n + order[i];
  }
  c->n += (size_t)dims;
  return read(s->children[0], child, child->offset + start * size, count * size, c);
}

// lent is Arrow data that arrays may use.
typedef struct {
  struct ArrowArray data;
  pthread_mutex_t mu;
  pthread_cond_t fewer;
  int64_t users;  // guarded by mu: arrays, and the call that makes them
} lent;

static void end(void* arg) {
  lent* l = arg;
  l->data.release(&l->data);
  pthread_mutex_destroy(&l->mu);
  pthread_cond_destroy(&l->fewer);
  free(l);
}

static void unused(void* arg) {
  lent* l = arg;
  pthread_mutex_lock(&l->mu);
  bool last = --l->users == 0;
  pthread_cond_signal(&l->fewer);
  pthread_mutex_unlock(&l->mu);
  if (last) pc_later(end, l);
}

static pathways_error put(pc_session* s, column* c, const pathways_host_options* options, lent* l, pathways_array* array) {
  int64_t dims[PATHWAYS_MAX_DIMS], lie[PATHWAYS_MAX_DIMS], at = (int64_t)pc_element((PJRT_Buffer_Type)c->type);
  for (size_t d = c->n; d-- > 0;) {
    lie[d] = at;
    at *= c->dims[d] ? c->dims[d] : 1;
  }
  for (size_t d = 0; d < c->n; d++) {
    dims[d] = c->dims[c->order[d]];
    c->strides[d] = lie[c->order[d]];
  }
  pathways_host_options o = *options;
  o.type = c->type;
  o.num_dims = c->n;
  o.dims = dims;
  o.byte_strides = c->strides;
  o.data = c->data;
  if (c->bytes && o.mode == PATHWAYS_BORROW_OR_FAIL)
    return pc_fail(PATHWAYS_FAILED_PRECONDITION, "Arrow data \"%s\" cannot be used without a copy: its booleans are bits", c->name);
  if (c->bytes) o.mode = PATHWAYS_COPY;
  if (o.mode != PATHWAYS_COPY) {
    o.released = unused;
    o.released_arg = l;
    pthread_mutex_lock(&l->mu);
    l->users++;
    pthread_mutex_unlock(&l->mu);
  }
  pathways_error err = pc_put(s, &o, true, array);
  if (err && o.released) unused(l);
  return err;
}

pathways_error pathways_arrays_from_arrow(pathways_session session, struct ArrowArray* data, const struct ArrowSchema* schema,
                                          const pathways_host_options* options, pathways_array* arrays, size_t num_arrays) {
  static const pathways_host_options none = {.struct_size = sizeof none};
  if (options == NULL) options = &none;
  PC_READ(pathways_host_options, o, options, "pathways_host_options");
  if (data == NULL || schema == NULL || data->release == NULL || schema->release == NULL || (arrays == NULL && num_arrays))
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "arrays_from_arrow: data, schema or the list of arrays is NULL, or was released or taken before");
  if (o.data || o.type || o.num_dims || o.dims || o.byte_strides || o.released)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "arrays_from_arrow: the options name data, type, dimensions, strides or released, which the data has: expected 0");
  column top = {.name = schema->name ? schema->name : ""};
  PC_TRY(sane(data, &top));
  bool batch = schema->format && strcmp(schema->format, "+s") == 0;
  if (batch && (schema->n_children != data->n_children || (data->n_children && (schema->children == NULL || data->children == NULL))))
    return REFUSE(&top, "has %lld columns in its schema and %lld in its data", (long long)schema->n_children, (long long)data->n_children);
  size_t n = batch ? (size_t)data->n_children : 1;
  if (num_arrays != n) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "arrays_from_arrow: the data has %zu columns, and there is room for %zu", n, num_arrays);
  if (batch) PC_TRY(no_nulls(data, data->offset, data->length, &top));
  pc_session* s;
  PC_TRY(pc_get(session, PC_SESSION, &s));

  pathways_error err = 0;
  column* columns = calloc(n + 1, sizeof *columns);
  for (size_t i = 0; i < n && err == 0; i++) {
    const struct ArrowSchema* field = batch ? schema->children[i] : schema;
    const struct ArrowArray* a = batch ? data->children[i] : data;
    column* c = &columns[i];
    c->name = field && field->name ? field->name : "";
    if (field == NULL || a == NULL) {
      err = REFUSE(&top, "has no column %zu where it says that it is", i);
      break;
    }
    if ((err = sane(a, c))) break;
    if (batch && a->length < data->offset + data->length) {
      err = REFUSE(c, "has %lld elements, and its record batch %lld", (long long)a->length, (long long)(data->offset + data->length));
      break;
    }
    c->n = 1;
    c->dims[0] = data->length;
    err = read(field, a, a->offset + (batch ? data->offset : 0), data->length, c);
  }
  if (err == 0) {
    lent* l = calloc(1, sizeof *l);
    l->users = 1;
    pthread_mutex_init(&l->mu, NULL);
    pthread_cond_init(&l->fewer, NULL);
    pathways_array* made = calloc(n + 1, sizeof *made);
    size_t done = 0;
    while (done < n && (err = put(s, &columns[done], &o, l, &made[done])) == 0) done++;
    if (err) {
      // The data is the caller's again once the devices have let go of it.
      while (done-- > 0) pc_discard(made[done]);
      pthread_mutex_lock(&l->mu);
      while (l->users > 1) pthread_cond_wait(&l->fewer, &l->mu);
      pthread_mutex_unlock(&l->mu);
      pthread_mutex_destroy(&l->mu);
      pthread_cond_destroy(&l->fewer);
      free(l);
    } else {
      l->data = *data;
      data->release = NULL;
      if (n) memcpy(arrays, made, n * sizeof *arrays);
      pthread_mutex_lock(&l->mu);
      bool last = --l->users == 0;
      pthread_mutex_unlock(&l->mu);
      if (last) end(l);
    }
    free(made);
  }
  for (size_t i = 0; i < n; i++) free(columns[i].bytes);
  free(columns);
  pc_let(s);
  return err;
}

// ---- out ----

// shown is what an exported array and its list's elements need.
typedef struct {
  _Atomic int32_t refs;
  pathways_view view;
  void* bits;
  const void* buffers[2];  // of the elements
  const void* nothing[1];  // of the list
  struct ArrowArray* child[1];
} shown;

static void drop_shown(shown* e) {
  if (atomic_fetch_sub(&e->refs, 1) != 1) return;
  if (e->view) pc_discard(e->view);
  free(e->child[0]);
  free(e->bits);
  free(e);
}

static void release_array(struct ArrowArray* a) {
  for (int64_t i = 0; i < a->n_children; i++)
    if (a->children[i]->release) a->children[i]->release(a->children[i]);
  a->release = NULL;
  drop_shown(a->private_data);
}

typedef struct {
  char format[32];
  char* metadata;
  struct ArrowSchema child, *children[1];
} told;

static void release_schema(struct ArrowSchema* s) {
  for (int64_t i = 0; i < s->n_children; i++)
    if (s->children[i]->release) s->children[i]->release(s->children[i]);
  s->release = NULL;
  told* t = s->private_data;
  if (t == NULL) return;
  free(t->metadata);
  free(t);
}

static char* pair(char* to, const char* text, size_t size) {
  int32_t n = (int32_t)size;
  memcpy(to, &n, sizeof n);
  memcpy(to + sizeof n, text, size);
  return to + sizeof n + size;
}

// describe writes a schema: of numbers, or of a tensor of them. The element's schema
// needs nothing but the program's own texts.
static void describe(struct ArrowSchema* schema, const char* format, const pathways_array_info_t* info, int64_t size) {
  told* t = calloc(1, sizeof *t);
  *schema = (struct ArrowSchema){.format = format, .name = "", .release = release_schema, .private_data = t};
  if (info->num_dims == 1) return;
  char json[32 * PATHWAYS_MAX_DIMS];
  int at = snprintf(json, sizeof json, "{\"shape\": [");
  for (int32_t d = 1; d < info->num_dims; d++)
    at += snprintf(json + at, sizeof json - (size_t)at, d == 1 ? "%lld" : ", %lld", (long long)info->shard_dims[d]);
  at += snprintf(json + at, sizeof json - (size_t)at, "]}");
  t->metadata = malloc(5 * sizeof(int32_t) + sizeof kName + sizeof kTensor + sizeof kMetadata + (size_t)at);
  int32_t pairs = 2;
  memcpy(t->metadata, &pairs, sizeof pairs);
  char* to = pair(t->metadata + sizeof pairs, kName, sizeof kName - 1);
  to = pair(to, kTensor, sizeof kTensor - 1);
  to = pair(to, kMetadata, sizeof kMetadata - 1);
  pair(to, json, (size_t)at);
  snprintf(t->format, sizeof t->format, "+w:%lld", (long long)size);
  t->child = (struct ArrowSchema){.format = format, .name = "item", .release = release_schema};
  t->children[0] = &t->child;
  schema->format = t->format;
  schema->metadata = t->metadata;
  schema->n_children = 1;
  schema->children = t->children;
}

pathways_error pathways_array_to_arrow(pathways_array array, int32_t shard, struct ArrowArray* data, struct ArrowSchema* schema) {
  static const char formats[][2] = {"b", "c", "s", "i", "l", "C", "S", "I", "L", "e", "f", "g"};
  if (data == NULL || schema == NULL) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_arrow: data or schema is NULL: expected where to write them");
  pathways_array_info_t info = {.struct_size = sizeof info};
  PC_TRY(pathways_array_info(array, &info));
  size_t t = 0;
  while (t < kTypes && types[t].type != info.type) t++;
  if (t == kTypes)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_arrow: Arrow has no type for elements of type %d; use pathways_array_to_dlpack", (int)info.type);
  if (info.num_dims == 0) return pc_fail(PATHWAYS_INVALID_ARGUMENT, "array_to_arrow: Arrow has no scalars: expected at least one dimension");
  pathways_view view;
  const void* bytes;
  PC_TRY(pathways_array_view(array, shard, &view, &bytes));
  int64_t size = 1, count = info.shard_dims[0];
  for (int32_t d = 1; d < info.num_dims; d++) size *= info.shard_dims[d];
  shown* e = calloc(1, sizeof *e);
  e->refs = 1;
  e->view = view;
  e->buffers[1] = bytes;
  if (info.type == PATHWAYS_BOOL) {
    uint8_t* bits = e->bits = calloc(1, (size_t)(count * size) / 8 + 1);
    for (int64_t i = 0; i < count * size; i++) bits[i / 8] |= (uint8_t)(((const uint8_t*)bytes)[i] << (i % 8));
    e->buffers[1] = bits;
    pc_discard(view);
    e->view = 0;
  }
  *data = (struct ArrowArray){.length = count, .n_buffers = 2, .buffers = e->buffers, .release = release_array, .private_data = e};
  if (info.num_dims > 1) {
    e->child[0] = malloc(sizeof *e->child[0]);
    *e->child[0] = *data;
    e->child[0]->length = count * size;
    e->refs = 2;
    data->n_buffers = 1;
    data->buffers = e->nothing;
    data->n_children = 1;
    data->children = e->child;
  }
  describe(schema, formats[t], &info, size);
  return 0;
}
