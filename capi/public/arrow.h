// Arrow data as columns, and columns as Arrow data. The structs are facts of the ABI
// of the Arrow C data interface.
#ifndef PATHWAYS_CAPI_PUBLIC_ARROW_H_
#define PATHWAYS_CAPI_PUBLIC_ARROW_H_

#include "public.h"

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

// pc_column is where an array of numbers lies in Arrow data.
typedef struct {
  const char* name;  // the field's; "" for data that is no record batch
  bool batch;        // it is one of a record batch's
  pathways_type type;
  size_t n;
  int64_t dims[PATHWAYS_MAX_DIMS];   // as they lie
  int64_t order[PATHWAYS_MAX_DIMS];  // of the array's, which of those
  const char* data;
  char* bytes;  // malloc'd, where bits were unpacked
} pc_column;

// pc_arrow_read finds the columns of a record batch, or the one that other data is.
// Nothing that the data says of itself is believed, but that its buffers are as long
// as its arrays need. The list is the caller's, for pc_columns_free.
pathways_error pc_arrow_read(const struct ArrowSchema* schema, const struct ArrowArray* data, pc_column** columns,
                             size_t* n, bool* batch);
void pc_columns_free(pc_column* columns, size_t n);
// pc_column_strides gives the dimensions of a column's array, and its strides in bytes.
void pc_column_strides(const pc_column* c, int64_t* dims, int64_t* strides);

// How Arrow names types of elements: NULL, or 0, where the other side has none.
const char* pc_arrow_format(pathways_type type);
pathways_type pc_arrow_type(const char* format);

extern const char pc_arrow_tensor[], pc_arrow_name[], pc_arrow_metadata[];  // words of a schema's metadata

// pc_arrow_show makes Arrow data of dense bytes: [n] as numbers or booleans, more
// dimensions as a tensor. Drop gives the bytes back, on any thread, when the data has
// been released; for booleans, which are packed, before this returns.
bool pc_arrow_show(pathways_type type, const int64_t* dims, size_t num_dims, const void* bytes,
                   void (*drop)(void* owner), void* owner, struct ArrowArray* data);
// pc_arrow_describe makes the schema of that. False, of both: there is no memory, and nothing was made or dropped.
bool pc_arrow_describe(pathways_type type, const int64_t* dims, size_t num_dims, const char* name,
                       struct ArrowSchema* schema);

#endif  // PATHWAYS_CAPI_PUBLIC_ARROW_H_
