// The structure of Arrow data: its columns, their types, shapes and memory.
//
// It comes from another library, so every number is checked before it is used: lengths and offsets are below kLongest,
// so a sum of two does not overflow, and a product is checked where it is made. No list is read beyond the elements
// that its child says it has. How long a buffer is, the Arrow C data interface does not say; it follows from those
// numbers, and there they are believed.
//
// A column points into the caller's buffers. Only booleans are copied, since they are bits there and bytes in arrays.
#include <stdlib.h>

#include "arrow.h"

enum { kMost = 1 << 20 };  // fields, or bytes of metadata: more than that is not a schema
static const int64_t kLongest = (int64_t)1 << 60;  // so that sums of a few do not overflow

// ---- the metadata of a tensor ----

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

// string returns what is between quotes; escapes stay as they are.
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

// list reads numbers or strings in brackets. Count is -1 for a list of anything else.
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

// value finds a key in a schema's metadata. It returns 1 if the key is there, 0 if not, -1 if the metadata is damaged.
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

#define REFUSE(c, ...)                                                                                         \
  pc_fail(PATHWAYS_INVALID_ARGUMENT, "%s%s%s " FIRST(__VA_ARGS__), (c)->batch ? "column '" : "the Arrow data", \
          (c)->name, (c)->batch ? "'" : "" REST(__VA_ARGS__))
#define FIRST(format, ...) format
#define REST(format, ...) , ##__VA_ARGS__

// ones counts the bits that are set, starting at a bit.
static int64_t ones(const uint8_t* bits, int64_t start, int64_t count) {
  int64_t n = 0, i = start, end = start + count;
  for (; i < end && i % 8; i++) n += bits[i / 8] >> (i % 8) & 1;
  for (uint64_t word; i + 64 <= end; i += 64) {
    memcpy(&word, bits + i / 8, sizeof word);
    n += __builtin_popcountll(word);
  }
  for (; i < end; i++) n += bits[i / 8] >> (i % 8) & 1;
  return n;
}

