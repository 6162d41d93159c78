// Arrow data for NumPy and back. Only the Python package uses these functions, by ctypes. They use Python's stable ABI,
// looked up when it is first needed: programs without Python use this library, too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "arrow.h"
#include "dlpack.h"

// ---- in ----

// taken is Arrow data that tensors use.
typedef struct {
  struct ArrowArray data;
  _Atomic int64_t users;
} taken;

typedef struct {
  dl_managed tensor;
  taken* data;
  void* bytes;  // or memory of its own
  int64_t dims[];
} numbers;

static void let(taken* t) {
  if (atomic_fetch_sub(&t->users, 1) != 1) return;
  t->data.release(&t->data);
  free(t);
}

static void drop_numbers(dl_managed* tensor) {
  numbers* x = (numbers*)tensor;
  if (x->data) let(x->data);
  free(x->bytes);
  free(x);
}

// column describes a column for Python.
typedef struct {
  dl_managed* tensor;
  const char* name;  // the schema's own
  int64_t converted;  // the bytes are not Arrow's own
} column;

// told is a column, or a list of columns if count is not -1; for pathways_free.
typedef struct {
  column first;
  column* list;
  int64_t count;
} told;

// tell makes a tensor of a column, which keeps the data unless it is converted. It returns false if memory is short.
static bool tell(pc_column* c, taken* t, column* out) {
  numbers* x = pw_zeros(1, sizeof *x + 2 * c->n * sizeof *x->dims);
  if (x == NULL) return false;
  int64_t strides[PATHWAYS_MAX_DIMS], element = (int64_t)pc_element((PJRT_Buffer_Type)c->type), bytes = element;
  pc_column_strides(c, x->dims, strides);
  for (size_t d = 0; d < c->n; d++) {
    x->dims[c->n + d] = strides[d] / element;
    bytes *= x->dims[d];
  }
  const void* data = c->data;
  if (c->bytes) {
    x->bytes = c->bytes;
    c->bytes = NULL;
  } else if ((uintptr_t)data % (uintptr_t)element) {  // Arrow allows it, XLA does not
    x->bytes = pw_alloc((size_t)bytes);
    if (x->bytes == NULL) {
      free(x);
      return false;
    }
    data = memcpy(x->bytes, data, (size_t)bytes);
  } else {
    x->data = t;
    atomic_fetch_add(&t->users, 1);
  }
  x->tensor.tensor = (dl_tensor){.data = (void*)data,
                                 .device = {PC_DL_HOST, 0},
                                 .num_dims = (int32_t)c->n,
                                 .dims = x->dims,
                                 .strides = x->dims + c->n};
  x->tensor.tensor.dtype.lanes = 1;
  pc_dl_type(c->type, &x->tensor.tensor.dtype.code, &x->tensor.tensor.dtype.bits);
  x->tensor.deleter = drop_numbers;
  *out = (column){&x->tensor, c->name, x->bytes != NULL};
  return true;
}

// pathways_numpy_take takes over Arrow data: a record batch as a list of columns, other data as one. Each tensor, an
// unversioned one, belongs to the caller; together they keep the data. If this fails, the data stays the caller's.
pathways_error pathways_numpy_take(const struct ArrowSchema* schema, struct ArrowArray* data, told* out) {
  if (schema->release == NULL || data->release == NULL)
    return pc_fail(PATHWAYS_INVALID_ARGUMENT,
                   "from_arrow: the Arrow data has been released, or was imported before; export it again");
  pc_column* columns;
  size_t n;
  bool batch;
  PC_TRY(pc_arrow_read(schema, data, &columns, &n, &batch));
  taken* t = pw_zeros(1, sizeof *t);
  out->count = batch ? (int64_t)n : -1;
  out->list = batch ? pw_zeros(n, sizeof *out->list) : NULL;
  column* list = batch ? out->list : &out->first;
  bool room = t && list;
  if (room) t->users = 1;
  size_t made = 0;
  while (room && made < n) {
    room = tell(&columns[made], t, &list[made]);
    made += room;
  }
  pc_columns_free(columns, n);
  if (!room) {
    while (made-- > 0)
      list[made].tensor->deleter(list[made].tensor);  // t has one user more, and its data is the caller's
    free(out->list);
    out->list = NULL;
    free(t);
    return pc_no_array(n);
  }
  t->data = *data;
  data->release = NULL;
  let(t);
  return 0;
}

