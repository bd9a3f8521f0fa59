/* Makes rows of Summaries of CUDA tensors by one call each: what RowMaker.row does of a dense
   tensor, once its kernels are compiled.

   The driver is asked by its own library, which is there wherever there is such a tensor; nothing
   of CUDA is needed to build this. The interpreter's lock is kept while a kernel is launched: it
   takes microseconds, and who lets go of the lock waits for the thread that writes. Only where
   many rows are under way, so that the driver may have to wait for room in its queue, is it let
   go: what runs on the device may need a thread of the program. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <string.h>

#define MOST_ARGUMENTS 24
#define ALIGNED 16
#define MANY_UNDER_WAY 192 /* rows; the driver's queue has room for some thousand launches */

typedef unsigned long long Word;
typedef int (*LaunchKernel)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, unsigned shared, void *stream, void **arguments, void **);

typedef struct {
    PyObject_HEAD
    Word address, row_nbytes, host; /* of its first row, on the device and on the host */
    long num_filled, num_finished, num_arrived, most;
} Slate;

typedef struct {
    PyObject_HEAD
    Word sums, totals, partials, sums_nbytes, totals_nbytes, partials_nbytes; /* one's, strides */
    long num_places;
    PyObject *slate; /* that the next row belongs to, or None */
} Workbench;

typedef struct {
    Word function;
    unsigned grid[3], num_threads, shared;
    int count; /* of arguments that it takes */
    Word values[MOST_ARGUMENTS];
} Kernel;

typedef struct {
    PyObject_HEAD
    long device;
    PyObject *number; /* of the device */
    PyObject *current_device, *current_stream, *find;
    Kernel sum, add;
    char adds;
    Word stream;
    unsigned long thread;
    PyObject *scratch; /* of that stream and thread, or NULL */
} Rows;

typedef struct {
    PyObject_HEAD
    PyObject *slate;
    long number;
} Filler;

static PyObject *slate_type, *scratch_type, *rows_type, *filler_type;
static LaunchKernel launch_kernel;
static long long num_under_way;

/* ---- launching ---- */

static int launch(Kernel *kernel, Word stream)
{
    void *places[MOST_ARGUMENTS];
    if (!launch_kernel) {
        PyErr_SetString(PyExc_RuntimeError, "no driver was opened");
        return -1;
    }
    for (int i = 0; i < kernel->count; i++)
        places[i] = &kernel->values[i];
    unsigned *grid = kernel->grid;
    int failed;
    if (num_under_way > MANY_UNDER_WAY) {
        Kernel own = *kernel; /* another thread may come in the meantime */
        for (int i = 0; i < own.count; i++)
            places[i] = &own.values[i];
        Py_BEGIN_ALLOW_THREADS
        failed = launch_kernel((void *)own.function, grid[0], grid[1], grid[2], own.num_threads, 1,
                               1, own.shared, (void *)stream, places, NULL);
        Py_END_ALLOW_THREADS
    } else {
        failed = launch_kernel((void *)kernel->function, grid[0], grid[1], grid[2],
                               kernel->num_threads, 1, 1, kernel->shared, (void *)stream, places,
                               NULL);
    }
    if (failed)
        PyErr_Format(PyExc_RuntimeError, "the driver did not launch a kernel: error %d", failed);
    return failed ? -1 : 0;
}

/* A kernel of a DriverKernel, with `pointers` behind `num_open` that are set for each launch, and
   `num_last` more before its `numbers`. */