// unpack writes one byte for each bit.
static void unpack(const uint8_t* bits, int64_t start, int64_t count, char* bytes) {
  int64_t i = 0;
  for (; i < count && (start + i) % 8; i++) bytes[i] = bits[(start + i) / 8] >> ((start + i) % 8) & 1;
  for (; i + 8 <= count; i += 8) {
    // Byte k keeps bit k, and becomes 1 if the bit is set.
    uint64_t each = bits[(start + i) / 8] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    each = (each + UINT64_C(0x007f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
    memcpy(bytes + i, &each, sizeof each);
  }
  for (; i < count; i++) bytes[i] = bits[(start + i) / 8] >> ((start + i) % 8) & 1;
}

static pathways_error sane(const struct ArrowArray* a, const pc_column* c) {
  if (a->length < 0 || a->length >= kLongest || a->offset < 0 || a->offset >= kLongest || a->n_buffers < 0 ||
      a->n_children < 0 || a->n_children > kMost)
    return REFUSE(c, "says that it has %lld elements from %lld on, %lld buffers and %lld children",
                  (long long)a->length, (long long)a->offset, (long long)a->n_buffers, (long long)a->n_children);
  return 0;
}

static pathways_error no_nulls(const struct ArrowArray* a, int64_t start, int64_t count, const pc_column* c) {
  if (a->null_count == 0 || count == 0 || a->n_buffers == 0 || a->buffers == NULL || a->buffers[0] == NULL) return 0;
  int64_t nulls = count - ones(a->buffers[0], start, count);
  return nulls ? REFUSE(c, "has %lld nulls, which arrays cannot hold; fill them (fill_null) or drop them first",
                        (long long)nulls)
               : 0;
}

// read adds an Arrow array to a column: count elements from start, which counts from the beginning of the buffers.
static pathways_error read(const struct ArrowSchema* s, const struct ArrowArray* a, int64_t start, int64_t count,
                           pc_column* c) {
  const char* format = s->format ? s->format : "";
  if (s->dictionary || a->dictionary) return REFUSE(c, "is dictionary-encoded; decode it first (dictionary_decode)");
  bool nested = strncmp(format, "+w:", 3) == 0;
  pathways_type type = nested ? 0 : pc_arrow_type(format);
  if (!nested && type == 0)
    return REFUSE(
        c,
        "has the Arrow type '%s', which is no array of numbers; expected numbers, booleans or fixed-size lists of them"
        " (cast it first)",
        format);
  if (a->n_buffers != (nested ? 1 : 2) || a->n_children != nested || s->n_children != nested || a->buffers == NULL ||
      (nested && (a->children == NULL || s->children == NULL || a->children[0] == NULL || s->children[0] == NULL)))
    return REFUSE(c, "of type \"%s\" has %lld buffers and %lld children: expected %d and %d", format,
                  (long long)a->n_buffers, (long long)a->n_children, nested ? 1 : 2, nested);
  PC_TRY(no_nulls(a, start, count, c));
  if (!nested) {
    size_t element = pc_element((PJRT_Buffer_Type)type);
    c->type = type;
    if (count && a->buffers[1] == NULL) return REFUSE(c, "has %lld elements and no buffer", (long long)count);
    if (c->type == PATHWAYS_BOOL) {
      if ((c->bytes = pw_alloc((size_t)count)) == NULL)
        return REFUSE(c, "has %lld booleans, which do not fit into memory", (long long)count);
      if (count) unpack(a->buffers[1], start, count, c->bytes);
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
    return REFUSE(c, "has more lists of %lld elements than their %lld are enough for", (long long)size,
                  (long long)child->length);
  const char *text, *told = "";
  size_t length, told_size = 0;
  int dims = 1, named = value(s->metadata, pc_arrow_name, &text, &length);
  shape[0] = size;
  if (named < 0) return REFUSE(c, "has metadata that is damaged");
  if (named && length == strlen(pc_arrow_tensor) && memcmp(text, pc_arrow_tensor, length) == 0) {
    if (value(s->metadata, pc_arrow_metadata, &told, &told_size) < 0 ||
        !tensor(told, told_size, size, shape, order, &dims))
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

static pathways_error columns_of(const struct ArrowSchema* schema, const struct ArrowArray* data, bool batch,
                                 pc_column* columns, size_t n) {
  pc_column top = {.name = ""};
  for (size_t i = 0; i < n; i++) {
    const struct ArrowSchema* field = batch ? schema->children[i] : schema;
    const struct ArrowArray* a = batch ? data->children[i] : data;
    pc_column* c = &columns[i];
    c->batch = batch;
    c->name = batch && field && field->name ? field->name : "";
    if (field == NULL || a == NULL) return REFUSE(&top, "has no column %zu where it says that it is", i);
    PC_TRY(sane(a, c));
    if (batch && a->length < data->offset + data->length)
      return REFUSE(c, "has %lld elements, and its record batch %lld", (long long)a->length,
                    (long long)(data->offset + data->length));
    c->n = 1;
    c->dims[0] = data->length;
    PC_TRY(read(field, a, a->offset + (batch ? data->offset : 0), data->length, c));
  }
  return 0;
}

pathways_error pc_arrow_read(const struct ArrowSchema* schema, const struct ArrowArray* data, pc_column** columns,
                             size_t* n, bool* batch) {
  pc_column top = {.name = ""};
  PC_TRY(sane(data, &top));
  *batch = schema->format && strcmp(schema->format, "+s") == 0;
  if (*batch && (schema->n_children != data->n_children ||
                 (data->n_children && (schema->children == NULL || data->children == NULL))))
    return REFUSE(&top, "has %lld columns in its schema and %lld in its data", (long long)schema->n_children,
                  (long long)data->n_children);
  if (*batch) PC_TRY(no_nulls(data, data->offset, data->length, &top));
  *n = *batch ? (size_t)data->n_children : 1;
  *columns = pw_zeros(*n, sizeof **columns);
  if (*columns == NULL) return pc_fail(PATHWAYS_RESOURCE_EXHAUSTED, "Arrow data: no memory for %zu columns", *n);
  pathways_error err = columns_of(schema, data, *batch, *columns, *n);
  if (err) pc_columns_free(*columns, *n);
  return err;
}

void pc_columns_free(pc_column* columns, size_t n) {
  for (size_t i = 0; i < n; i++) free(columns[i].bytes);
  free(columns);
}

void pc_column_strides(const pc_column* c, int64_t* dims, int64_t* strides) {
  int64_t lie[PATHWAYS_MAX_DIMS], at = (int64_t)pc_element((PJRT_Buffer_Type)c->type);
  for (size_t d = c->n; d-- > 0;) {
    lie[d] = at;
    at *= c->dims[d] ? c->dims[d] : 1;
  }
  for (size_t d = 0; d < c->n; d++) {
    dims[d] = c->dims[c->order[d]];
    strides[d] = lie[c->order[d]];
  }
}