// pathways_numpy_drop frees a tensor that Python did not take over.
void pathways_numpy_drop(dl_managed* tensor) { tensor->deleter(tensor); }

// ---- out ----

// view is Py_buffer.
typedef struct {
  void *buf, *obj;
  ssize_t len, itemsize;
  int readonly, ndim;
  char* format;
  ssize_t *shape, *strides, *suboffsets;
  void* internal;
} view;

enum { kDenseWithFormat = 0x38 | 0x4 };  // PyBUF_C_CONTIGUOUS | PyBUF_FORMAT

static struct {
  void* (*PyCapsule_New)(void*, const char*, void (*)(void*));
  void* (*PyCapsule_GetPointer)(void*, const char*);
  void* (*PyTuple_New)(ssize_t);
  int (*PyTuple_SetItem)(void*, ssize_t, void*);
  ssize_t (*PyTuple_Size)(void*);
  void* (*PyTuple_GetItem)(void*, ssize_t);
  char* (*PyBytes_AsString)(void*);
  int (*PyObject_GetBuffer)(void*, view*, int);
  void (*PyBuffer_Release)(view*);
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int);
  void* (*PyEval_SaveThread)(void);
  void (*PyEval_RestoreThread)(void*);
  int (*Py_IsInitialized)(void);
  void* (*PyCFunction_NewEx)(void* method, void* self, void* module);
  void (*Py_IncRef)(void*);
  void (*Py_DecRef)(void*);
  void* _Py_NoneStruct;
  int (*PyErr_ExceptionMatches)(void*);
  void (*PyErr_Clear)(void);
  void (*PyErr_SetString)(void*, const char*);
  void** PyExc_Exception;
  void** PyExc_TypeError;
  void** PyExc_MemoryError;
} py;

static _Atomic int64_t lent;  // views and structs that Python has and has not released

int64_t pathways_numpy_lent(void) { return atomic_load(&lent); }

// pathways_numpy_python finds Python in this process. It returns 0 if a function is missing.
int pathways_numpy_python(void) {
#define FIND(name) ((py.name = dlsym(RTLD_DEFAULT, #name)) != NULL)
  return FIND(PyCapsule_New) && FIND(PyCapsule_GetPointer) && FIND(PyTuple_New) && FIND(PyTuple_SetItem) &&
         FIND(PyTuple_Size) && FIND(PyTuple_GetItem) && FIND(PyBytes_AsString) && FIND(PyObject_GetBuffer) &&
         FIND(PyBuffer_Release) && FIND(PyGILState_Ensure) && FIND(PyGILState_Release) && FIND(PyEval_SaveThread) &&
         FIND(PyEval_RestoreThread) && FIND(Py_IsInitialized) && FIND(PyErr_SetString) && FIND(PyCFunction_NewEx) &&
         FIND(Py_IncRef) && FIND(Py_DecRef) && FIND(_Py_NoneStruct) && FIND(PyErr_ExceptionMatches) &&
         FIND(PyErr_Clear) && FIND(PyExc_Exception) && FIND(PyExc_TypeError) && FIND(PyExc_MemoryError);
#undef FIND
}

// window is the memory of a Python array, and the type of its elements.
typedef struct {
  _Atomic int32_t refs;
  pathways_type type;
  view view;
} window;

// drop_window may be called on any thread, and after Python's end, when there is nothing left to release.
static void drop_window(void* owner) {
  window* w = owner;
  if (atomic_fetch_sub(&w->refs, 1) != 1) return;
  if (py.Py_IsInitialized()) {
    int state = py.PyGILState_Ensure();
    py.PyBuffer_Release(&w->view);
    py.PyGILState_Release(state);
  }
  free(w);
  atomic_fetch_sub(&lent, 1);
}

// type_of reads the name that NumPy and JAX give to a type of elements.
static pathways_type type_of(const view* v) {
  static const pathways_type ints[] = {[1] = PATHWAYS_S8, [2] = PATHWAYS_S16, [4] = PATHWAYS_S32, [8] = PATHWAYS_S64};
  static const pathways_type uints[] = {[1] = PATHWAYS_U8, [2] = PATHWAYS_U16, [4] = PATHWAYS_U32, [8] = PATHWAYS_U64};
  const char* format = v->format ? v->format : "";
  if (*format == '=') format++;
  char letter = format[0];
  if (letter == 0 || format[1] || v->itemsize > 8) return 0;
  if (strchr("bhilq", letter)) return ints[v->itemsize];
  if (strchr("BHILQ", letter)) return uints[v->itemsize];
  return letter == '?'   ? PATHWAYS_BOOL
         : letter == 'e' ? PATHWAYS_F16
         : letter == 'f' ? PATHWAYS_F32
         : letter == 'd' ? PATHWAYS_F64
                         : 0;
}