static int prepare(Kernel *kernel, PyObject *compiled, int num_open, PyObject *pointers,
                   int num_last, PyObject *numbers)
{
    Py_buffer widths;
    PyObject *grid = PyTuple_GetItem(compiled, 1);
    unsigned *dims = kernel->grid;
    if (!grid || !PyArg_ParseTuple(grid, "III", &dims[0], &dims[1], &dims[2]))
        return -1;
    kernel->function = PyLong_AsUnsignedLongLong(PyTuple_GetItem(compiled, 0));
    kernel->num_threads = (unsigned)PyLong_AsUnsignedLong(PyTuple_GetItem(compiled, 2));
    kernel->shared = (unsigned)PyLong_AsUnsignedLong(PyTuple_GetItem(compiled, 3));
    if (PyErr_Occurred() || PyObject_GetBuffer(PyTuple_GetItem(compiled, 4), &widths, PyBUF_SIMPLE))
        return -1;
    const unsigned char *width = widths.buf;
    Py_ssize_t num_pointers = PyTuple_Size(pointers), num_numbers = PyTuple_Size(numbers);
    Py_ssize_t ours = num_open + num_pointers + num_last + num_numbers;
    int failed = ours > widths.len || widths.len > MOST_ARGUMENTS;
    kernel->count = 0;
    for (Py_ssize_t i = 0; !failed && i < widths.len; i++) {
        PyObject *given = NULL;
        Py_ssize_t number = i - num_open;
        if (number >= 0 && number < num_pointers)
            given = PyTuple_GetItem(pointers, number);
        number -= num_pointers + num_last;
        if (number >= 0 && number < num_numbers)
            given = PyTuple_GetItem(numbers, number);
        Word value = given ? PyLong_AsUnsignedLongLongMask(given) : 0;
        failed = PyErr_Occurred() != NULL || (i < num_open && width[i] != 8);
        if (width[i])
            kernel->values[kernel->count++] = value;
    }
    PyBuffer_Release(&widths);
    if (failed && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a kernel with other arguments");
    return failed ? -1 : 0;
}

/* ---- rows ---- */

/* Room for one row more: the scratch memory and the slate that it belongs to; borrowed. */
static Workbench *room_of(Rows *self, Word stream, PyObject *number, Slate **slate)
{
    unsigned long thread = PyThread_get_thread_ident();
    if (!self->scratch || self->stream != stream || self->thread != thread) {
        PyObject *found = PyObject_CallFunctionObjArgs(self->find, number, NULL);
        if (!found)
            return NULL;
        if (!PyObject_TypeCheck(found, (PyTypeObject *)scratch_type)) {
            Py_DECREF(found);
            PyErr_SetString(PyExc_TypeError, "no scratch memory");
            return NULL;
        }
        PyObject *before = self->scratch;
        self->scratch = found;
        Py_XDECREF(before);
        self->stream = stream;
        self->thread = thread;
    }
    Workbench *scratch = (Workbench *)self->scratch;
    PyObject *found = scratch->slate;
    if (!found || found == Py_None || ((Slate *)found)->num_filled >= ((Slate *)found)->most) {
        found = PyObject_GetAttrString((PyObject *)scratch, "batch"); /* a new one, kept there */
        Py_XDECREF(found);
        if (!found || found != scratch->slate)
            return NULL;
    }
    if (!PyObject_TypeCheck(found, (PyTypeObject *)slate_type)) {
        PyErr_SetString(PyExc_TypeError, "no slate");
        return NULL;
    }
    *slate = (Slate *)found;
    return scratch;
}

static int make_row(Rows *self, Word address, Word stream, Workbench *scratch, Slate *slate)
{
    Word place = (Word)(slate->num_filled % scratch->num_places);
    self->sum.values[0] = address;
    self->sum.values[1] = scratch->sums + place * scratch->sums_nbytes;
    self->sum.values[2] = scratch->totals + place * scratch->totals_nbytes;
    if (launch(&self->sum, stream) < 0)
        return -1;
    if (self->adds) {
        self->add.values[0] = address;
        self->add.values[3] = scratch->partials + place * scratch->partials_nbytes;
        if (launch(&self->add, stream) < 0)
            return -1;
    }
    slate->num_filled++;
    num_under_way++;
    if (slate->num_filled % scratch->num_places && slate->num_filled < slate->most)
        return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)scratch, "finish", "O", slate);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The row of what lies at (address, tensor): what fills a room with it later. None where that is
   on another device than the current one, or does not lie as kernels want it. */