// no_memory sets Python's own exception.
static void no_memory(void) {
  py.PyErr_SetString(*py.PyExc_MemoryError, "this process has no memory left for Arrow data of an array");
}

// look returns the memory of an array that is dense and has dimensions. NULL: an exception is set.
static window* look(void* host) {
  window* w = pw_alloc(sizeof *w);
  if (w == NULL) {
    no_memory();
    return NULL;
  }
  if (py.PyObject_GetBuffer(host, &w->view, kDenseWithFormat)) {
    free(w);
    return NULL;
  }
  atomic_init(&w->refs, 1);
  atomic_fetch_add(&lent, 1);
  w->type = type_of(&w->view);
  if (w->type && w->view.ndim > 0) return w;
  drop_window(w);
  py.PyErr_SetString(*py.PyExc_TypeError, "Arrow has no such elements, or no scalars");
  return NULL;
}

// show makes Arrow data of a window. If memory is short it returns false, with an exception set.
static bool show(window* w, const char* name, struct ArrowSchema* schema, struct ArrowArray* data) {
  size_t n = (size_t)w->view.ndim;
  int64_t dims[n];
  for (size_t d = 0; d < n; d++) dims[d] = w->view.shape[d];
  if (!pc_arrow_describe(w->type, dims, n, name, schema)) {
    no_memory();
    return false;
  }
  atomic_fetch_add(&w->refs, 1);
  // Packing booleans takes time that grows with their number.
  void* thread = w->type == PATHWAYS_BOOL ? py.PyEval_SaveThread() : NULL;
  bool shown = pc_arrow_show(w->type, dims, n, w->view.buf, drop_window, w, data);
  if (thread) py.PyEval_RestoreThread(thread);
  if (shown) return true;
  drop_window(w);
  schema->release(schema);
  no_memory();
  return false;
}

// Both structs of a capsule begin a block of their own.
static void destroy_schema(void* capsule) {
  struct ArrowSchema* s = py.PyCapsule_GetPointer(capsule, "arrow_schema");
  if (s->release) s->release(s);
  free(s);
  atomic_fetch_sub(&lent, 1);
}

static void destroy_array(void* capsule) {
  struct ArrowArray* a = py.PyCapsule_GetPointer(capsule, "arrow_array");
  if (a->release) a->release(a);
  free(a);
  atomic_fetch_sub(&lent, 1);
}

// columns is the memory of a record batch.
typedef struct {
  _Atomic int32_t refs;  // schema and data
  size_t n;
  struct ArrowSchema *schemas, **fields;
  struct ArrowArray *arrays, **children;
  const void* nothing[1];
} columns;

static void drop_columns(columns* c) {
  if (atomic_fetch_sub(&c->refs, 1) != 1) return;
  free(c->schemas);
  free(c->fields);
  free(c->arrays);
  free(c->children);
  free(c);
}

static void release_fields(struct ArrowSchema* s) {
  columns* c = s->private_data;
  for (size_t i = 0; i < c->n; i++)
    if (c->schemas[i].release) c->schemas[i].release(&c->schemas[i]);
  s->release = NULL;
  drop_columns(c);
}

static void release_columns(struct ArrowArray* a) {
  columns* c = a->private_data;
  for (size_t i = 0; i < c->n; i++)
    if (c->arrays[i].release) c->arrays[i].release(&c->arrays[i]);
  a->release = NULL;
  drop_columns(c);
}

// show_batch is show for several arrays of equal length.
static bool show_batch(void* hosts, void* names, int64_t length, struct ArrowSchema* schema, struct ArrowArray* data) {
  columns* c = pw_zeros(1, sizeof *c);
  if (c == NULL) {
    no_memory();
    return false;
  }
  c->n = (size_t)py.PyTuple_Size(hosts);
  if (!((c->schemas = pw_zeros(c->n, sizeof *c->schemas)) && (c->fields = pw_zeros(c->n, sizeof *c->fields)) &&
        (c->arrays = pw_zeros(c->n, sizeof *c->arrays)) && (c->children = pw_zeros(c->n, sizeof *c->children)))) {
    c->refs = 1;
    drop_columns(c);
    no_memory();
    return false;
  }
  c->refs = 2;
  *schema = (struct ArrowSchema){.format = "+s",
                                 .name = "",
                                 .n_children = (int64_t)c->n,
                                 .children = c->fields,
                                 .release = release_fields,
                                 .private_data = c};
  *data = (struct ArrowArray){.length = length,
                              .n_buffers = 1,
                              .n_children = (int64_t)c->n,
                              .buffers = c->nothing,
                              .children = c->children,
                              .release = release_columns,
                              .private_data = c};
  for (size_t i = 0; i < c->n; i++) {
    c->fields[i] = &c->schemas[i];
    c->children[i] = &c->arrays[i];
    const char* name = py.PyBytes_AsString(py.PyTuple_GetItem(names, (ssize_t)i));
    window* w = name ? look(py.PyTuple_GetItem(hosts, (ssize_t)i)) : NULL;
    bool shown = w && show(w, name, &c->schemas[i], &c->arrays[i]);
    if (w) drop_window(w);
    if (!shown) {
      schema->release(schema);
      data->release(data);
      return false;
    }
  }
  return true;
}

static void* capsules(struct ArrowSchema* schema, struct ArrowArray* data) {
  atomic_fetch_add(&lent, 2);
  void* both = py.PyTuple_New(2);
  py.PyTuple_SetItem(both, 0, py.PyCapsule_New(schema, "arrow_schema", destroy_schema));
  py.PyTuple_SetItem(both, 1, py.PyCapsule_New(data, "arrow_array", destroy_array));
  return both;
}

// pathways_numpy_show_batch returns the two capsules of __arrow_c_array__ for a tuple of arrays, dense and with
// dimensions, and a tuple of their names as bytes. They keep the memory. NULL: an exception is set. Called with the
// GIL.
void* pathways_numpy_show_batch(void* hosts, void* names, int64_t length) {
  struct ArrowSchema* schema = pw_alloc(sizeof *schema);
  struct ArrowArray* data = pw_alloc(sizeof *data);
  if (schema == NULL || data == NULL)
    no_memory();
  else if (show_batch(hosts, names, length, schema, data))
    return capsules(schema, data);
  free(schema);
  free(data);
  return NULL;
}

// The rest is called so often that ctypes would cost more than the work itself, so these are built-in functions.
// PyMethodDef is part of the stable ABI.
typedef struct {
  const char* name;
  void* function;
  int flags;
  const char* doc;
} method;

static const char kWindow[] = "pathways.window";

static void destroy_window(void* capsule) { drop_window(py.PyCapsule_GetPointer(capsule, kWindow)); }

// show_one is an array's __arrow_c_array__. The requested schema is only a hint, and is ignored.
static void* show_one(void* self, void* const* args, ssize_t count, void* names) {
  (void)args, (void)count, (void)names;
  window* w = py.PyCapsule_GetPointer(self, kWindow);
  if (w == NULL) return NULL;
  struct ArrowSchema* schema = pw_alloc(sizeof *schema);
  struct ArrowArray* data = pw_alloc(sizeof *data);
  if (schema == NULL || data == NULL)
    no_memory();
  else if (show(w, "", schema, data))
    return capsules(schema, data);
  free(schema);
  free(data);
  return NULL;
}

// lend returns the __arrow_c_array__ of an array, which keeps its memory; None for an array that must first be examined
// in Python.
static void* lend(void* self, void* host) {
  static method show_one_method = {"__arrow_c_array__", show_one, 0x80 | 0x02, NULL};  // METH_FASTCALL | METH_KEYWORDS
  (void)self;
  window* w = look(host);
  if (w == NULL) {
    if (!py.PyErr_ExceptionMatches(*py.PyExc_Exception)) return NULL;  // such as KeyboardInterrupt
    py.PyErr_Clear();
    py.Py_IncRef(py._Py_NoneStruct);
    return py._Py_NoneStruct;
  }
  void* capsule = py.PyCapsule_New(w, kWindow, destroy_window);
  void* bound = py.PyCFunction_NewEx(&show_one_method, capsule, NULL);
  py.Py_DecRef(capsule);
  return bound;
}

// pathways_numpy_lend returns lend as a Python function. Called with the GIL.
void* pathways_numpy_lend(void) {
  static method lend_method = {"lend", lend, 0x08, NULL};  // METH_O
  return py.PyCFunction_NewEx(&lend_method, NULL, NULL);
}