static PyObject *rows_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Rows *self = (Rows *)object;
    if (kwargs || PyTuple_Size(args) != 2)
        return PyErr_Format(PyExc_TypeError, "it takes an address and its tensor");
    Word address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(args, 0));
    PyObject *device = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(self->current_device);
    if (!device)
        return NULL;
    int elsewhere = PyLong_AsLong(device) != self->device || address % ALIGNED;
    Py_DECREF(device);
    if (elsewhere)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *number = PyObject_CallFunctionObjArgs(self->current_stream, self->number, NULL);
    if (!number)
        return NULL;
    Word stream = PyLong_AsUnsignedLongLong(number);
    Slate *slate = NULL;
    Workbench *scratch = PyErr_Occurred() ? NULL : room_of(self, stream, number, &slate);
    Py_DECREF(number);
    Filler *filler = NULL;
    if (scratch && (filler = PyObject_New(Filler, (PyTypeObject *)filler_type))) {
        filler->slate = Py_NewRef((PyObject *)slate);
        filler->number = slate->num_filled;
        Py_INCREF((PyObject *)scratch);
        int failed = make_row(self, address, stream, scratch, slate);
        Py_DECREF((PyObject *)scratch);
        if (failed < 0)
            Py_CLEAR(filler);
    }
    return (PyObject *)filler;
}

/* Fill a room with the row; waits for the device where it has not arrived. */
static PyObject *filler_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Filler *self = (Filler *)object;
    Slate *slate = (Slate *)self->slate;
    Py_buffer room;
    if (kwargs || PyTuple_Size(args) != 1)
        return PyErr_Format(PyExc_TypeError, "it takes the room to fill");
    if (self->number >= slate->num_arrived) {
        PyObject *done = PyObject_CallMethod(self->slate, "fetch", "l", self->number);
        Py_XDECREF(done);
        if (!done)
            return NULL;
    }
    if (self->number >= slate->num_arrived || !slate->host)
        return PyErr_Format(PyExc_RuntimeError, "row %ld did not arrive", self->number);
    if (PyObject_GetBuffer(PyTuple_GetItem(args, 0), &room, PyBUF_WRITABLE))
        return NULL;
    int fits = (Word)room.len == slate->row_nbytes;
    if (fits)
        memcpy(room.buf, (char *)slate->host + (Word)self->number * slate->row_nbytes,
               slate->row_nbytes);
    PyBuffer_Release(&room);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "a row has %llu bytes", slate->row_nbytes);
    Py_RETURN_NONE;
}

/* ---- types ---- */

static PyObject *new_object(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *number, *device, *stream, *find, *sum, *add, *pointers, *numbers, *more;
    if (kwargs || !PyArg_ParseTuple(args, "O!OOOO!OO!O!O", &PyLong_Type, &number, &device, &stream,
                                    &find, &PyTuple_Type, &sum, &add, &PyTuple_Type, &pointers,
                                    &PyTuple_Type, &numbers, &more))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Rows takes no keywords") : NULL;
    Rows *self = (Rows *)new_object(type);
    if (!self)
        return NULL;
    self->device = PyLong_AsLong(number);
    self->number = Py_NewRef(number);
    self->current_device = Py_NewRef(device);
    self->current_stream = Py_NewRef(stream);
    self->find = Py_NewRef(find);
    self->adds = add != Py_None;
    int failed = prepare(&self->sum, sum, 3, pointers, 0, numbers);
    if (!failed && self->adds)
        failed = !PyTuple_Check(more) ||
                 prepare(&self->add, add, 1, PyTuple_GetItem(more, 0), 1, PyTuple_GetItem(more, 1));
    if (failed || PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int rows_traverse(PyObject *object, visitproc visit, void *arg)
{
    Rows *self = (Rows *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->find);
    Py_VISIT(self->scratch);
    return 0;
}

static int rows_clear(PyObject *object)
{
    Rows *self = (Rows *)object;
    Py_CLEAR(self->number);
    Py_CLEAR(self->current_device);
    Py_CLEAR(self->current_stream);
    Py_CLEAR(self->find);
    Py_CLEAR(self->scratch);
    return 0;
}

static void rows_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    rows_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void plain_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == (PyTypeObject *)filler_type)
        Py_CLEAR(((Filler *)object)->slate);
    else /* a slate: nobody waits for what is left on it */
        num_under_way -= ((Slate *)object)->num_filled - ((Slate *)object)->num_arrived;
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int scratch_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Workbench *)object)->slate);
    return 0;
}

static int scratch_clear(PyObject *object)
{
    Py_CLEAR(((Workbench *)object)->slate);
    return 0;
}

static void scratch_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    scratch_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#define MEMBER(type, name, kind) {#name, kind, offsetof(type, name), 0, NULL}

static PyMemberDef slate_members[] = {
    MEMBER(Slate, address, T_ULONGLONG), MEMBER(Slate, row_nbytes, T_ULONGLONG),
    MEMBER(Slate, host, T_ULONGLONG), MEMBER(Slate, num_filled, T_LONG),
    MEMBER(Slate, num_finished, T_LONG), MEMBER(Slate, num_arrived, T_LONG),
    MEMBER(Slate, most, T_LONG), {NULL, 0, 0, 0, NULL}};
static PyMemberDef scratch_members[] = {
    MEMBER(Workbench, sums, T_ULONGLONG), MEMBER(Workbench, totals, T_ULONGLONG),
    MEMBER(Workbench, partials, T_ULONGLONG), MEMBER(Workbench, sums_nbytes, T_ULONGLONG),
    MEMBER(Workbench, totals_nbytes, T_ULONGLONG), MEMBER(Workbench, partials_nbytes, T_ULONGLONG),
    MEMBER(Workbench, num_places, T_LONG), MEMBER(Workbench, slate, T_OBJECT),
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot slate_slots[] = {{Py_tp_members, slate_members},
                                    {Py_tp_dealloc, plain_free},
                                    {Py_tp_doc, "Rows of one length, and how far they are."},
                                    {0, NULL}};
static PyType_Slot scratch_slots[] = {{Py_tp_members, scratch_members},
                                      {Py_tp_dealloc, scratch_free},
                                      {Py_tp_traverse, scratch_traverse},
                                      {Py_tp_clear, scratch_clear},
                                      {Py_tp_doc, "Where sums lie before they are rows."},
                                      {0, NULL}};
static PyType_Slot rows_slots[] = {{Py_tp_new, rows_new},
                                   {Py_tp_call, rows_call},
                                   {Py_tp_dealloc, rows_free},
                                   {Py_tp_traverse, rows_traverse},
                                   {Py_tp_clear, rows_clear},
                                   {Py_tp_doc, "Makes rows of tensors of one length and dtype."},
                                   {0, NULL}};
static PyType_Slot filler_slots[] = {
    {Py_tp_call, filler_call}, {Py_tp_dealloc, plain_free}, {0, NULL}};

static PyType_Spec slate_spec = {"_rows.Slate", sizeof(Slate), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slate_slots};
static PyType_Spec scratch_spec = {
    "_rows.Workbench", sizeof(Workbench), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, scratch_slots};
static PyType_Spec rows_spec = {"_rows.Rows", sizeof(Rows), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, rows_slots};
static PyType_Spec filler_spec = {"_rows.Filler", sizeof(Filler), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  filler_slots};

/* Launch by the function `cuLaunchKernel` of a library; whether it has that. */
static PyObject *open_driver(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, "cuLaunchKernel") : NULL;
    memcpy(&launch_kernel, &found, sizeof found);
    return PyBool_FromLong(found != NULL);
}

/* So many rows more are under way, or fewer: those that have arrived; gives how many there are. */
static PyObject *under_way(PyObject *self, PyObject *change)
{
    (void)self;
    long long more = PyLong_AsLongLong(change);
    if (more == -1 && PyErr_Occurred())
        return NULL;
    num_under_way += more;
    return PyLong_FromLongLong(num_under_way);
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_VARARGS, "Launch by the driver of this name, if it can."},
    {"under_way", under_way, METH_O, "Count so many rows more that are under way."},
    {NULL, NULL, 0, NULL}};

static int make(PyObject *made)
{
    struct {
        const char *name;
        PyType_Spec *spec;
        PyObject **type;
    } types[] = {{"Slate", &slate_spec, &slate_type},
                 {"Workbench", &scratch_spec, &scratch_type},
                 {"Rows", &rows_spec, &rows_type},
                 {"Filler", &filler_spec, &filler_type}};
    if (rows_type) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = PyType_FromSpec(types[i].spec);
        if (!*types[i].type || PyModule_AddObjectRef(made, types[i].name, *types[i].type) < 0)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, make}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rows", "Rows of Summaries of CUDA tensors.", 0, methods, slots, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
